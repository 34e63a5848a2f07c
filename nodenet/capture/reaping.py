"""Removing what namespaces that are gone left behind, and removing everything.

A namespace takes its rules with it under iptables; here the pins and map entries are the node's, so
somebody has to look. A namespace is gone when its path is (or names another one) and no process is
left in it: its proxy listeners alone do not keep an enrolment.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from nodenet import abi
from nodenet.abi import PodFlag
from nodenet.capture import iptables, pod_maps, pod_routes, programs
from nodenet.capture.kept_routes import (
    own_addresses,
    proxied_inbound,
    remember_routes,
    remove_unneeded_routes,
)
from nodenet.capture.namespaces import living_cookies, open_namespace
from nodenet.capture.options import pod_id
from nodenet.capture.records import PodRecord, read_records, record_files, remove_record
from nodenet.errors import NodenetError
from nodenet.kernel.cgroups import Cgroup, cgroup2_mount
from nodenet.kernel.maps import Map
from nodenet.kernel.pinned_maps import open_maps
from nodenet.paths import Instance

__all__ = [
    "forget",
    "is_gone",
    "open_namespace",
    "own_addresses",
    "proxied_inbound",
    "reap",
    "remember_routes",
    "remove_dead_sockets",
    "remove_everything",
]

#: For a process on this host to take a connection.
_PROBE_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)

Tell = Callable[[str], object]


def is_gone(instance: Instance, record: PodRecord) -> bool:
    """Whether the pod's namespace has disappeared."""
    if programs.pod_link_alive(instance, record.netns_cookie) is False:
        return True
    ns = open_namespace(record)
    if ns is not None:
        ns.close()
    return ns is None


def forget(instance: Instance, maps: Mapping[str, Map] | None, record: PodRecord) -> None:
    """Removes a pod whose namespace is gone: entry, link, addresses, totals, record."""
    if maps is not None:
        maps["pods"].delete(pod_maps.netns_key(record.netns_cookie))
        pod_maps.remove_exclusions(maps, record)
        pod_maps.remove_addresses(maps, record.ips, record.netns_cookie)
        pod_maps.remove_totals(maps, record.netns_cookie)
    programs.detach_pod(instance, record.netns_cookie)
    remove_record(instance, record.netns_cookie)


def reap(
    instance: Instance, maps: Mapping[str, Map] | None, tell: Tell = logger.debug
) -> list[PodRecord]:
    """Forgets every pod whose namespace is gone, and what is in the maps without a record.

    ``tell`` gets a line for each thing that an operator should look at; none of them stops the
    rest.
    """
    records = list(read_records(instance, on_broken=lambda e: tell(f"{e.line()}; it is left")))
    removed = []
    for record in records:
        try:
            if is_gone(instance, record):
                forget(instance, maps, record)
                removed.append(record)
        except (NodenetError, OSError) as error:
            tell(f"cannot tell whether {record.name} is gone: {error}")
    # by the names of the files: a record that cannot be read still is one
    known = {int(path.stem) for path in record_files(instance) if path.stem.isdecimal()}
    kept = known if maps is None else _sweep_maps(instance, maps, known, tell)
    _sweep_links(instance, kept, only_dead=maps is None)
    routeless = {r.netns_cookie for r in records if r.backend == "ebpf" and r.direction == "out"}
    remove_unneeded_routes(instance, known - routeless, tell)
    return removed


def _sweep_maps(
    instance: Instance, maps: Mapping[str, Map], known: Collection[int], tell: Tell
) -> set[int]:
    """Removes entries of namespaces that have no record; the cookies of those that stay."""
    kept = set(known)
    for key, value in list(maps["pods"].items()):
        cookie = int(abi.NETNS_KEY.unpack(key)["netns_cookie"])
        flags = PodFlag(int(abi.POD.unpack(value)["flags"]))
        if cookie in known or flags & PodFlag.HOST:
            kept.add(cookie)
        elif flags & PodFlag.LIVE and _lives(instance, cookie):
            # its connections were meant to be captured: that is not given up for a lost file
            kept.add(cookie)
            tell(
                f"netns cookie {cookie} is captured and has no record in {instance.pods}; "
                "enroll the pod again to name it"
            )
        else:
            maps["pods"].delete(key)
    ids = {pod_id(cookie) for cookie in kept}
    for key, value in list(maps["lips"].items()):
        if abi.LIP.unpack(value)["netns"] not in kept:
            maps["lips"].delete(key)
    for key, _ in list(maps["ports"].items()):
        if abi.PORT_KEY.unpack(key)["netns"] not in kept:
            maps["ports"].delete(key)
    for key, _ in list(maps["cidrs"].items()):
        if int.from_bytes(_as_bytes(abi.CIDR_KEY.unpack(key)["netns_be"]), "big") not in kept:
            maps["cidrs"].delete(key)
    for key, _ in list(maps["agg"].items()):
        if abi.AGG_KEY.unpack(key)["pod_id"] not in ids:
            maps["agg"].delete(key)
    return kept


def _lives(instance: Instance, netns_cookie: int) -> bool:
    alive = programs.pod_link_alive(instance, netns_cookie)
    return netns_cookie in living_cookies() if alive is None else alive


def _as_bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def _sweep_links(instance: Instance, kept: Collection[int], *, only_dead: bool) -> None:
    links = instance.pod_links
    for pin in sorted(links.iterdir()) if links.is_dir() else ():
        if "~" in pin.name:
            # a process was killed between pin and rename: the link is there a second time
            pin.unlink(missing_ok=True)
        elif pin.name.isdecimal() and int(pin.name) not in kept:
            if not only_dead or programs.pod_link_alive(instance, int(pin.name)) is False:
                pin.unlink(missing_ok=True)


def remove_everything(instance: Instance, maps: Mapping[str, Map] | None) -> list[PodRecord]:
    """Un-enrols every pod and removes pins, records and the agent's cgroup.

    What cannot be undone in one namespace is logged and does not keep the rest. Policy routes stay
    where the proxy still carries an inbound connection.
    """
    with contextlib.ExitStack() as stack:
        if maps is None:
            # pins of another version or of half an instance cannot be opened: they just go
            with contextlib.suppress(NodenetError, OSError):
                maps = open_maps(instance)
                for table in maps.values():
                    stack.enter_context(table)
        removed = _unenrol_all(instance, maps)
    remove_unneeded_routes(instance, (), logger.warning)
    _remove_files(instance.pods)
    programs.remove_pins(instance)
    # the lock file goes while it is held; another process that waits for it notices
    (instance.run / "capture.lock").unlink(missing_ok=True)
    _remove_free_locks(instance.run)
    remove_dead_sockets(instance.run)
    with contextlib.suppress(OSError):
        instance.run.rmdir()
    with contextlib.suppress(NodenetError):
        # processes may still be in it: the proxy outlives the capture until it is stopped
        Cgroup.open(cgroup2_mount() / instance.name).remove()
    return removed


def _unenrol_all(instance: Instance, maps: Mapping[str, Map] | None) -> list[PodRecord]:
    records = list(read_records(instance, on_broken=lambda e: logger.warning("%s", e.line())))
    if maps is not None:
        for record in records:
            maps["pods"].delete(pod_maps.netns_key(record.netns_cookie))
    for record in records:
        programs.detach_pod(instance, record.netns_cookie)
        try:
            _leave(instance, record)
        except (NodenetError, OSError) as error:
            logger.warning("left in the namespace of %s: %s", record.name, error)
        # Killed between two pods, the rest is still recorded. Each record goes after its entries,
        # which nothing else tells of, and before the pins: what is recorded is enrolled again.
        forget(instance, maps, record)
    return records


def _leave(instance: Instance, record: PodRecord) -> None:
    """Undoes what the enrolment did inside the namespace, if that is still there."""
    ns = open_namespace(record)
    if ns is None:
        return
    with ns:
        if record.backend == "iptables":
            iptables.remove(ns)
        elif proxied_inbound(ns, own_addresses(ns)):
            remember_routes(instance, ns, record)
        else:
            pod_routes.remove(ns)


def _remove_free_locks(directory: Path) -> None:
    """Removes the lock files that nobody holds; a running proxy or agent keeps its own."""
    for path in directory.glob("*.lock"):
        with contextlib.suppress(OSError), path.open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)


def remove_dead_sockets(directory: Path) -> None:
    """Removes the sockets nobody answers at: those of proxies that were killed."""
    for path in directory.glob("*.sock"):
        if not path.is_socket():  # connecting to a file is refused as well
            continue
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_PROBE_SECONDS)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)


def _remove_files(directory: Path) -> None:
    if directory.is_dir():
        for entry in directory.iterdir():
            entry.unlink(missing_ok=True)
        directory.rmdir()
