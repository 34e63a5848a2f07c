"""The HBONE connections a pod has to others, shared by its streams.

A connection serves one key: the identities the peer may have, its address, and the address we come
from (the pod is one and so is its identity). Streams are spread over as many connections as their
limits ask for; a full one is used again when streams of it have ended, where ztunnel forgets it
(ztunnel: src/proxy/pool.rs). While a connection is being made, those that want the same wait for
it instead of making more.

Every step has a deadline: TCP connect, TLS handshake, and the answer to CONNECT. A connection that
has carried nothing for the idle time is closed in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodenet.agents.ztunnel.client_connection import (
    ClientConnection,
    ConnectFailed,
    Connector,
    Opener,
    PoolClosed,
    PoolKey,
)
from nodenet.agents.ztunnel.deadlines import Deadlines
from nodenet.agents.ztunnel.transport import Wires

#: Streams of one connection (ztunnel: POOL_MAX_STREAMS_PER_CONNECTION).
MAX_STREAMS: Final = 100
#: Seconds without a stream after which a connection is closed (POOL_UNUSED_RELEASE_TIMEOUT).
IDLE_SECONDS: Final = 300.0
#: Connections of one pod at most; a pod with more peers at once is a scan, not a mesh.
MAX_CONNECTIONS: Final = 4096


class PoolTimers:
    """The deadlines of all pools of one worker."""

    def __init__(self, wires: Wires, connect_seconds: float, idle_seconds: float) -> None:
        self.connects = Deadlines[ClientConnection](
            wires.loop, connect_seconds, ClientConnection.connect_expired
        )
        self.idle = Deadlines[ClientConnection](wires.loop, idle_seconds, ClientConnection.retire)

    def close(self) -> None:
        """Forgets them all."""
        self.connects.close()
        self.idle.close()


class Pool:
    """The connections of one pod."""

    def __init__(
        self,
        wires: Wires,
        timers: PoolTimers,
        connector: Connector,
        *,
        max_streams: int = MAX_STREAMS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.wires = wires
        self.timers = timers
        self.connector = connector
        self.max_streams = max_streams
        self._max_connections = max_connections
        self._by_key: dict[PoolKey, list[ClientConnection]] = {}
        self.connections: set[ClientConnection] = set()
        """All of them, also those that take no new streams."""
        self._left: Callable[[], None] | None = None
        self.opened = 0
        """Connections made since the start."""

    def checkout(self, key: PoolKey, opener: Opener) -> None:
        """Gives the opener a connection, now or when there is one; or tells it why not."""
        if self._left is not None:
            opener.not_connected(PoolClosed("pool draining"))
            return
        usable = self._by_key.get(key)
        if usable is not None:
            for connection in usable:
                if connection.has_room():
                    connection.take(opener)
                    return
        if len(self.connections) >= self._max_connections and not self._make_room():
            opener.not_connected(
                ConnectFailed(f"io error: {self._max_connections} HBONE connections of this pod")
            )
            return
        connection = ClientConnection(self, key)
        self.connections.add(connection)
        self._by_key.setdefault(key, []).append(connection)
        self.opened += 1
        connection.take(opener)
        connection.dial()

    def unusable(self, connection: ClientConnection) -> None:
        """It takes no new streams (told by itself)."""
        usable = self._by_key.get(connection.key)
        if usable is not None and connection in usable:
            usable.remove(connection)
            if not usable:
                del self._by_key[connection.key]

    def gone(self, connection: ClientConnection) -> None:
        """It is over (told by itself)."""
        self.unusable(connection)
        self.connections.discard(connection)
        if self._left is not None and not self.connections:
            left, self._left = self._left, _nothing
            left()

    def leave(self, left: Callable[[], None]) -> None:
        """No new streams; calls ``left`` when the last connection is over, perhaps at once."""
        self._left = left
        for connection in list(self.connections):
            connection.retire()
        if not self.connections and self._left is left:
            self._left = _nothing
            left()

    def cut(self) -> None:
        """Ends every connection at once."""
        for connection in list(self.connections):
            connection.cut(PoolClosed("pool draining"))

    def _make_room(self) -> bool:
        """Ends an idle connection, of whichever key."""
        for connection in self.connections:
            if connection.idle:
                connection.cut(PoolClosed("pool draining"))
                return True
        return False


def _nothing() -> None:
    """Left already."""
