"""Putting pods back that are recorded and not captured.

The record is what the operator asked for, the maps are what is in force. They differ after a kill
or a failure in the middle of an enrolment or of an upgrade of the pins; then the record wins.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from nodenet import abi
from nodenet.abi import PodFlag
from nodenet.capture import pod_maps, programs
from nodenet.capture.enrolment import Enroller
from nodenet.capture.lock import LOCK_DEADLINE_SECONDS, instance_lock
from nodenet.capture.namespaces import open_namespace
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import (
    PodRecord,
    read_record,
    read_records,
    record_path,
    write_record,
)
from nodenet.capture.result import EnrolResult
from nodenet.errors import NodenetError, NotFound
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.paths import Instance


def options_of(record: PodRecord) -> EnrolOptions:
    """The options a pod was enrolled with."""
    return EnrolOptions(
        backend=record.backend,
        direction=record.direction,
        dns=record.dns,
        exclude_ports=record.exclude_ports,
        exclude_cidrs=tuple(ipaddress.ip_network(c) for c in record.exclude_cidrs),
        on_proxy_down=record.on_proxy_down,
        existing=record.existing,
        mode=record.mode,
    )


def restore(
    instance: Instance,
    maps: Mapping[str, Map],
    tell: Callable[[str], object],
    *,
    deadline_seconds: float = LOCK_DEADLINE_SECONDS,
) -> list[PodRecord]:
    """Enrols again every pod that is recorded and not captured; the pods it enrolled.

    ``tell`` gets a line for each that fails; the others follow. Pods whose namespace is gone are
    passed over: they are `reaping.reap`'s.
    """
    done = []
    for record in read_records(instance, on_broken=lambda e: tell(f"{e.line()}; it is left")):
        try:
            if not is_captured(instance, maps, record):
                result = enrol_again(
                    instance, maps, record.netns_cookie, deadline_seconds=deadline_seconds
                )
                if result is not None and result.outcome != "unchanged":
                    done.append(result.record)
        except (NodenetError, OSError) as error:
            line = error.line() if isinstance(error, NodenetError) else str(error)
            tell(f"{record.name} is not captured: {line}")
    return done


def is_captured(instance: Instance, maps: Mapping[str, Map], record: PodRecord) -> bool:
    """Whether the enrolment has finished and is in force, for the addresses the pod has now."""
    found = maps["pods"].lookup(pod_maps.netns_key(record.netns_cookie))
    if record.pending or found is None:
        return False
    if not PodFlag(int(abi.POD.unpack(found)["flags"])) & PodFlag.LIVE:
        return False
    if record.backend == "ebpf" and not programs.pod_link_alive(instance, record.netns_cookie):
        return False
    return not _has_moved(record)


def _has_moved(record: PodRecord) -> bool:
    """Whether the pod has other addresses now: captured connects go to the first one."""
    try:
        with NetNs.open(record.netns) as ns:
            if ns.cookie() != record.netns_cookie:
                return False  # another namespace by now: reaping's business
            found = pod_maps.PodAddresses.choose(i.interface.ip for i in ns.addresses())
    except NotFound:
        return False
    return bool(found.ip4 or found.ip6) and {str(a) for a in found.owned} != set(record.ips)


def enrol_again(
    instance: Instance,
    maps: Mapping[str, Map],
    netns_cookie: int,
    *,
    deadline_seconds: float = LOCK_DEADLINE_SECONDS,
) -> EnrolResult | None:
    """Enrols a pod as its record says; None when it has been taken out or is gone.

    Raises what enrolling raises, and Busy; the record stays then, so that a later try may do it.
    """
    with instance_lock(instance, deadline_seconds):
        # read under the lock: somebody may have taken the pod out meanwhile
        record = read_record(record_path(instance, netns_cookie))
        ns = open_namespace(record) if record is not None else None
        if record is None or ns is None:
            return None
        with ns:
            try:
                return Enroller(instance, maps).enroll(
                    Path(ns.path),
                    name=record.name,
                    # what came back through the proxy already must not be ended again
                    options=dataclasses.replace(options_of(record), existing="keep"),
                    node=record.node,
                    node_id=record.node_id,
                    uid=record.uid,
                    wait_seconds=0.0,
                )
            except BaseException:
                if read_record(record_path(instance, netns_cookie)) is None:
                    write_record(instance, replace(record, pending=True))
                raise
