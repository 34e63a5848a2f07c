"""The table of a demo, and the sentences beneath it."""

from __future__ import annotations

import msgspec
import pytest

from nodenet.cli.lab_demo import demo_text
from nodenet.cli.style import Style
from nodenet.lab.demo import DemoReport
from nodenet.lab.flows import Flow
from nodenet.lab.wire import WireReport

A1, A2 = (f"spiffe://cluster.local/ns/lab/sa/a{n}" for n in (1, 2))
OUT = Flow(
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
    src_identity=A1,
    dst_identity=A2,
    decision="allow",
    policy=None,
    status=None,
    app_saw="answer",
    wire=None,
    expected="captured-out",
    ok=True,
    why=None,
)
_changed = msgspec.structs.replace
IN = _changed(
    OUT, side="in", listener="[fd77:2::2]:15008", family=6, orig_dst="[fd77:2::2]:8080",
    bytes_sent=12_702, bytes_received=83, peer_seen="[fd77:1::2]:4711", expected="captured-in",
)  # fmt: skip
DENIED = _changed(
    OUT, to_port=8081, decision="deny", status=401, policy="lab/only-a1", app_saw="reset",
    bytes_received=0, expected="denied-out",
)  # fmt: skip
SERVICE = _changed(OUT, to="lab/web.lab", to_port=80, orig_dst="10.77.255.1:80")
UNTOUCHED = _changed(
    OUT, from_="lab/b1", to="lab/b2", server="lab/b2", side=None, captured_by="none",
    listener=None, orig_dst=None, protocol="tcp", src_identity=None, dst_identity=None,
    decision=None, expected="untouched",
)  # fmt: skip
BAD = _changed(
    IN, family=4, captured_by="none", listener=None, orig_dst=None, ok=False,
    why="listener a2:15008 not reached, app got it directly",
)  # fmt: skip
WIRE = WireReport(
    ok=True, packets=623, lost=0, ports=(15008,), tls_records=150, plaintext_in_mesh=0,
    plaintext_elsewhere=72, not_tls=(), read_by="scapy 2.6", pcap="/run/x.pcap",
)  # fmt: skip


def _text(*flows: Flow, wire: WireReport = WIRE, mesh: bool = True, rules: int = 0) -> list[str]:
    report = DemoReport(
        ok=True, mesh=mesh, policy="lab/only-a1", flows=flows, iptables_rules=rules, wire=wire
    )
    return demo_text(report, Style()).splitlines()


def test_the_table() -> None:
    lines = _text(OUT, IN, DENIED, SERVICE, UNTOUCHED)
    assert [line.split() for line in lines[:6]] == [
        "FROM TO SIDE VIA PROTO IDENTITY DECISION LISTENER SENT RECV CHECK".split(),
        "a1 a2 out ebpf hbone ns/lab/sa/a2 allow a1:15001 83 12.4K ok".split(),
        "a1 a2 (v6) in ebpf hbone ns/lab/sa/a1 allow a2:15008 12.4K 83 ok".split(),
        "a1 a2:8081 out ebpf hbone ns/lab/sa/a2 deny 401 a1:15001 - - ok lab/only-a1".split(),
        "a1 web.lab out ebpf hbone ns/lab/sa/a2 allow a1:15001 83 12.4K ok by a2".split(),
        "b1 b2 - none tcp - - - 83 12.4K ok untouched".split(),
    ]
    assert lines[6:] == [
        "5 rows, 5 ok. The apps saw the true peer in every answered row (getpeername). "
        "No iptables rule in any namespace.",
        "Inter-node link: 623 packets; between enrolled pods TLS to 15008 only, plaintext marker "
        "seen 0 times (elsewhere 72 times).",
        "Next: nodenet conn top · nodenet capture explain a1 10.77.2.2:8080 · nodenet lab down",
    ]


def test_it_fits_a_terminal_and_says_more_on_a_wide_one() -> None:
    report = DemoReport(
        ok=True, mesh=True, policy=None, flows=(OUT, IN, DENIED, SERVICE), iptables_rules=0,
        wire=WIRE,
    )  # fmt: skip
    narrow = demo_text(report, Style(width=80)).splitlines()[:5]
    assert max(map(len, narrow)) <= 80
    assert "DECISION" in narrow[0] and "CHECK" in narrow[0]
    assert max(map(len, demo_text(report, Style()).splitlines()[:5])) <= 120
    wide = demo_text(report, Style(wide=True)).splitlines()
    assert wide[0].split()[-6:] == "ORIGINAL DST PEER SEEN CONN CHECK".split()
    assert "10.77.255.1:80" in wide[4]


def test_a_bad_row_takes_the_claim_away() -> None:
    lines = _text(BAD, rules=2)
    assert "FAIL  listener a2:15008 not reached" in lines[1]
    assert lines[2] == "1 rows, 0 ok. 2 iptables rules in the lab's namespaces."


@pytest.mark.parametrize(
    "changes, mesh, said",
    [
        (
            {"ok": False, "plaintext_in_mesh": 6, "not_tls": ("x",)}, True,
            "between enrolled pods NOT only TLS to 15008, plaintext marker seen 6 times "
            "(elsewhere 72 times).",
        ),
        (
            {"ok": False, "lost": 3}, True,
            "between enrolled pods nothing is proved, 3 packets are missing, plaintext marker "
            "seen 0 times (elsewhere 72 times).",
        ),
        (
            {"ports": ()}, True,
            "between enrolled pods nothing, plaintext marker seen 0 times (elsewhere 72 times).",
        ),
        ({}, False, "plaintext marker seen 72 times: there is no mesh."),
    ],
)  # fmt: skip
def test_what_is_said_of_the_wire(changes: dict[str, object], mesh: bool, said: str) -> None:
    found = _text(OUT, wire=_changed(WIRE, **changes), mesh=mesh)
    assert found[3] == f"Inter-node link: 623 packets; {said}"
