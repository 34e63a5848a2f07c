"""Reading member offsets and function ids from a BTF blob made by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from nodenet.kernel.btf import MEMBERS, Btf, BtfBroken, BtfMissing, read_facts
from nodenet.kernel.spec import BpfSpec

INT, ARRAY, STRUCT, UNION, FORWARD, TYPEDEF, FUNC = 1, 3, 4, 5, 7, 8, 12
BITFIELDS = 1 << 31


class Writer:
    """Builds a blob type by type; each method gives the new type's id."""

    def __init__(self) -> None:
        self.strings = bytearray(b"\0")
        self.types = bytearray()
        self.count = 0

    def string(self, text: str) -> int:
        if not text:
            return 0
        found = self.strings.find(b"\0" + text.encode() + b"\0")
        if found >= 0:
            return found + 1
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text) - 1

    def add(self, name: str, kind: int, size: int, extra: bytes = b"", *, info: int = 0) -> int:
        self.types += struct.pack("<III", self.string(name), kind << 24 | info, size) + extra
        self.count += 1
        return self.count

    def record(
        self, name: str, members: list[tuple[str, int, int]], kind: int = STRUCT, *, flag: int = 0
    ) -> int:
        """Members are (name, type, offset in bits)."""
        extra = b"".join(struct.pack("<III", self.string(n), t, bits) for n, t, bits in members)
        return self.add(name, kind, 64, extra, info=len(members) | flag)

    def blob(self) -> bytes:
        sizes = (0, len(self.types), len(self.types), len(self.strings))
        return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, *sizes) + self.types + self.strings


def kernel() -> bytes:
    """A struct sock and a struct tcp_sock with everything that makes finding members hard."""
    out = Writer()
    number = out.add("u32", INT, 4, struct.pack("<I", 32))
    common = out.record("sock_common", [("skc_state", number, 144), ("skc_cookie", number, 704)])
    out.add("sock", FORWARD, 0)
    sock = out.record("sock", [("__sk_common", common, 0), ("sk_err", number, 2272)])
    sample = out.record("minmax_sample", [("t", number, 0), ("v", number, 32)])
    samples = out.add("", ARRAY, 0, struct.pack("<III", sample, number, 3))
    minmax = out.record("minmax", [("s", samples, 0)])
    minmax_t = out.add("minmax_t", TYPEDEF, minmax)
    union = out.record("", [("acked", number, 0), ("bytes_acked", number, 64)], UNION)
    bits = [("inet", sock, 0), ("flag", number, 3 << 24 | 640), ("snd_una", number, 672)]
    out.record("tcp_sock", [*bits, ("", union, 800), ("rtt_min", minmax_t, 960)], flag=BITFIELDS)
    out.add("bpf_iter_bpf_sk_storage_map", TYPEDEF, number)
    out.add("bpf_iter_bpf_sk_storage_map", FUNC, number)
    return out.blob()


@pytest.mark.parametrize(
    ("owner", "path", "offset"),
    [
        ("sock", "sk_err", 284),
        ("sock", "__sk_common.skc_state", 18),
        ("sock", "__sk_common.skc_cookie", 88),
        ("tcp_sock", "inet.__sk_common.skc_state", 18),
        ("tcp_sock", "snd_una", 84),
        ("tcp_sock", "bytes_acked", 108),  # inside an anonymous union
        ("tcp_sock", "rtt_min.s.v", 124),  # behind a typedef and in an array's first element
        ("tcp_sock", "nothing", None),
        ("nothing", "sk_err", None),
    ],
)
def test_offsets(owner: str, path: str, offset: int | None) -> None:
    assert Btf(kernel(), [owner]).offset(owner, path) == offset


def test_a_function_is_not_mistaken_for_a_type_of_that_name() -> None:
    btf = Btf(kernel(), ["bpf_iter_bpf_sk_storage_map", "missing"])
    assert btf.function("bpf_iter_bpf_sk_storage_map") == 12
    assert btf.function("missing") is None


@pytest.fixture
def vmlinux(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinux"
    path.write_bytes(kernel())
    return path


def test_facts(vmlinux: Path) -> None:
    facts = read_facts(["SK_ERR", "RTT_MIN_V"], ["bpf_iter_bpf_sk_storage_map"], vmlinux)
    assert facts.offsets == {"SK_ERR": 284, "RTT_MIN_V": 124}
    assert facts.functions == {"bpf_iter_bpf_sk_storage_map": 12}


def test_what_a_kernel_lacks_is_named(vmlinux: Path) -> None:
    with pytest.raises(BtfMissing, match=r"struct tcp_sock\.write_seq: not supported here") as a:
        read_facts(["WRITE_SEQ"], [], vmlinux)
    assert a.value.exit_code == 3
    with pytest.raises(BtfMissing, match="bpf_iter_other"):
        read_facts([], ["bpf_iter_other"], vmlinux)


def test_a_kernel_without_btf(tmp_path: Path) -> None:
    with pytest.raises(BtfMissing, match="CONFIG_DEBUG_INFO_BTF"):
        read_facts([], [], tmp_path / "vmlinux")


@pytest.mark.parametrize("raw", [b"", b"\x9f\xeb", b"\x7fELF" + bytes(64)])
def test_what_is_no_btf(raw: bytes) -> None:
    with pytest.raises(BtfBroken):
        Btf(raw, [])


def test_every_offset_the_sources_use_is_known() -> None:
    used = BpfSpec.read().offsets
    assert used, "the sources use no offset: the pattern that finds them is wrong"
    assert set(used) <= MEMBERS.keys()


def test_an_unknown_offset_says_where_to_add_it() -> None:
    with pytest.raises(BtfBroken, match=r"NN_OFF_TYPO.*MEMBERS"):
        read_facts(["TYPO"], [])
