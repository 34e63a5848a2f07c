"""Whole labs: captured, proved, broken on purpose, killed half-way, and removed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodenet.capture.session import Capture
from nodenet.lab import processes
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
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NODENET")}
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
def test_every_row_is_as_expected(
    lab: LabDir, backend: str, remains: Callable[[str], list[str]]
) -> None:
    made = _report(lab, "up", "--backend", backend)
    assert (made["ok"], made["already"], made["pods"], made["enrolled"]) == (True, False, 4, 2)
    report = _report(lab, "demo")
    flows = report["flows"]
    assert report["ok"], [f["why"] for f in flows if not f["ok"]]
    assert len(flows) == 28
    expected = [f["expected"] for f in flows]
    assert [expected.count(e) for e in ("captured-out", "captured-in", "untouched")] == [12, 12, 4]
    assert {f["captured_by"] for f in flows if f["side"]} == {backend}
    assert {f["captured_by"] for f in flows if not f["side"]} == {"none"}
    assert (report["iptables_rules"] == 0) is (backend == "ebpf")
    out = next(f for f in flows if (f["from"], f["to"], f["side"]) == ("lab/a1", "lab/a2", "out"))
    assert (out["family"], out["orig_dst"], out["peer_seen"]) == (4, *["10.77.2.2:8080"] * 2)
    assert (out["bytes_sent"], out["bytes_received"]) == (83, 12_702)
    assert _lab(lab, "up", "--backend", backend).stdout == (
        "lab already up (4 pods), nothing to do\n"
    )
    assert _report(lab, "down")["removed"] == [{"lab": lab.lab, "namespaces": 7, "processes": 8}]
    assert _report(lab, "down")["removed"] == []
    assert remains(lab.lab) == []


def test_the_table_and_the_sentences(lab: LabDir) -> None:
    up = _lab(lab, "up")
    assert up.returncode == 0
    assert up.stderr.splitlines()[0] == "[1/6] check the host"
    lines = _lab(lab, "demo").stdout.splitlines()
    assert lines[0].split() == (
        "FROM TO SIDE CAPTURED BY LISTENER ORIGINAL DST SENT RECV CHECK".split()
    )
    cells = [line.split() for line in lines[1:29]]
    assert "a1 a2 out ebpf a1:15001 10.77.2.2:8080 83 12.4K ok".split() in cells
    assert "a1 a2 in ebpf a2:15006 10.77.2.2:8080 12.4K 83 ok peer seen: 10.77.1.2".split() in cells
    assert "a1 a2 (v6) out ebpf a1:15001 [fd77:2::2]:8080 83 12.4K ok".split() in cells
    assert "b1 b2 - none - - 83 12.4K ok not enrolled, untouched".split() in cells
    assert lines[29:] == [
        "28 rows, 28 ok. The apps saw the true peer in every row (getpeername). "
        "No iptables rule in any namespace.",
        "Next: nodenet conn top · nodenet capture explain a1 10.77.2.2:8080 · nodenet lab down",
    ]


def test_chosen_pairs_and_one_request(lab: LabDir) -> None:
    _report(lab, "up", "--family", "4")
    flows = _report(lab, "demo", "--pairs", "a1:b2,lab/b2:a1", "--requests", "1")["flows"]
    assert [(f["from"], f["to"], f["side"]) for f in flows] == [
        ("lab/a1", "lab/b2", "out"),
        ("lab/b2", "lab/a1", "in"),
    ]
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
    _report(lab, "up")
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
    _report(lab, "up", "--family", "6")
    with Capture.open(Instance(lab.lab)) as capture:
        capture.unenroll(int(_cookie(lab, "lab/a2")))
    report = _report(lab, "demo")
    assert len(report["flows"]) == 3 + 3 + 6
    assert not any("lab/a2" in (f["from"], f["to"]) for f in report["flows"] if not f["ok"])
    assert {p["pod"] for p in _report(lab, "status")["pods"] if p["enrolled"]} == {"lab/a1"}


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
    monkeypatch.setattr("nodenet.lab.capture_glue.proxy_argv", lambda plan, node: script)
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
        point = total * number // 8
        assert killed(point).returncode == -9
        if number % 4 == 0:
            assert _report(lab, "up")["already"] is False
            assert _report(lab, "demo", "--requests", "1")["ok"], f"event {point} of {total}"
        assert _lab(lab, "down").returncode == 0
        assert remains(lab.lab) == [], f"after a kill at event {point} of {total}"
