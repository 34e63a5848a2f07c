"""Netlink without a library: requests with acknowledgement, dumps, attributes.

The capture path and the readers must not pay for importing a general netlink library (0.3 s and
25 MB), and need five message types. Byte order is the machine's own, attributes are aligned to 4
(RFC 3549, linux/netlink.h).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple

NETLINK_ROUTE: Final = 0
NETLINK_SOCK_DIAG: Final = 4

NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3

NLM_F_REQUEST: Final = 0x1
NLM_F_ACK: Final = 0x4
NLM_F_DUMP_INTR: Final = 0x10
NLM_F_REPLACE: Final = 0x100
NLM_F_EXCL: Final = 0x200
NLM_F_DUMP: Final = 0x300
NLM_F_CREATE: Final = 0x400

NETLINK_CAP_ACK: Final = 10
NETLINK_EXT_ACK: Final = 11
NETLINK_GET_STRICT_CHK: Final = 12
_SOL_NETLINK: Final = 270
_NLMSGERR_ATTR_MSG: Final = 1
_NLM_F_ACK_TLVS: Final = 0x200

#: length, type, flags, sequence, port id
HEADER: Final = struct.Struct("=IHHII")
ATTRIBUTE: Final = struct.Struct("=HH")
_U32: Final = struct.Struct("=I")
_ERRNO: Final = struct.Struct("=i")
_ERROR_BYTES: Final = _ERRNO.size + HEADER.size

#: The kernel makes dump datagrams of at most 32 KiB; acknowledgements are far smaller.
RECEIVE_BYTES: Final = 64 << 10
#: A dump that the kernel marks as interrupted is repeated this often before it is taken as it is.
DUMP_TRIES: Final = 5

_TYPE_MASK: Final = 0x3FFF


class Message(NamedTuple):
    """One request: type, flags beyond REQUEST and ACK, and the body."""

    type: int
    flags: int
    body: bytes


class Refused(NamedTuple):
    """The kernel's answer to a request it did not carry out; ``text`` is its own, or empty."""

    errno: int
    text: str

    def __str__(self) -> str:
        return self.text or os.strerror(self.errno)


class DumpInterrupted(OSError):
    """The table changed during every one of the attempts to dump it."""


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to 4 bytes."""
    length = ATTRIBUTE.size + len(value)
    return ATTRIBUTE.pack(length, kind) + value + b"\0" * (-length & 3)


def u32(value: int) -> bytes:
    """A 32-bit attribute value in the machine's byte order."""
    return _U32.pack(value)


def attributes(body: bytes, offset: int) -> dict[int, bytes]:
    """Attribute type to value, nested flag masked off; of a repeated type the last one."""
    found: dict[int, bytes] = {}
    end = len(body)
    while offset + ATTRIBUTE.size <= end:
        length, kind = ATTRIBUTE.unpack_from(body, offset)
        if length < ATTRIBUTE.size or offset + length > end:
            break  # cut short: what came before is still good
        found[kind & _TYPE_MASK] = body[offset + ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


class NetlinkSocket:
    """A netlink socket of the namespace the calling thread is in when it is made.

    It stays in that namespace, so it may be used after the thread has left.
    """

    __slots__ = ("_sequence", "_socket")

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol
        )
        self._sequence = 0
        # A refused request is answered with the reason in words, and without a copy of itself.
        self._socket.setsockopt(_SOL_NETLINK, NETLINK_CAP_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, NETLINK_EXT_ACK, 1)

    def strict(self) -> None:
        """Makes dumps honour the filters in their header (Linux 4.20)."""
        self._socket.setsockopt(_SOL_NETLINK, NETLINK_GET_STRICT_CHK, 1)

    def close(self) -> None:
        """Closes it; a second time does nothing."""
        self._socket.close()

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def request(self, *messages: Message) -> list[Refused | None]:
        """Sends all in one datagram; one answer a message, in order: None is done."""
        parts: list[bytes] = []
        first = self._sequence + 1
        for message in messages:
            self._sequence += 1
            flags = message.flags | NLM_F_REQUEST | NLM_F_ACK
            parts.append(self._frame(message, flags))
        self._socket.send(b"".join(parts))
        answers: dict[int, Refused | None] = {}
        while len(answers) < len(messages):
            for kind, flags, sequence, body in split(self._socket.recv(RECEIVE_BYTES)):
                if kind == NLMSG_ERROR and first <= sequence <= self._sequence:
                    answers[sequence] = _refusal(flags, body)
        return [answers[first + i] for i in range(len(messages))]

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """The bodies of all messages of a dump. OSError with the kernel's errno."""
        for _ in range(DUMP_TRIES):
            bodies: list[bytes] = []
            interrupted = False
            for _kind, flags, _sequence, part in self._dump_once(kind, body):
                interrupted |= bool(flags & NLM_F_DUMP_INTR)
                bodies.append(part)
            if not interrupted:
                return bodies
        raise DumpInterrupted(f"netlink dump {kind}: the table changed {DUMP_TRIES} times in a row")

    def start_dump(self, kind: int, body: bytes) -> None:
        """Asks for a dump whose datagrams the caller takes with `receive_into`."""
        self._sequence += 1
        flags = NLM_F_REQUEST | NLM_F_DUMP
        self._socket.send(self._frame(Message(kind, 0, body), flags))

    def receive_into(self, buffer: bytearray) -> int:
        """The next datagram, its length in bytes. ``buffer`` holds `RECEIVE_BYTES`."""
        return self._socket.recv_into(buffer)

    def _dump_once(self, kind: int, body: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        self.start_dump(kind, body)
        while True:
            for part in split(self._socket.recv(RECEIVE_BYTES)):
                if part[0] in (NLMSG_DONE, NLMSG_ERROR):
                    check_end(part[3])
                    return
                yield part

    def _frame(self, message: Message, flags: int) -> bytes:
        length = HEADER.size + len(message.body)
        header = HEADER.pack(length, message.type, flags, self._sequence, 0)
        return header + message.body + b"\0" * (-length & 3)


def split(datagram: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(type, flags, sequence, body) of each message in a datagram."""
    offset, end = 0, len(datagram)
    while offset + HEADER.size <= end:
        length, kind, flags, sequence, _port = HEADER.unpack_from(datagram, offset)
        if length < HEADER.size or offset + length > end:
            return
        yield kind, flags, sequence, datagram[offset + HEADER.size : offset + length]
        offset += (length + 3) & ~3


def check_end(body: bytes) -> None:
    """Raises OSError when the body of an NLMSG_DONE or NLMSG_ERROR carries an errno."""
    number = -_ERRNO.unpack_from(body)[0] if len(body) >= _ERRNO.size else 0
    if number:
        raise OSError(number, os.strerror(number))


def _refusal(flags: int, body: bytes) -> Refused | None:
    number = -_ERRNO.unpack_from(body)[0]
    if not number:
        return None
    text = b""
    if flags & _NLM_F_ACK_TLVS:
        text = attributes(body, _ERROR_BYTES).get(_NLMSGERR_ATTR_MSG, b"")
    return Refused(number, text.rstrip(b"\0").decode(errors="replace"))
