"""What a demo says when something is not as expected."""

from __future__ import annotations

import msgspec
import pytest

from nodenet.lab.demo import DemoReport, FlowsUnexpected, check
from nodenet.lab.flows import Flow
from nodenet.lab.wire import WireReport

GOOD = Flow(
    from_="lab/a1",
    to="lab/a2",
    to_port=8080,
    server="lab/a2",
    family=4,
    side="out",
    captured_by="ebpf",
    listener="10.77.1.2:15001",
    orig_dst="10.77.2.2:8080",
    bytes_sent=83,
    bytes_received=12_702,
    peer_seen="10.77.2.2:8080",
    conn_id="3a01",
    protocol="hbone",
    src_identity="spiffe://cluster.local/ns/lab/sa/a1",
    dst_identity="spiffe://cluster.local/ns/lab/sa/a2",
    decision="allow",
    policy=None,
    status=None,
    app_saw="answer",
    wire=None,
    expected="captured-out",
    ok=True,
    why=None,
)
BAD = msgspec.structs.replace(
    GOOD, side="in", captured_by="none", listener=None, orig_dst=None, ok=False,
    why="listener a2:15006 not reached, app got it directly",
)  # fmt: skip
WIRE = WireReport(
    ok=True,
    packets=623,
    lost=0,
    ports=(15008,),
    tls_records=150,
    plaintext_in_mesh=0,
    plaintext_elsewhere=72,
    not_tls=(),
    read_by="scapy 2.6",
    pcap="/run/nodenet/lab/x/wire.pcap",
)


def _report(
    *flows: Flow, rules: int = 0, wire: WireReport = WIRE, ok: bool | None = None
) -> DemoReport:
    good = all(f.ok for f in flows) and wire.ok if ok is None else ok
    return DemoReport(
        ok=good, mesh=True, policy="lab/only-a1", flows=flows, iptables_rules=rules, wire=wire
    )


def _line(report: DemoReport) -> str:
    with pytest.raises(FlowsUnexpected) as caught:
        check(report)
    assert caught.value.exit_code == 1
    return caught.value.line()


def test_all_well_raises_nothing() -> None:
    check(_report(GOOD))


def test_the_documented_error_names_the_first_bad_row() -> None:
    assert _line(_report(GOOD, BAD, BAD)) == (
        "2 of 3 flows not as expected: a1->a2 in: listener a2:15006 not reached, "
        "app got it directly; see: nodenet capture verify a2"
    )


def test_another_port_and_a_service_are_named() -> None:
    port = msgspec.structs.replace(BAD, to_port=8081, family=6)
    assert _line(_report(port)).startswith("1 of 1 flows not as expected: a1->a2:8081 (v6) in: ")
    service = msgspec.structs.replace(BAD, to="lab/web.lab", to_port=80, side="out")
    assert _line(_report(service)).startswith(
        "1 of 1 flows not as expected: a1->web.lab (by a2) out: "
    )
    assert _line(_report(service)).endswith("; see: nodenet capture verify a1")


def test_rules_alone_are_an_error_too() -> None:
    assert "lab's namespaces: 3, expected none" in _line(_report(GOOD, rules=3, ok=False))


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"lost": 2}, "between the nodes: 2 packets were not captured; see: "),
        (
            {"not_tls": ("10.77.1.2 -> 10.77.2.2: port 22",)},
            "between the nodes: not TLS to 15008: 10.77.1.2 -> 10.77.2.2: port 22; see: ",
        ),
        (
            {"plaintext_in_mesh": 6},
            "between the nodes: 6 plaintext markers between enrolled pods; see: ",
        ),
    ],
)
def test_the_wire_alone_is_an_error_too(changes: dict[str, object], error: str) -> None:
    wire = msgspec.structs.replace(WIRE, ok=False, **changes)
    assert _line(_report(GOOD, wire=wire)) == f"{error}/run/nodenet/lab/x/wire.pcap"
