"""Pins of another schema: take the pods out, rebuild the pins, put the pods back.

Maps cannot change their shape, so the statistics of before are lost; new connections of the pods
are not captured for the milliseconds in between. `LINK_UPDATE` (no gap) is used whenever only the
programs changed.
"""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path

from nodenet.capture import programs
from nodenet.capture.lock import instance_lock
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import PodRecord, read_records
from nodenet.capture.session import Capture
from nodenet.errors import NodenetError, NotFound
from nodenet.kernel.loader import SchemaMismatch
from nodenet.paths import Instance

logger = logging.getLogger(__name__)


def open_upgraded(instance: Instance, *, agent_cgroup: Path | None = None) -> Capture:
    """`Capture.open_or_load`, also when the pinned maps are of another schema."""
    try:
        return Capture.open_or_load(instance, agent_cgroup=agent_cgroup)
    except SchemaMismatch as mismatch:
        logger.warning("%s; rebuilding the pins", mismatch)
    records = list(read_records(instance))
    with instance_lock(instance):
        programs.remove_pins(instance)
    capture = Capture.open_or_load(instance, agent_cgroup=agent_cgroup)
    for record in records:
        try:
            capture.enroll(
                record.netns,
                name=record.name,
                node=record.node,
                uid=record.uid,
                options=options_of(record),
            )
        except NotFound:
            logger.warning("%s is gone, not enrolled again", record.name)
        except NodenetError:
            capture.close()
            raise
    return capture


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
