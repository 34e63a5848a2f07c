"""The agent's connections to all servers: keeps as many as there are servers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from nodenet.agents.konnectivity.agent_config import AgentConfig
from nodenet.agents.konnectivity.agent_remote import Sockets
from nodenet.agents.konnectivity.agent_resolver import literal
from nodenet.agents.konnectivity.agent_stream import ConnectFailed, ServerStream, State
from nodenet.endpoint import format_host_port
from nodenet.konnectivity.agent_sync import Sync
from nodenet.konnectivity.agent_tunnel import Counts
from nodenet.rpc.status import Code

#: A look-up of the servers' name that takes longer counts as failed.
RESOLVE_SECONDS: Final = 5.0
#: Without tunnels for so long the agent is drained: a dial on its way arrives before.
QUIET_SECONDS: Final = 1.0
#: From so many connections on without a new server, one address hides something: behind a balancer
#: a known server is found again now and then.
DUPLICATES: Final = 3

# The words before the first = are upstream's: scripts look for them and count serverIDs.
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of an address."""

    text: str
    at: float
    """Wall-clock time."""
    duplicate: bool = False
    """It did connect, to a server that is known already."""


class ClientSet:
    """See the module. `run` it in a task; `drain` and `close` end it."""

    def __init__(self, config: AgentConfig, sockets: Sockets, *, rng: Random) -> None:
        self.counts = Counts()
        self.connect_failures = 0
        """Attempts that came to nothing."""
        self.stream_errors: dict[str, int] = {}
        """Streams that did not end well, by gRPC code as Go prints it."""
        self.failures: dict[str, Failure] = {}
        """By address; a success removes it."""
        self.streams: list[ServerStream] = []
        """Connected ones, in the order they came."""
        self.sync = Sync(
            interval=config.sync_interval,
            cap=config.sync_interval_cap,
            forever=config.sync_forever,
            source=config.count_source,
            rng=rng,
        )
        self._config = config
        self._sockets = sockets
        self._loop = sockets.loop
        self._changed = asyncio.Event()
        self._by_address: dict[str, tuple[str, int]] = {}
        self._attempts: set[ServerStream] = set()
        self._duplicates: dict[str, int] = {}
        """Connections of an address to known servers since it led to a new one, while some lack."""

    @property
    def ready(self) -> int:
        """Servers that may dial here."""
        return sum(stream.state is State.READY for stream in self.streams)

    @property
    def serves(self) -> bool:
        """Whether dials may come: of a server that stays, or late ones while this agent drains."""
        return self.ready > 0 or (self.sync.draining and bool(self.streams))

    @property
    def tunnels(self) -> int:
        """Tunnels and dials of all streams."""
        return sum(stream.tunnels for stream in self.streams)

    async def run(self) -> None:
        """Connects to servers until cancelled."""
        asked_at = float("-inf")
        asking: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                now = self._loop.time()
                # beside the attempts: known addresses do not wait for a name server that is silent
                if now - asked_at >= self._resolve_interval() and (asking is None or asking.done()):
                    asked_at = now
                    asking = tasks.create_task(self._resolve(), name="look-up of the servers")
                while (address := self.sync.next_address(now)) is not None:
                    tasks.create_task(self._attempt(address), name=f"connect {address}")
                wait = min(self.sync.wait(now), self._config.sync_interval_cap)
                self._changed.clear()
                try:
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    def count_leases(self, count: int) -> None:
        """So many leases are valid."""
        if count != self.sync.lease_count:
            logger.info("%d server leases are valid", count)
            self.sync.lease_count = count
            self._forget_duplicates()
            self._changed.set()

    def drain(self) -> None:
        """Tells every server to choose this agent no more; no new connections are made."""
        self.sync.draining = True
        for stream in self.streams:
            stream.drain()

    @property
    def unfinished(self) -> int:
        """Tunnels, dials, and remotes and servers that do not have all of those that are over."""
        unsent = sum(stream.unsent > 0 for stream in self.streams)
        return self.tunnels + self._sockets.unfinished + unsent

    async def drained(self, seconds: float) -> bool:
        """Waits until nothing was unfinished for `QUIET_SECONDS`; False after ``seconds``."""
        end = self._loop.time() + seconds
        quiet_since: float | None = None
        while True:
            now = self._loop.time()
            if self.unfinished:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            if quiet_since is not None and (now - quiet_since >= QUIET_SECONDS or not self.streams):
                return True
            if now >= end:
                return False
            await asyncio.sleep(min(0.1, end - now))

    def close(self) -> None:
        """Ends every stream; remotes are reset."""
        self.sync.draining = True
        for stream in [*self.streams, *self._attempts]:
            stream.close()

    # -- connecting -------------------------------------------------------------------------------

    def _resolve_interval(self) -> float:
        config = self._config
        complete = len(self.sync.servers) >= self.sync.count
        return config.sync_interval_cap if complete else config.sync_interval

    async def _resolve(self) -> None:
        config = self._config
        host, port = config.server_host, config.server_port
        if literal(host, port) is not None:
            self._know([(host, port)])
            return
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await self._sockets.resolver.addresses(host, port)
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or "no answer in time"
            self._failed(host, f"{host}: {reason.lower()}")
            return
        self.failures.pop(host, None)
        self._know((address[0], address[1]) for _, address in found)

    def _know(self, addresses: Iterable[tuple[str, int]]) -> None:
        found = {format_host_port(host, port): (host, port) for host, port in addresses}
        if found.keys() - self.sync.addresses:
            self._changed.set()
        self.sync.set_addresses(list(found))
        # servers that are replaced get new addresses each time: the old ones are no news for ever
        known = self.sync.addresses
        self._by_address = {a: p for a, p in (self._by_address | found).items() if a in known}
        for gone in self.failures.keys() - known - {self._config.server_host}:
            del self.failures[gone]
        for gone in self._duplicates.keys() - known:
            del self._duplicates[gone]

    async def _attempt(self, address: str) -> None:
        stream = ServerStream(self._config, self._sockets, self.counts, self._stream_changed)
        self._attempts.add(stream)
        logger.debug("connecting address=%s", address)
        try:
            await stream.connect(*self._by_address[address])
        except ConnectFailed as error:
            self.connect_failures += 1
            self.sync.failed(address, self._loop.time())
            self._failed(address, error.message)
            return
        except Exception as error:  # a fault of ours at one server must not end the others
            logger.exception("connect %s", address)
            self.connect_failures += 1
            self.sync.failed(address, self._loop.time())
            self._failed(address, f"{address}: internal error: {type(error).__name__}: {error}")
            return
        except BaseException:
            self.sync.failed(address, self._loop.time())
            raise
        finally:
            self._attempts.discard(stream)
            self._changed.set()
        self._connected(address, stream)

    def _connected(self, address: str, stream: ServerStream) -> None:
        self.failures.pop(address, None)
        count = stream.server_count
        now = self._loop.time()
        new = self.sync.connected(address, stream.server_id, count, now)
        if stream.state is State.CLOSED or self.sync.draining:
            # lost, or not wanted any more, since it answered
            if new:
                self.sync.lost(stream.server_id, now)
            stream.close()
        elif new:
            self.streams.append(stream)
            self._duplicates.pop(address, None)
            self._forget_duplicates()
            logger.info(
                "Connect to server serverID=%s address=%s connected=%d known=%d",
                stream.server_id,
                address,
                len(self.sync.servers),
                self.sync.count,
            )
            logger.info("successfully connected to new proxy server serverID=%s", stream.server_id)
            logger.info(
                "Start serving serverID=%s agentID=%s", stream.server_id, self._config.agent_id
            )
        else:
            self._duplicate(address, stream.server_id)
            stream.close()

    def _duplicate(self, address: str, server_id: str) -> None:
        """An address led to a known server. When it always does, the others may not be there."""
        known = self.sync.count
        if len(self.sync.servers) >= known:
            times = 0
        else:
            times = self._duplicates[address] = self._duplicates.get(address, 0) + 1
        said = ""
        if times >= DUPLICATES:
            said = (
                f": leads to server {server_id} again ({times} times), while {known} servers are "
                "said to exist: check their --server-count, and that all can be reached here"
            )
            self.failures[address] = Failure(f"{address}{said}", time.time(), duplicate=True)
        logger.log(
            logging.WARNING if times == DUPLICATES else logging.DEBUG,
            "duplicate server connection attempt serverID=%s address=%s%s",
            server_id,
            address,
            said,
        )

    def _forget_duplicates(self) -> None:
        """Of all addresses, when every server is connected."""
        if len(self.sync.servers) < self.sync.count:
            return
        for address in self._duplicates:
            failure = self.failures.get(address)
            if failure is not None and failure.duplicate:
                del self.failures[address]
        self._duplicates.clear()

    def _failed(self, address: str, text: str) -> None:
        known = self.failures.get(address)
        level = logging.DEBUG if known is not None and known.text == text else logging.WARNING
        logger.log(level, "cannot connect once: %s", text)
        self.failures[address] = Failure(text, time.time())

    def _stream_changed(self, stream: ServerStream) -> None:
        """A stream's server goes away, or the stream is gone."""
        if stream not in self.streams:
            return
        if all(s.server_id != stream.server_id for s in self._live(stream)):
            self.sync.lost(stream.server_id, self._loop.time())
        if stream.state is State.CLOSED:
            self.streams.remove(stream)
            why = stream.end_status
            if why is not None:
                if why.code is not Code.OK:
                    code = why.code.camel
                    self.stream_errors[code] = self.stream_errors.get(code, 0) + 1
                logger.info(
                    "Removing client used for server connection serverID=%s: %s",
                    stream.server_id,
                    why,
                )
                said = "the server has ended the stream" if why.code is Code.OK else why
                self.failures[stream.address] = Failure(f"{stream.address}: {said}", time.time())
        self._changed.set()

    def _live(self, but: ServerStream) -> list[ServerStream]:
        """Streams whose servers have not said that they go."""
        return [s for s in self.streams if s is not but and s.state is State.READY]
