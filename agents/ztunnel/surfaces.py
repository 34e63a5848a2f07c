"""The ports and the socket by which a proxy is asked: admin, metrics, readiness.

Several proxies may be on one host, one a node of a lab: each address can be another one or none,
and the Unix socket has the node's name in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from nodenet.agents.ztunnel.admin import Admin
from nodenet.agents.ztunnel.metrics import Metrics
from nodenet.agents.ztunnel.readiness import Readiness
from nodenet.httpd.connection import Limits
from nodenet.httpd.server import HttpServer
from nodenet.httpd.sockets import UnixListener, open_tcp, open_unix

#: Its members may use the Unix socket (docs/cli.md, admin surfaces).
GROUP: Final = "nodenet"

#: Answers of the admin surface may be long; who asks is on this host.
_ADMIN: Final = Limits(write_seconds=30.0)

logger = logging.getLogger(__name__)


def _group() -> int | None:
    """Whose members may ask without being root; None where there is no such group."""
    try:
        return grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return None


class Sockets:
    """The listening sockets of a proxy, opened before it serves anything.

    Opened early, so that a taken port ends the start before a pod has been touched.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        admin: str | None = None,
        stats: str | None = None,
        readiness: str | None = None,
    ) -> None:
        """``path`` of the Unix socket; the others are ADDRESS:PORT (`open_tcp`), None for none.

        BindError names the port, who has it, and the option.
        """
        self._opened: list[socket.socket | UnixListener] = []
        try:
            self.admin = self._tcp(admin, "give another --admin")
            self.stats = self._tcp(stats, "give another --stats")
            self.readiness = self._tcp(readiness, "give another --readiness")
            self.unix: list[UnixListener] = []
            if path is not None:
                self.unix.append(open_unix(path, "give --id or --node", group=_group()))
                self._opened += self.unix
        except BaseException:
            self.close()
            raise

    def _tcp(self, where: str | None, option: str) -> list[socket.socket]:
        if where is None:
            return []
        host, _, port = where.rpartition(":")
        opened = open_tcp(host.strip("[]"), int(port), option)
        self._opened += opened
        return opened

    def close(self) -> None:
        """Closes what no server has taken over; those close their own."""
        for each in self._opened:
            if isinstance(each, UnixListener):
                each.remove()
                each.sock.close()
            else:
                each.close()
        self._opened = []

    def taken(self) -> None:
        """The servers own the sockets from now on."""
        self._opened = []


class Surfaces:
    """The servers of a proxy that is being asked."""

    def __init__(self, servers: list[HttpServer]) -> None:
        self._servers = servers

    def addresses(self) -> dict[str, list[str]]:
        """Where each surface listens, by its name."""
        found: dict[str, list[str]] = {}
        for server in self._servers:
            if server.addresses:
                found.setdefault(server.name, []).extend(server.addresses)
        return found

    async def close(self) -> None:
        """Takes no new requests; those under way finish. For the begin of the drain."""
        await asyncio.gather(*(server.close() for server in self._servers))


@contextlib.asynccontextmanager
async def serving(
    sockets: Sockets, admin: Admin, metrics: Metrics, readiness: Readiness
) -> AsyncIterator[Surfaces]:
    """Answers until the block is left. Owns the sockets."""
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(sockets.close)
        servers = [
            HttpServer("admin", admin.routes(over_unix=False), sockets.admin, limits=_ADMIN),
            HttpServer("admin", admin.routes(over_unix=True), sockets.unix, limits=_ADMIN),
            HttpServer("metrics", metrics.routes(), sockets.stats),
            HttpServer("readiness", readiness.routes(), sockets.readiness),
        ]
        stack.callback(admin.close)
        for server in servers:
            await stack.enter_async_context(server)
        sockets.taken()
        surfaces = Surfaces(servers)
        admin.listeners = surfaces.addresses
        for name, addresses in surfaces.addresses().items():
            logger.info("%s at %s", name, ", ".join(addresses))
        yield surfaces
