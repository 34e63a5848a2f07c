"""``coordination.k8s.io/v1`` leases as JSON: made, read, judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nodenet.kube.client import ApiClient, Json


def collection(namespace: str) -> str:
    """The path of a namespace's leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def make(
    name: str,
    *,
    holder: str,
    seconds: int,
    labels: Mapping[str, str],
    now: float,
    version: str | None = None,
) -> Json:
    """A lease that is held from ``now`` (Unix time) for ``seconds``.

    ``version`` is the resourceVersion that it replaces.
    """
    metadata: Json = {"name": name, "labels": dict(labels)}
    if version is not None:
        metadata["resourceVersion"] = version
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "renewTime": micro_time(now),
        },
    }


def micro_time(seconds: float) -> str:
    """A MicroTime: ``2026-01-02T03:04:05.000006Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_left(lease: Mapping[str, Any], now: float) -> float | None:
    """How long a lease is held after ``now`` by its own times, less than 0 when it was; None
    when it says neither when it was renewed or acquired, nor for how long.
    """
    seconds = _seconds(lease)
    if seconds is None:
        return None
    try:
        # an offset is not what the API writes, and is understood all the same
        began = datetime.fromisoformat(_moment(lease)).timestamp()
        return began + seconds - now
    except (ValueError, OverflowError):
        return None


def _moment(lease: Mapping[str, Any]) -> str:
    """When a lease was renewed, or else acquired, as it says; empty when it says nothing."""
    spec = lease.get("spec")
    if not isinstance(spec, dict):
        return ""
    found = spec.get("renewTime") or spec.get("acquireTime")
    return found if isinstance(found, str) else ""


def _seconds(lease: Mapping[str, Any]) -> int | None:
    """For how long a lease is held from then on."""
    spec = lease.get("spec")
    found = spec.get("leaseDurationSeconds") if isinstance(spec, dict) else None
    return found if isinstance(found, int) else None


def name_of(lease: Mapping[str, Any]) -> str:
    """The name, empty when there is none."""
    metadata = lease.get("metadata")
    found = metadata.get("name") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else ""


@dataclass(slots=True)
class _Seen:
    """What one lease said when it was last something new."""

    moment: str
    since: float
    """Since when it says that, by the steady clock."""
    held_until: float


class LeaseWatch:
    """Which leases are held, as far as this process can tell. No I/O.

    Their times are those of other machines, and this one's clock may be wrong or jump. So a lease
    that was seen to be renewed is held for its time from then on by the steady clock, whatever its
    own times say (as leader election of client-go does it); these count when it is first seen. And
    it is expired only when nothing has happened to it for all its time.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, leases: Iterable[Json], *, now: float, steady: float) -> None:
        """All leases there are. ``now`` is Unix time, ``steady`` never jumps; both in seconds."""
        before, self._seen = self._seen, {}
        for lease in leases:
            name, moment = name_of(lease), _moment(lease)
            seen = before.get(name)
            if seen is None or seen.moment != moment:
                seen = _Seen(moment, steady, steady + self._time(lease, now, seen is not None))
            self._seen[name] = seen

    @staticmethod
    def _time(lease: Json, now: float, renewed: bool) -> float:
        left, seconds = seconds_left(lease, now), _seconds(lease)
        if left is None or seconds is None:
            return 0.0
        if renewed and not 0 < left <= seconds:
            return seconds  # renewed a moment ago, so the two clocks differ
        return min(max(left, 0.0), float(seconds))

    def is_held(self, lease: Json, steady: float) -> bool:
        """Whether its server is there; for leases of the last `look`."""
        return self._seen[name_of(lease)].held_until > steady

    def is_expired(self, lease: Json, steady: float, least: float) -> bool:
        """Whether it may be deleted: not held, and unchanged for its time and for ``least``."""
        seen = self._seen[name_of(lease)]
        quiet = max(_seconds(lease) or 0, least)
        return seen.held_until <= steady and steady - seen.since >= quiet


async def list_leases(client: ApiClient, namespace: str, selector: str) -> list[Json]:
    """The leases that a label selector selects. ApiError."""
    found = await client.request("GET", collection(namespace), query={"labelSelector": selector})
    items = found.get("items")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
