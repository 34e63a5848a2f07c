"""A row is ok only when all witnesses agree: rows of a lab without a mesh."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest

from nodenet.capture.records import Backend, PodRecord
from nodenet.conns.connection import Connection
from nodenet.lab.flows import Call, Flow, Pair, Row, Seen
from nodenet.lab.plan import make_plan
from nodenet.lab.verdicts import judge
from nodenet.lab.witnesses import Evidence, Witnesses

T = TypeVar("T", bound=msgspec.Struct)

PLAN = make_plan(mesh=False)
A1, B1, A2, B2 = PLAN.pods


def _record(name: str, cookie: int, backend: Backend = "ebpf", **changes: object) -> PodRecord:
    record = PodRecord(
        name=name,
        netns="/run/netns/x",
        netns_inode=1,
        netns_cookie=cookie,
        pod_id=1,
        ips=(),
        backend=backend,
        enrolled_at="2026-01-01T00:00:00.000000Z",
    )
    return msgspec.structs.replace(record, **changes)


ENROLLED = {"lab/a1": _record("lab/a1", 41), "lab/a2": _record("lab/a2", 42)}


def _changed(thing: T, **changes: object) -> T:
    return msgspec.structs.replace(thing, **changes)


def _connection(**given: object) -> Connection:
    fields: dict[str, object] = dict.fromkeys(Connection.__struct_fields__)
    fields.update(
        id="0", family=4, local="", remote="", state="established", captured_by="none",
        bytes_sent=83, bytes_received=12_702, proxy=False,
    )  # fmt: skip
    return Connection(**{**fields, **given})  # type: ignore[arg-type]


#: a1 calls a2:8080 and everything is right: the app's socket, the two of a1's proxy, the two of
#: a2's, and the serving app's.
APP_OUT = _connection(
    id="a", netns_cookie="41", dir="out", local="10.77.1.2:4000", remote="10.77.1.2:15001",
    orig_dst="10.77.2.2:8080", captured_by="ebpf", reason="captured",
)  # fmt: skip
PROXY_ACCEPTED = _connection(
    id="b", netns_cookie="41", dir="in", local="10.77.1.2:15001", remote="10.77.1.2:4000",
    orig_dst="10.77.2.2:8080", captured_by="ebpf", reason="captured", proxy=True,
)  # fmt: skip
PROXY_DIALLED = _connection(
    id="c", netns_cookie="41", dir="out", local="10.77.1.2:5000", remote="10.77.2.2:8080",
    reason="proxy", proxy=True,
)  # fmt: skip
FAR_ACCEPTED = _connection(
    id="d", netns_cookie="42", dir="in", local="10.77.2.2:8080", remote="10.77.1.2:5000",
    orig_dst="10.77.2.2:8080", captured_by="ebpf", reason="captured", proxy=True,
)  # fmt: skip
FAR_DIALLED = _connection(
    id="e", netns_cookie="42", dir="out", local="10.77.1.2:6000", remote="10.77.2.2:8080",
    reason="proxy", proxy=True,
)  # fmt: skip
APP_IN = _connection(
    id="f", netns_cookie="42", dir="in", local="10.77.2.2:8080", remote="10.77.1.2:6000",
    orig_dst="10.77.2.2:8080", captured_by="ebpf", reason="captured",
    bytes_sent=12_702, bytes_received=83,
)  # fmt: skip
ALL = (APP_OUT, PROXY_ACCEPTED, PROXY_DIALLED, FAR_ACCEPTED, FAR_DIALLED, APP_IN)


def _with(*changed: Connection, without: str = "") -> tuple[Connection, ...]:
    """All of them with some replaced and some left out, by id."""
    new = {c.id: c for c in changed}
    return tuple(new.get(c.id, c) for c in ALL if c.id not in without)


SEEN = Seen(pod="lab/a2", peer="10.77.1.2:6000", local="10.77.2.2:8080", cookie="f", received=83)
CALL = Call(
    cookie="a",
    local="10.77.1.2:4000",
    peer="10.77.2.2:8080",
    bytes_sent=83,
    bytes_received=12_702,
    seen=SEEN,
    error=None,
    saw="answer",
)
PAIR = Pair(source=A1, target=A2, family=4)
OUT, IN, NEITHER = Row(PAIR, "out", A2), Row(PAIR, "in", A2), Row(PAIR, None, A2)


def _judge(row: Row, calls: object, connections: object, enrolled: object = ENROLLED) -> Flow:
    witnesses = Witnesses(
        plan=PLAN,
        enrolled=enrolled,  # type: ignore[arg-type]
        kernel=Evidence(connections),  # type: ignore[arg-type]
    )
    return judge(row, calls, witnesses)  # type: ignore[arg-type]


def test_a_captured_flow_from_the_calling_side() -> None:
    flow = _judge(OUT, [CALL], ALL)
    assert msgspec.to_builtins(flow) == {
        "from": "lab/a1",
        "to": "lab/a2",
        "to_port": 8080,
        "server": "lab/a2",
        "family": 4,
        "side": "out",
        "captured_by": "ebpf",
        "listener": "10.77.1.2:15001",
        "orig_dst": "10.77.2.2:8080",
        "bytes_sent": 83,
        "bytes_received": 12_702,
        "peer_seen": "10.77.2.2:8080",
        "conn_id": "a",
        "protocol": "tcp",
        "src_identity": None,
        "dst_identity": None,
        "decision": None,
        "policy": None,
        "status": None,
        "app_saw": "answer",
        "wire": None,
        "expected": "captured-out",
        "ok": True,
        "why": None,
    }


def test_a_captured_flow_from_the_called_side() -> None:
    flow = _judge(IN, [CALL], ALL)
    assert flow.ok, flow.why
    assert (flow.captured_by, flow.listener) == ("ebpf", "10.77.2.2:15006")
    assert (flow.orig_dst, flow.peer_seen) == ("10.77.2.2:8080", "10.77.1.2:6000")
    assert (flow.bytes_sent, flow.bytes_received) == (12_702, 83)
    assert (flow.conn_id, flow.expected) == ("f", "captured-in")


UNTOUCHED = _changed(CALL, seen=_changed(SEEN, peer="10.77.1.2:4000"))


def test_an_untouched_flow() -> None:
    flow = _judge(NEITHER, [UNTOUCHED], (), {})
    assert flow.ok, flow.why
    assert (flow.captured_by, flow.listener, flow.orig_dst) == ("none", None, None)
    assert flow.expected == "untouched"


@pytest.mark.parametrize(
    "row, call, connections, why",
    [
        (OUT, _changed(CALL, error="Connection refused"), ALL, "connection refused"),
        (OUT, CALL, _with(without="a"), "no kernel record of the app's socket a"),
        (
            OUT, CALL, _with(_changed(APP_OUT, captured_by="none", reason="excluded-port")),
            "captured by none (excluded-port), expected ebpf",
        ),
        (OUT, CALL, _with(without="b"), "listener a1:15001 not reached"),
        (
            OUT, CALL, _with(_changed(PROXY_ACCEPTED, orig_dst="10.77.2.3:8080")),
            "original destination of the proxy's socket is 10.77.2.3:8080",
        ),
        (
            OUT, CALL, _with(_changed(APP_OUT, orig_dst=None)),
            "original destination of the app's socket is None",
        ),
        (OUT, CALL, _with(without="c"), "the proxy connected 0 of 1 times to 10.77.2.2:8080"),
        (
            OUT, _changed(CALL, peer="10.77.1.2:15001"), ALL,
            "getpeername said 10.77.1.2:15001, not 10.77.2.2:8080",
        ),
        (
            OUT, _changed(CALL, seen=_changed(SEEN, peer="10.77.1.1:6000")), ALL,
            "the server saw 10.77.1.1:6000, not 10.77.1.2",
        ),
        (OUT, _changed(CALL, seen=_changed(SEEN, pod="lab/b2")), ALL, "lab/b2 answered"),
        (OUT, _changed(CALL, bytes_received=9), ALL, "83 bytes sent and 9 received"),
        (
            OUT, CALL, _with(_changed(APP_OUT, bytes_sent=82)),
            "the kernel counted 82 sent and 12702 received, the app 83 and 12702",
        ),
        (IN, CALL, _with(without="de"), "listener a2:15006 not reached, app got it directly"),
        (
            IN, CALL, _with(_changed(FAR_DIALLED, local="10.77.1.2:6001")),
            "listener a2:15006 not reached, app got it directly",
        ),
        (IN, CALL, _with(without="d"), "only 0 of 1 connections reached a2:15006"),
        (
            IN, CALL, _with(_changed(FAR_ACCEPTED, remote="10.77.1.3:5000")),
            "only 0 of 1 connections reached a2:15006",
        ),
        (IN, CALL, _with(without="f"), "no kernel record of the serving app's socket"),
        (
            IN, CALL, _with(_changed(APP_IN, captured_by="none", reason="from-proxy")),
            "captured by none (from-proxy), expected ebpf",
        ),
        (
            IN, CALL, _with(_changed(APP_IN, orig_dst="10.77.2.2:15006")),
            "original destination of the app's socket is 10.77.2.2:15006",
        ),
        (
            IN, CALL, _with(_changed(APP_IN, bytes_received=0)),
            "the kernel counted 12702 sent and 0 received, the app 12702 and 83",
        ),
        (NEITHER, UNTOUCHED, ALL, "captured by ebpf, although not enrolled"),
        (
            NEITHER, CALL, (),
            "somebody is in between: the server saw 10.77.1.2:6000, not 10.77.1.2:4000",
        ),
        (NEITHER, _changed(CALL, seen=None), (), "the answer does not come from the lab's"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(row: Row, call: Call, connections: object, why: str) -> None:
    flow = _judge(row, [call], connections)
    assert not flow.ok
    assert flow.why is not None and flow.why.startswith(why)


def test_every_request_counts() -> None:
    bad = _changed(CALL, error="timed out")
    twice = (*ALL, _changed(PROXY_DIALLED, id="g"), _changed(PROXY_DIALLED, id="h"))
    assert _judge(OUT, [CALL, CALL, bad], twice).why == "timed out (request 3 of 3)"
    assert _judge(OUT, [], ALL).why == "no request was made"


def test_each_inbound_connection_must_have_reached_the_proxy() -> None:
    assert _judge(IN, [CALL, CALL], ALL).why == "only 1 of 2 connections reached a2:15006"
    more = (*ALL, _changed(FAR_ACCEPTED, id="g", remote="10.77.1.2:5001"))
    assert _judge(IN, [CALL, CALL], more).ok


def test_the_backend_that_captures_is_the_one_that_was_asked_for() -> None:
    asked = {**ENROLLED, "lab/a1": _record("lab/a1", 41, "iptables")}
    assert _judge(OUT, [CALL], ALL, asked).why == "captured by ebpf (captured), expected iptables"


def test_under_iptables_listeners_are_on_loopback_and_the_record_has_no_original() -> None:
    asked = {name: _record(name, r.netns_cookie, "iptables") for name, r in ENROLLED.items()}
    seen = _with(
        _changed(APP_OUT, remote="10.77.2.2:8080", captured_by="iptables"),
        _changed(PROXY_ACCEPTED, local="127.0.0.1:15001", orig_dst=None, captured_by="none"),
        _changed(FAR_ACCEPTED, local="10.77.2.2:15006", captured_by="iptables"),
        _changed(APP_IN, captured_by="iptables"),
    )
    out, inward = _judge(OUT, [CALL], seen, asked), _judge(IN, [CALL], seen, asked)
    assert (out.why, out.listener, out.orig_dst) == (None, "127.0.0.1:15001", "10.77.2.2:8080")
    assert (inward.why, inward.listener) == (None, "10.77.2.2:15006")
