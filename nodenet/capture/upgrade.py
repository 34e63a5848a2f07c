"""Pins of another schema: rebuild them and put the pods back.

Maps cannot change their shape, so the statistics of before are lost; new connections of the pods
are not captured for the milliseconds in between. `LINK_UPDATE` (no gap) is used whenever only the
programs changed. The records stay all the time: after a kill the next start goes on from them.
"""

from __future__ import annotations

import logging
from pathlib import Path

from nodenet.capture import programs
from nodenet.capture.lock import instance_lock
from nodenet.capture.restoring import options_of, restore
from nodenet.capture.session import Capture
from nodenet.kernel.loader import SchemaMismatch
from nodenet.paths import Instance

__all__ = ["open_upgraded", "options_of"]

logger = logging.getLogger(__name__)


def open_upgraded(instance: Instance, *, agent_cgroup: Path | None = None) -> Capture:
    """`Capture.open_or_load`, also when the pinned maps are of another schema.

    A pod that cannot be enrolled again is logged; the others are captured.
    """
    try:
        capture = Capture.open_or_load(instance, agent_cgroup=agent_cgroup)
    except SchemaMismatch as mismatch:
        logger.warning("%s; rebuilding the pins", mismatch)
        with instance_lock(instance):
            programs.remove_pins(instance)
        capture = Capture.open_or_load(instance, agent_cgroup=agent_cgroup)
    try:
        restore(instance, capture.maps, logger.warning)
    except BaseException:
        capture.close()
        raise
    return capture
