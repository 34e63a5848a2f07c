"""Huffman-coded strings of HPACK (RFC 7541 section 5.2, appendix B): decoding only.

The code of appendix B is canonical: sorted by length and then by symbol, the codes are successive
numbers. So the symbols of each length say everything.

Decoding goes byte by byte through a table of (state, byte) -> (state, symbols). A state is a node
of the code's tree, 256 in all; entries are made when they are first needed, because the text of
headers needs few of the 65,536.
"""

from __future__ import annotations

from typing import Final

#: Symbols by the length of their code in bits. The end-of-string symbol is last and left out.
SYMBOLS: Final = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: bytes.fromhex("5cc3d0"),
    20: bytes.fromhex("808283a2b8c2e0e2"),
    21: bytes.fromhex("99a1a7acb0b1b3d1d8d9e3e5e6"),
    22: bytes.fromhex("8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9"),
    23: bytes.fromhex("0187898a8b8c8d8f9395969798 9b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef"),
    24: bytes.fromhex("098e9091949fabced7e1eced"),
    25: bytes.fromhex("c7cfeaeb"),
    26: bytes.fromhex("c0c1c8c9cacdd2d5dadbeef0f2f3ff"),
    27: bytes.fromhex("cbccd3d4d6dddedff1f4f5f6f7f8fafbfcfdfe"),
    28: bytes.fromhex("02030405060708 0b0c0e0f1011121314151718191a1b1c1d1e1f7fdcf9"),
    30: bytes.fromhex("0a0d16"),
}
#: Length of the end-of-string code: 30 ones, which must not appear (section 5.2).
_END_BITS: Final = 30


class InvalidHuffman(Exception):
    """The string holds the end-of-string symbol, or padding that is not the start of it."""


def codes() -> dict[int, tuple[int, int]]:
    """Code and length in bits of each symbol."""
    found: dict[int, tuple[int, int]] = {}
    code = length = 0
    for bits, symbols in SYMBOLS.items():
        code <<= bits - length
        length = bits
        for symbol in symbols:
            found[symbol] = code, bits
            code += 1
    return found


def _tree() -> tuple[list[list[int]], frozenset[int]]:
    """Nodes as pairs of children, and those where a string may end.

    A child that is a node is its number, a symbol is -1 - symbol, nothing is 0 (the root is
    nobody's child). Padding is up to seven ones, so a string may end on the path of ones.
    """
    nodes = [[0, 0]]
    for symbol, (code, bits) in codes().items():
        node = 0
        for shift in range(bits - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[node][bit]:
                nodes.append([0, 0])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][code & 1] = -1 - symbol
    ends, node = [0], 0
    for _ in range(7):
        node = nodes[node][1]
        ends.append(node)
    return nodes, frozenset(node << 8 for node in ends)


_NODES, _ENDS = _tree()
#: State and byte in, state and symbols out; a state is a node's number, shifted for the index.
_STEPS: Final[list[tuple[int, bytes] | None]] = [None] * (len(_NODES) << 8)


def _step(state: int, byte: int) -> tuple[int, bytes]:
    """One entry of the table. Raises InvalidHuffman."""
    node, text = state >> 8, bytearray()
    for shift in range(7, -1, -1):
        child = _NODES[node][byte >> shift & 1]
        if child > 0:
            node = child
        elif child < 0:
            text.append(-1 - child)
            node = 0
        else:
            raise InvalidHuffman("the end-of-string symbol is inside a string")
    step = node << 8, bytes(text)
    _STEPS[state | byte] = step
    return step


def decode(coded: bytes) -> bytes:
    """The string. Raises InvalidHuffman."""
    state = 0
    parts: list[bytes] = []
    append = parts.append
    steps = _STEPS
    for byte in coded:
        step = steps[state | byte]
        if step is None:
            step = _step(state, byte)
        state, text = step
        append(text)
    if state not in _ENDS:
        raise InvalidHuffman("a string is padded with something else than ones")
    return b"".join(parts)
