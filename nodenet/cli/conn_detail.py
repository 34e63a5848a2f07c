"""What ``conn show -j`` prints: the keys of ``conn list`` and the proxy's half."""

from __future__ import annotations

from nodenet.agents.ztunnel.views import ProxyConnection
from nodenet.conns.connection import Connection


class ConnectionDetail(Connection, frozen=True, gc=False):
    """One connection as both halves know it."""

    ztunnel: ProxyConnection | None
    """None: it was not captured, no ztunnel answers, or none knows it (any more)."""
