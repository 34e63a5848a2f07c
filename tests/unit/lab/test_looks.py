"""Rows of a mesh: the kernel, the two proxies' logs and the wire must all say HBONE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
import pytest

from nodenet.capture.records import PodRecord
from nodenet.conns.connection import Connection
from nodenet.lab import mesh
from nodenet.lab.access_log import AccessLine, AccessLog
from nodenet.lab.flows import Call, Flow, FlowWire, Pair, Row, Seen
from nodenet.lab.pcap import ACK, SYN, TCP, Packet
from nodenet.lab.plan import GUARDED_PORT, SERVICE_PORT, make_plan
from nodenet.lab.verdicts import judge
from nodenet.lab.wire import Wire
from nodenet.lab.witnesses import Evidence, Witnesses, arrival

T = TypeVar("T", bound=msgspec.Struct)

PLAN = make_plan()
A1, B1, A2, B2 = PLAN.pods
assert PLAN.service is not None
TOKEN = "nn00112233"
MEMBERS = {str(address) for pod in PLAN.members for address in pod.addresses}


def _record(name: str, cookie: int) -> PodRecord:
    return PodRecord(
        name=name,
        netns="/run/netns/x",
        netns_inode=1,
        netns_cookie=cookie,
        pod_id=1,
        ips=(),
        backend="ebpf",
        enrolled_at="2026-01-01T00:00:00.000000Z",
    )


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


def _address(row: Row) -> str:
    """Of the source."""
    return str(row.pair.source.address(4))


def sockets(row: Row, *, answered: bool = True) -> dict[str, Connection]:
    """What the kernel has of one call that went through HBONE, by who has the socket."""
    ip, to = _address(row), row.pair.destination
    near = str(ENROLLED[row.pair.source.full_name].netns_cookie)
    served = row.server_endpoint
    host = served.partition(":")[0]
    far = str(ENROLLED[row.server.full_name].netns_cookie)
    found = {
        "app": _connection(
            id="a", netns_cookie=near, dir="out", local=f"{ip}:4000", remote=f"{ip}:15001",
            orig_dst=to, captured_by="ebpf", reason="captured",
        ),
        "accepted": _connection(
            id="b", netns_cookie=near, dir="in", local=f"{ip}:15001", remote=f"{ip}:4000",
            orig_dst=to, captured_by="ebpf", reason="captured", proxy=True,
        ),
        "tunnel": _connection(
            id="c", netns_cookie=near, dir="out", local=f"{ip}:5000", remote=f"{host}:15008",
            reason="proxy", proxy=True,
        ),
        "far tunnel": _connection(
            id="d", netns_cookie=far, dir="in", local=f"{host}:15008", remote=f"{ip}:5000",
            reason="hbone", proxy=True,
        ),
    }  # fmt: skip
    if answered:
        found["far dial"] = _connection(
            id="e", netns_cookie=far, dir="out", local=f"{ip}:6000", remote=served,
            reason="proxy", proxy=True,
        )  # fmt: skip
        found["served"] = _connection(
            id="f", netns_cookie=far, dir="in", local=served, remote=f"{ip}:6000",
            orig_dst=served, captured_by="ebpf", reason="captured",
            bytes_sent=12_702, bytes_received=83,
        )  # fmt: skip
    return found


def call(row: Row, **changes: object) -> Call:
    """What the calling application saw of it."""
    seen = Seen(
        pod=row.server.full_name,
        peer=f"{_address(row)}:6000",
        local=row.server_endpoint,
        cookie="f",
        received=83,
    )
    fields: dict[str, object] = {
        "cookie": "a",
        "local": f"{_address(row)}:4000",
        "peer": row.pair.destination,
        "bytes_sent": 83,
        "bytes_received": 12_702,
        "seen": seen,
        "error": None,
        "saw": "answer",
    }
    return Call(**(fields | changes))  # type: ignore[arg-type]


def lines(row: Row, **changes: object) -> list[AccessLine]:
    """What the two proxies wrote; ``out_…`` and ``in_…`` change the one or the other."""
    found = []
    for direction, port in (("outbound", 4000), ("inbound", 5000)):
        fields: dict[str, object] = {
            "message": "connection complete",
            "direction": direction,
            "source": f"{_address(row)}:{port}",
            "src_identity": mesh.identity(row.pair.source),
            "destination": "x",
            "tunnelled_to": row.server_endpoint,
            "dst_identity": mesh.identity(row.server),
        }
        prefix = direction.removesuffix("bound") + "_"
        fields |= {k.removeprefix(prefix): v for k, v in changes.items() if k.startswith(prefix)}
        found.append(AccessLine(**fields))  # type: ignore[arg-type]
    return found


TLS = bytes((22, 3, 1, 0, 4)) + b"\xfe" * 4


def packets(row: Row, port: int = 15008, payload: bytes = TLS) -> list[Packet]:
    """A connection from the source to the server, as it crossed."""
    source, target = _address(row), row.server_endpoint.partition(":")[0]
    return [
        Packet(source, target, TCP, 5000, port, SYN, 0, b""),
        Packet(target, source, TCP, port, 5000, SYN | ACK, 0, b""),
        Packet(source, target, TCP, 5000, port, ACK, 1, payload),
    ]


def look(
    row: Row,
    calls: Sequence[Call] | None = None,
    *,
    kernel: Iterable[Connection] | None = None,
    log: Iterable[AccessLine] | None = None,
    crossed: Iterable[Packet] | None = None,
    enrolled: Mapping[str, PodRecord] = ENROLLED,
    arrivals: int = 1,
) -> Flow:
    """The row as judged; what is not given is as it must be."""
    witnesses = Witnesses(
        plan=PLAN,
        enrolled=enrolled,
        kernel=Evidence(sockets(row).values() if kernel is None else kernel),
        log=AccessLog(lines(row) if log is None else log),
        wire=Wire(packets(row) if crossed is None else crossed, MEMBERS, TOKEN),
        marks={row.pair: f"{TOKEN}0001"},
        arrivals={arrival(row): arrivals},
    )
    return judge(row, [call(row)] if calls is None else calls, witnesses)


PAIR = Pair(source=A1, target=A2, family=4)
OUT, IN = Row(PAIR, "out", A2), Row(PAIR, "in", A2)
WIRE = FlowWire(plaintext_seen=False, ports=(15008,))


@pytest.mark.parametrize("row", [OUT, IN])
def test_a_tunnelled_flow_from_both_sides(row: Row) -> None:
    flow = look(row)
    assert flow.ok, flow.why
    assert (flow.protocol, flow.decision, flow.status, flow.policy) == (
        "hbone", "allow", None, None,
    )  # fmt: skip
    assert (flow.src_identity, flow.dst_identity) == (
        "spiffe://cluster.local/ns/lab/sa/a1", "spiffe://cluster.local/ns/lab/sa/a2",
    )  # fmt: skip
    assert (flow.wire, flow.app_saw) == (WIRE, "answer")
    port = 15001 if row.side == "out" else 15008
    assert flow.listener == f"10.77.{1 if row.side == 'out' else 2}.2:{port}"


def _without(row: Row, *names: str) -> list[Connection]:
    return [c for name, c in sockets(row).items() if name not in names]


PAST = _connection(id="x", netns_cookie="41", dir="out", local="10.77.1.2:7000",
                   remote="10.77.2.2:8080", proxy=True)  # fmt: skip


@pytest.mark.parametrize(
    "row, kernel, why",
    [
        (OUT, _without(OUT, "app"), "no kernel record of the app's socket a"),
        (OUT, _without(OUT, "accepted"), "listener a1:15001 not reached"),
        (OUT, _without(OUT, "tunnel"), "the proxy has no connection to 10.77.2.2:15008"),
        (OUT, [*_without(OUT), PAST], "the proxy connected to 10.77.2.2:8080, past HBONE"),
        (IN, _without(IN, "far tunnel"), "only 0 of 1 connections reached a2:15008"),
        (IN, _without(IN, "far dial"), "listener a2:15008 not reached, app got it directly"),
        (IN, _without(IN, "served"), "no kernel record of the serving app's socket"),
    ],
)
def test_the_kernel_must_have_seen_a_tunnel(row: Row, kernel: list[Connection], why: str) -> None:
    assert look(row, kernel=kernel).why == why


@pytest.mark.parametrize(
    "row, changes, why",
    [
        (OUT, {"out_tunnelled_to": None}, "a1's proxy carried it by tcp, not hbone"),
        (
            OUT, {"out_dst_identity": mesh.identity(B2)},
            "a1's proxy has spiffe://cluster.local/ns/lab/sa/b2 as the identity of a2, not "
            "spiffe://cluster.local/ns/lab/sa/a2",
        ),
        (OUT, {"out_source": "10.77.1.2:1"},
         "0 of 1 connections are in the access log of a1's proxy"),
        (OUT, {"out_error": "http status: 503 Service Unavailable"},
         "a1's proxy logged: http status: 503 Service Unavailable"),
        (
            IN, {"in_src_identity": None},
            "a2's proxy has None as the identity of a1, not spiffe://cluster.local/ns/lab/sa/a1",
        ),
        (IN, {"in_source": "10.77.1.3:1"},
         "0 of 1 connections are in the access log of a2's proxy"),
        (IN, {"in_error": "connection closed due to policy change"},
         "a2's proxy logged: connection closed due to policy change"),
    ],
)  # fmt: skip
def test_the_proxies_must_have_logged_it(row: Row, changes: dict[str, object], why: str) -> None:
    assert look(row, log=lines(row, **changes)).why == why


def test_every_connection_must_be_logged_those_for_a_service_too() -> None:
    assert look(IN, arrivals=2).why == "1 of 2 connections are in the access log of a2's proxy"
    assert look(IN, log=[*lines(IN), *lines(IN)], arrivals=2).ok


def test_one_wrong_line_among_many_is_enough() -> None:
    log = [*lines(IN), *lines(IN, in_error="peer failed"), *lines(IN)]
    assert look(IN, log=log, arrivals=3).why == "a2's proxy logged: peer failed"


@pytest.mark.parametrize("row", [OUT, IN])
@pytest.mark.parametrize(
    "crossed, why",
    [
        ([], "ports connected to between the nodes: none, expected 15008 alone"),
        (
            [*packets(OUT), *packets(OUT, port=8080)],
            "ports connected to between the nodes: 8080, 15008, expected 15008 alone",
        ),
        (
            packets(OUT, payload=f"GET / {TOKEN}0001".encode()),
            "plaintext crossed between pods of the mesh",
        ),
        (packets(OUT, payload=b"SSH-2.0"), "not TLS to 15008: 10.77.1.2 -> 10.77.2.2: not TLS"),
    ],
)
def test_the_wire_must_show_nothing_but_tls(row: Row, crossed: list[Packet], why: str) -> None:
    flow = look(row, crossed=crossed)
    assert (flow.ok, flow.why) == (False, why)


DENIED_PAIR = Pair(source=A2, target=A1, family=4, port=GUARDED_PORT)
DENIED_OUT, DENIED_IN = Row(DENIED_PAIR, "out", A1), Row(DENIED_PAIR, "in", A1)
REFUSED = {
    "out_error": "http status: 401 Unauthorized",
    "in_error": "connection closed due to policy rejection: explicitly denied by: lab/only-a1",
}


def _denied(row: Row, **given: object) -> Flow:
    ended = call(row, seen=None, bytes_received=0, saw="reset", error="reset by peer")
    defaults: dict[str, object] = {
        "calls": [ended],
        "kernel": sockets(row, answered=False).values(),
        "log": lines(row, **REFUSED),
    }
    return look(row, **(defaults | given))  # type: ignore[arg-type]


@pytest.mark.parametrize("row, status", [(DENIED_OUT, 401), (DENIED_IN, None)])
def test_a_denied_flow(row: Row, status: int | None) -> None:
    flow = _denied(row)
    assert flow.ok, flow.why
    assert (flow.expected, flow.decision, flow.policy) == (
        f"denied-{row.side}", "deny", "lab/only-a1",
    )  # fmt: skip
    assert (flow.status, flow.app_saw, flow.wire) == (status, "reset", WIRE)
    assert flow.captured_by == "ebpf"
    assert flow.listener is not None


@pytest.mark.parametrize("saw, peer", [("close", "10.77.1.2:8081"), ("reset", None)])
def test_a_denied_app_may_be_cut_off_before_connect_is_back(saw: str, peer: str | None) -> None:
    """Then it does not know its own address: the kernel does."""
    local = None if peer is None else "10.77.2.2:4000"
    ended = call(DENIED_OUT, seen=None, bytes_received=0, saw=saw, peer=peer, local=local)
    assert _denied(DENIED_OUT, calls=[ended]).ok


@pytest.mark.parametrize(
    "row, given, why",
    [
        (
            DENIED_OUT, {"calls": [call(DENIED_OUT)]},
            "lab/a1 answered, although lab/a2 is denied",
        ),
        (
            DENIED_OUT,
            {"calls": [call(DENIED_OUT, seen=None, bytes_received=0, saw="failure",
                            error="Timed out")]},
            "the app saw no end of its connection: timed out",
        ),
        (DENIED_OUT, {"log": lines(DENIED_OUT)}, "a2's proxy did not deny it: no error"),
        (
            DENIED_OUT, {"log": lines(DENIED_OUT, out_error="http status: 503 x")},
            "a2's proxy did not deny it: http status: 503 x",
        ),
        (
            DENIED_IN,
            {"log": lines(DENIED_IN, **{**REFUSED, "in_error": "explicitly denied by: lab/other"})},
            "denied by lab/other, not lab/only-a1",
        ),
        (
            DENIED_IN, {"kernel": sockets(DENIED_IN).values()},
            "the proxy connected to 10.77.1.2:8081 all the same",
        ),
        (DENIED_IN, {"kernel": []}, "listener a1:15008 not reached"),
    ],
)  # fmt: skip
def test_a_denial_that_is_none(row: Row, given: dict[str, object], why: str) -> None:
    flow = _denied(row, **given)
    assert (flow.ok, flow.why) == (False, why)


def test_under_iptables_conntrack_may_give_a_connection_another_port() -> None:
    """The app's port is that of two connections; the log says which one this is."""
    enrolled = {name: _changed(record, backend="iptables") for name, record in ENROLLED.items()}
    found = sockets(OUT)
    renamed = [
        _changed(found["accepted"], id=id_, local="127.0.0.1:15001", remote=f"10.77.1.2:{port}",
                 orig_dst=None)
        for id_, port in (("b1", 61_001), ("b", 61_002), ("b2", 61_003))
    ]  # fmt: skip
    app = _changed(found["app"], captured_by="iptables", remote="10.77.2.2:8080")
    other = _changed(app, id="o", local="10.77.1.2:61003")
    kernel = [*_without(OUT, "app", "accepted"), app, other, *renamed]
    elsewhere = lines(OUT, out_source="10.77.1.2:61001", out_tunnelled_to="10.77.2.2:8081")[0]
    log = [elsewhere, *lines(OUT, out_source="10.77.1.2:61002")]
    flow = look(OUT, kernel=kernel, log=log, enrolled=enrolled)
    assert flow.ok, flow.why
    assert flow.listener == "127.0.0.1:15001"
    # the port may also be that of the other connection's accepted socket
    same = _changed(found["accepted"], id="b9", local="127.0.0.1:15001", orig_dst=None)
    others = [*log, _changed(elsewhere, source="10.77.1.2:4000")]
    assert look(OUT, kernel=[same, *kernel], log=others, enrolled=enrolled).ok
    # by eBPF ports stay as they are
    assert look(OUT, kernel=kernel, log=log).why is not None
    gone = [c for c in kernel if c.id != "b"]
    assert look(OUT, kernel=gone, log=log[:1], enrolled=enrolled).why == (
        "listener a1:15001 not reached"
    )


SERVICE = Pair(source=A1, target=PLAN.service, family=4, port=SERVICE_PORT)
OWN, FAR = Row(SERVICE, "out", A1), Row(SERVICE, "out", A2)


def test_a_service_is_answered_by_each_endpoint() -> None:
    both = [call(OWN), call(FAR)]
    far = look(FAR, both)
    assert far.ok, far.why
    assert (far.to, far.to_port, far.server) == ("lab/web.lab", 80, "lab/a2")
    assert (far.orig_dst, far.peer_seen) == ("10.77.255.1:80", "10.77.255.1:80")
    assert far.wire == WIRE
    own = look(OWN, both)
    assert own.ok, own.why
    # from the pod to itself: nothing of it is on the wire
    assert (own.server, own.dst_identity, own.wire) == ("lab/a1", mesh.identity(A1), None)


def test_an_endpoint_that_never_answers_is_named() -> None:
    assert look(FAR, [call(OWN)]).why == "lab/a2 answered none of 1 requests"


def test_a_failed_call_for_a_service_counts_for_every_endpoint() -> None:
    failed = call(FAR, seen=None, bytes_received=0, saw="failure", error="timed out")
    for row in (OWN, FAR):
        assert look(row, [call(row), failed]).why == "timed out (request 2 of 2)"


def test_a_member_taken_out_of_the_capture_speaks_plaintext_and_that_is_a_fault() -> None:
    row = Row(Pair(source=A1, target=A2, family=4), "in", A2)
    enrolled = {"lab/a2": ENROLLED["lab/a2"]}
    request = f"GET / {TOKEN}0001".encode()
    log = lines(row, in_tunnelled_to=None, in_src_identity=None, in_dst_identity=None,
                in_destination="10.77.2.2:8080")  # fmt: skip
    plain = _connection(id="d", netns_cookie="42", dir="in", local="10.77.2.2:8080",
                        remote="10.77.1.2:4000", proxy=True)  # fmt: skip
    flow = look(
        row,
        kernel=[*_without(row, "far tunnel"), plain],
        log=log,
        crossed=packets(row, port=8080, payload=request),
        enrolled=enrolled,
    )
    assert flow.protocol == "tcp"
    assert (flow.ok, flow.why) == (False, "plaintext crossed between pods of the mesh")
    assert flow.wire == FlowWire(plaintext_seen=True, ports=(8080,))


def test_plaintext_that_must_be_there_must_be_seen() -> None:
    row = Row(Pair(source=B1, target=B2, family=4), None, B2)
    seen = Seen(pod="lab/b2", peer="10.77.1.3:1", local="x", cookie="9", received=83)
    calls = [call(row, local="10.77.1.3:1", seen=seen)]
    mark = f"{TOKEN}0001".encode()
    bare = [Packet("10.77.1.3", "10.77.2.3", TCP, 1, 8080, ACK, 0, mark)]
    assert look(row, calls, kernel=(), crossed=[*bare, bare[0]._replace(sequence=14)]).ok
    assert look(row, calls, kernel=(), crossed=bare).why == (
        "the capture between the nodes has 1 of 2 marks: it proves nothing"
    )
