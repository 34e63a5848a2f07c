"""Every TCP socket of a namespace with the kernel's statistics, and ending one (NETLINK_SOCK_DIAG).

The kernel writes the same attributes in the same order for every socket of a kind, so the places
of the numbers are found once a message length and then read with one `struct` call each. Records
are named tuples for the same reason: they cost a third of a frozen dataclass to make.

Layouts: linux/inet_diag.h, and ``struct tcp_info`` of linux/tcp.h as of Linux 4.19.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Literal, NamedTuple

from nodenet.abi import IPAddress, unpack_ip
from nodenet.errors import NotPermitted, NotSupported
from nodenet.kernel.errors import KernelError
from nodenet.kernel.netlink import (
    ATTRIBUTE,
    HEADER,
    NETLINK_SOCK_DIAG,
    NLMSG_DONE,
    NLMSG_ERROR,
    RECEIVE_BYTES,
    Message,
    NetlinkSocket,
    check_end,
)
from nodenet.kernel.netns import NetNs

Family = Literal[4, 6]

ALL_STATES: Final = frozenset(range(1, 13))
"""State numbers of linux/tcp_states.h."""
OPEN_STATES: Final = ALL_STATES - {6, 7, 10}
"""Sockets that carry, or are about to carry, data: not time-wait, closed, listening."""
NO_MIN_RTT: Final = 0xFFFFFFFF
"""``TcpInfo.min_rtt_us`` before the first sample."""

_SOCK_DIAG_BY_FAMILY: Final = 20
_SOCK_DESTROY: Final = 21
_INET_DIAG_INFO: Final = 2
_INET_DIAG_MARK: Final = 15
_INET_DIAG_CGROUP_ID: Final = 21
_WANTED: Final = frozenset({_INET_DIAG_INFO, _INET_DIAG_MARK, _INET_DIAG_CGROUP_ID})

#: Of the calling thread's namespace; the first counts what is in time-wait for both families.
_SOCKSTAT: Final = ("/proc/thread-self/net/sockstat", "/proc/thread-self/net/sockstat6")

#: Where each number of `TcpInfo` is in ``struct tcp_info``: name without ``tcpi_``, offset, code.
INFO_FIELDS: Final = (
    ("unacked", 24, "I"),
    ("lost", 32, "I"),
    ("rtt", 68, "I"),
    ("snd_cwnd", 80, "I"),
    ("total_retrans", 100, "I"),
    ("bytes_acked", 120, "Q"),
    ("bytes_received", 128, "Q"),
    ("segs_out", 136, "I"),
    ("segs_in", 140, "I"),
    ("min_rtt", 148, "I"),
    ("delivered", 192, "I"),
    ("bytes_sent", 200, "Q"),
    ("bytes_retrans", 208, "Q"),
)


class TcpInfo(NamedTuple):
    """The part of ``struct tcp_info`` that statistics need. Bytes are payload, times are us."""

    unacked: int
    """Segments sent and not acknowledged; of a listener: connections waiting for accept."""
    lost: int
    srtt_us: int
    """Smoothed round trip time; 0 before the first sample."""
    snd_cwnd: int
    total_retrans: int
    bytes_acked: int
    """One more than the payload on the side that connected: its SYN counts."""
    bytes_received: int
    segs_out: int
    segs_in: int
    min_rtt_us: int
    """`NO_MIN_RTT` before the first sample."""
    delivered: int
    bytes_sent: int
    """Retransmissions included."""
    bytes_retrans: int


class TcpSocket(NamedTuple):
    """One TCP socket as the kernel reports it."""

    cookie: int
    """The socket's 64-bit id, what ``ss -e`` prints as ``sk:``."""
    family: Family
    """Of the addresses in use: a v4-mapped connection of an IPv6 socket is 4."""
    socket_family: int
    """AF_INET or AF_INET6 of the socket itself."""
    state: int
    local: IPAddress
    local_port: int
    remote: IPAddress
    remote_port: int
    ifindex: int
    """The interface it is bound to, 0 for none."""
    receive_queue: int
    send_queue: int
    uid: int
    inode: int
    """As in /proc/PID/fd; 0 when no process holds it any more."""
    mark: int | None
    """SO_MARK; None in states that have none, or without CAP_NET_ADMIN."""
    cgroup_id: int | None
    info: TcpInfo | None
    """None for time-wait and half-open sockets, which have no statistics."""


class SockDiagFailed(KernelError):
    """The kernel refused a socket dump or the end of a socket."""


# length, type of the netlink header; then inet_diag_msg: family, state, timer, retrans, source and
# destination port (big endian) and address, interface, cookie, expires, queues, uid, inode
_MESSAGE: Final = struct.Struct("=IH10x BB2x HH 16s16s IQ 4x IIII")
_FIRST_ATTRIBUTE: Final = _MESSAGE.size
# inet_diag_req_v2: family, protocol, extensions, pad, states, then the socket id
_REQUEST: Final = struct.Struct("=BBBxI 2s2s 16s16s IQ")
_U32_ATTRIBUTE: Final = struct.Struct("=HHI")
_U64_ATTRIBUTE: Final = struct.Struct("=HHQ")


def _info_struct() -> struct.Struct:
    code, position = "=HH", 0
    for _name, offset, kind in INFO_FIELDS:
        code += f"{offset - position}x{kind}"
        position = offset + struct.calcsize("=" + kind)
    return struct.Struct(code)


_INFO: Final = _info_struct()


class _Shape(NamedTuple):
    """Offsets of the attributes wanted, from the start of a message; 0 for absent ones."""

    info: int
    mark: int
    cgroup: int


class SockDiag:
    """A sock_diag socket: of the namespace given, else of the one the calling thread is in."""

    def __init__(self, ns: NetNs | None = None) -> None:
        try:
            self._netlink = (
                NetlinkSocket(NETLINK_SOCK_DIAG)
                if ns is None
                else ns.open_netlink(NETLINK_SOCK_DIAG)
            )
        except OSError as error:
            raise NotSupported("sock_diag", "CONFIG_INET_DIAG") from error
        self._buffer = bytearray(RECEIVE_BYTES)
        # by family, state and length, which together fix the attributes a message has
        self._shapes: dict[tuple[int, int, int], _Shape] = {}
        self._addresses: dict[int, dict[bytes, IPAddress]] = {
            socket.AF_INET: {},
            socket.AF_INET6: {},
        }

    def close(self) -> None:
        """Closes it; a second time does nothing."""
        self._netlink.close()

    def __enter__(self) -> SockDiag:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def dump_tcp(
        self, states: Iterable[int] = ALL_STATES, families: Iterable[Family] = (4, 6)
    ) -> list[TcpSocket]:
        """The sockets in those states, in hash table order.

        ``families`` are those of the sockets, so 6 alone includes v4-mapped connections. One that
        opens or closes during the dump may be in it or not.
        """
        mask = sum(1 << state for state in set(states))
        found: list[TcpSocket] = []
        for family in families:
            number = socket.AF_INET if family == 4 else socket.AF_INET6
            self._addresses[number].clear()
            try:
                self._dump_family(number, mask, found)
            except OSError as error:
                raise _refused(error.errno or 0, "socket dump") from error
        return found

    def destroy(self, target: TcpSocket) -> bool:
        """Ends a socket as ``ss -K`` does: its owner gets ECONNABORTED, the peer a reset.

        False when there is no such socket any more. NotSupported without
        CONFIG_INET_DIAG_DESTROY, NotPermitted without CAP_NET_ADMIN.
        """
        body = _REQUEST.pack(
            target.socket_family,
            socket.IPPROTO_TCP,
            0,
            0xFFFFFFFF,
            target.local_port.to_bytes(2, "big"),
            target.remote_port.to_bytes(2, "big"),
            _raw_address(target.local, target.socket_family),
            _raw_address(target.remote, target.socket_family),
            target.ifindex,
            target.cookie,
        )
        answer = self._netlink.request(Message(_SOCK_DESTROY, 0, body))[0]
        if answer is None:
            return True
        if answer.errno == errno.ENOENT:
            return False
        raise _refused(answer.errno, f"end of socket {target.cookie:x}")

    def _dump_family(self, family: int, mask: int, found: list[TcpSocket]) -> None:
        extensions = 1 << (_INET_DIAG_INFO - 1)
        header = (family, socket.IPPROTO_TCP, extensions, mask)
        self._netlink.start_dump(
            _SOCK_DIAG_BY_FAMILY, _REQUEST.pack(*header, b"", b"", b"", b"", 0, 0)
        )
        while not self._take(self._netlink.receive_into(self._buffer), found):
            pass

    def _take(self, end: int, found: list[TcpSocket]) -> bool:
        """Appends the sockets of one datagram; True when the dump is over."""
        buffer, shapes, addresses = self._buffer, self._shapes, self._addresses
        make, ntohs, new = tuple.__new__, socket.ntohs, found.append
        offset = 0
        while offset < end:
            (length, kind, family, state, sport, dport, src, dst, ifindex, cookie,
             received, sent, uid, inode) = _MESSAGE.unpack_from(buffer, offset)  # fmt: skip
            if kind == NLMSG_DONE or kind == NLMSG_ERROR:
                check_end(bytes(buffer[offset + HEADER.size : offset + length]))
                return True
            shape = shapes.get((family, state, length))
            if shape is None:
                shape = shapes[family, state, length] = _shape(buffer, offset, length)
            at_info, at_mark, at_cgroup = shape
            known = addresses[family]
            local = known.get(src) or known.setdefault(src, _address(src, family))
            remote = known.get(dst) or known.setdefault(dst, _address(dst, family))
            mark = _U32_ATTRIBUTE.unpack_from(buffer, offset + at_mark)[2] if at_mark else None
            group = _U64_ATTRIBUTE.unpack_from(buffer, offset + at_cgroup)[2] if at_cgroup else None
            info = (
                make(TcpInfo, _INFO.unpack_from(buffer, offset + at_info)[2:]) if at_info else None
            )
            values = (
                cookie, local.version, family, state, local, ntohs(sport), remote, ntohs(dport),
                ifindex, received, sent, uid, inode, mark, group, info,
            )  # fmt: skip
            new(make(TcpSocket, values))
            offset += (length + 3) & ~3
        return False


def dump_tcp(
    states: Iterable[int] = ALL_STATES, families: Iterable[Family] = (4, 6)
) -> list[TcpSocket]:
    """`SockDiag.dump_tcp` of the namespace the calling thread is in."""
    with SockDiag() as diag:
        return diag.dump_tcp(states, families)


def tcp_sockets(ns: NetNs, states: Iterable[int] = ALL_STATES) -> list[TcpSocket]:
    """`SockDiag.dump_tcp` of a namespace that may well have no TCP socket at all, as a new pod's.

    For a dump the kernel goes through the hash table of all namespaces, once for each family: up to
    a millisecond on a large machine. That there is nothing to find, its counters tell at once.
    """
    with ns.entered():
        if not any(_has_tcp(path) for path in _SOCKSTAT):
            return []
        return dump_tcp(states)


def destroy(target: TcpSocket) -> bool:
    """`SockDiag.destroy` in the namespace the calling thread is in."""
    with SockDiag() as diag:
        return diag.destroy(target)


def _has_tcp(path: str) -> bool:
    """Whether a sockstat file counts sockets, or what is left of them in time-wait."""
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.read()
    except FileNotFoundError:  # sockstat6 of a kernel without IPv6
        return False
    for line in text.splitlines():
        name, *numbers = line.split()
        if name in (b"TCP:", b"TCP6:"):
            counts = dict(zip(numbers[::2], numbers[1::2], strict=True))
            return any(counts.get(kind, b"0") != b"0" for kind in (b"inuse", b"tw"))
    return True  # not as expected: ask


def _shape(buffer: bytearray, start: int, length: int) -> _Shape:
    """Finds the attributes of one message."""
    places: dict[int, int] = {}
    offset, end = start + _FIRST_ATTRIBUTE, start + length
    while offset + ATTRIBUTE.size <= end:
        size, kind = ATTRIBUTE.unpack_from(buffer, offset)
        if size < ATTRIBUTE.size:
            break
        if kind in _WANTED:
            places[kind] = offset - start
        if kind == _INET_DIAG_INFO and size < _INFO.size:
            raise NotSupported("tcp_info.bytes_retrans", "Linux 4.19")
        offset += (size + 3) & ~3
    return _Shape(
        places.get(_INET_DIAG_INFO, 0),
        places.get(_INET_DIAG_MARK, 0),
        places.get(_INET_DIAG_CGROUP_ID, 0),
    )


def _address(raw: bytes, family: int) -> IPAddress:
    return ipaddress.IPv4Address(raw[:4]) if family == socket.AF_INET else unpack_ip(raw)


def _raw_address(address: IPAddress, family: int) -> bytes:
    if isinstance(address, ipaddress.IPv4Address) and family == socket.AF_INET6:
        return b"\0" * 10 + b"\xff\xff" + address.packed
    return address.packed


def _refused(number: int, what: str) -> Exception:
    if number == errno.EOPNOTSUPP:
        return NotSupported(f"sock_diag: {what}", "CONFIG_INET_DIAG_DESTROY")
    if number == errno.ENOENT:
        return NotSupported(f"sock_diag: {what}", "CONFIG_INET_DIAG, CONFIG_INET_TCP_DIAG")
    if number in (errno.EPERM, errno.EACCES):
        return NotPermitted(f"sock_diag: {what} is not permitted", hint="needs CAP_NET_ADMIN")
    return SockDiagFailed(f"sock_diag: {what}: {os.strerror(number)}")
