"""What a running proxy says when it is asked."""

from __future__ import annotations

import contextlib
import http.client
import re

from tests.root.agents.ztunnel.proxied import DEADLINE, ProxyProcess


def metric(proxy: ProxyProcess, name: str, **labels: str) -> float:
    """The sum of a metric over its label sets that have these labels.

    The proxy was started with ``--stats=127.0.0.1:0``.
    """
    found = proxy.wait_for(r"metrics at (\S+?):(\d+)")
    connection = http.client.HTTPConnection(found[1], int(found[2]), timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    total = 0.0
    for line in text.splitlines():
        match = re.fullmatch(r"(\w+?)(?:_total)?(?:\{(.*)\})? (\S+)", line)
        if match and match[1] == name.removesuffix("_total"):
            if all(f'{key}="{value}"' in (match[2] or "") for key, value in labels.items()):
                total += float(match[3])
    return total
