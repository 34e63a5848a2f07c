"""Sockets without a kernel record: older than the enrolment, or of namespaces nobody enrolled.

Taken from socket dumps, so they have the kernel's counters but no start and no decision. A dump of
a namespace costs as much as all records together; `nodenet.conns.census` says where one is needed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, Literal

import msgspec

from nodenet import abi
from nodenet.abi import Direction, Reason
from nodenet.capture.records import PodRecord
from nodenet.conns.census import Recorded
from nodenet.conns.connection import Connection
from nodenet.conns.decode import address_text
from nodenet.conns.names import Names
from nodenet.conns.owners import Process, socket_owners
from nodenet.conns.tcp import STATE_NAMES, State
from nodenet.errors import NodenetError
from nodenet.kernel.netns import RUN_NETNS, NetNs
from nodenet.kernel.sock_diag import ALL_STATES, NO_MIN_RTT, SockDiag, TcpSocket

#: What `ss` shows without -a: neither listeners nor what the application has let go of.
_CONNECTED: Final = ALL_STATES - {State.TIME_WAIT, State.CLOSED, State.LISTEN, State.SYN_RECV}
_FIN_SENT: Final = frozenset(
    {State.FIN_WAIT_1, State.FIN_WAIT_2, State.CLOSING, State.LAST_ACK, State.TIME_WAIT}
)
_FIN_RECEIVED: Final = frozenset({State.CLOSE_WAIT, State.LAST_ACK, State.CLOSING, State.TIME_WAIT})
CgroupText = Callable[[int], str | None]


def older_than_enrolment(
    pods: Iterable[PodRecord],
    recorded: Recorded,
    names: Names,
    cgroup_text: CgroupText,
    *,
    certain: bool = True,
) -> list[Connection]:
    """Open connections of those pods that have no record, because they began before the enrolment.

    ``certain`` False: the kernel has run out of records at some time, so that may be the reason
    too, and the rows have none.
    """
    rows: list[Connection] = []
    for record in pods:
        with contextlib.suppress(NodenetError, OSError), NetNs.open(record.netns) as ns:
            if ns.cookie() != record.netns_cookie:
                continue  # another namespace took the path
            with SockDiag(ns) as diag:
                listeners = diag.dump_tcp([State.LISTEN])
                found = [s for s in diag.dump_tcp(_CONNECTED) if s.cookie not in recorded.cookies]
            rows += _rows(found, listeners, ns, record, names, cgroup_text, certain=certain)
    return rows


def everything_else(
    recorded: Recorded,
    names: Names,
    cgroup_text: CgroupText,
    *,
    netns: Collection[int] | None = None,
) -> list[Connection]:
    """Every other TCP socket of the node, in whatever state and namespace, listeners too."""
    rows: list[Connection] = []
    for ns in all_namespaces(names):
        with ns, contextlib.suppress(NodenetError):
            if netns is not None and ns.cookie() not in netns:
                continue
            with SockDiag(ns) as diag:
                sockets = diag.dump_tcp()
            listeners = [s for s in sockets if s.state == State.LISTEN]
            found = [s for s in sockets if s.cookie not in recorded.cookies]
            rows += _rows(found, listeners, ns, names.by_netns.get(ns.cookie()), names, cgroup_text)
    return rows


def all_namespaces(names: Names) -> Iterator[NetNs]:
    """Every network namespace there is a path to, each once; the caller closes them."""
    seen: set[int] = set()
    paths = [f"/proc/{pid}/ns/net" for pid in os.listdir("/proc") if pid.isdigit()]
    with contextlib.suppress(FileNotFoundError):
        paths += [os.fspath(entry) for entry in RUN_NETNS.iterdir()]
    for path in [*paths, *(record.netns for record in names.records)]:
        try:
            inode = os.stat(path).st_ino
            if inode in seen:
                continue
            ns = NetNs.open(path)
        except (OSError, NodenetError):  # ended meanwhile, or a file that is no namespace
            continue
        seen.add(inode)
        yield ns


def _rows(
    sockets: list[TcpSocket],
    listeners: list[TcpSocket],
    ns: NetNs,
    record: PodRecord | None,
    names: Names,
    cgroup_text: CgroupText,
    *,
    certain: bool = True,
) -> list[Connection]:
    if not sockets:
        return []
    ports = {s.local_port for s in listeners}
    owners = socket_owners({s.inode for s in sockets if s.inode}, ns.inode)
    reason = Reason.NOT_ENROLLED
    if record is not None:
        reason = Reason.PRE_ENROLMENT if certain else Reason.NONE
    return [
        _row(s, ns.cookie(), record, reason, ports, owners.get(s.inode), names, cgroup_text)
        for s in sockets
    ]


def _row(
    s: TcpSocket,
    netns_cookie: int,
    record: PodRecord | None,
    reason: Reason,
    listening: set[int],
    owner: Process | None,
    names: Names,
    cgroup_text: CgroupText,
) -> Connection:
    listens = s.state == State.LISTEN
    direction: Literal["out", "in"] = "in" if s.local_port in listening else "out"
    info = s.info
    sent = acked = received = None
    if info is not None and not listens:
        # the same corrections as the kernel programs make: SYN and FIN count as a byte each
        fin = int(s.state in _FIN_SENT)
        syn = int(direction == "out")
        sent = max(info.bytes_acked + s.send_queue - syn - fin, 0)
        acked = max(sent - max(s.send_queue - fin, 0), 0)
        received = max(info.bytes_received - int(s.state in _FIN_RECEIVED), 0)
    number = Direction.IN if direction == "in" else Direction.OUT
    return Connection(
        id=f"{s.cookie:x}",
        pod=record.name if record else None,
        netns_cookie=str(netns_cookie),
        cgroup=cgroup_text(s.cgroup_id or 0),
        dir=None if listens else direction,
        family=s.family,
        local=f"{address_text(abi.pack_ip(s.local))}:{s.local_port}",
        remote=f"{address_text(abi.pack_ip(s.remote))}:{s.remote_port}",
        orig_dst=None,
        peer_name=names.by_address.get(abi.pack_ip(s.remote)),
        state=STATE_NAMES[s.state],
        captured_by="none",
        reason=None if listens or not reason else reason.text,
        rule=None if listens else abi.rule(number, reason),
        bytes_sent=sent,
        bytes_received=received,
        bytes_acked=acked,
        segs_out=info.segs_out if info else None,
        segs_in=info.segs_in if info else None,
        retransmits=info.total_retrans if info else None,
        lost=info.lost if info else None,
        rtt_us=(info.srtt_us or None) if info else None,
        rtt_min_us=info.min_rtt_us if info and info.min_rtt_us not in (0, NO_MIN_RTT) else None,
        cwnd=info.snd_cwnd if info else None,
        start=None,
        end=None,
        duration_us=None,
        pid=owner.pid if owner else None,
        comm=owner.comm if owner else None,
        end_reason=None,
        end_by=None,
        errno=None,
        proxy=False,
    )


class ListenerOwners:
    """Names the process of accepted connections whose listener is older than the enrolment.

    The kernel copies who listens from the listening socket; one that listened before has no such
    note. The owner of the listening port is then looked up, once a namespace.
    """

    def __init__(self, names: Names) -> None:
        self._records = {str(r.netns_cookie): r for r in names.records}
        self._known: dict[str | None, dict[str, Process]] = {}

    def named(self, rows: list[Connection]) -> list[Connection]:
        """The rows, those without a process replaced where one was found."""
        return [self._named(row) if row.pid is None else row for row in rows]

    def _named(self, row: Connection) -> Connection:
        if row.dir != "in":
            return row
        owners = self._known.get(row.netns_cookie)
        if owners is None:
            owners = self._known[row.netns_cookie] = self._look_up(row.netns_cookie)
        owner = owners.get(row.local.rpartition(":")[2])
        if owner is None:
            return row
        return msgspec.structs.replace(row, pid=owner.pid, comm=owner.comm)

    def _look_up(self, netns_cookie: str | None) -> dict[str, Process]:
        """Port, as text, to the process that listens on it."""
        record = self._records.get(netns_cookie or "")
        if record is None:
            return {}
        with (
            contextlib.suppress(NodenetError, OSError),
            NetNs.open(record.netns) as ns,
            SockDiag(ns) as diag,
        ):
            ports = {s.inode: str(s.local_port) for s in diag.dump_tcp([State.LISTEN])}
            return {ports[inode]: p for inode, p in socket_owners(ports, ns.inode).items()}
        return {}
