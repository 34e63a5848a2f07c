"""What enrolling, un-enrolling and checking say."""

from __future__ import annotations

from typing import Any

import pytest

from nodenet.capture.verify import Check, PodVerdict
from nodenet.cli import capture_reports as view
from nodenet.cli.style import Style


def enrolled(**facts: Any) -> str:
    """The text of one enrolment."""
    usual: dict[str, Any] = {
        "pod": "shop/cart", "outcome": "enrolled", "backend": "ebpf", "ips": ("10.0.0.1",),
        "existing": 0, "existing_reset": 0, "listeners": (15001, 15006), "listeners_missing": (),
        "on_proxy_down": "closed", "duration_us": 4100,
    }  # fmt: skip
    pod = view.EnrolledPod(**(usual | facts))
    return view.enrolled_text(view.EnrolReport(ok=True, pods=(pod,)), Style())


def test_enrolled() -> None:
    assert enrolled() == "enrolled shop/cart (ebpf, 1 addresses, 4.1 ms)"
    assert enrolled(existing=3).endswith(
        "; 3 existing connections kept uncaptured: "
        "nodenet conn list --reason pre-enrolment --pod shop/cart"
    )
    assert enrolled(existing=3, existing_reset=3).endswith("; 3 existing connections reset")
    assert enrolled(outcome="unchanged") == "already enrolled, nothing changed: shop/cart"


@pytest.mark.parametrize("outcome", ["enrolled", "unchanged"])
def test_what_nobody_listens_on_is_said(outcome: str) -> None:
    both = enrolled(outcome=outcome, listeners=(), listeners_missing=(15001, 15006))
    assert both.splitlines()[1] == (
        "the proxy does not listen in this pod yet (15001 and 15006): until it does, new "
        "connections are refused; start it: nodenet ztunnel run"
    )
    dns = enrolled(outcome=outcome, listeners_missing=(15053,), on_proxy_down="open")
    assert dns.splitlines()[1:] == [
        "no DNS proxy listens at 15053 in this pod: its DNS queries pass uncaptured; nodenet's "
        "ztunnel has none yet, so use one of your own, or --dns off"
    ]


def test_removed() -> None:
    pods = (
        view.RemovedPod(pod="a", existing=0, existing_reset=0, routes_kept=False),
        view.RemovedPod(pod="b", existing=2, existing_reset=0, routes_kept=True),
        view.RemovedPod(pod="c", existing=None, existing_reset=1, routes_kept=False),
    )
    report = view.UnenrolReport(ok=True, pods=pods, detached=True)
    assert view.removed_text(report, Style()).splitlines() == [
        "un-enrolled a",
        "un-enrolled b; 2 captured sockets live on through the proxy; the policy routes stay for "
        "them",
        "un-enrolled c; 1 captured connections reset",
        "programs detached, pins removed",
    ]


def test_checks_stand_below_each_other() -> None:
    checks = (
        Check(id="netns", state="ok", found="inode 1"),
        Check(
            id="listener_15006", state="fail", found="nobody", rule="I9", parity=("P26",),
            means="refused", do="nodenet ztunnel run",
        ),
        Check(id="probe", state="skip", found="needs --probe"),
    )  # fmt: skip
    report = view.VerifyReport(ok=False, pods=(PodVerdict(pod="a", ok=False, checks=checks),))
    assert view.verified_text(report, Style()).splitlines() == [
        "ok    netns          inode 1",
        "FAIL  listener_15006 nobody",
        "      means          refused  (rule I9, P26)",
        "      do             nodenet ztunnel run",
        "skip  probe          needs --probe",
        "1 of 2 checks failed",
    ]
