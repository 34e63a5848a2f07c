"""``coordination.k8s.io/v1`` leases as JSON: made, read, judged."""

from __future__ import annotations

from collections.abc import Mapping
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


def is_valid(lease: Mapping[str, Any], now: float) -> bool:
    """Whether a lease is held at ``now``: renewed, or else acquired, less than its time ago."""
    spec = lease.get("spec") or {}
    moment = spec.get("renewTime") or spec.get("acquireTime")
    seconds = spec.get("leaseDurationSeconds")
    if not isinstance(moment, str) or not isinstance(seconds, int):
        return False
    try:
        # an offset is not what the API writes, and is understood all the same
        began = datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError):
        return False
    return began + seconds > now


async def list_leases(client: ApiClient, namespace: str, selector: str) -> list[Json]:
    """The leases that a label selector selects. ApiError."""
    found = await client.request("GET", collection(namespace), query={"labelSelector": selector})
    items = found.get("items")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
