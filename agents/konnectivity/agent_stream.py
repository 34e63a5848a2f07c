"""One connection of an agent to one server: made, carried on, ended."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from enum import Enum
from time import monotonic
from typing import Final, TypeVar

from nodenet.agents.konnectivity import agent_tls
from nodenet.agents.konnectivity.agent_config import AgentConfig
from nodenet.agents.konnectivity.agent_remote import Sockets, StreamRemotes
from nodenet.agents.konnectivity.agent_resolver import literal
from nodenet.agents.konnectivity.tls_opening import connect_tls
from nodenet.endpoint import format_host_port
from nodenet.errors import NodenetError
from nodenet.konnectivity import extensions
from nodenet.konnectivity.agent_core import AgentCore
from nodenet.konnectivity.agent_tunnel import Counts
from nodenet.konnectivity.errors import MalformedPacket
from nodenet.konnectivity.packets import AGENT_METHOD
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.call import Buffer, CallHandler
from nodenet.rpc.connection import Role
from nodenet.rpc.headers import Metadata
from nodenet.rpc.limits import Limits
from nodenet.rpc.status import Code, Status
from nodenet.tls.context import EXPIRED, NOT_YET_VALID, WRONG_PURPOSE
from nodenet.tls.errors import PeerUntrusted, TlsError, WrongName, alert_in

#: For TCP, TLS and the server's initial metadata. Upstream waits for ever.
CONNECT_SECONDS: Final = 10.0
#: Unacknowledged data for so long ends the connection (tcp(7), TCP_USER_TIMEOUT).
USER_TIMEOUT_SECONDS: Final = 30
#: A stream whose server goes away ends when it has been without tunnels for so long.
IDLE_SECONDS: Final = 1.0
#: Upstream's numbers, see docs/konnectivity.md: bytes a stream may have under way towards us.
_LIMITS: Final = Limits()
#: What is to be done about a server's own certificate, by what is wrong with it.
_REMEDIES: Final = {
    EXPIRED: "the server must renew its --cluster-cert, or a clock is wrong",
    NOT_YET_VALID: "a clock is wrong, or the server must replace its --cluster-cert",
    WRONG_PURPOSE: "the server's --cluster-cert is not one for servers (no serverAuth)",
}
#: Alerts about the certificate that we show. With TLS 1.2 the first one also means that there is
#: none (Go: src/crypto/tls/handshake_server.go, processCertsFromClient).
_CERTIFICATE_ALERTS: Final = frozenset(
    {
        "bad certificate",
        "unsupported certificate",
        "certificate revoked",
        "certificate expired",
        "certificate unknown",
        "certificate required",
        "unknown ca",
    }
)
#: How a status begins that is not the server's, see `RpcProtocol.connection_lost`.
_CONNECTION_LOST: Final = "connection lost: tls: "

T = TypeVar("T")

logger = logging.getLogger(__name__)


class ConnectFailed(NodenetError):
    """An attempt came to nothing; the message is what `konnectivity show` prints."""


class State(Enum):
    """Of a stream; the values are those of the admin surface."""

    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    """The server takes no new calls, or this agent is about to go; tunnels go on."""
    CLOSED = "closed"


class ServerStream(CallHandler):
    """See the module. `connect` first; ``on_change`` is told when the server goes, or is gone."""

    def __init__(
        self,
        config: AgentConfig,
        sockets: Sockets,
        counts: Counts,
        on_change: Callable[[ServerStream], None],
    ) -> None:
        self.state = State.CONNECTING
        self.address = ""
        """Where it is connected, ``10.0.0.5:8091``."""
        self.server_id = ""
        self.server_count: int | None = None
        self.connected_at = 0.0
        """By the steady clock."""
        self.end_status: Status | None = None
        """How it was lost."""
        self.core: AgentCore | None = None
        self._config = config
        self._sockets = sockets
        self._loop = sockets.loop
        self._counts = counts
        self._on_change = on_change
        self._protocol: RpcProtocol | None = None
        self._answer: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None

    # -- connecting -------------------------------------------------------------------------------

    async def connect(self, host: str, port: int) -> None:
        """Connects to an address and opens the call. ConnectFailed; nothing is left open then."""
        self.address = format_host_port(host, port)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect(host, port)
        except TimeoutError:
            self.close("no answer in time")
            step = "TLS and HTTP/2" if self._protocol is None else "answer to Connect"
            text = f"{self.address}: no {step} within {CONNECT_SECONDS:g} s"
            raise ConnectFailed(text) from None
        except (OSError, NodenetError) as error:
            self.close("connecting failed")
            if isinstance(error, ConnectFailed):
                raise
            text = _explain(error, self._config)
            raise ConnectFailed(f"{self.address}: {text}") from error
        except BaseException:
            self.close("cancelled")
            raise

    async def _connect(self, host: str, port: int) -> None:
        config = self._config
        context = await self._loop.run_in_executor(None, agent_tls.context, config)
        token = await self._loop.run_in_executor(None, agent_tls.token, config)
        authority = format_host_port(config.server_host, config.server_port)
        self._protocol = protocol = await connect_tls(
            self._sockets.poller,
            await self._socket(host, port),
            lambda: RpcProtocol(
                Role.CLIENT,
                limits=Limits(keepalive_seconds=config.keepalive),
                authority=authority,
                secure=True,
            ),
            context,
            config.server_host,
        )
        metadata: list[tuple[str, str]] = [
            ("agentid", config.agent_id),
            ("agentidentifiers", config.identifiers),
            (extensions.KEY, extensions.OURS.text()),
        ]
        if token is not None:
            metadata.append(("authorization", f"Bearer {token}"))
        if protocol.connection.over is not None:
            # TLS 1.3 tells who is refused behind the handshake, and that may come with its end
            raise self._lost(protocol.connection.over)
        protocol.connection.on_draining = self._server_draining
        self._call = protocol.connection.open(AGENT_METHOD, self, tuple(metadata))
        await self._answer

    async def _socket(self, host: str, port: int) -> socket.socket:
        """Connected; OSError."""
        address = literal(host, port)
        if address is None:  # a zone; names are looked up before
            found = await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
            address = (found[0][0], found[0][4])
        family, where = address
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_SECONDS * 1000
            )
            await self._loop.sock_connect(sock, where)
        except BaseException:
            sock.close()
            raise
        return sock

    # -- rpc.CallHandler --------------------------------------------------------------------------

    def answered(self, metadata: Metadata) -> None:
        """See `CallHandler`: the server accepted this agent."""
        ids = [value for name, value in metadata if name == "serverid"]
        counts = [value for name, value in metadata if name == "servercount"]
        if self._answer.done():
            return
        if len(ids) != 1 or len(counts) != 1 or not counts[0].isdecimal():
            text = f"{self.address}: not a konnectivity server: no serverid and servercount"
            self._answer.set_exception(ConnectFailed(text))
            return
        self.server_id = ids[0]
        self.server_count = int(counts[0][:9])
        offered = next((value for name, value in metadata if name == extensions.KEY), None)
        remotes = StreamRemotes(self._sockets)
        peer = extensions.parse(offered)
        self.core = remotes.core = AgentCore(self, remotes, peer=peer, counts=self._counts)
        self.state = State.READY
        self.connected_at = monotonic()
        self._answer.set_result(None)

    def received(self, message: bytes) -> None:
        """See `CallHandler`: a packet."""
        core = self.core
        if core is None:
            return  # it did not say who it is
        self._received(core.receive, message)

    def received_pieces(self, pieces: Sequence[Buffer]) -> None:
        """See `CallHandler`: a packet that is large."""
        core = self.core
        if core is not None:
            self._received(core.receive_pieces, pieces)

    def _received(self, receive: Callable[[T, float], None], message: T) -> None:
        try:
            receive(message, monotonic())
        except MalformedPacket as error:
            logger.warning("server %s sent no packet: %s", self.server_id, error)
            self._end(Status(Code.INTERNAL, error.message))
            self.close(error.message)
            return
        core = self.core
        if self._timer is None and core is not None and core.next_timer() is not None:
            self._arm()

    def pull(self) -> Sequence[bytes] | None:
        """See `CallHandler`: the next packet."""
        return self.core.pull() if self.core is not None else None

    def closed(self, status: Status) -> None:
        """See `CallHandler`: the server ended the call, or the connection is lost."""
        if not self._answer.done():
            self._answer.set_exception(self._lost(status))
        self._end(status)
        # nothing else runs on it; not from within the connection's own work
        self._loop.call_soon(self.close)

    # -- agent_tunnel.Line ------------------------------------------------------------------------

    def want(self) -> None:
        """See `agent_tunnel.Line`."""
        self._call.want()

    def pause(self) -> None:
        """See `agent_tunnel.Line`."""
        self._call.pause()

    def resume(self) -> None:
        """See `agent_tunnel.Line`."""
        self._call.resume()

    # -- ending -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Tells the server to choose this agent no more."""
        if self.state is State.READY and self.core is not None:
            self.state = State.DRAINING
            self.core.drain()

    @property
    def tunnels(self) -> int:
        """Tunnels that are up, and dials under way."""
        return len(self.core.tunnels) + len(self.core.dials) if self.core is not None else 0

    @property
    def unsent(self) -> int:
        """Bytes for the server that the kernel has not taken."""
        return 0 if self._protocol is None else self._call.unsent + self._protocol.unsent

    def close(self, text: str = "closed here") -> None:
        """Ends the stream and its connection now; remotes are reset."""
        if not self._answer.done():
            self._answer.cancel(text)
        elif not self._answer.cancelled():
            self._answer.exception()  # a connection may be lost before anybody waits for that
        self._end(None)
        if self._protocol is not None:
            self._protocol.close()

    def abort(self) -> None:
        """As `close`, without a word to the server."""
        self._end(None)
        if self._protocol is not None:
            self._protocol.abort()

    def _end(self, status: Status | None) -> None:
        if self.state is State.CLOSED:
            return
        was, self.state = self.state, State.CLOSED
        self.end_status = status
        for timer in (self._timer, self._idle):
            if timer is not None:
                timer.cancel()
        self._timer = self._idle = None
        if self.core is not None:
            self.core.lost()
        if was is not State.CONNECTING:
            self._on_change(self)

    def _lost(self, status: Status) -> ConnectFailed:
        """Why there was no answer."""
        said = status.text.startswith(_CONNECTION_LOST) and _alert(status.text, self._config)
        return ConnectFailed(f"{self.address}: {said or status}")

    def _server_draining(self) -> None:
        """GOAWAY: tunnels go on, another connection is sought meanwhile."""
        if self.state is State.READY:
            self.state = State.DRAINING
            logger.info("server %s goes away; %d tunnels go on", self.server_id, self.tunnels)
            self._on_change(self)
            self._leave_when_idle()

    def _leave_when_idle(self) -> None:
        self._idle = None
        if self.state is State.CLOSED:
            return
        if not self.tunnels:
            self.close("the server goes away")
            return
        self._idle = self._loop.call_later(IDLE_SECONDS, self._leave_when_idle)

    # -- the core's clock -------------------------------------------------------------------------

    def _arm(self) -> None:
        due = self.core.next_timer() if self.core is not None else None
        self._timer = None if due is None else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        assert self.core is not None
        self.core.handle_timer(monotonic())
        self._arm()


def _explain(error: OSError | NodenetError, config: AgentConfig) -> str:
    """Why a connection could not be made, and what to do."""
    match error:
        case WrongName(name=name):
            return (
                f"presents a certificate that is not for {name}; "
                "use --proxy-server-host or fix the SAN"
            )
        case PeerUntrusted():
            return f"x509 {error.reason}; {_remedy(error)}"
        case TlsError():
            return _alert(error.message, config) or f"tls {error.reason}"
        case NodenetError():
            return error.line()
    if error.errno and not isinstance(error, socket.gaierror):
        # asyncio puts its own words in the place of the system's
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error) or type(error).__name__).lower()


def _remedy(error: PeerUntrusted) -> str:
    """Who can do something about a server's certificate."""
    if not error.depth:
        return _REMEDIES.get(error.number, "check --ca-cert")
    if error.number in (EXPIRED, NOT_YET_VALID):
        return "renew the servers' CA and --ca-cert, or a clock is wrong"
    return "check --ca-cert"


def _alert(text: str, config: AgentConfig) -> str | None:
    """What a server means that has refused our certificate; None for everything else."""
    alert = alert_in(text)
    if alert not in _CERTIFICATE_ALERTS:
        return None
    said, file = f"tls alert {alert}: the server", f"--agent-cert {config.cert}"
    if config.cert is None:
        return f"{said} wants a certificate: give --agent-cert and --agent-key"
    match alert:
        case "certificate expired":
            return f"{said} refuses {file}: renew it"
        case "unknown ca":
            return f"{said} does not know the CA of {file}"
        case "certificate required":
            return f"{said} wants a certificate, and {file} is none for it"
    return f"{said} refuses {file}"
