"""``nodenet doctor`` on this kernel, and where something is really missing.

What is taken away is taken away in a mount namespace or by a seccomp filter of the one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodenet import abi
from nodenet.kernel import host_facts, probe_actions
from nodenet.kernel.cgroups import cgroup2_mount
from nodenet.kernel.loader import load_programs
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.kernel.probe_scene import CGROUP_PREFIX, Scene
from nodenet.kernel.probes import PROBES, State, run_probes
from nodenet.paths import BPFFS
from tests.root.dialling import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]

ROOT = Path(__file__).parents[3]
NODENET = f"{sys.executable} -m nodenet.cli.main"


def shell(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
    )


def without(preparation: str, arguments: str, **environ: str) -> Any:
    """A run in a mount namespace of its own after ``preparation``."""
    return shell(f"unshare -m sh -ec '{preparation}; exec {NODENET} {arguments}'", **environ)


def bpf_objects() -> set[tuple[str, int]]:
    """Every program and link of ours by name that the kernel holds."""
    found = set()
    for kind in ("prog", "map"):
        listed = subprocess.run(
            ["bpftool", "-j", kind, "show"], capture_output=True, text=True, check=True
        )
        found |= {(kind, o["id"]) for o in json.loads(listed.stdout) if o.get("name") == "nn_probe"}
    return found


@pytest.fixture
def warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own that holds the programs' bytecode."""
    monkeypatch.setenv("NODENET_CACHE", str(tmp_path))
    maps = {name: Map.create(defn) for name, defn in abi.MAPS.items()}
    try:
        assert not probe_actions.is_warm()
        for program in load_programs(maps).values():
            program.close()
        yield tmp_path
    finally:
        for one in maps.values():
            one.close()


def test_every_probe_finds_what_this_kernel_has() -> None:
    checks = {c.id: c for c in run_probes()}
    assert set(checks) == {p.id for p in PROBES}
    # this suite's own requirements: what the tests beside this one rely on must be found
    for ident in ("connect4", "connect6", "sock_ops", "sk_lookup", "cgroup_link", "sk_storage",
                  "netns_cookie", "bpffs", "ring_buffer", "iter_sk_storage"):  # fmt: skip
        assert checks[ident].state is State.OK, checks[ident]


def test_nothing_is_left_behind() -> None:
    def look() -> list[object]:
        with NetNs.current() as here:
            return [
                here.inode,
                bpf_objects(),
                list(BPFFS.glob("*probe*")),
                list(cgroup2_mount().glob(f"{CGROUP_PREFIX}{os.getpid()}*")),
                Path("/proc/mounts").read_text().count("securityfs"),
                sorted(
                    os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")
                ),
            ]

    # the kernel frees what probes have closed a moment later
    wait_for(lambda: look()[1:4] == [set(), [], []], "nothing is there before")
    before = look()
    run_probes()
    host_facts.lockdown()
    wait_for(lambda: look() == before, "all is as before")


def test_the_cgroup_of_a_killed_probe_is_removed() -> None:
    with subprocess.Popen(["true"]) as dead:
        pass
    stray = cgroup2_mount() / f"{CGROUP_PREFIX}{dead.pid}"
    stray.mkdir()
    with Scene() as scene:
        scene.cgroup_fd()
        assert not stray.exists()


def test_doctor_as_json() -> None:
    done = shell(f"{NODENET} doctor -j")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert report["ok"] is True and report["capture"] is True
    assert report["kernel"] == os.uname().release
    assert report["cgroup2"] == str(cgroup2_mount())
    assert {c["group"] for c in report["checks"]} == {
        "capture", "statistics", "build", "iptables",
    }  # fmt: skip


def test_doctor_as_text() -> None:
    done = shell(f"{NODENET} doctor")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("nodenet ")
    assert lines[-1].startswith("Result: capture works.")
    assert "\x1b" not in done.stdout
    assert shell(f"{NODENET} doctor -q").stdout == lines[-1] + "\n"


def test_warm_and_cold_bytecode(warm: Path, tmp_path: Path) -> None:
    assert probe_actions.is_warm()
    shown = shell(f"{NODENET} doctor --only build", NODENET_CACHE=str(warm)).stdout
    assert "bytecode cache warm: start in " in shown
    cold = tmp_path / "cold"
    shown = shell(f"{NODENET} doctor --only build", NODENET_CACHE=str(cold)).stdout
    assert "bytecode cache cold: the first start compiles" in shown
    assert not cold.exists()  # looking leaves nothing


def test_without_cgroup2() -> None:
    done = without("umount -l -a -t cgroup2", "doctor -j")
    assert done.returncode == 3, done
    assert done.stderr == (
        "nodenet: no cgroup2 mount in /proc/mounts; mount -t cgroup2 none /sys/fs/cgroup\n"
    )
    report = json.loads(done.stdout)
    assert (report["ok"], report["capture"], report["cgroup2"]) == (False, False, None)
    states = {c["id"]: c["state"] for c in report["checks"]}
    assert states["cgroup2_mount"] == "missing" and states["connect4"] == "ok"


def test_without_bpffs() -> None:
    done = without(f"umount -l {BPFFS}", "doctor -q")
    assert done.returncode == 3
    assert done.stdout == "Result: capture cannot work. 1 thing missing.\n"
    assert done.stderr.startswith("nodenet: capture cannot work: bpffs missing: ")
    assert "mount -t bpf none /sys/fs/bpf" in done.stderr


def test_without_iptables() -> None:
    hide = "for f in /usr/sbin/ip*tables-restore /sbin/ip*tables-restore; do "
    hide += "[ ! -e $f ] || mount --bind /dev/null $f; done"
    done = without(hide, "doctor --only iptables -j")
    assert done.returncode == 0
    assert [c["state"] for c in json.loads(done.stdout)["checks"]] == ["degraded", "degraded"]


def test_without_the_compiler(warm: Path, tmp_path: Path) -> None:
    hide = "mount -t tmpfs none /usr/lib/python3/dist-packages/bcc"
    kept = without(hide, "doctor -j", NODENET_CACHE=str(warm))
    checks = {c["id"]: c for c in json.loads(kept.stdout)["checks"]}
    assert kept.returncode == 0
    assert checks["bcc"]["state"] == "degraded"
    assert checks["bcc"]["means"] == "runs from kept bytecode until an upgrade"
    cold = without(hide, "doctor", NODENET_CACHE=str(tmp_path / "cold"))
    assert cold.returncode == 3
    assert cold.stderr.startswith("nodenet: capture cannot work: bcc missing: ")
    assert "apt install python3-bpfcc" in cold.stderr


_SECCOMP = """
import ctypes, errno, os, struct, sys
from nodenet.kernel.syscall import Command
number = 321 if os.uname().machine == 'x86_64' else 280
load, equal, ret = 0x20, 0x15, 0x06
code = [
    (load, 0, 0, 0), (equal, 0, 3, number),               # another system call: allow
    (load, 0, 0, 16), (equal, 0, 1, Command.PROG_LOAD),  # another command: allow
    (ret, 0, 0, 0x00050000 | errno.EPERM), (ret, 0, 0, 0x7FFF0000),
]
body = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in code))
program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(body))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
from nodenet.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_programs_that_the_kernel_refuses() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SECCOMP, "doctor", "-j"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 3, done
    assert done.stderr.startswith(
        f"nodenet: capture cannot work: cgroup/connect4 programs refused (EPERM): "
        f"lockdown={host_facts.lockdown()}; "
    )
    assert done.stderr.endswith(" or use --backend iptables\n")
    checks = {c["id"]: c for c in json.loads(done.stdout)["checks"]}
    assert (checks["connect4"]["state"], checks["connect4"]["errno"]) == ("missing", "EPERM")
    assert checks["bpf_syscall"]["state"] == "ok"


def test_an_ordinary_user_is_told_what_is_missing() -> None:
    done = shell(f"setpriv --reuid 65534 --regid 65534 --clear-groups {NODENET} doctor -j")
    assert done.returncode == 1
    assert done.stderr == "nodenet: cannot probe: CAP_BPF missing (uid 65534); run with sudo\n"
    assert json.loads(done.stdout)["kind"] == "NotPermitted"


def test_root_of_a_user_namespace_is_told_so() -> None:
    done = shell(f"unshare -U -r {NODENET} doctor -j")
    if "Operation not permitted" in done.stderr and "nodenet:" not in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.returncode == 1
    assert "user namespace" in done.stderr and done.stderr.count("\n") == 1


def test_doctor_imports_nothing_heavy() -> None:
    program = (
        "import sys; from nodenet.cli.main import main; status = main(['doctor', '-j']);"
        "heavy = {'bcc', 'rich', 'psutil', 'pyroute2', 'asyncio'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = shell(f'{sys.executable} -c "{program}"')
    assert done.stderr == "[]\n"
