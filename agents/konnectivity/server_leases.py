"""This server's lease, and the count of all servers by theirs.

A lease is made at start, renewed while the server runs and deleted when it drains. Each renewal
also lists the leases, deletes those of servers that died, and tells how many are held. Names and
times: apiserver-network-proxy: pkg/server/leases. Upstream judges by this machine's clock, and one
that is wrong deletes the leases of everybody; see `LeaseWatch`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from nodenet.agents.konnectivity.server_metrics import LEASE_BUCKETS, LeaseMetrics
from nodenet.konnectivity.server_counts import Histogram
from nodenet.kube.client import ApiClient, Json
from nodenet.kube.errors import ApiError, ApiRefused
from nodenet.kube.leases import LeaseWatch, collection, list_leases, make, name_of

#: Seconds a lease is valid, and between two renewals.
LEASE_SECONDS: Final = 30
RENEW_SECONDS: Final = 15.0
#: Renewals of many servers spread over this part of the interval.
RENEW_JITTER: Final = 0.04
#: After a failed renewal, doubling up to the most.
RETRY_SECONDS: Final = 0.2
RETRY_MOST_SECONDS: Final = 7.0
#: For the deletion of our own lease at the end.
GOODBYE_SECONDS: Final = 3.0

logger = logging.getLogger(__name__)


class LeaseKeeper:
    """See the module. ``tell`` hears the number of servers whenever it was counted."""

    def __init__(
        self,
        client: ApiClient,
        *,
        server_id: str,
        namespace: str,
        labels: Mapping[str, str],
        metrics: LeaseMetrics,
        tell: Callable[[int], None],
        rng: Random,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"konnectivity-proxy-server-{server_id}"
        self._client = client
        self._id = server_id
        self._namespace = namespace
        self._labels = dict(labels)
        self._selector = ",".join(f"{key}={value}" for key, value in labels.items())
        self._metrics = metrics
        self._tell = tell
        self._rng = rng
        self._clock = clock
        self._steady = steady
        self._watch = LeaseWatch()
        self._failing = False

    async def run(self) -> None:
        """Keeps the lease, for ever."""
        retry = RETRY_SECONDS
        while True:
            try:
                await self.renew()
                await self.count()
            except ApiError as error:
                if not self._failing:
                    logger.warning("lease %s: %s", self.name, error.line())
                self._failing = True
                await asyncio.sleep(retry * (1 + self._rng.random() * RENEW_JITTER))
                retry = min(retry * 2, RETRY_MOST_SECONDS)
                continue
            if self._failing:
                logger.info("lease %s is kept again", self.name)
            self._failing, retry = False, RETRY_SECONDS
            await asyncio.sleep(RENEW_SECONDS * (1 + self._rng.random() * RENEW_JITTER))

    async def renew(self) -> None:
        """Makes the lease or renews it. ApiError."""
        path = f"{collection(self._namespace)}/{self.name}"
        try:
            found = await self._client.request("GET", path)
        except ApiRefused as error:
            if error.status != 404:
                raise
            await self._client.request("POST", collection(self._namespace), self._lease(None))
            return
        version = _metadata(found).get("resourceVersion")
        await self._client.request("PUT", path, self._lease(version))

    async def count(self) -> int:
        """Counts the leases that are held, and deletes the expired ones. ApiError."""
        began = time.monotonic()
        code, reason = "200", "OK"
        try:
            leases = await list_leases(self._client, self._namespace, self._selector)
        except ApiError as error:
            code, reason = _outcome(error)
            raise
        finally:
            _observe(self._metrics.lists, self._metrics.list_seconds, code, reason, began)
        steady, watch = self._steady(), self._watch
        watch.look(leases, now=self._clock(), steady=steady)
        # our own was renewed a moment ago, whatever the list says
        others = [lease for lease in leases if name_of(lease) != self.name]
        for lease in others:
            if watch.is_expired(lease, steady, LEASE_SECONDS):
                await self._delete_expired(lease)
        count = 1 + sum(watch.is_held(lease, steady) for lease in others)
        self._tell(count)
        return count

    async def leave(self) -> None:
        """Deletes our lease; logs when that fails, it ends by itself then."""
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._client.request("DELETE", f"{collection(self._namespace)}/{self.name}")
        except (ApiError, TimeoutError) as error:
            logger.warning("lease %s stays until it expires: %s", self.name, error)

    async def _delete_expired(self, lease: Json) -> None:
        found, name = _metadata(lease), name_of(lease)
        # only what we have seen: its server may have come back meanwhile
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"resourceVersion": found.get("resourceVersion")},
        }
        began = time.monotonic()
        code, reason = "200", "OK"
        try:
            await self._client.request("DELETE", f"{collection(self._namespace)}/{name}", options)
            self._metrics.culled += 1
        except ApiError as error:
            code, reason = _outcome(error)
            if code not in ("404", "409"):
                logger.warning("expired lease %s: %s", name, error.line())
        _observe(self._metrics.deletes, self._metrics.delete_seconds, code, reason, began)

    def _lease(self, version: str | None) -> Json:
        return make(
            self.name,
            holder=self._id,
            seconds=LEASE_SECONDS,
            labels=self._labels,
            now=self._clock(),
            version=version,
        )


def _metadata(lease: Mapping[str, Any]) -> Mapping[str, Any]:
    found = lease.get("metadata")
    return found if isinstance(found, dict) else {}


def _outcome(error: ApiError) -> tuple[str, str]:
    """HTTP status and reason for the metrics, as upstream labels them."""
    if isinstance(error, ApiRefused):
        return str(error.status), error.reason or "Unknown"
    return "0", "Unknown"


def _observe(
    totals: dict[tuple[str, str], int],
    seconds: dict[str, Histogram],
    code: str,
    reason: str,
    began: float,
) -> None:
    totals[(code, reason)] = totals.get((code, reason), 0) + 1
    seconds.setdefault(code, Histogram(LEASE_BUCKETS)).observe(time.monotonic() - began)
