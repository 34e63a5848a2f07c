"""Source ports of captured connections may be used again one second after their end.

All captured connections of a pod go to one address and port, so they share one range of source
ports; in TIME_WAIT for a minute each, about 28,000 short connections use it up. With
``net.ipv4.tcp_tw_reuse=1`` (for both families; the default 2 covers 127.0.0.1 only) the kernel
takes a port again as soon as TCP timestamps make that safe. The value before is kept in the pod's
record and put back when the pod is taken out.
"""

from __future__ import annotations

from typing import Final

from nodenet.capture.records import PodRecord
from nodenet.kernel.netns import NetNs

_NAME: Final = "net.ipv4.tcp_tw_reuse"
_ALLOWED: Final = 1


def wanted(record: PodRecord) -> bool:
    """Whether this enrolment rewrites connects to the pod's own address."""
    return record.backend == "ebpf" and record.direction != "in"


def value_before(ns: NetNs, old: PodRecord | None, *, needed: bool) -> int | None:
    """What to put back later; None when there is nothing to change."""
    if not needed:
        return None
    if old is not None and old.tw_reuse_before is not None:
        return old.tw_reuse_before
    with ns.sysctls() as sysctls:
        found = sysctls.read_int(_NAME)
    return None if found in (None, _ALLOWED) else found


def allow(ns: NetNs, record: PodRecord) -> None:
    """Sets it, where the record says that it was otherwise."""
    if record.tw_reuse_before is not None and wanted(record):
        with ns.sysctls() as sysctls:
            sysctls.write_int(_NAME, _ALLOWED)


def put_back(ns: NetNs, record: PodRecord) -> None:
    """Puts the value of before back, unless somebody has changed it since."""
    if record.tw_reuse_before is not None:
        with ns.sysctls() as sysctls:
            if sysctls.read_int(_NAME) == _ALLOWED:
                sysctls.write_int(_NAME, record.tw_reuse_before)
