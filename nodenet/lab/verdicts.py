"""Is a connection what it must be? Three witnesses, and a verdict.

Pure: the facts come as arguments. The application (`Call`) says what its socket says of itself and
what it counted. The kernel (`Connection` rows) says how the application's socket and the proxy's
were treated. The serving application says, in its answer, who it was talking to. A row is ok only
when all of them agree.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from nodenet import abi
from nodenet.capture.records import PodRecord
from nodenet.conns.connection import Connection
from nodenet.lab.flows import Call, Expected, Flow, Pair, Row
from nodenet.lab.workload import REQUEST_BYTES, RESPONSE_BYTES


class Evidence:
    """The kernel's records, indexed by what the checks ask for."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self.by_id = {c.id: c for c in connections}
        self._accepted: dict[tuple[str | None, str], list[Connection]] = {}
        self._dialled: dict[tuple[str | None, str], list[Connection]] = {}
        for c in connections:
            if c.proxy and c.dir == "in":
                self._accepted.setdefault((c.netns_cookie, c.local), []).append(c)
            elif c.proxy and c.dir == "out":
                self._dialled.setdefault((c.netns_cookie, c.remote), []).append(c)

    def accepted(self, netns_cookie: int, local: str) -> list[Connection]:
        """The proxy's sockets in that namespace that accepted a connection to ``local``."""
        return self._accepted.get((str(netns_cookie), local), [])

    def dialled(self, netns_cookie: int, remote: str) -> list[Connection]:
        """The proxy's sockets in that namespace that were connected to ``remote``."""
        return self._dialled.get((str(netns_cookie), remote), [])


#: Where iptables redirects an application's connection to.
_LOOPBACK: Final = ("127.0.0.1", "[::1]")


class _Facts(NamedTuple):
    """What is shown of a row, before anybody judges it."""

    captured_by: Literal["ebpf", "iptables", "none"] = "none"
    listener: str | None = None
    orig_dst: str | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    peer_seen: str | None = None
    conn_id: str | None = None


def judge(
    row: Row,
    calls: Sequence[Call],
    evidence: Evidence,
    enrolled: Mapping[str, PodRecord],
) -> Flow:
    """The row with its verdict; facts shown are those of the first call that is wrong, or the last.

    ``calls`` are all requests of the pair; every one must be as expected.
    """
    pair, side = row
    look = {"out": _look_out, "in": _look_in, None: _look_untouched}[side]
    facts, why = _Facts(), "no request was made"
    for number, call in enumerate(calls, start=1):
        facts, wrong = look(pair, call, calls, evidence, enrolled)
        why = next(wrong, "")
        if why:
            why = why if number == 1 else f"{why} (request {number} of {len(calls)})"
            break
    expected: Expected = (
        "untouched" if side is None else "captured-out" if side == "out" else "captured-in"
    )
    return Flow(
        from_=pair.source.full_name,
        to=pair.target.full_name,
        family=pair.family,
        side=side,
        expected=expected,
        ok=not why,
        why=why or None,
        **facts._asdict(),
    )


_Look = tuple[_Facts, Iterator[str]]


def _look_out(
    pair: Pair,
    call: Call,
    calls: Sequence[Call],
    evidence: Evidence,
    enrolled: Mapping[str, PodRecord],
) -> _Look:
    record = enrolled[pair.source.full_name]
    own = evidence.by_id.get(call.cookie)
    listener = f"{pair.source.name}:{abi.OUTBOUND_PORT}"
    # where the application's connection was sent: its own address, or loopback by iptables
    accepted = next(
        (
            c
            for host in (_host(call.local or ":"), *_LOOPBACK)
            for c in evidence.accepted(record.netns_cookie, f"{host}:{abi.OUTBOUND_PORT}")
            if c.remote == call.local
        ),
        None,
    )

    def wrong() -> Iterator[str]:
        yield from _call_failed(call)
        if own is None:
            yield f"no kernel record of the app's socket {call.cookie}"
            return
        if own.captured_by != record.backend:
            yield f"captured by {own.captured_by} ({own.reason}), expected {record.backend}"
        if accepted is None:
            yield f"listener {listener} not reached"
            return
        # under iptables the proxy asks conntrack, of which there is no record here
        for who, known in (("app", own), ("proxy", accepted)):
            if known.orig_dst != pair.destination and (known is own or record.backend == "ebpf"):
                yield f"original destination of the {who}'s socket is {known.orig_dst}"
        dialled = len(evidence.dialled(record.netns_cookie, pair.destination))
        if dialled < len(calls):
            yield f"the proxy connected {dialled} of {len(calls)} times to {pair.destination}"
        yield from _app_fooled(pair, call)
        yield from _miscounted(own, call.bytes_sent, call.bytes_received)

    return (
        _Facts(
            captured_by=own.captured_by if own else "none",
            listener=accepted.local if accepted else None,
            orig_dst=own.orig_dst if own else None,
            bytes_sent=call.bytes_sent,
            bytes_received=call.bytes_received,
            peer_seen=call.peer,
            conn_id=call.cookie,
        ),
        wrong(),
    )


def _look_in(
    pair: Pair,
    call: Call,
    calls: Sequence[Call],
    evidence: Evidence,
    enrolled: Mapping[str, PodRecord],
) -> _Look:
    record = enrolled[pair.target.full_name]
    source = str(pair.source.address(pair.family))
    own = evidence.by_id.get(call.seen.cookie) if call.seen else None
    listener = f"{_host(pair.destination)}:{abi.INBOUND_PORT}"
    shown = f"{pair.target.name}:{abi.INBOUND_PORT}"
    # the destination is kept by sk_lookup, and replaced by a redirect of iptables
    accepted = [
        c
        for local in (pair.destination, listener)
        for c in evidence.accepted(record.netns_cookie, local)
        if _ip(c.remote) == source
    ]
    # what the serving app sees as its peer is a socket of the proxy, with the client's address
    handed_on = call.seen is not None and any(
        c.local == call.seen.peer for c in evidence.dialled(record.netns_cookie, pair.destination)
    )

    def wrong() -> Iterator[str]:
        yield from _call_failed(call)
        if not handed_on:
            yield f"listener {shown} not reached, app got it directly"
        if len(accepted) < len(calls):
            yield f"only {len(accepted)} of {len(calls)} connections reached {shown}"
        if own is None:
            yield "no kernel record of the serving app's socket"
            return
        if own.captured_by != record.backend:
            yield f"captured by {own.captured_by} ({own.reason}), expected {record.backend}"
        if own.orig_dst != pair.destination:
            yield f"original destination of the app's socket is {own.orig_dst}"
        yield from _app_fooled(pair, call)
        yield from _miscounted(own, RESPONSE_BYTES, call.seen.received if call.seen else 0)

    return (
        _Facts(
            captured_by=own.captured_by if own else "none",
            listener=listener if handed_on and accepted else None,
            orig_dst=own.orig_dst if own else None,
            bytes_sent=call.bytes_received,
            bytes_received=call.seen.received if call.seen else 0,
            peer_seen=call.seen.peer if call.seen else None,
            conn_id=call.seen.cookie if call.seen else None,
        ),
        wrong(),
    )


def _look_untouched(
    pair: Pair,
    call: Call,
    calls: Sequence[Call],
    evidence: Evidence,
    enrolled: Mapping[str, PodRecord],
) -> _Look:
    own = evidence.by_id.get(call.cookie)

    def wrong() -> Iterator[str]:
        yield from _call_failed(call)
        if own is not None and own.captured_by != "none":
            yield f"captured by {own.captured_by}, although not enrolled"
        if call.seen is not None and call.seen.peer != call.local:
            yield f"somebody is in between: the server saw {call.seen.peer}, not {call.local}"
        yield from _app_fooled(pair, call)

    return (
        _Facts(
            captured_by=own.captured_by if own else "none",
            bytes_sent=call.bytes_sent,
            bytes_received=call.bytes_received,
            peer_seen=call.peer,
            conn_id=call.cookie,
        ),
        wrong(),
    )


def _call_failed(call: Call) -> Iterator[str]:
    """The request itself: answered in full, and the right number of bytes both ways."""
    if call.error is not None:
        yield call.error.lower()
    elif call.seen is None:
        yield "the answer does not come from the lab's workload"
    elif (call.bytes_sent, call.bytes_received) != (REQUEST_BYTES, RESPONSE_BYTES):
        yield f"{call.bytes_sent} bytes sent and {call.bytes_received} received"
    elif call.seen.received != REQUEST_BYTES:
        yield f"the server received {call.seen.received} of {REQUEST_BYTES} bytes"


def _app_fooled(pair: Pair, call: Call) -> Iterator[str]:
    """Both applications must see each other, and nobody else."""
    if call.peer != pair.destination:
        yield f"getpeername said {call.peer}, not {pair.destination}"
    source = str(pair.source.address(pair.family))
    if call.seen is not None:
        if call.seen.pod != pair.target.full_name:
            yield f"{call.seen.pod} answered"
        if _ip(call.seen.peer) != source:
            yield f"the server saw {call.seen.peer}, not {source}"


def _miscounted(record: Connection, sent: int, received: int) -> Iterator[str]:
    """The kernel's statistics against the application's own count."""
    if (record.bytes_sent, record.bytes_received) != (sent, received):
        yield (
            f"the kernel counted {record.bytes_sent} sent and {record.bytes_received} received, "
            f"the app {sent} and {received}"
        )


def _ip(endpoint: str) -> str:
    """The address of an ENDPOINT, as `ipaddress` writes it."""
    return str(ipaddress.ip_address(_host(endpoint).strip("[]")))


def _host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0]
