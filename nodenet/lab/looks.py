"""One call of one row, as it is seen from the calling side, the called side, or from neither.

Pure: what a look shows, and what is wrong with it according to each witness.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from nodenet import abi
from nodenet.abi import HBONE_PORT
from nodenet.capture.records import PodRecord
from nodenet.conns.connection import Connection
from nodenet.endpoint import format_endpoint
from nodenet.lab import checks, mesh
from nodenet.lab.access_log import UNAUTHORIZED, host_of
from nodenet.lab.flows import Call, Row
from nodenet.lab.witnesses import Expectation, Witnesses, accepted_of, arrival, told
from nodenet.lab.workload import RESPONSE_BYTES


class Facts(NamedTuple):
    """What is shown of a row, before anybody judges it."""

    captured_by: Literal["ebpf", "iptables", "none"] = "none"
    listener: str | None = None
    orig_dst: str | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    peer_seen: str | None = None
    conn_id: str | None = None


class Look:
    """One call of one row, seen from one side."""

    def __init__(
        self, row: Row, expectation: Expectation, call: Call, calls: int, witnesses: Witnesses
    ) -> None:
        self.row = row
        self.expectation = expectation
        self.call = call
        self.calls = calls
        """How many there are."""
        self.witnesses = witnesses
        self.said = told(row, call, witnesses)

    def facts(self) -> Facts:
        """What is to be shown."""
        raise NotImplementedError

    def wrong(self) -> Iterator[str]:
        """What is not as expected, the most telling first."""
        if self.expectation.denied:
            yield from checks.not_refused(self.row, self.call)
        else:
            yield from checks.call_failed(self.call)
        yield from self.kernel_says()
        if not self.expectation.denied:
            yield from checks.app_fooled(self.row, self.call)
        yield from self.proxy_says()
        yield from checks.wire_says(self.row, self.expectation, self.witnesses, self.calls)

    def kernel_says(self) -> Iterator[str]:
        """What is wrong with the sockets."""
        raise NotImplementedError

    def proxy_says(self) -> Iterator[str]:
        """What is wrong with the access log."""
        if self.witnesses.log is None or self.row.side is None:
            return
        said, expectation, where = self.said, self.expectation, near(self.row)
        wanted = 1
        if self.row.side == "in":
            wanted = self.witnesses.arrivals.get(arrival(self.row), self.calls)
        if said.lines < wanted:
            yield f"{said.lines} of {wanted} connections are in the access log of {where}'s proxy"
        if said.protocol != expectation.protocol:
            yield f"{where}'s proxy carried it by {said.protocol}, not {expectation.protocol}"
        ends = (self.row.pair.source, said.src_identity), (self.row.server, said.dst_identity)
        for pod, shown in ends:
            identity = mesh.identity(pod) if expectation.protocol == "hbone" else None
            if shown != identity:
                yield f"{where}'s proxy has {shown} as the identity of {pod.name}, not {identity}"
        if expectation.denied:
            yield from self._no_denial(where)
        elif said.error is not None:
            yield f"{where}'s proxy logged: {said.error}"

    def _no_denial(self, where: str) -> Iterator[str]:
        said, policy = self.said, mesh.policy_name(self.witnesses.plan)
        plain_out = self.row.side == "out" and self.expectation.protocol == "tcp"
        if not plain_out and said.decision != "deny":
            yield f"{where}'s proxy did not deny it: {said.error or 'no error'}"
        if not plain_out and said.policy != policy:
            yield f"denied by {said.policy}, not {policy}"
        if self.row.side == "out" and not plain_out and said.status != UNAUTHORIZED:
            yield f"the answer to the tunnel was {said.status}, not {UNAUTHORIZED}"


class Out(Look):
    """From the calling side."""

    @property
    def record(self) -> PodRecord:
        return self.witnesses.enrolled[self.row.pair.source.full_name]

    @property
    def own(self) -> Connection | None:
        return self.witnesses.kernel.by_id.get(self.call.cookie)

    @property
    def accepted(self) -> Connection | None:
        return accepted_of(self.row, self.call, self.witnesses)

    def facts(self) -> Facts:
        own, accepted, call = self.own, self.accepted, self.call
        return Facts(
            captured_by=own.captured_by if own else "none",
            listener=accepted.local if accepted else None,
            orig_dst=own.orig_dst if own else None,
            bytes_sent=call.bytes_sent,
            bytes_received=call.bytes_received,
            peer_seen=call.peer,
            conn_id=call.cookie,
        )

    def kernel_says(self) -> Iterator[str]:
        record, own, accepted, pair = self.record, self.own, self.accepted, self.row.pair
        if own is None:
            yield f"no kernel record of the app's socket {self.call.cookie}"
            return
        if own.captured_by != record.backend:
            yield f"captured by {own.captured_by} ({own.reason}), expected {record.backend}"
        if accepted is None:
            yield f"listener {pair.source.name}:{abi.OUTBOUND_PORT} not reached"
            return
        # under iptables the proxy asks conntrack, of which there is no record here
        for who, known in (("app", own), ("proxy", accepted)):
            if known.orig_dst != pair.destination and (known is own or record.backend == "ebpf"):
                yield f"original destination of the {who}'s socket is {known.orig_dst}"
        yield from self._wrong_dial()
        if not self.expectation.denied:
            yield from checks.miscounted(own, self.call.bytes_sent, self.call.bytes_received)

    def _wrong_dial(self) -> Iterator[str]:
        row, kernel = self.row, self.witnesses.kernel
        direct = kernel.dialled(self.record.netns_cookie, row.server_endpoint)
        if self.expectation.protocol == "tcp":
            if len(direct) < self.calls:
                yield (
                    f"the proxy connected {len(direct)} of {self.calls} times to "
                    f"{row.server_endpoint}"
                )
            return
        tunnel = format_endpoint(row.server.address(row.pair.family), HBONE_PORT)
        if not kernel.dialled(self.record.netns_cookie, tunnel):
            yield f"the proxy has no connection to {tunnel}"
        # a pod that calls itself by a service: its proxy is the server's, too
        if direct and row.server is not row.pair.source:
            yield f"the proxy connected to {row.server_endpoint}, past HBONE"


class In(Look):
    """From the called side."""

    @property
    def record(self) -> PodRecord:
        return self.witnesses.enrolled[self.row.server.full_name]

    @property
    def port(self) -> int:
        """Of the listener that is to be reached."""
        return HBONE_PORT if self.expectation.protocol == "hbone" else abi.INBOUND_PORT

    @property
    def own(self) -> Connection | None:
        seen = self.call.seen
        return self.witnesses.kernel.by_id.get(seen.cookie) if seen else None

    @property
    def accepted(self) -> list[Connection]:
        """The connections that the listener has taken from the source's address."""
        row = self.row
        locals_ = [self.listener]
        if self.port == abi.INBOUND_PORT:
            # the destination is kept by sk_lookup, and replaced by a redirect of iptables
            locals_.append(row.server_endpoint)
        return [
            c
            for local in locals_
            for c in self.witnesses.kernel.accepted(self.record.netns_cookie, local)
            if host_of(c.remote) == str(row.pair.source.address(row.pair.family))
        ]

    @property
    def listener(self) -> str:
        return format_endpoint(self.row.server.address(self.row.pair.family), self.port)

    @property
    def dials(self) -> list[Connection]:
        """The proxy's connections to the serving application with the client's address."""
        row = self.row
        return [
            c
            for c in self.witnesses.kernel.dialled(self.record.netns_cookie, row.server_endpoint)
            if host_of(c.local) == str(row.pair.source.address(row.pair.family))
        ]

    @property
    def handed_on(self) -> bool:
        """What the serving app sees as its peer is a socket of the proxy."""
        seen = self.call.seen
        return seen is not None and any(c.local == seen.peer for c in self.dials)

    def facts(self) -> Facts:
        own, seen = self.own, self.call.seen
        denied = self.expectation.denied
        reached = bool(self.accepted) and (self.handed_on or denied)
        if own is not None:
            captured_by = own.captured_by
        else:  # of a denied connection the proxy is all there is
            captured_by = self.record.backend if reached and denied else "none"
        return Facts(
            captured_by=captured_by,
            listener=self.listener if reached else None,
            orig_dst=own.orig_dst if own else None,
            bytes_sent=self.call.bytes_received,
            bytes_received=seen.received if seen else 0,
            peer_seen=seen.peer if seen else None,
            conn_id=seen.cookie if seen else None,
        )

    def kernel_says(self) -> Iterator[str]:
        row, own, record = self.row, self.own, self.record
        shown = f"{row.server.name}:{self.port}"
        # the tunnels of a pod share a connection
        wanted = 1 if self.port == HBONE_PORT else self.calls
        if self.expectation.denied:
            if not self.accepted:
                yield f"listener {shown} not reached"
            if self.dials:
                yield f"the proxy connected to {row.server_endpoint} all the same"
            return
        if not self.handed_on:
            yield f"listener {shown} not reached, app got it directly"
        if len(self.accepted) < wanted:
            yield f"only {len(self.accepted)} of {wanted} connections reached {shown}"
        if own is None:
            yield "no kernel record of the serving app's socket"
            return
        if own.captured_by != record.backend:
            yield f"captured by {own.captured_by} ({own.reason}), expected {record.backend}"
        if own.orig_dst != row.server_endpoint:
            yield f"original destination of the app's socket is {own.orig_dst}"
        yield from checks.miscounted(
            own, RESPONSE_BYTES, self.call.seen.received if self.call.seen else 0
        )


class Untouched(Look):
    """Nobody is in between."""

    @property
    def own(self) -> Connection | None:
        return self.witnesses.kernel.by_id.get(self.call.cookie)

    def facts(self) -> Facts:
        own, call = self.own, self.call
        return Facts(
            captured_by=own.captured_by if own else "none",
            bytes_sent=call.bytes_sent,
            bytes_received=call.bytes_received,
            peer_seen=call.peer,
            conn_id=call.cookie,
        )

    def kernel_says(self) -> Iterator[str]:
        own, call = self.own, self.call
        if own is not None and own.captured_by != "none":
            yield f"captured by {own.captured_by}, although not enrolled"
        if call.seen is not None and call.seen.peer != call.local:
            yield f"somebody is in between: the server saw {call.seen.peer}, not {call.local}"


def near(row: Row) -> str:
    """The pod whose proxy is this side's."""
    return (row.pair.source if row.side == "out" else row.server).name
