"""How many servers there are, by the leases they keep (``--count-server-leases``).

The leases of one namespace and selector are listed again and again; upstream watches the whole
namespace and lists it every 10 s. A lease counts while it is valid; when the API does not answer,
the last count stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from nodenet.agents.konnectivity.agent_config import AgentConfig
from nodenet.agents.konnectivity.agent_metrics import LEASE_BUCKETS, LeaseCounts
from nodenet.kube.access import Access, from_kubeconfig, in_cluster
from nodenet.kube.client import ApiClient
from nodenet.kube.errors import ApiError, ApiRefused
from nodenet.kube.leases import LeaseWatch, list_leases

#: Seconds between two lists: a lease is renewed every 15 s and valid for 30 s.
LIST_SECONDS: Final = 5.0
#: Of that, spread at random: agents of a large cluster must not ask together.
JITTER: Final = 0.2

logger = logging.getLogger(__name__)


def access(config: AgentConfig, environ: Mapping[str, str]) -> Access:
    """How to reach the API: the kubeconfig, else the pod's service account. NoAccess."""
    if config.kubeconfig is not None:
        return from_kubeconfig(config.kubeconfig)
    return in_cluster(environ)


class LeaseCounter:
    """See the module. ``tell`` hears the count whenever it was taken."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        selector: str,
        counts: LeaseCounts,
        tell: Callable[[int], None],
        rng: Random,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._selector = selector
        self._counts = counts
        self._tell = tell
        self._rng = rng
        self._clock = clock
        self._steady = steady
        self._watch = LeaseWatch()
        self._failing = False

    async def run(self) -> None:
        """Counts, for ever."""
        while True:
            await self.count()
            await asyncio.sleep(LIST_SECONDS * (1 + JITTER * (self._rng.random() - 0.5)))

    async def count(self) -> None:
        """Counts once. A failure is logged, the first time, and changes nothing."""
        began = time.monotonic()
        code, reason = "200", "OK"
        try:
            leases = await list_leases(self._client, self._namespace, self._selector)
        except ApiError as error:
            refused = isinstance(error, ApiRefused)
            code = str(error.status) if isinstance(error, ApiRefused) else "0"
            reason = (error.reason or "Unknown") if isinstance(error, ApiRefused) else "Unreachable"
            if not self._failing:
                what = "refuses" if refused else "does not answer"
                logger.warning("cannot count leases: the API %s: %s", what, error.line())
            self._failing = True
        else:
            if self._failing:
                logger.info("leases are counted again")
            self._failing = False
            steady = self._steady()
            self._watch.look(leases, now=self._clock(), steady=steady)
            self._tell(sum(self._watch.is_held(lease, steady) for lease in leases))
        self._observe(code, reason, time.monotonic() - began)

    def _observe(self, code: str, reason: str, seconds: float) -> None:
        key = (code, reason)
        self._counts.lists[key] = self._counts.lists.get(key, 0) + 1
        buckets, total = self._counts.latency.get(code, ([0] * (len(LEASE_BUCKETS) + 1), 0.0))
        buckets[bisect_left(LEASE_BUCKETS, seconds)] += 1
        self._counts.latency[code] = (buckets, total + seconds)


async def count_leases(
    config: AgentConfig, where: Access, counts: LeaseCounts, tell: Callable[[int], None]
) -> None:
    """Counts until cancelled."""
    async with ApiClient(where) as client:
        await LeaseCounter(
            client,
            namespace=config.lease_namespace,
            selector=config.lease_selector,
            counts=counts,
            tell=tell,
            rng=Random(),
        ).run()
