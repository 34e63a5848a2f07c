"""What the proxy knows about one pod it serves."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from nodenet.capture.records import Backend, PodRecord
from nodenet.errors import NodenetError


class PodRefused(NodenetError):
    """The pod cannot be served as it is described."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One enrolled pod, from whatever source (records now, ZDS later).

    ``cookie`` is the netns cookie, the pod's key everywhere: never reused while the machine is up.
    """

    cookie: int
    name: str
    hosts: frozenset[str]
    """Its addresses as the kernel prints them: compared with what accept() returns."""
    backend: Backend
    uid: str | None = None
    """Key of its workload in the mesh, when whoever enrolled it knew."""


def pod_of_record(record: PodRecord) -> Pod:
    """The pod a record describes. PodRefused for an address that is none."""
    try:
        hosts = frozenset(str(ipaddress.ip_address(text)) for text in record.ips)
    except ValueError as error:
        raise PodRefused(f"enrolment record of {record.name}: {error}; enroll it again") from error
    return Pod(
        cookie=record.netns_cookie,
        name=record.name,
        hosts=hosts,
        backend=record.backend,
        uid=record.uid,
    )
