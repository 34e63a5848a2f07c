"""Removing what namespaces that are gone left behind, and removing everything.

A namespace takes its rules with it under iptables; here the pins and map entries are the node's, so
somebody has to look. A namespace is gone when its path is (or names another one) and no process is
left in it: its proxy listeners alone do not keep an enrolment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from nodenet.capture import iptables, pod_maps, pod_routes, programs
from nodenet.capture.records import PodRecord, RecordBroken, read_records, remove_record
from nodenet.errors import NodenetError, NotFound
from nodenet.kernel.cgroups import Cgroup, cgroup2_mount
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.paths import Instance


def is_gone(instance: Instance, record: PodRecord) -> bool:
    """Whether the pod's namespace has disappeared."""
    if programs.pod_link_alive(instance, record.netns_cookie) is False:
        return True
    try:
        if os.stat(record.netns).st_ino == record.netns_inode:
            return False
    except OSError:
        pass  # the path is gone; a process may still live in the namespace
    return not _has_process(record.netns_inode)


def _has_process(netns_inode: int) -> bool:
    wanted = f"net:[{netns_inode}]"
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{entry.name}/ns/net") == wanted:
                        return True
    return False


def forget(instance: Instance, maps: Mapping[str, Map] | None, record: PodRecord) -> None:
    """Removes a pod whose namespace is gone: entry, link, addresses, totals, record."""
    if maps is not None:
        maps["pods"].delete(pod_maps.netns_key(record.netns_cookie))
        pod_maps.remove_exclusions(maps, record)
        pod_maps.remove_addresses(maps, record.ips, record.netns_cookie)
        pod_maps.remove_totals(maps, record.netns_cookie)
    programs.detach_pod(instance, record.netns_cookie)
    remove_record(instance, record.netns_cookie)


def reap(instance: Instance, maps: Mapping[str, Map] | None) -> list[PodRecord]:
    """Forgets every pod whose namespace is gone, and links that have no record."""
    records = list(read_records(instance))
    removed = [record for record in records if is_gone(instance, record)]
    for record in removed:
        forget(instance, maps, record)
    known = {record.netns_cookie for record in records}
    links = instance.links / "sk_lookup"
    if links.is_dir():
        for pin in sorted(links.iterdir()):
            if pin.name.isdecimal() and int(pin.name) not in known:
                if programs.pod_link_alive(instance, int(pin.name)) is False:
                    pin.unlink(missing_ok=True)
    return removed


def remove_everything(instance: Instance, maps: Mapping[str, Map] | None) -> list[PodRecord]:
    """Un-enrols every pod and removes pins, records and the agent's cgroup."""
    removed: list[PodRecord] = []
    with contextlib.suppress(RecordBroken):
        removed.extend(read_records(instance))
    if maps is not None:
        for record in removed:
            maps["pods"].delete(pod_maps.netns_key(record.netns_cookie))
    for record in removed:
        with contextlib.suppress(NotFound):
            with NetNs.open(record.netns) as ns:
                if ns.inode == record.netns_inode:
                    if record.backend == "iptables":
                        iptables.remove(ns)
                    else:
                        pod_routes.remove(ns)
    programs.remove_pins(instance)
    _remove_files(instance.pods)
    # the lock file goes while it is held; another process that waits for it notices
    (instance.run / "capture.lock").unlink(missing_ok=True)
    _remove_free_locks(instance.run)
    with contextlib.suppress(OSError):
        instance.run.rmdir()
    with contextlib.suppress(NodenetError):
        # processes may still be in it: the proxy outlives the capture until it is stopped
        Cgroup.open(cgroup2_mount() / instance.name).remove()
    return removed


def _remove_free_locks(directory: Path) -> None:
    """Removes the lock files that nobody holds; a running proxy or agent keeps its own."""
    for path in directory.glob("*.lock"):
        with contextlib.suppress(OSError), path.open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)


def _remove_files(directory: Path) -> None:
    if directory.is_dir():
        for entry in directory.iterdir():
            entry.unlink(missing_ok=True)
        directory.rmdir()
