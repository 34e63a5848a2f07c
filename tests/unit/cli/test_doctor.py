"""``nodenet doctor`` from checks made up here: the screen, the result, the error it ends with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from nodenet.cli import doctor
from nodenet.cli.doctor import DoctorReport, fix_hints, obstacle, render, result_line
from nodenet.cli.style import Style
from nodenet.errors import NotPermitted
from nodenet.kernel import pins
from nodenet.kernel.probes import PROBES, Check, Group, State, obstacles


def check(ident: str, state: State = State.OK, *, errno: str | None = None) -> Check:
    """The check a probe gives when it is found in that state."""
    probe = next(p for p in PROBES if p.id == ident)
    good = state is State.OK
    return Check(
        id=ident, group=probe.group, feature=probe.feature, state=state, errno=errno,
        required_for=probe.required_for, probed_by=probe.probed_by,
        means="" if good else probe.loss, fix=None if good else probe.fix, ms=0.1,
    )  # fmt: skip


def report(*changed: Check, only: Group | None = None) -> DoctorReport:
    """A report in which everything is well but what is given."""
    different = {c.id: c for c in changed}
    checks = [different.get(p.id) or check(p.id) for p in PROBES if only is None or p.group is only]
    possible = not obstacles(checks)
    return DoctorReport(
        ok=possible, capture=possible, kernel="6.18.44", machine="x86_64",
        cgroup2="/sys/fs/cgroup/unified", lockdown="integrity", nodenet="0.1.0",
        rooms={"kubernetes": False, "containerd": True, "systemd": True}, checks=checks,
    )  # fmt: skip


DEGRADED = check("sock_destroy", State.DEGRADED, errno="EOPNOTSUPP")


def test_the_screen() -> None:
    assert render(report(DEGRADED), Style()) == (
        "nodenet 0.1.0 · kernel 6.18.44 x86_64 · cgroup2 at /sys/fs/cgroup/unified · "
        "lockdown integrity\n"
        "capture    24 of 24 ok     outbound, inbound and DNS capture work, IPv4 and IPv6\n"
        "statistics 5 of 6\n"
        "  FEATURE         STATE     MEANS                          GET IT\n"
        "  ending sockets  degraded  --existing reset cannot reset  "
        "kernel with CONFIG_INET_DIAG_DESTROY\n"
        "build      4 of 4 ok\n"
        "iptables   2 of 2 ok       --backend iptables works too\n"
        "rooms      kubernetes no · containerd yes · systemd yes\n"
        "Result: capture works. 1 thing degraded.\n"
    )


@pytest.mark.parametrize("width", [80, 100, 132])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    everything = [check(p.id, State.MISSING, errno="EPERM") for p in PROBES]
    for shown in (report(), report(*everything)):
        lines = render(shown, Style(width=width)).splitlines()
        assert max(map(len, lines)) <= width
    assert len(lines) > len(PROBES)


def test_a_wide_screen_lists_all() -> None:
    shown = render(report(), Style(wide=True))
    assert all(p.feature in shown for p in PROBES)
    assert "PROBED BY" in shown


def test_an_ascii_screen() -> None:
    assert render(report(), Style(dot="-", ellipsis="~")).isascii()


def test_only_state_words_are_coloured() -> None:
    shown = render(report(DEGRADED), Style(colour=True))
    assert shown.count("\x1b[") == 2
    assert "\x1b[33mdegraded\x1b[0m" in shown


def test_results() -> None:
    assert result_line(report()) == "Result: capture works."
    missing = check("sk_lookup", State.MISSING, errno="EINVAL")
    unknown = check("bpffs", State.UNKNOWN, errno="EPERM")
    assert result_line(report(missing, DEGRADED, unknown)) == (
        "Result: capture cannot work. 1 thing missing, 1 thing degraded, 1 thing unknown."
    )
    two = report(DEGRADED, check("sock_diag", State.DEGRADED))
    assert result_line(two) == "Result: capture works. 2 things degraded."
    part = msgspec.structs.replace(report(only=Group.BUILD), capture=None)
    assert result_line(part) == "Result: nothing here keeps capture from working."


def test_what_is_only_degraded_keeps_nothing_from_working() -> None:
    assert obstacle(report(DEGRADED, check("bcc", State.DEGRADED))) is None


def test_a_refused_hook_is_named_with_lockdown_and_a_way_out() -> None:
    refused = replace(
        check("connect4", State.MISSING, errno="EPERM"), fix="boot with lockdown=integrity"
    )
    locked = msgspec.structs.replace(report(refused), lockdown="confidentiality")
    error = obstacle(locked)
    assert error is not None and error.exit_code == 3
    assert error.line() == (
        "capture cannot work: cgroup/connect4 programs refused (EPERM): "
        "lockdown=confidentiality; boot with lockdown=integrity or use --backend iptables"
    )


def test_a_missing_feature_says_what_it_needs() -> None:
    error = obstacle(report(check("sk_lookup", State.MISSING, errno="EINVAL")))
    assert error is not None
    assert error.line() == (
        "capture cannot work: sk_lookup programs refused (EINVAL): no inbound capture; "
        "Linux 5.9 or use --backend iptables"
    )


def test_iptables_is_no_way_out_where_it_does_not_work() -> None:
    error = obstacle(
        report(check("bpffs", State.MISSING), check("iptables", State.DEGRADED, errno="ENOENT"))
    )
    assert error is not None
    assert error.line() == (
        "capture cannot work: bpffs missing: capture would end with its process; "
        "mount -t bpf none /sys/fs/bpf"
    )


def test_hints_are_one_line_each() -> None:
    assert fix_hints(report()) == ""
    hints = fix_hints(report(DEGRADED, check("bcc", State.MISSING)))
    assert hints == (
        "ending sockets: kernel with CONFIG_INET_DIAG_DESTROY\nbcc: apt install python3-bpfcc\n"
    )


def test_json_has_the_documented_keys() -> None:
    shown = msgspec.to_builtins(report(DEGRADED))
    assert next(iter(shown)) == "ok"
    assert {"capture", "kernel", "cgroup2", "checks"} <= set(shown)
    one = next(c for c in shown["checks"] if c["id"] == "sock_destroy")
    assert {
        "id", "group", "state", "required_for", "probed_by", "errno", "means", "fix", "ms",
    } <= set(one)  # fmt: skip
    assert (one["group"], one["state"]) == ("statistics", "degraded")


def test_without_rights_nothing_is_probed(monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    missing = ("CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF")
    monkeypatch.setattr(pins, "missing_capabilities", lambda: missing)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    outcome = cli("doctor", "-j")
    assert outcome.status == 1
    assert outcome.err == "nodenet: cannot probe: CAP_BPF missing (uid 1000); run with sudo\n"
    assert outcome.json["kind"] == "NotPermitted"
    with pytest.raises(NotPermitted, match="CAP_BPF"):
        doctor.examine("build")
    # rooms are files that anybody may look for
    assert set(cli("doctor", "--only", "rooms", "-j").json["rooms"]) == {
        "kubernetes", "containerd", "systemd",
    }  # fmt: skip
