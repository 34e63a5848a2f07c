"""The life of a server process: start, serve, drain, end.

The first SIGTERM or SIGINT ends it at once, or with ``--graceful-shutdown-timeout`` drains: no new
frontends, agents and dials are taken, open tunnels go on until they end or the time is over. (With
upstream's server a drain takes the agents' connections down after a second, and the tunnels with
them.) The second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Final

from nodenet.agents.konnectivity.server_agents import Agents, AgentStream, Authenticator
from nodenet.agents.konnectivity.server_config import Mode, ServerConfig
from nodenet.agents.konnectivity.server_frontends import Frontends
from nodenet.agents.konnectivity.server_listeners import (
    EitherProtocol,
    Factory,
    Listener,
    open_frontend_socket,
    open_listening,
)
from nodenet.agents.ztunnel.poller import Poller
from nodenet.endpoint import format_host_port
from nodenet.konnectivity import extensions
from nodenet.konnectivity.packets import AGENT_METHOD, PROXY_METHOD
from nodenet.konnectivity.server_core import TICK_SECONDS, ServerCore
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.call import Call, CallHandler
from nodenet.rpc.connection import Role
from nodenet.rpc.limits import Limits
from nodenet.rpc.status import Code, Status

#: Objects made between two collections. Tunnels free themselves, so there is little to find.
_GC_THRESHOLD: Final = (50_000, 20, 20)
#: Seconds between two looks whether a drain is over.
_DRAIN_LOOK_SECONDS: Final = 0.1
#: For peers to take the last words.
_GOODBYE_SECONDS: Final = 1.0
#: For a connection to the agents' port to have an agent on it, and between two looks whether it
#: still has. With tokens anybody may connect, and answer pings for ever.
STRANGER_SECONDS: Final = 60.0
#: Streams of one agent's connection: it needs one, and a second while it reconnects.
_AGENT_CALLS: Final = 16

logger = logging.getLogger(__name__)


class Server:
    """Everything of one server but its health and admin surfaces and the Kubernetes API.

    Leaving the context ends everything at once::

        async with Server(config) as server:
            ...
            await server.drain(seconds)
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        authenticator: Authenticator | None = None,
        rng: Random | None = None,
    ) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.core = ServerCore(
            config.strategies,
            rng=rng or Random(),
            dial_timeout=config.dial_timeout,
            now=self.loop.time(),
        )
        self.frontends = Frontends(self.core)
        self.poller = Poller(self.loop)
        self.tasks = asyncio.TaskGroup()
        self.agents = Agents(
            self.core,
            server_id=config.server_id,
            server_count=config.server_count,
            authenticator=authenticator,
            tasks=self.tasks,
        )
        self.draining = False
        self.connections: dict[RpcProtocol, None] = {}
        """HTTP/2 connections of agents and gRPC frontends."""
        self._looked_at: dict[RpcProtocol, float] = {}
        """Connections to the agents' port by when they are looked at next, which is their order."""
        self._listeners: list[Listener] = []
        self._background: list[asyncio.Task[None]] = []
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def agent_port(self) -> int:
        """Where agents connect."""
        return self._listeners[0].port

    @property
    def frontend_port(self) -> int:
        """Where frontends connect over TCP."""
        return self._listeners[1].port

    async def __aenter__(self) -> Server:
        # before the task group, which would wrap what goes wrong here
        try:
            await self._open()
            # the agents last: the group that reviews their tokens is entered at once then
            for listener in reversed(self._listeners):
                await listener.start()
        except BaseException:
            self.stop_accepting()
            self.poller.close()
            raise
        await self.tasks.__aenter__()
        for listener in self._listeners:
            work = listener.follow_files()
            self._background.append(
                self.tasks.create_task(work, name=f"certificates of {listener.name}")
            )
        self._tick()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for task in self._background:
            task.cancel()
        self.stop_accepting()
        await self._say_goodbye()
        self.poller.close()
        await self.tasks.__aexit__(type(error) if error else None, error, None)

    # -- beginning ------------------------------------------------------------------------------

    async def _open(self) -> None:
        config = self.config
        options = {"ciphers": config.ciphers, "least": config.tls_version}
        self._listeners.append(
            Listener(
                "agents",
                open_listening(config.agent_host, config.agent_port, "--agent-port"),
                self._agent_protocol,
                self.poller,
                tls=config.agent_tls,
                direct=True,
                alpn=["h2"],
                **options,  # type: ignore[arg-type]  # two options of different types
            )
        )
        factory, alpn = self._frontend_factory()
        if config.frontend_port is not None:
            self._listeners.append(
                Listener(
                    "frontends",
                    open_listening(config.frontend_host, config.frontend_port, "--server-port"),
                    factory,
                    self.poller,
                    tls=config.frontend_tls,
                    alpn=alpn,
                    **options,  # type: ignore[arg-type]  # two options of different types
                )
            )
        if config.uds is not None:
            found = open_frontend_socket(config.uds, delete=config.delete_uds)
            self._listeners.append(Listener("frontend socket", found, factory, self.poller))
        for listener in self._listeners:
            await listener.prepare()

    def _frontend_factory(self) -> tuple[Factory, list[str]]:
        connect = self.frontends.connect_protocol
        match self.config.mode:
            case Mode.GRPC:
                return self._grpc_frontend_protocol, ["h2"]
            case Mode.HTTP_CONNECT:
                return connect, ["http/1.1"]
            case Mode.ANY:
                return (
                    lambda: EitherProtocol(self._grpc_frontend_protocol, connect),
                    ["h2", "http/1.1"],
                )

    def _agent_protocol(self) -> RpcProtocol:
        def accept(call: Call) -> CallHandler | None:
            if call.path != AGENT_METHOD:
                return None
            return self.agents.accept(call, _address(protocol))

        limits = Limits(keepalive_seconds=self.config.agent_keepalive, max_calls=_AGENT_CALLS)
        protocol = self._protocol(accept, limits, agent=True)
        return protocol

    def _grpc_frontend_protocol(self) -> RpcProtocol:
        def accept(call: Call) -> CallHandler | None:
            return self.frontends.accept(call) if call.path == PROXY_METHOD else None

        return self._protocol(
            accept,
            Limits(
                keepalive_seconds=self.config.frontend_keepalive,
                # what a client may have under way that is held back
                stream_window=2 << 20,
            ),
        )

    def _protocol(self, accept: object, limits: Limits, *, agent: bool = False) -> RpcProtocol:
        def on_made(protocol: RpcProtocol) -> None:
            self.connections[protocol] = None
            if agent:
                self._look_at(protocol, self.loop.time())

        return RpcProtocol(
            Role.SERVER,
            limits=limits,
            accept=accept,  # type: ignore[arg-type]  # one of the two above
            on_made=on_made,
            on_lost=self._lost,
        )

    def _lost(self, protocol: RpcProtocol) -> None:
        self.connections.pop(protocol, None)
        self._looked_at.pop(protocol, None)

    def _close_strangers(self, now: float) -> None:
        """Closes connections to the agents' port without an agent."""
        while self._looked_at:
            protocol, due = next(iter(self._looked_at.items()))
            if due > now:
                return
            del self._looked_at[protocol]
            handlers = (call.handler for call in protocol.connection.calls.values())
            if any(isinstance(h, AgentStream) and h.backend is not None for h in handlers):
                self._look_at(protocol, now)
            else:
                protocol.close()

    def _look_at(self, protocol: RpcProtocol, now: float) -> None:
        self._looked_at[protocol] = now + STRANGER_SECONDS

    def _tick(self) -> None:
        # first: a fault below must not be the end of every deadline
        self._ticker = self.loop.call_later(TICK_SECONDS, self._tick)
        now = self.loop.time()
        self.core.tick(now)
        self.frontends.tick(now)
        self._close_strangers(now)

    # -- ending ---------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """No new connections, agents or dials; what is there goes on."""
        self.draining = self.frontends.refusing = self.agents.refusing = True
        for listener in self._listeners:
            listener.close()

    async def drain(self, seconds: float) -> int:
        """Waits for the open tunnels to end, up to ``seconds``; how many are left.

        Our own agents are told, so that they look for another server. Upstream's are not: the
        only word there is for it, GOAWAY, makes them drop the connection and its tunnels.
        """
        self.stop_accepting()
        for stream in list(self.agents.streams):
            known = dict(stream.call.metadata).get(extensions.KEY)
            if known:
                stream.call.connection.drain()
        end = self.loop.time() + seconds
        while self.unfinished and self.loop.time() < end:
            await asyncio.sleep(_DRAIN_LOOK_SECONDS)
        return self.unfinished

    @property
    def unfinished(self) -> int:
        """Tunnels and dials, and peers that have not yet been sent all of those that are over."""
        tunnels = self.core.established + self.core.pending
        return tunnels + self.frontends.unfinished + sum(p.unsent > 0 for p in self.connections)

    async def _say_goodbye(self) -> None:
        """Ends every stream and socket, and waits a moment for the peers to take it."""
        for frontend in list(self.frontends.streams):
            frontend.cut("server is shutting down")
        for agent in list(self.agents.streams):
            agent.call.fail(Status(Code.UNAVAILABLE, "server is shutting down"))
        # once round, so that the last words are written before the connections are closed
        await asyncio.sleep(0)
        for protocol in list(self.connections):
            protocol.close()
        for sock in list(self.frontends.sockets):
            sock.transport.close()
        end = self.loop.time() + _GOODBYE_SECONDS
        while (self.connections or self.frontends.sockets) and self.loop.time() < end:
            await asyncio.sleep(_GOODBYE_SECONDS / 100)
        for protocol in list(self.connections):
            protocol.abort("server is shutting down")
        for sock in list(self.frontends.sockets):
            sock.transport.abort()
        self.poller.cut()  # handshakes under way, and who was refused and has not gone yet
        # transports tell their protocols in the next turn
        await asyncio.sleep(0)


def _address(protocol: RpcProtocol) -> str:
    """The peer, for people."""
    found = protocol.transport.get_extra_info("peername")
    if not isinstance(found, tuple):
        return "unix"
    return format_host_port(found[0], found[1])
