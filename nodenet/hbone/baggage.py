"""The ``baggage`` header: what a proxy says about the workload it speaks for.

``k8s.cluster.name=c,k8s.namespace.name=n,k8s.deployment.name=w,service.name=s,…`` without blanks
and without escapes. It is only used for labels and logs: nothing is decided by it, since nobody
proves it. Source: ztunnel: src/baggage.rs, src/proxy.rs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

#: Kinds of owners of a pod that have a key each, ``k8s.KIND.name``; all of them are read.
WORKLOAD_TYPES: Final = ("deployment", "cronjob", "pod", "job")

#: Longer values are left out, both ways: a name of Kubernetes has 253 characters at most, and what
#: a peer says becomes a label that stays in memory.
MAX_VALUE: Final = 512
#: Parts looked at in all headers together; there are eight.
MAX_PARTS: Final = 64

#: A value that comes back as it went: printable ASCII, no separator, no blank at the ends.
_VALUE: Final = re.compile(r"(?! )[ -+\--<>-~]+(?<! )")
#: What ``HeaderValue::to_str`` of ztunnel's HTTP library takes.
_TEXT: Final = re.compile(rb"[\t -~]*")


class Baggage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workload as its proxy describes it. Empty strings are unset."""

    cluster: str = ""
    namespace: str = ""
    workload_name: str = ""
    service_name: str = ""
    """The canonical name."""
    revision: str = ""
    """The canonical revision."""
    region: str = ""
    zone: str = ""


NO_BAGGAGE: Final = Baggage()

_FIELDS: Final = {
    b"k8s.cluster.name": "cluster",
    b"k8s.namespace.name": "namespace",
    **{f"k8s.{kind}.name".encode(): "workload_name" for kind in WORKLOAD_TYPES},
    b"service.name": "service_name",
    b"service.version": "revision",
    b"cloud.region": "region",
    b"cloud.availability_zone": "zone",
}


def format_baggage(baggage: Baggage, workload_type: str = "deployment") -> bytes:
    """The value of the header; empty when nothing is set, and then the header is left out.

    A value that the other side would not read as it is, because it holds a comma, an equals sign,
    or anything but printable ASCII, is left out: it could say something about another key. An
    unknown ``workload_type`` counts as ``deployment``.
    """
    kind = workload_type if workload_type in WORKLOAD_TYPES else "deployment"
    parts = (
        ("k8s.cluster.name", baggage.cluster),
        ("k8s.namespace.name", baggage.namespace),
        (f"k8s.{kind}.name", baggage.workload_name),
        ("service.name", baggage.service_name),
        ("service.version", baggage.revision),
        ("cloud.region", baggage.region),
        ("cloud.availability_zone", baggage.zone),
    )
    return ",".join(f"{key}={value}" for key, value in parts if _is_sayable(value)).encode()


def parse_baggage(headers: Iterable[bytes]) -> Baggage:
    """Reads all ``baggage`` headers of a message together; of a repeated key the last one holds.

    Never fails. Unknown keys and parts without an equals sign say nothing, an empty value unsets,
    a header that is no text makes all of them void.
    """
    found: dict[str, str] = {}
    parts = 0
    for header in headers:
        if _TEXT.fullmatch(header) is None:
            return NO_BAGGAGE
        # one split more than is read, so that what is left over does not join the last part
        for part in header.split(b",", MAX_PARTS)[: MAX_PARTS - parts]:
            parts += 1
            key, equals, rest = part.partition(b"=")
            name = _FIELDS.get(key)
            # a second equals sign ends the value
            value = rest.partition(b"=")[0]
            if name is not None and equals and len(value) <= MAX_VALUE:
                found[name] = value.decode("ascii")
    return Baggage(**found) if found else NO_BAGGAGE


def _is_sayable(value: str) -> bool:
    return len(value) <= MAX_VALUE and _VALUE.fullmatch(value) is not None
