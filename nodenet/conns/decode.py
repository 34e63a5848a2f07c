"""Kernel records (``struct nn_event``, back to back) to `Connection` rows.

This is the hot loop of every list command: about 2 us a row. So there is one loop over
`iter_unpack`; neighbouring members that take few values together (who, decision, end) are read as
one key into a mapping that fills itself; flags are tested as plain ints.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from nodenet import abi
from nodenet.abi import ConnFlag, Direction, EventKind, Reason, Via
from nodenet.conns.connection import Connection
from nodenet.conns.names import Names
from nodenet.conns.tcp import STATE_NAMES, EndBy, EndReason, end_of, errno_name
from nodenet.times import boot_offset_ns

if TYPE_CHECKING:
    from nodenet.kernel.cgroups import CgroupPaths

RECORD_SIZE: Final = abi.EVENT.size
_AT: Final = {name: offset for name, (offset, _) in abi.EVENT.offsets().items()}
_END: Final = struct.Struct(f"<{_AT['end_ns']}xQ{RECORD_SIZE - _AT['end_ns'] - 8}x")
#: A record as 64-bit words, to take one member of all records out by a slice.
_WORDS: Final = RECORD_SIZE // 8
_NO_RTT: Final = 0xFFFF_FFFF
_NO_ADDRESS: Final = bytes(16)
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"
#: Distinct texts remembered at most per mapping, so that a reader that runs for months stays small
#: (65 536 texts are about 8 MB).
_REMEMBERED: Final = 65_536

#: nn_event again, with these neighbours read as one value: netns+cgroup (16s), family+dir (H),
#: state+flags+reason+via (4s), kind+old_state+err (I). A test compares the offsets with the ABI.
FAST: Final = struct.Struct("<Q 16s Q 16s16s16s HHH H I 4s 16s QQQQ IIIIIII I 8x")
_PROXY: Final = int(ConnFlag.PROXY)
_PEER_FIN: Final = int(ConnFlag.PEER_FIN)
_FIRST_ENDED: Final = int(EventKind.REFUSED)

_DIRECTIONS: Final[dict[int, Literal["out", "in"]]] = {Direction.OUT: "out", Direction.IN: "in"}
_VIAS: Final[dict[int, Literal["ebpf", "iptables"]]] = {Via.EBPF: "ebpf", Via.IPTABLES: "iptables"}


#: ``000``..``999``: two lookups are three times as fast as formatting six digits.
_THOUSANDTHS: Final = tuple(f"{n:03d}" for n in range(1000))


def address_text(raw: bytes) -> str:
    """The address part of an ENDPOINT: ``10.42.1.7`` or ``[fd42:1::7]``."""
    if raw.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]"


class _AddressTexts(dict[bytes, str]):
    def __missing__(self, raw: bytes) -> str:
        if len(self) >= _REMEMBERED:
            self.clear()
        text = self[raw] = address_text(raw)
        return text


class _CommTexts(dict[bytes, str | None]):
    def __missing__(self, raw: bytes) -> str | None:
        if len(self) >= _REMEMBERED:
            self.clear()
        text = self[raw] = raw.partition(b"\0")[0].decode(errors="replace") or None
        return text


class _Seconds(dict[int, str]):
    """Unix second -> ``2026-01-31T10:42:07.``: the part of a time that thousands of rows share."""

    def __missing__(self, second: int) -> str:
        if len(self) >= _REMEMBERED:
            self.clear()
        text = self[second] = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
        return text


class _Who(NamedTuple):
    space: int
    space_text: str
    pod: str | None
    cgroup: str | None


class CgroupTexts:
    """cgroup id -> path below the root of cgroup2, as /proc/PID/cgroup has it."""

    def __init__(self) -> None:
        self._paths: CgroupPaths | None = None

    def __call__(self, cgroup_id: int) -> str | None:
        """The path; ``id:N`` when that cgroup has gone or may not be seen; None for 0."""
        if not cgroup_id:
            return None
        from nodenet.kernel.cgroups import Cgroup2Missing, CgroupPaths

        try:
            self._paths = self._paths or CgroupPaths()
            return self._paths.name(cgroup_id) or f"id:{cgroup_id}"
        except Cgroup2Missing:
            return f"id:{cgroup_id}"


class _WhoTexts(dict[bytes, _Who]):
    """netns and cgroup, as the record has them -> texts."""

    def __init__(self, names: Names, cgroup_path: Callable[[int], str | None]) -> None:
        super().__init__()
        self._names = names
        self._cgroup_path = cgroup_path

    def __missing__(self, raw: bytes) -> _Who:
        if len(self) >= _REMEMBERED:
            self.clear()
        space, cgroup = struct.unpack("<QQ", raw)
        record = self._names.by_netns.get(space)
        who = self[raw] = _Who(
            space, str(space), record.name if record else None, self._cgroup_path(cgroup)
        )
        return who


class _Decision(NamedTuple):
    proxy: bool
    dir: Literal["out", "in"] | None
    family: Literal[4, 6]
    state: str
    captured_by: Literal["ebpf", "iptables", "none"]
    reason: str | None
    rule: str | None


class _Decisions(dict[tuple[int, bytes], _Decision]):
    """(family and dir, state and flags and reason and via) -> texts."""

    def __missing__(self, key: tuple[int, bytes]) -> _Decision:
        shape, (state, flags, reason_number, via) = key
        direction = shape >> 8
        reason, rule = reason_texts(direction, reason_number)
        answer = self[key] = _Decision(
            bool(flags & _PROXY),
            _DIRECTIONS.get(direction),
            4 if shape & 0xFF == 2 else 6,
            STATE_NAMES[state],
            _VIAS.get(via, "none"),
            reason,
            rule,
        )
        return answer


def reason_texts(direction: int, number: int) -> tuple[str | None, str | None]:
    """(reason, rule) as text for the numbers in a record; (None, None) when none was stored."""
    if not number:
        return None, None
    try:
        reason = Reason(number)
    except ValueError:  # written by a newer program than this reader
        return f"reason-{number}", None
    return reason.text, abi.rule(Direction(direction), reason) if direction in _DIRECTIONS else None


class _Ends(dict[tuple[int, bool], tuple[EndReason | None, EndBy | None, str | None]]):
    """(kind and old state and errno, peer closed first) -> end_reason, end_by, errno."""

    def __missing__(
        self, key: tuple[int, bool]
    ) -> tuple[EndReason | None, EndBy | None, str | None]:
        outcome, peer_fin = key
        kind, old_state, err = outcome & 0xFF, outcome >> 8 & 0xFF, outcome >> 16
        end_reason, by = end_of(old_state, err, peer_fin=peer_fin)
        if kind == EventKind.REFUSED:
            by = "local"  # the capture said no, the peer was never asked
        answer = self[key] = (end_reason, by, errno_name(err))
        return answer


class Decoder:
    """Makes rows of raw records; keeps what it has looked up between calls."""

    def __init__(
        self,
        names: Names,
        cgroup_path: Callable[[int], str | None] | None = None,
        offset_ns: int | None = None,
    ) -> None:
        self._names = names
        #: What turns CLOCK_BOOTTIME to Unix time here, ns; one for all rows, so that they compare.
        self.offset_ns = boot_offset_ns() if offset_ns is None else offset_ns
        self._addresses = _AddressTexts()
        self._comms = _CommTexts()
        self._who = _WhoTexts(names, CgroupTexts() if cgroup_path is None else cgroup_path)
        self._decisions = _Decisions()
        self._ends = _Ends()
        self._seconds = _Seconds()

    def rows(
        self,
        raw: bytes | memoryview,
        *,
        proxy: bool = True,
        netns: Collection[int] | None = None,
        offsets: Iterable[int] | None = None,
    ) -> list[Connection]:
        """One row a record, in the records' order; ``raw`` must hold whole records.

        ``proxy`` False leaves out the proxy's own sockets, ``netns`` keeps only those namespaces
        (by cookie); both are decided before a row is built. With ``offsets`` only the records that
        begin there, in that order.
        """
        if self._names.refresh():
            self._who.clear()
        addresses, comms, decisions = self._addresses, self._comms, self._decisions
        whos, seconds, ends = self._who, self._seconds, self._ends
        offset_us = self.offset_ns // 1000
        peer_names = self._names.by_address
        records: Iterable[tuple[Any, ...]] = (
            FAST.iter_unpack(raw)
            if offsets is None
            else map(FAST.unpack_from, repeat(raw), offsets)
        )
        start: str | None
        end: str | None
        duration_us: int | None
        found: list[Connection] = []
        append = found.append
        for (
            cookie, who, start_ns, local, remote, orig, local_port, remote_port, orig_port,
            shape, pid, decision, comm, end_ns, sent, acked, received,
            srtt, rtt_min, retransmits, lost, segs_out, segs_in, cwnd, outcome,
        ) in records:  # fmt: skip
            is_proxy, direction, family, state, via, reason, rule = decisions[shape, decision]
            if is_proxy and not proxy:
                continue
            space, space_text, pod, cgroup = whos[who]
            if netns is not None and space not in netns:
                continue
            if start_ns:
                second, us = divmod(start_ns // 1000 + offset_us, 1_000_000)
                start = f"{seconds[second]}{_THOUSANDTHS[us // 1000]}{_THOUSANDTHS[us % 1000]}Z"
            else:
                start = None
            if outcome & 0xFF < _FIRST_ENDED:
                end = duration_us = end_reason = end_by = errno = None
            else:
                second, us = divmod(end_ns // 1000 + offset_us, 1_000_000)
                end = f"{seconds[second]}{_THOUSANDTHS[us // 1000]}{_THOUSANDTHS[us % 1000]}Z"
                duration_us = (end_ns - start_ns) // 1000 if start_ns else None
                if local == _NO_ADDRESS:  # refused before it was bound
                    local = self._own_address(space, family)
                end_reason, end_by, errno = ends[outcome, decision[1] & _PEER_FIN != 0]
            if orig == _NO_ADDRESS:
                orig_dst = None
                peer_name = peer_names.get(remote)
            else:
                orig_dst = f"{addresses[orig]}:{orig_port}"
                # inbound, the original destination is our own side
                peer_name = peer_names.get(orig if direction == "out" else remote)
            append(
                Connection(
                    f"{cookie:x}",
                    pod,
                    space_text,
                    cgroup,
                    direction,
                    family,
                    f"{addresses[local]}:{local_port}",
                    f"{addresses[remote]}:{remote_port}",
                    orig_dst,
                    peer_name,
                    state,
                    via,
                    reason,
                    rule,
                    sent,
                    received,
                    acked,
                    segs_out,
                    segs_in,
                    retransmits,
                    lost,
                    srtt or None,
                    None if rtt_min == _NO_RTT else rtt_min,
                    cwnd,
                    start,
                    end,
                    duration_us,
                    pid or None,
                    comms[comm],
                    end_reason,
                    end_by,
                    errno,
                    is_proxy,
                )
            )
        return found

    def time(self, boot_ns: int) -> str:
        """A CLOCK_BOOTTIME moment as rows have it: RFC 3339, UTC, microseconds."""
        # not the sum of nanoseconds: rounded as the loop above does
        second, us = divmod(boot_ns // 1000 + self.offset_ns // 1000, 1_000_000)
        return f"{self._seconds[second]}{us:06d}Z"

    def _own_address(self, netns: int, family: int) -> bytes:
        """The pod's first address of that family, else the unspecified one."""
        record = self._names.by_netns.get(netns)
        for ip in map(ipaddress.ip_address, record.ips if record else ()):
            if ip.version == family:
                return abi.pack_ip(ip)
        return _NO_ADDRESS if family == 6 else _MAPPED + bytes(4)


def kinds(raw: bytes | memoryview) -> bytes:
    """The kind of every record (`nodenet.abi.EventKind`), one byte each."""
    return bytes(raw[_AT["kind"] :: RECORD_SIZE])


def end_times(raw: bytes | memoryview) -> Iterator[int]:
    """``end_ns`` of every record: CLOCK_BOOTTIME ns of when it was written."""
    return (end_ns for (end_ns,) in _END.iter_unpack(raw))


def written_records(raw: memoryview, since_boot_ns: int = 0) -> memoryview:
    """The slots of a ring that hold a record, of that moment (CLOCK_BOOTTIME ns) or later."""
    words = raw.cast("Q")
    cookies = words[_AT["cookie"] // 8 :: _WORDS].tolist()
    ends = words[_AT["end_ns"] // 8 :: _WORDS].tolist()
    kept = [i for i, cookie in enumerate(cookies) if cookie and ends[i] >= since_boot_ns]
    if len(kept) == len(cookies):
        return raw
    return memoryview(b"".join(raw[i * RECORD_SIZE : (i + 1) * RECORD_SIZE] for i in kept))


def find_record(raw: memoryview, cookie: int) -> memoryview | None:
    """The record of that connection, None when there is none."""
    try:
        i = raw.cast("Q")[_AT["cookie"] // 8 :: _WORDS].tolist().index(cookie)
    except ValueError:
        return None
    return raw[i * RECORD_SIZE : (i + 1) * RECORD_SIZE]


def offsets_by_netns(raw: memoryview) -> dict[int, list[int]]:
    """Where the records of each namespace begin, oldest connection first."""
    words = raw.cast("Q")
    starts = words[_AT["start_ns"] // 8 :: _WORDS].tolist()
    spaces = words[_AT["netns"] // 8 :: _WORDS].tolist()
    found: dict[int, list[int]] = {space: [] for space in set(spaces)}
    for i in sorted(range(len(starts)), key=starts.__getitem__):
        found[spaces[i]].append(i * RECORD_SIZE)
    return found
