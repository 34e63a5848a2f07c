"""Labs without capture: making, finding, entering, removing them, and being killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.errors import NodenetError
from nodenet.kernel import netns
from nodenet.kernel.netns import NetNs
from nodenet.lab import processes
from nodenet.lab.down import down
from nodenet.lab.network import make_network
from nodenet.lab.plan import Family, LabPlan, make_plan
from nodenet.lab.ranges import host_ranges
from nodenet.lab.state import LabDir
from nodenet.lab.status import status
from nodenet.lab.topology import Namespace, Topology
from nodenet.lab.up import LabDiffers, UpResult, up

pytestmark = [pytest.mark.root]

_KILLED = Path(__file__).with_name("killed_up.py")


class _Quiet:
    """Progress that nobody looks at."""

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        yield


def _plan(lab: LabDir, **options: object) -> LabPlan:
    return make_plan(instance_id=lab.lab, **{"enroll": False, **options})  # type: ignore[arg-type]


def _up(lab: LabDir, **options: object) -> UpResult:
    return up(_plan(lab, **options), lab, _Quiet())


def _nodenet(*argv: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nodenet.cli.main", *argv]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)


def _exec(lab: LabDir, pod: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return _nodenet("lab", "exec", "--id", lab.lab, pod, "--", *argv)


def test_up_status_and_a_second_up(lab: LabDir) -> None:
    made = _up(lab)
    assert not made.already
    assert made.seconds > 0
    report = status(lab)
    assert report.ok, report.problems
    assert [p.pod for p in report.pods] == ["lab/a1", "lab/b1", "lab/a2", "lab/b2"]
    assert all(p.workload_pid and p.netns_cookie for p in report.pods)
    again = _up(lab)
    assert again.already
    assert again.state == made.state


def test_pods_reach_each_other_by_name_and_see_true_peers(lab: LabDir) -> None:
    _up(lab)
    for target, family, peer in (("a2", "-4", "10.77.1.2"), ("b1", "-6", "[fd77:1::2]")):
        done = _exec(lab, "a1", "curl", "-s", family, f"{target}:8080")
        assert done.returncode == 0, done.stderr
        assert f'"pod": "lab/{target}", "peer": "{peer}:' in done.stdout


def test_nothing_leaves_the_lab(lab: LabDir) -> None:
    """Every outside address is unreachable from every namespace, and no link leads out."""
    _up(lab)
    spaces = [Namespace(name) for name in netns.names() if name.startswith(f"nn-{lab.lab}-")]
    inodes = {NetNs.open(s.path).inode for s in spaces}
    assert len(inodes) == 7
    for space in spaces:
        if space.name.endswith(("-a1", "-net")):
            with space.entered():
                for address in ("192.0.2.1", "2001:db8::1"):
                    with pytest.raises(OSError, match="unreachable"):
                        socket.create_connection((address, 80), timeout=2).close()
        # a link whose peer is in the host would show the host's id, or none
        links = space.run("ip", "-o", "link", "show", "type", "veth").stdout.splitlines()
        assert links and all(f"link-netns nn-{lab.lab}-" in line for line in links)


@pytest.mark.parametrize("family", [Family.V4, Family.V6])
def test_one_family(lab: LabDir, family: Family) -> None:
    _up(lab, family=family, nodes=1, pods=2)
    done = _exec(lab, "a1", "curl", "-s", "b1:8080")
    assert done.returncode == 0, done.stderr
    assert ("[fd77" in done.stdout) is (family is Family.V6)
    assert all((p.ipv4 is None) is (family is Family.V6) for p in status(lab).pods)


def test_down_leaves_nothing_and_is_idempotent(
    lab: LabDir, remains: Callable[[str], list[str]]
) -> None:
    state = _up(lab).state
    assert len(remains(lab.lab)) >= 9
    removed = down(lab)
    assert removed is not None
    assert (removed.namespaces, removed.processes) == (7, 4)
    assert remains(lab.lab) == []
    assert not any(processes.alive(p) for p in state.processes)
    assert down(lab) is None


def test_down_ends_what_was_started_by_hand(lab: LabDir) -> None:
    _up(lab)
    argv = [sys.executable, "-m", "nodenet.cli.main", "lab", "exec", "--id", lab.lab]
    with contextlib.ExitStack() as stack:
        shells = [
            stack.enter_context(
                subprocess.Popen(
                    [*argv, host, "--", "sh", "-c", "echo in; exec sleep 300"],
                    stdout=subprocess.PIPE,
                )
            )
            for host in ("b1", "n2")
        ]
        for shell in shells:
            assert shell.stdout is not None
            assert shell.stdout.readline() == b"in\n"
        down(lab)
        assert [shell.wait(60) for shell in shells] == [-signal.SIGKILL] * 2


def test_a_lab_with_a_dead_workload_is_made_again(lab: LabDir) -> None:
    first = _up(lab).state
    processes.end(first.processes[:1], grace=0)
    report = status(lab)
    assert not report.ok
    assert report.problems[0].startswith(f"workload of a1 (pid {first.processes[0].pid}) ended")
    said: list[str] = []
    again = up(_plan(lab), lab, _Quiet(), notice=said.append)
    assert not again.already
    assert "making it again: workload of a1" in said[0]
    assert status(lab).ok
    assert not any(processes.alive(p) for p in first.processes)


def test_other_settings_are_refused_and_nothing_changes(lab: LabDir) -> None:
    before = _up(lab).state
    with pytest.raises(LabDiffers, match="nodes 2, asked 3"):
        _up(lab, nodes=3)
    assert lab.read() == before
    assert status(lab).ok


def test_a_strangers_namespace_is_never_taken(lab: LabDir) -> None:
    with Topology(f"nn-{lab.lab}-") as net:
        net.namespace("a1")
        with pytest.raises(LabDiffers, match=f"namespace nn-{lab.lab}-a1 is there"):
            _up(lab)
        assert netns.named_path(f"nn-{lab.lab}-a1").exists()
        assert lab.read() is None


def test_namespaces_without_a_state_are_removed_by_down(lab: LabDir) -> None:
    make_network(_plan(lab))
    removed = down(lab)
    assert removed is not None and removed.namespaces == 7


def test_a_shell_inside_the_lab_cannot_remove_it(lab: LabDir) -> None:
    _up(lab)
    argv = (sys.executable, "-m", "nodenet.cli.main", "lab", "down", "--id", lab.lab)
    done = _exec(lab, "b1", *argv)
    assert done.returncode == 1
    assert done.stderr == (
        f"nodenet: this shell runs inside lab {lab.lab}: nn-{lab.lab}-b1; leave it first: exit\n"
    )
    assert status(lab).ok


def test_the_lab_inherits_nothing_of_the_shell_that_made_it(lab: LabDir) -> None:
    read, write = os.pipe()
    try:
        os.set_inheritable(write, True)
        state = _up(lab).state
        for process in state.processes:
            fds = Path(f"/proc/{process.pid}/fd")
            targets = {os.readlink(fd) for fd in fds.iterdir()}
            assert os.readlink(f"/proc/self/fd/{write}") not in targets
            assert os.getsid(process.pid) == process.pid
    finally:
        os.close(read)
        os.close(write)


def test_an_unreadable_state_is_made_again(lab: LabDir) -> None:
    _up(lab)
    lab.state_path.write_text("{")
    # its processes are known by their cgroup then
    assert not _up(lab).already
    assert status(lab).ok


def test_the_range_of_the_host_is_not_taken(lab: LabDir) -> None:
    attached = next(u for u in host_ranges() if u.attached and u.network.version == 4)
    octets = str(attached.network.network_address).split(".")
    net = f"{octets[0]}.{octets[1]}.0.0/16"
    with pytest.raises(NodenetError) as caught:
        _up(lab, net=net)
    assert caught.value.exit_code == 1
    assert caught.value.line().startswith(
        f"address range {net} is in use on this host (dev {attached.dev}); use --net "
    )
    assert lab.read() is None


def test_an_error_removes_what_was_made(
    lab: LabDir, remains: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodenet.lab.up.WORKLOAD_PORT", 70_000)  # no workload can listen there
    monkeypatch.setattr("nodenet.lab.up.WORKLOAD_SECONDS", 0.5)
    with pytest.raises((NodenetError, OverflowError)):
        _up(lab)
    assert remains(lab.lab) == []


def test_keep_on_error_keeps_it(lab: LabDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodenet.lab.up.WORKLOAD_PORT", 70_000)
    with pytest.raises((NodenetError, OverflowError)):
        up(_plan(lab), lab, _Quiet(), keep_on_error=True)
    report = status(lab)
    assert not report.ok
    assert report.problems == ("it is half made (state making)",)
    assert all(p.netns_cookie for p in report.pods)


def test_two_ups_at_once_make_one_lab(lab: LabDir) -> None:
    results: list[UpResult] = []
    threads = [threading.Thread(target=lambda: results.append(_up(lab))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(r.already for r in results) == [False, True, True]
    assert results[0].state == results[1].state == results[2].state


def _killed_up(lab: LabDir, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(_KILLED), lab.lab, "plain", str(limit)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_sigkill_at_any_point_is_cleaned_up(
    lab: LabDir, remains: Callable[[str], list[str]]
) -> None:
    whole = _killed_up(lab, 0)
    assert whole.returncode == 0, whole.stderr
    total = int(whole.stdout)
    down(lab)
    assert total > 100
    pids_before = _workload_pids()
    # the first, the second and the fifth event, and then fifteen parts of the way
    parts = [1 / total, 2 / total, 5 / total, *(i / 16 for i in range(1, 16))]
    for number, part in enumerate(parts):
        # how many events there are depends on how long it waits for others
        while (killed := _killed_up(lab, point := max(1, round(total * part)))).returncode == 0:
            assert int(killed.stdout) < point
            total = int(killed.stdout)
            down(lab)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if number % 3 == 0:
            assert not _up(lab).already, f"event {point}"
            assert status(lab).ok
        down(lab)
        assert remains(lab.lab) == [], f"after a kill at event {point} of {total}"
    deadline = time.monotonic() + 30
    while _workload_pids() - pids_before and time.monotonic() < deadline:
        time.sleep(0.01)  # those that were at the gate notice by themselves
    assert _workload_pids() - pids_before == set()


def _workload_pids() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if b"nodenet.lab.workload" in line and processes.start_ticks(int(entry.name)):
                    found.add(int(entry.name))
    return found


def test_exec_passes_status_input_and_options_through(lab: LabDir) -> None:
    _up(lab)
    assert _exec(lab, "a1", "sh", "-c", "exit 7").returncode == 7
    echoed = _nodenet("lab", "exec", "--id", lab.lab, "lab/b2", "--", "cat", "-", text="word\n")
    assert (echoed.returncode, echoed.stdout) == (0, "word\n")
    shown = _exec(lab, "a1", "ip", "-j", "-4", "addr", "show", "dev", "eth0")
    assert '"local":"10.77.1.2"' in shown.stdout
    ended = _exec(lab, "n1", "sh", "-c", "kill -TERM $$")
    assert ended.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    "argv, code, error",
    [
        (["a9", "--", "true"], 4, "no pod a9 in lab {lab}; it has: a1 b1 a2 b2 n1 n2"),
        (
            ["a1", "-j", "--", "true"],
            2,
            "-j is no command; nodenet's options stand before POD, CMD behind --",
        ),
        (["a1", "--", "/no/such"], 127, "cannot run /no/such: not found"),
        (["a1", "--", "/etc"], 126, "cannot run /etc: permission denied"),
    ],
)
def test_exec_errors(lab: LabDir, argv: list[str], code: int, error: str) -> None:
    _up(lab)
    done = _nodenet("lab", "exec", "--id", lab.lab, *argv)
    assert done.returncode == code
    assert done.stderr == f"nodenet: {error.format(lab=lab.lab)}\n"


@pytest.mark.parametrize("verb", [["status"], ["demo"], ["exec", "a1", "--", "true"]])
def test_without_a_lab_every_verb_says_so(lab: LabDir, verb: list[str]) -> None:
    done = _nodenet("lab", verb[0], "--id", lab.lab, *verb[1:])
    assert done.returncode == 4
    assert done.stderr == (
        f"nodenet: lab is not up: no /run/nodenet/lab/{lab.lab}; "
        f"run: sudo nodenet lab up --id {lab.lab}\n"
    )


def test_without_root_the_error_names_the_right(lab: LabDir) -> None:
    def nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)

    script = "from nodenet.cli.main import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "lab", "up", "--id", lab.lab],
        capture_output=True, text=True, timeout=60, preexec_fn=nobody, cwd="/",
    )  # fmt: skip
    assert done.returncode == 1
    assert "needs root for namespaces (uid 65534); run with sudo" in done.stderr
    assert done.stderr.count("\n") == 1
