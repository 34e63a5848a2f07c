"""Connections that are open and silent: what each costs a proxy, and that all still work.

The proxies are new ones: memory that earlier connections left behind would serve these.
"""

from __future__ import annotations

import time
from typing import Final

from bench._load import Load
from bench._relay_proxies import ProxyPair
from bench._relay_scene import Way
from bench._samples import Samples

SCENE: Final = "idle connections"
HELD: Final = "held, and alive after it"
OUTBOUND_MEMORY: Final = "outbound proxy memory each"
INBOUND_MEMORY: Final = "inbound proxy memory each"
IDLE_CPU: Final = "CPU of both proxies meanwhile"
#: Opened and closed before it counts: what a proxy makes once, it has made then.
_FIRST: Final = 50


def measure(
    load: Load,
    way: Way,
    proxies: ProxyPair,
    samples: Samples,
    *,
    count: int,
    hold_seconds: float,
    cpus: tuple[int, int],
) -> None:
    """So many on one way, for so long. LoadFailed when one of them is refused or has died."""
    client, server = way.sides(*cpus)
    proxies.move(*cpus)
    listen = way.pods.target
    with load.idling(_FIRST, client=client, dial=way.dial, server=server, listen=listen) as first:
        first.verify()
    before = proxies.rss_bytes()
    with load.idling(count, client=client, dial=way.dial, server=server, listen=listen) as idle:
        after, busy = proxies.rss_bytes(), sum(proxies.cpu_ns())
        time.sleep(hold_seconds)
        busy = sum(proxies.cpu_ns()) - busy
        alive = idle.verify()
    samples.record(SCENE, HELD, "", way.variant, alive)
    for measure_name, had, has in zip(
        (OUTBOUND_MEMORY, INBOUND_MEMORY), before, after, strict=True
    ):
        samples.record(SCENE, measure_name, "KiB", way.variant, (has - had) / 1024 / count)
    samples.record(SCENE, IDLE_CPU, "%", way.variant, busy / hold_seconds / 1e7)
