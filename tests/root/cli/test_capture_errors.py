"""What an operator's mistake looks like: one line that says what, where and what to do."""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.capture.session import Capture, remove_instance
from nodenet.kernel.maps import Map
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NODENET = str(Path(sys.executable).with_name("nodenet"))


@pytest.fixture
def instance() -> Iterator[Instance]:
    """A random instance that is removed whatever the commands made of it."""
    chosen = Instance(f"e-{secrets.token_hex(4)}")
    yield chosen
    remove_instance(chosen)


@pytest.fixture
def pod() -> Iterator[Namespace]:
    """A namespace with addresses."""
    with Topology() as made:
        yield made.pair()[0]


def run(
    instance: Instance, *words: str, within: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command; ``within`` is shell text run first, in a mount namespace of its own."""
    argv = [NODENET, "--id", instance.id or "", *words]
    if within is not None:
        argv = ["unshare", "--mount", "sh", "-c", f'{within} && exec "$@"', "sh", *argv]
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=None if env is None else os.environ | env,
    )


def expect(
    done: subprocess.CompletedProcess[str], exit_code: int, message: str
) -> subprocess.CompletedProcess[str]:
    """One line on stderr that matches, the exit code, no traceback."""
    lines = done.stderr.splitlines()
    assert done.returncode == exit_code, done.stderr
    assert len(lines) == 1, done.stderr
    assert re.fullmatch(f"nodenet: {message}", lines[0]), lines[0]
    return done


def test_a_pod_that_is_not_here(instance: Instance) -> None:
    done = run(instance, "capture", "enroll", "shop/crat")
    expect(done, 4, "unknown pod shop/crat: not on this node; .*")


def test_the_nearest_pod_is_named(instance: Instance, pod: Namespace) -> None:
    with Capture.open_or_load(instance) as capture:
        capture.enroll(pod.path, name="shop/cart-7d9f6b")
    expect(
        run(instance, "capture", "show", "shop/crat"),
        4,
        "unknown pod shop/crat: not on this node; nearest: shop/cart-7d9f6b",
    )


def test_a_namespace_path_that_is_gone(instance: Instance) -> None:
    done = run(instance, "capture", "enroll", "netns:/run/netns/nn-gone")
    expect(done, 4, "network namespace /run/netns/nn-gone: not there; .*")


def test_the_hosts_namespace(instance: Instance) -> None:
    expect(
        run(instance, "capture", "enroll", f"pid:{os.getpid()}"),
        1,
        r"cannot enroll pid:\d+: its network namespace is the host's \(inode \d+\); "
        "host-network pods are never captured",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--exclude-port", "in:65536"),
            "port 65536 out of range 1-65535 in --exclude-port in:65536",
        ),
        (("--exclude-port", "out:0"), "port 0 out of range 1-65535 in --exclude-port out:0"),
        (("--exclude-cidr", "10.0.0.0/33"), "CIDR '10.0.0.0/33' cannot be read in .*write e.g.*"),
        (("--backend", "bpf"), "unknown backend bpf in --backend; one of: auto ebpf iptables"),
    ],
)
def test_options_that_cannot_mean_anything(
    instance: Instance, words: tuple[str, ...], message: str
) -> None:
    expect(run(instance, "capture", "enroll", "a", *words), 2, message)


def test_two_enrolments_of_one_namespace(instance: Instance, pod: Namespace) -> None:
    first = run(instance, "capture", "enroll", f"netns:{pod.path}", "--wait", "0s")
    assert first.returncode == 0, first.stderr
    again = run(instance, "capture", "enroll", f"netns:{pod.path}", "--wait", "0s")
    assert (again.returncode, again.stdout.split(":")[0]) == (
        0,
        "already enrolled, nothing changed",
    )
    with pod.popen(["sleep", "60"]) as sleeper:
        try:
            same = run(instance, "capture", "enroll", f"pid:{sleeper.pid}", "--wait", "0s")
            assert same.stdout == again.stdout
        finally:
            sleeper.kill()


def test_no_bpffs(instance: Instance, pod: Namespace) -> None:
    expect(
        run(instance, "capture", "enroll", f"netns:{pod.path}", within="umount /sys/fs/bpf"),
        1,
        "no bpffs at /sys/fs/bpf; mount -t bpf none /sys/fs/bpf",
    )


def test_bpffs_that_is_read_only(instance: Instance, pod: Namespace) -> None:
    expect(
        run(
            instance,
            *("capture", "enroll", f"netns:{pod.path}"),
            within="mount -o remount,bind,ro /sys/fs/bpf",
        ),
        1,
        "Read-only file system: /sys/fs/bpf/nodenet-.*; /sys/fs/bpf is mounted read-only",
    )


def test_no_bcc_and_nothing_compiled_yet(
    instance: Instance, pod: Namespace, tmp_path: Path
) -> None:
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc" / "__init__.py").write_text("raise ImportError('no bcc here')\n")
    done = run(
        instance,
        *("capture", "enroll", f"netns:{pod.path}"),
        env={"NODENET_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)},
    )
    expect(done, 3, "BCC cannot be used .*; install python3-bpfcc")


def test_pins_of_another_version(instance: Instance, pod: Namespace) -> None:
    with Capture.open_or_load(instance):
        pass
    (instance.maps / "pods").unlink()
    with Map.create(abi.MAPS["pods"]._replace(value=abi.CFG)) as other:
        other.pin(instance.maps / "pods")
    expect(
        run(instance, "capture", "enroll", f"netns:{pod.path}"),
        1,
        "pinned map pods is of another version .*: /sys/fs/bpf/.*; run: nodenet node run "
        "--upgrade-pins, or nodenet capture unenroll --all",
    )
    removed = run(instance, "capture", "unenroll", "--all")
    assert removed.returncode == 0, removed.stderr
    assert not instance.pins.exists()


def test_a_user_without_rights(instance: Instance) -> None:
    nobody = pwd.getpwnam("nobody")
    done = subprocess.run(
        [NODENET, "--id", instance.id or "", "capture", "enroll", "pid:1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        user=nobody.pw_uid,
        group=nobody.pw_gid,
    )
    expect(done, 1, r".*(permission denied|CAP_).*")


def test_an_error_in_json_is_one_document(instance: Instance) -> None:
    done = run(instance, "capture", "enroll", "shop/crat", "-j")
    answer = json.loads(done.stdout)
    assert answer["exit"] == done.returncode == 4
    assert answer["kind"] == "NotFound"
    assert set(answer) == {"error", "kind", "exit", "hint"}


def test_nothing_loaded(instance: Instance) -> None:
    expect(
        run(instance, "capture", "show"),
        4,
        "capture is not loaded: /sys/fs/bpf/nodenet-.*/maps is not there; start it: .*",
    )


def test_verify_says_what_fails_and_what_to_do(instance: Instance, pod: Namespace) -> None:
    with Capture.open_or_load(instance) as capture:
        capture.enroll(pod.path, name="t/pod")
    done = run(instance, "capture", "verify", "t/pod")
    assert done.returncode == 1
    assert "FAIL  listener_15001" in done.stdout
    assert "new connections are refused (on-proxy-down=closed)" in done.stdout
    report = json.loads(run(instance, "capture", "verify", "-j").stdout)
    states = {c["id"]: c["state"] for c in report["pods"][0]["checks"]}
    assert report["ok"] is False
    assert states == {
        "netns": "ok",
        "entry": "ok",
        "addresses": "ok",
        "programs": "ok",
        "inbound": "ok",
        "routes": "ok",
        "listener_15001": "fail",
        "listener_15006": "fail",
        "probe": "skip",
    }


def test_expect_decides_the_exit_code(instance: Instance, pod: Namespace) -> None:
    with Capture.open_or_load(instance) as capture:
        capture.enroll(pod.path, name="t/pod")
    asked = ("capture", "explain", "t/pod", "203.0.113.7:80")
    assert run(instance, *asked, "--expect", "refused").returncode == 0
    done = run(instance, *asked, "--expect", "captured")
    assert done.returncode == 1
    assert done.stderr == (
        "nodenet: t/pod to 203.0.113.7:80 is refused, not captured: row O7 proxy-down\n"
    )


def test_an_endpoint_without_a_port(instance: Instance, pod: Namespace) -> None:
    with Capture.open_or_load(instance) as capture:
        capture.enroll(pod.path, name="t/pod")
    expect(
        run(instance, "capture", "explain", "t/pod", "10.96.0.20"),
        2,
        "10.96.0.20 needs a port; write 10.96.0.20:5432",
    )


def test_a_probe_is_a_real_connection(instance: Instance) -> None:
    with Topology() as made, Capture.open_or_load(instance) as capture:
        pod, outside = made.pair()
        with pod.netlink() as link:
            link.route("0.0.0.0/0", dev="eth0", via=str(outside.ip4))
        capture.enroll(pod.path, name="t/pod", node="elsewhere")
        done = run(instance, "capture", "verify", "--probe", "--timeout", "1s", "-j")
    checks = {c["id"]: c for c in json.loads(done.stdout)["pods"][0]["checks"]}
    # nobody listens for the proxy, so the connect is refused by the capture itself
    assert checks["probe_out"]["state"] == "fail"
    assert checks["probe_out"]["found"].endswith("connection refused, not captured")
    assert checks["probe_node"]["found"] == "the pod's node is elsewhere, not this host"
