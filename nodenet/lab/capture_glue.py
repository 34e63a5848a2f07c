"""What the lab asks of the capture and of its statistics: the only module that calls them."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from nodenet.capture.records import PodRecord, read_records
from nodenet.errors import NotSupported
from nodenet.kernel.netns import named_path
from nodenet.lab.plan import LabPlan, Node, Pod
from nodenet.paths import Instance

if TYPE_CHECKING:
    from nodenet.capture.session import Capture
    from nodenet.conns.connection import Connection


def load(plan: LabPlan) -> Capture:
    """The capture of the lab's instance: programs loaded, the nodes' namespaces known to it.

    A context manager. A kernel that cannot run the programs is fine for the iptables backend; then
    there are no statistics.
    """
    from nodenet.capture.session import Capture

    try:
        capture = Capture.open_or_load(plan.instance)
    except NotSupported:
        if plan.backend != "iptables":
            raise
        return Capture.without_bpf(plan.instance)
    try:
        for node in plan.nodes:
            capture.add_host(named_path(node.netns), node.number)
    except BaseException:
        capture.close()
        raise
    return capture


def enroll(capture: Capture, plan: LabPlan, pod: Pod, *, wait: float) -> bool:
    """Captures a pod; whether its proxy listens, waiting ``wait`` seconds for it the first time.

    A second call changes nothing and answers at once.
    """
    from nodenet.capture.options import EnrolOptions

    result = capture.enroll(
        named_path(pod.netns),
        name=pod.full_name,
        node=pod.node,
        node_id=plan.node(pod.node).number,
        options=EnrolOptions(backend=plan.backend),
        wait=wait,
    )
    # without the programs nobody is told of listeners
    return bool(result.listeners) or not capture.has_bpf


def proxy_argv(plan: LabPlan, node: Node, mesh: Path, ca: Path) -> list[str]:
    """Arguments of the proxy of a node, behind the Python interpreter.

    ``mesh`` is the mesh file and ``ca`` the directory of the CA, for a lab that has a mesh.
    """
    argv = ["-m", "nodenet.agents.ztunnel", "run", "--id", plan.instance_id, "--node", node.name]
    if plan.mesh:
        argv += ["--mesh", str(mesh), "--embedded-ca", str(ca)]
    return argv


def enrolments(plan: LabPlan) -> dict[str, PodRecord]:
    """The enrolled pods of the lab by full name, whatever name they were enrolled by."""
    by_inode = {record.netns_inode: record for record in read_records(plan.instance)}
    found = {}
    for pod in plan.pods:
        with contextlib.suppress(FileNotFoundError):
            record = by_inode.get(named_path(pod.netns).stat().st_ino)
            if record is not None:
                found[pod.full_name] = record
    return found


def remove(instance: Instance) -> None:
    """Removes every kernel object and every file of the instance; absent is fine."""
    if instance.pins.exists() or instance.run.exists():
        from nodenet.capture.session import remove_instance

        try:
            remove_instance(instance)
        finally:
            # Whatever went wrong above: without its pins nothing of it stays in the kernel.
            shutil.rmtree(instance.pins, ignore_errors=True)
            shutil.rmtree(instance.run, ignore_errors=True)


def connections(instance: Instance, since_boot_ns: int = 0) -> list[Connection]:
    """The kernel's record of every open connection of enrolled pods, the proxies' own included.

    Then those that closed after that moment (CLOCK_BOOTTIME): a denied one does not stay open.
    NotSupported when there are none: an iptables lab on a kernel that cannot run the programs.
    """
    from nodenet.conns.reader import ConnReader

    if not instance.exists():
        raise NotSupported(
            "statistics of this lab", "the capture's programs", hint="see: nodenet doctor"
        )
    reader = ConnReader(instance)
    return [*reader.live(proxy=True), *reader.closed(proxy=True, since_boot_ns=since_boot_ns)]
