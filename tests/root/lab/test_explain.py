"""What `capture explain` and `ztunnel explain` say of a lab, by every way to name its pods."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NODENET = str(Path(sys.executable).with_name("nodenet"))


def run(lab: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command on the lab."""
    command = [NODENET, "--id", lab, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def lab() -> Iterator[str]:
    """A lab with its mesh; a1 and a2 are enrolled."""
    name = f"e{secrets.token_hex(4)}"
    try:
        done = run(name, "lab", "up")
        assert done.returncode == 0, done.stderr
        yield name
    finally:
        run(name, "lab", "down")


@pytest.mark.parametrize(
    ("src", "dst", "answers", "app_sees", "name"),
    [
        ("a1", "a2:8080", {"captured", "mtls"}, "proxied", "lab/a2"),
        ("lab/a1", "web.lab:80", {"captured", "mtls"}, "proxied", "lab/web.lab"),
        ("a1", "10.77.255.1:80", {"captured", "mtls"}, "proxied", "lab/web.lab"),
        ("a1", "b1:8080", {"captured", "plain"}, "proxied", "lab/b1"),
        ("a1", "203.0.113.7:80", {"captured", "plain"}, "proxied", None),
        ("a2", "a1:8081", {"captured", "denied"}, "connect-ok-then-reset", "lab/a1"),
        ("b1", "a1:8080", {"bypassed"}, "direct", "lab/a1"),
        ("a1", "127.0.0.1:80", {"bypassed"}, "direct", None),
    ],
)
def test_the_kernel_and_the_proxy_answer_together(
    lab: str, src: str, dst: str, answers: set[str], app_sees: str, name: str | None
) -> None:
    found = json.loads(run(lab, "capture", "explain", src, dst, "-j").stdout)
    proxy = found["ztunnel"]
    assert {found["result"], *([proxy["result"]] if proxy else [])} == answers
    assert (found["app_sees"], found["dst"]["name"]) == (app_sees, name)
    for word in ("captured", "bypassed", "refused", "mtls", "plain", "denied"):
        done = run(lab, "capture", "explain", src, dst, "--expect", word)
        assert done.returncode == (0 if word in answers else 1), (word, done.stderr)


def test_the_rows_of_both_are_printed(lab: str) -> None:
    lines = run(lab, "capture", "explain", "a2", "a1:8081").stdout.splitlines()
    heads = [line for line in lines if line[:1].isupper()]
    assert heads[:3] == ["KERNEL, outbound", "PROXY", "FAR SIDE"]
    assert [line.split()[1] for line in lines if line.startswith(">")] == ["O8", "Z9", "RBAC"]
    assert heads[3].endswith(
        "then REFUSED by policy lab/only-a1. The app sees: connect ok, then reset."
    )


def test_pods_that_are_not_enrolled_can_be_named(lab: str) -> None:
    inbound = json.loads(run(lab, "capture", "explain", "b1", "a1:8080", "--in", "-j").stdout)
    assert (inbound["rule"], inbound["ztunnel"]) == ("I10", None)
    for verb in (("show",), ("verify",), ("unenroll",)):
        done = run(lab, "capture", *verb, "b1")
        assert done.returncode == 4
        assert done.stderr == "nodenet: b1 is not enrolled; run: nodenet capture enroll b1\n"


def test_the_proxy_says_whom_it_does_not_serve(lab: str) -> None:
    found = json.loads(run(lab, "ztunnel", "explain", "b1", "a1:8080", "-j").stdout)
    assert found["hint"].startswith("enroll lab/b1 first: this proxy does not serve it")


def test_an_unknown_destination_is_named(lab: str) -> None:
    done = run(lab, "ztunnel", "explain", "a1", "nosuch:80")
    assert done.returncode == 4
    assert done.stderr.startswith("nodenet: nosuch: no such service or pod among 4 workloads")
    done = run(lab, "capture", "explain", "a1", "nosuch:80")
    assert done.returncode == 4
    assert done.stderr.startswith("nodenet: unknown pod nosuch: not on this node; ")


def test_a_dead_proxy_of_iptables_is_a_failed_check() -> None:
    name = f"e{secrets.token_hex(4)}"
    words = ("capture", "verify", "a1", "--probe", "-j")
    try:
        assert run(name, "lab", "up", "--backend", "iptables", "--family", "4").returncode == 0
        checks = json.loads(run(name, *words).stdout)["pods"][0]["checks"]
        assert {c["id"]: c["state"] for c in checks} == {
            "netns": "ok", "entry": "ok", "iptables": "ok", "listener_15001": "ok",
            "listener_15006": "ok", "probe": "skip",
        }  # fmt: skip
        for daemon in json.loads(run(name, "version", "-j").stdout)["daemons"]:
            process = psutil.Process(daemon["pid"])
            process.kill()
            process.wait(10)
        done = run(name, *words)
        failed = [c for c in json.loads(done.stdout)["pods"][0]["checks"] if c["state"] == "fail"]
        assert done.returncode == 1
        assert [c["id"] for c in failed] == ["listener_15001", "listener_15006"]
        assert all("refused: a netfilter redirect looks for no listener" in c["means"]
                   for c in failed)  # fmt: skip
    finally:
        run(name, "lab", "down")
