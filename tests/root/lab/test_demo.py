"""Whole labs: captured, proved, broken on purpose, killed half-way, and removed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from nodenet.capture.session import Capture
from nodenet.lab import pcap, processes, scapy_reader
from nodenet.lab.demo import DemoReport
from nodenet.lab.plan import make_plan
from nodenet.lab.state import LabDir
from nodenet.lab.up import ProxyNotListening, up
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]


class _Quiet:
    """Progress that nobody looks at."""

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        yield


def _lab(lab: LabDir, verb: str, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nodenet.cli.main", "lab", verb, "--id", lab.lab, *argv]
    ours = ("NODENET", "LC_", "LANG")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ)


def _report(lab: LabDir, verb: str, *argv: str, code: int = 0) -> dict[str, Any]:
    done = _lab(lab, verb, "-j", *argv)
    assert done.returncode == code, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def _cookie(lab: LabDir, pod: str) -> str:
    pods = _report(lab, "status")["pods"]
    return str(next(p["netns_cookie"] for p in pods if p["pod"] == pod))


@pytest.mark.parametrize("backend", ["ebpf", "iptables"])
def test_every_row_of_a_mesh_is_as_expected(
    lab: LabDir, backend: str, remains: Callable[[str], list[str]]
) -> None:
    made = _report(lab, "up", "--backend", backend)
    assert (made["ok"], made["already"], made["pods"], made["enrolled"]) == (True, False, 4, 2)
    assert made["mesh"] is True
    report = _report(lab, "demo")
    flows = report["flows"]
    assert report["ok"], [f["why"] for f in flows if not f["ok"]]
    expected = Counter(f["expected"] for f in flows)
    assert expected == {
        "captured-out": 22, "captured-in": 14, "untouched": 4, "denied-out": 2, "denied-in": 2,
    }  # fmt: skip
    assert {f["captured_by"] for f in flows if f["side"]} == {backend}
    assert {f["captured_by"] for f in flows if not f["side"]} == {"none"}
    assert (report["iptables_rules"] == 0) is (backend == "ebpf")
    _check_mesh(flows)
    _check_wire(report)
    # as the documented schema is made from it
    assert msgspec.convert(report, DemoReport).ok
    assert _lab(lab, "up", "--backend", backend).stdout == (
        "lab already up (4 pods), nothing to do\n"
    )
    assert _report(lab, "down")["removed"] == [{"lab": lab.lab, "namespaces": 7, "processes": 8}]
    assert _report(lab, "down")["removed"] == []
    assert remains(lab.lab) == []


def _check_mesh(flows: list[dict[str, Any]]) -> None:
    """Who is who, who may, and how: between enrolled pods, and elsewhere."""
    identity = "spiffe://cluster.local/ns/lab/sa/{}".format
    for flow in flows:
        source, server = (flow[key].removeprefix("lab/") for key in ("from", "server"))
        if {source, server} <= {"a1", "a2"}:
            assert flow["protocol"] == "hbone"
            assert (flow["src_identity"], flow["dst_identity"]) == (
                identity(source), identity(server),
            )  # fmt: skip
            if source != server:
                assert flow["wire"] == {"plaintext_seen": False, "ports": [15008]}
        else:
            assert flow["protocol"] == "tcp"
            assert flow["src_identity"] is flow["dst_identity"] is None
            crosses = source[1] != server[1]
            assert flow["wire"] == ({"plaintext_seen": True, "ports": [8080]} if crosses else None)
    denied = [f for f in flows if f["to_port"] == 8081 and f["from"] == "lab/a2"]
    assert len(denied) == 4
    for flow in denied:
        assert (flow["decision"], flow["policy"]) == ("deny", "lab/only-a1")
        assert flow["status"] == (401 if flow["side"] == "out" else None)
        assert (flow["app_saw"], flow["bytes_received"]) == ("reset", 0)
    allowed = [f for f in flows if f["to_port"] == 8081 and f["from"] == "lab/a1"]
    assert {(f["decision"], f["status"], f["app_saw"]) for f in allowed} == {
        ("allow", None, "answer"),
    }  # fmt: skip
    served = {(f["from"], f["server"], f["family"]) for f in flows if f["to"] == "lab/web.lab"}
    assert served == {(a, b, n) for a in ("lab/a1", "lab/a2") for b in ("lab/a1", "lab/a2")
                      for n in (4, 6)}  # fmt: skip


def _check_wire(report: dict[str, Any]) -> None:
    """The report's sums, and that another reader of the capture comes to the same."""
    wire = report["wire"]
    assert (wire["ok"], wire["ports"], wire["lost"], wire["not_tls"]) == (True, [15008], 0, [])
    # 12 plaintext flows from node to node, 3 requests each, and their answers
    assert (wire["plaintext_in_mesh"], wire["plaintext_elsewhere"]) == (0, 72)
    assert wire["tls_records"] > 50
    assert wire["read_by"].startswith("scapy ")
    path = Path(wire["pcap"])
    ours, theirs = list(pcap.read(path)), list(scapy_reader.read(path))
    assert ours == theirs
    assert len(ours) == wire["packets"]


def test_the_capture_shows_the_marks_of_plaintext_and_of_nothing_else(lab: LabDir) -> None:
    """Not by what the demo says of itself: by the bytes of the file."""
    _report(lab, "up")
    wire = _report(lab, "demo")["wire"]
    marks = re.compile(rb"nn[0-9a-f]{12}")
    seen: dict[frozenset[str], int] = {}
    members = {"10.77.1.2", "10.77.2.2", "fd77:1::2", "fd77:2::2"}
    for packet in scapy_reader.read(Path(wire["pcap"])):
        ends = frozenset((packet.source, packet.target))
        if not all(end.startswith(("10.77.", "fd77:")) for end in ends):
            continue  # nodes and the router looking for each other
        seen[ends] = seen.get(ends, 0) + len(marks.findall(packet.payload))
        if ends <= members:
            assert 15008 in (packet.source_port, packet.target_port)
    assert any(ends <= members for ends in seen)
    assert all((count == 0) is (ends <= members) for ends, count in seen.items()), seen


def test_every_row_of_a_plain_lab_is_as_expected(lab: LabDir) -> None:
    assert _report(lab, "up", "--plain")["mesh"] is False
    assert not lab.mesh_path.exists() and not lab.ca_path.exists()
    report = _report(lab, "demo")
    flows = report["flows"]
    assert report["ok"], [f["why"] for f in flows if not f["ok"]]
    assert len(flows) == 28
    expected = [f["expected"] for f in flows]
    assert [expected.count(e) for e in ("captured-out", "captured-in", "untouched")] == [12, 12, 4]
    assert {(f["protocol"], f["src_identity"], f["decision"]) for f in flows} == {
        ("tcp", None, None),
    }  # fmt: skip
    assert (report["mesh"], report["policy"]) == (False, None)
    assert report["wire"]["plaintext_elsewhere"] == 16 * 3 * 2
    out = next(f for f in flows if (f["from"], f["to"], f["side"]) == ("lab/a1", "lab/a2", "out"))
    assert (out["family"], out["orig_dst"], out["peer_seen"]) == (4, *["10.77.2.2:8080"] * 2)
    assert (out["bytes_sent"], out["bytes_received"]) == (83, 12_702)
    assert out["wire"] == {"plaintext_seen": True, "ports": [8080]}
    differs = _lab(lab, "up")
    assert differs.returncode == 1
    assert "is up with other settings: mesh False, asked True" in differs.stderr


def test_a_plain_lab_by_iptables(lab: LabDir) -> None:
    _report(lab, "up", "--plain", "--backend", "iptables")
    assert _report(lab, "demo", "--requests", "1")["ok"]


@pytest.mark.parametrize(
    "options, rows",
    [
        (("--nodes", "3", "--pods", "1", "--family", "6"), 6 * 2 + 6 * 2 + 3 * 2),
        (("--nodes", "1", "--pods", "2", "--family", "4"), 2 + 1),
    ],
)
def test_other_labs(lab: LabDir, options: tuple[str, ...], rows: int) -> None:
    _report(lab, "up", *options)
    report = _report(lab, "demo", "--requests", "1")
    assert report["ok"], [f["why"] for f in report["flows"] if not f["ok"]]
    assert len(report["flows"]) == rows
    denied = {f["from"] for f in report["flows"] if f["decision"] == "deny"}
    assert denied == ({"lab/a2", "lab/a3"} if "3" in options else set())


def test_the_table_and_the_sentences(lab: LabDir) -> None:
    up = _lab(lab, "up")
    assert up.returncode == 0
    assert up.stderr.splitlines()[0] == "[1/6] check the host"
    assert "2 of them enrolled (ebpf, hbone)" in up.stdout
    lines = _lab(lab, "demo").stdout.splitlines()
    assert lines[0].split() == (
        "FROM TO SIDE VIA PROTO IDENTITY DECISION LISTENER SENT RECV CHECK".split()
    )
    cells = [line.split() for line in lines[1:45]]
    for row in (
        "a1 a2 out ebpf hbone ns/lab/sa/a2 allow a1:15001 83 12.4K ok",
        "a1 a2 in ebpf hbone ns/lab/sa/a1 allow a2:15008 12.4K 83 ok",
        "a1 a2 (v6) out ebpf hbone ns/lab/sa/a2 allow a1:15001 83 12.4K ok",
        "a1 b2 out ebpf tcp - - a1:15001 83 12.4K ok",
        "b1 a2 in ebpf tcp - allow a2:15006 12.4K 83 ok",
        "a2 a1:8081 out ebpf hbone ns/lab/sa/a1 deny 401 a2:15001 - - ok lab/only-a1",
        "a2 a1:8081 (v6) in ebpf hbone ns/lab/sa/a2 deny a1:15008 - - ok lab/only-a1",
        "a1 web.lab out ebpf hbone ns/lab/sa/a2 allow a1:15001 83 12.4K ok by a2",
        "b1 b2 - none tcp - - - 83 12.4K ok untouched",
    ):
        assert row.split() in cells, row
    assert lines[45] == (
        "44 rows, 44 ok. The apps saw the true peer in every answered row (getpeername). "
        "No iptables rule in any namespace."
    )
    assert re.fullmatch(
        r"Inter-node link: \d+ packets; between enrolled pods TLS to 15008 only, "
        r"plaintext marker seen 0 times \(elsewhere 72 times\)\.",
        lines[46],
    )
    assert lines[47:] == [
        "Next: nodenet conn top · nodenet capture explain a1 10.77.2.2:8080 · nodenet lab down",
    ]


def test_chosen_pairs_and_one_request(lab: LabDir) -> None:
    _report(lab, "up", "--family", "4")
    flows = _report(lab, "demo", "--pairs", "a1:b2,lab/b2:a1", "--requests", "1")["flows"]
    assert [(f["from"], f["to"], f["side"]) for f in flows] == [
        ("lab/a1", "lab/b2", "out"),
        ("lab/b2", "lab/a1", "in"),
    ]
    more = _report(lab, "demo", "--pairs", "b1:a2:8081,a2:a1:8081,a1:web.lab", "--requests", "2")
    assert [(f["from"], f["server"], f["side"], f["protocol"], f["decision"], f["status"])
            for f in more["flows"]] == [
        ("lab/b1", "lab/a2", "in", "tcp", "deny", None),
        ("lab/a2", "lab/a1", "out", "hbone", "deny", 401),
        ("lab/a2", "lab/a1", "in", "hbone", "deny", None),
        ("lab/a1", "lab/a1", "out", "hbone", "allow", None),
        ("lab/a1", "lab/a2", "out", "hbone", "allow", None),
    ]  # fmt: skip
    for argv, code, error in (
        (("--pairs", "a1"), 2, "--pairs a1: not a pair of pods; write e.g. a1:b2"),
        (("--pairs", "a1:a1"), 2, "--pairs a1:a1: not a pair of pods; write e.g. a1:b2"),
        (("--pairs", "a1:z9"), 4, f"no pod z9 in lab {lab.lab}; it has: a1 b1 a2 b2"),
        (("--requests", "0"), 2, "--requests 0: out of range 1-100"),
    ):
        done = _lab(lab, "demo", *argv)
        assert (done.returncode, done.stderr) == (code, f"nodenet: {error}\n")


def test_a_row_that_is_not_as_expected(lab: LabDir) -> None:
    """Without its inbound link a pod's app gets connections straight from the wire."""
    _report(lab, "up", "--plain")
    pin = Instance(lab.lab).links / "sk_lookup" / _cookie(lab, "lab/a2")
    pin.unlink()
    done = _lab(lab, "demo", "-j", "--pairs", "a1:a2")
    assert done.returncode == 1
    assert done.stderr == (
        "nodenet: 2 of 4 flows not as expected: a1->a2 in: listener a2:15006 not reached, "
        "app got it directly; see: nodenet capture verify a2\n"
    )
    report = json.loads(done.stdout)
    assert not report["ok"]
    assert [f["ok"] for f in report["flows"]] == [True, False, True, False]


def test_a_pod_taken_out_by_hand_is_expected_to_be_untouched(lab: LabDir) -> None:
    _report(lab, "up", "--plain", "--family", "6")
    with Capture.open(Instance(lab.lab)) as capture:
        capture.unenroll(int(_cookie(lab, "lab/a2")))
    report = _report(lab, "demo")
    assert len(report["flows"]) == 3 + 3 + 6
    assert not any("lab/a2" in (f["from"], f["to"]) for f in report["flows"] if not f["ok"])
    assert {p["pod"] for p in _report(lab, "status")["pods"] if p["enrolled"]} == {"lab/a1"}


def test_a_member_of_the_mesh_that_speaks_plaintext_spoils_the_proof(lab: LabDir) -> None:
    """Taken out of the capture, a2 says to a1 in clear what a1 expects to be told by HBONE."""
    _report(lab, "up", "--family", "4")
    assert _report(lab, "demo", "--requests", "1")["wire"]["ok"]
    with Capture.open(Instance(lab.lab)) as capture:
        capture.unenroll(int(_cookie(lab, "lab/a2")))
    done = _lab(lab, "demo", "-j", "--pairs", "a2:a1")
    report = json.loads(done.stdout)
    [flow] = report["flows"]
    assert done.returncode == 1
    assert "plaintext crossed between pods of the mesh" in done.stderr
    assert (flow["protocol"], flow["src_identity"], flow["ok"]) == ("tcp", None, False)
    assert flow["app_saw"] == "answer"  # it works, and that is the trouble
    assert flow["wire"]["plaintext_seen"] is True
    assert 8080 in flow["wire"]["ports"]
    wire = report["wire"]
    assert (report["ok"], wire["ok"]) == (False, False)
    assert wire["plaintext_in_mesh"] == 3 * 2
    assert any("port 8080" in fault for fault in wire["not_tls"])
    # and nobody takes a tunnel for it any more
    refused = _report(lab, "demo", "--pairs", "a1:a2", code=1)
    assert [f["app_saw"] for f in refused["flows"]] == ["reset"]


def test_a_policy_that_is_gone_is_noticed(lab: LabDir) -> None:
    """What is denied is what the proxies deny: the mesh file is theirs, not the demo's."""
    _report(lab, "up", "--family", "4")
    whole = lab.mesh_path.read_text()
    new = lab.mesh_path.with_name("new")
    new.write_text(whole.partition("policies:")[0] + "policies: []\n")
    new.replace(lab.mesh_path)
    logs = [Path(p.log) for p in lab.require().processes if p.role == "proxy"]
    _until(lambda: all("is in force" in log.read_text() for log in logs))
    report = _report(lab, "demo", "--pairs", "a2:a1:8081", code=1)
    assert [f["decision"] for f in report["flows"]] == ["allow", "allow"]
    assert "lab/a1 answered, although lab/a2 is denied" in report["flows"][0]["why"]


def test_the_service_by_name_and_the_files_of_the_mesh(lab: LabDir) -> None:
    _report(lab, "up")
    answer = _lab(lab, "exec", "a1", "--", "curl", "-s", "web.lab").stdout
    assert '"pod": "lab/a' in answer
    assert _lab(lab, "exec", "b1", "--", "curl", "-s", "-m", "5", "web.lab").returncode != 0
    assert stat.S_IMODE(lab.ca_path.stat().st_mode) == 0o700
    assert stat.S_IMODE((lab.ca_path / "authority.pem").stat().st_mode) == 0o600
    pods = _report(lab, "status")["pods"]
    assert [p["identity"] for p in pods] == [
        "spiffe://cluster.local/ns/lab/sa/a1", None, "spiffe://cluster.local/ns/lab/sa/a2", None,
    ]  # fmt: skip


def test_two_demos_at_once(lab: LabDir) -> None:
    _report(lab, "up", "--family", "4")
    command = [sys.executable, "-m", "nodenet.cli.main", "lab", "demo", "-j", "--id", lab.lab]
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)) for _ in range(2)
        ]
        for process in both:
            output = process.communicate(timeout=100)[0]
            assert json.loads(output)["ok"], output
    left = {entry.name for entry in lab.path.iterdir()}
    assert left == {"state.json", "hosts", "log", "mesh", "ca", "wire.pcap"}


def test_a_killed_demo_leaves_a_lab_that_works_and_goes(
    lab: LabDir, remains: Callable[[str], list[str]]
) -> None:
    _report(lab, "up", "--family", "4")
    command = [sys.executable, "-m", "nodenet.cli.main", "lab", "demo", "--id", lab.lab]
    with subprocess.Popen(
        [*command, "--requests", "50"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _until(lambda: bool(list(lab.path.glob(".wire-*.pcap"))))
        process.kill()
    assert _report(lab, "demo", "--requests", "1")["ok"]
    assert _lab(lab, "down").returncode == 0
    assert remains(lab.lab) == []


def test_ctrl_c_ends_a_demo_and_its_callers(lab: LabDir) -> None:
    _report(lab, "up", "--family", "4")
    command = [sys.executable, "-m", "nodenet.cli.main", "lab", "demo", "--id", lab.lab]
    with subprocess.Popen(
        [*command, "--requests", "100"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    ) as process:  # fmt: skip
        callers = psutil.Process(process.pid).children
        _until(lambda: len(callers()) == 4)
        started = callers()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130
    assert not any(caller.is_running() for caller in started)
    assert not list(lab.path.glob(".wire-*.pcap"))


def _until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_firewall_rule_spoils_the_proof(lab: LabDir) -> None:
    _report(lab, "up", "--family", "4")
    _lab(lab, "exec", "b1", "--", "nft", "add table ip t")
    _lab(lab, "exec", "b1", "--", "nft", "add chain ip t c")
    _lab(lab, "exec", "b1", "--", "nft", "add rule ip t c accept")
    done = _lab(lab, "demo")
    assert done.returncode == 1
    assert "1 iptables rule in the lab's namespaces." in done.stdout
    assert "firewall rules in the lab's namespaces: 1, expected none" in done.stderr


def test_without_its_proxy_a_lab_is_not_well_and_made_again(lab: LabDir) -> None:
    _report(lab, "up")
    state = lab.require()
    proxy = next(p for p in state.processes if p.role == "proxy")
    processes.end([proxy], grace=0)
    shown = _lab(lab, "status")
    assert shown.returncode == 1
    assert f"proxy of n1 (pid {proxy.pid}) ended" in shown.stderr
    assert _lab(lab, "demo").returncode == 1
    made = _lab(lab, "up")
    assert made.returncode == 0
    assert f"making it again: proxy of n1 (pid {proxy.pid}) ended" in made.stderr
    assert _report(lab, "demo", "--requests", "1")["ok"]


def test_a_proxy_that_does_not_start_is_quoted(
    lab: LabDir, remains: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ["-c", "raise SystemExit('no port left')"]
    monkeypatch.setattr("nodenet.lab.capture_glue.proxy_argv", lambda *_: script)
    plan = make_plan(instance_id=lab.lab)
    with pytest.raises(ProxyNotListening) as caught:
        up(plan, lab, _Quiet())
    assert caught.value.line() == "no proxy listens in lab/a1; it wrote: no port left"
    assert remains(lab.lab) == []


_KILLED = Path(__file__).with_name("killed_up.py")


def test_sigkill_at_any_point_leaves_no_kernel_object(
    lab: LabDir, remains: Callable[[str], list[str]]
) -> None:
    def killed(limit: int) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(_KILLED), lab.lab, "enroll", str(limit)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)

    whole = killed(0)
    assert whole.returncode == 0, whole.stderr
    total = int(whole.stdout)
    for number in range(1, 8):
        _lab(lab, "down")
        # how many events there are depends on how long it waits for others
        while (done := killed(point := total * number // 8)).returncode == 0:
            assert int(done.stdout) < point
            total = int(done.stdout)
            _lab(lab, "down")
        assert done.returncode == -9, done.stderr
        if number % 4 == 0:
            assert _report(lab, "up")["already"] is False
            assert _report(lab, "demo", "--requests", "1")["ok"], f"event {point} of {total}"
        assert _lab(lab, "down").returncode == 0
        assert remains(lab.lab) == [], f"after a kill at event {point} of {total}"
