"""Joins: the pod names behind the numbers and addresses in a kernel record.

The enrolment records give them by namespace cookie, pod id and address. They are read once, and
again when a pod came or went; never once a connection.
"""

from __future__ import annotations

import ipaddress

from nodenet import abi
from nodenet.capture.records import PodRecord, read_records
from nodenet.paths import Instance


class Names:
    """Pod names of one instance; `refresh` follows enrolments, at the price of one stat(2)."""

    def __init__(self, instance: Instance) -> None:
        self._directory = instance.pods
        self._instance = instance
        self._seen: int | None = -1
        self.records: tuple[PodRecord, ...] = ()
        self.by_netns: dict[int, PodRecord] = {}
        self.by_pod_id: dict[int, PodRecord] = {}
        self.by_address: dict[bytes, str] = {}
        """Pod name, keyed as in a kernel record: 16 bytes, IPv4 as v4-mapped."""
        self.refresh()

    def refresh(self) -> bool:
        """Reads the records again if one came or went; whether anything may differ now."""
        try:
            stamp: int | None = self._directory.stat().st_mtime_ns
        except FileNotFoundError:
            stamp = None
        if stamp == self._seen:
            return False
        self._seen = stamp
        self.set_records(tuple(read_records(self._instance)))
        return True

    def set_records(self, records: tuple[PodRecord, ...]) -> None:
        """Replaces what is known; an address that two pods claim belongs to the later name."""
        self.records = records
        self.by_netns = {r.netns_cookie: r for r in records}
        self.by_pod_id = {r.pod_id: r for r in records}
        self.by_address = {
            abi.pack_ip(ipaddress.ip_address(ip)): r.name for r in records for ip in r.ips
        }
