"""One agent's stream on the wire: accepted or refused, then a `Backend`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from nodenet.errors import NodenetError
from nodenet.konnectivity import extensions
from nodenet.konnectivity.backend import Backend
from nodenet.konnectivity.errors import MalformedPacket
from nodenet.konnectivity.identifiers import (
    NO_IDENTIFIERS,
    BadIdentifiers,
    Identifiers,
    parse_identifiers,
)
from nodenet.konnectivity.server_core import ServerCore
from nodenet.rpc.call import Buffer, Call, CallHandler
from nodenet.rpc.status import OK, Code, Status

#: For the review of an agent's token, its wait for others included.
AUTHENTICATE_SECONDS: Final = 30.0
#: Bytes of an agent's id: it is logged, and a key of tables.
MAX_AGENT_ID: Final = 1024

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Refused(NodenetError):
    """An agent is not let in; the message is the status text, in upstream's words."""


class Authenticator(Protocol):
    """Decides about the token in a request's metadata."""

    async def check(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Refused when the agent is not let in."""


class Agents:
    """What the streams of all agents share."""

    def __init__(
        self,
        core: ServerCore,
        *,
        server_id: str,
        server_count: int,
        authenticator: Authenticator | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.core = core
        self.server_id = server_id
        self.server_count = server_count
        """As agents are told; changes with the leases."""
        self.authenticator = authenticator
        self.tasks = tasks
        self.loop = asyncio.get_running_loop()
        self.streams: set[AgentStream] = set()
        self.refusing = False
        """No new agents: the server is about to end."""

    def accept(self, call: Call, address: str) -> CallHandler:
        """The handler of a new call of an agent's."""
        return AgentStream(self, call, address)


class AgentStream(CallHandler):
    """See the module."""

    def __init__(self, agents: Agents, call: Call, address: str) -> None:
        self.backend: Backend | None = None
        self.call = call
        self._agents = agents
        self._address = address
        self._review: asyncio.Task[None] | None = None
        agents.streams.add(self)
        if agents.refusing:
            self._refuse(Refused("server is shutting down"), Code.UNAVAILABLE)
        elif agents.authenticator is None:
            self._accept()
        else:
            # what the agent sends meanwhile stays with it
            call.pause()
            self._review = agents.tasks.create_task(
                self._authenticate(agents.authenticator), name=f"token review of {address}"
            )

    async def _authenticate(self, authenticator: Authenticator) -> None:
        try:
            async with asyncio.timeout(AUTHENTICATE_SECONDS):
                await authenticator.check(self.call.metadata)
        except TimeoutError:
            text = "Failed to validate authentication token, err:Failed to authenticate request."
            self._refuse(Refused(f"{text} err:no answer within {AUTHENTICATE_SECONDS:g} s"))
        except Refused as error:
            logger.info("Client authentication failed: %s: %s", self._address, error.message)
            self._refuse(error)
        except Exception:  # a fault of ours at one agent must not end the server
            logger.exception("token review of %s", self._address)
            self._refuse(Refused("Failed to validate authentication token, err:internal error"))
        else:
            self._accept()
            self.call.resume()
        finally:
            self._review = None

    def _accept(self) -> None:
        call, agents = self.call, self._agents
        if call.over:
            return
        try:
            agent_id, identifiers = _who(call)
        except (Refused, BadIdentifiers) as error:
            self._refuse(error)
            return
        found = dict(call.metadata)
        backend = agents.core.add_backend(
            self,
            agent_id=agent_id,
            identifiers=identifiers,
            peer=extensions.parse(found.get(extensions.KEY)),
            address=self._address,
            now=agents.loop.time(),
        )
        self.backend = backend
        call.answer(
            (
                ("serverid", agents.server_id),
                ("servercount", str(agents.server_count)),
                (extensions.KEY, extensions.OURS.text()),
            )
        )
        logger.info(
            "Agent connected: agentID=%s address=%s identifiers=%s",
            agent_id,
            self._address,
            identifiers.text() or "-",
        )
        logger.info("Register backend for agent: %s", backend)

    def _refuse(self, error: NodenetError, code: Code = Code.UNKNOWN) -> None:
        self.call.end(Status(code, error.message))

    # -- rpc.CallHandler --------------------------------------------------------------------------

    def received(self, message: bytes) -> None:
        """See `CallHandler`: a packet."""
        if self.backend is not None:  # else nobody let it in yet, or it was refused
            self._received(self.backend, self.backend.receive, message)

    def received_pieces(self, pieces: Sequence[Buffer]) -> None:
        """See `CallHandler`: a packet that is large."""
        if self.backend is not None:
            self._received(self.backend, self.backend.receive_pieces, pieces)

    def _received(self, backend: Backend, take: Callable[[T, float], None], message: T) -> None:
        try:
            take(message, self._agents.loop.time())
        except MalformedPacket as error:
            logger.warning("agent %s sent no packet: %s", backend.agent_id, error.message)
            self.call.fail(Status(Code.INTERNAL, error.message))

    def pull(self) -> Sequence[Buffer] | None:
        """See `CallHandler`: the next packet."""
        return self.backend.pull() if self.backend is not None else None

    def ended(self) -> None:
        """See `CallHandler`: the agent is done."""
        self.call.fail(OK)

    def closed(self, status: Status) -> None:
        """See `CallHandler`: the stream is over."""
        agents = self._agents
        agents.streams.discard(self)
        if self._review is not None:
            self._review.cancel()
        backend, self.backend = self.backend, None
        if backend is None:
            return
        if status.code is not Code.OK:
            counts = agents.core.counts
            counts.stream_error("from_agent", status.code.camel, "Unknown")
        logger.info(
            "Remove connection for agent: agentID=%s address=%s: %s",
            backend.agent_id,
            self._address,
            status,
        )
        # what clients with a dial under way are told: an agent that ends in order says nothing
        text = status.text or ("the agent has left" if status == OK else status.code.name)
        agents.core.remove_backend(backend, text, agents.loop.time())

    # -- backend.Link -----------------------------------------------------------------------------

    def want(self) -> None:
        """See `Link`."""
        self.call.want()

    def pause(self) -> None:
        """See `Link`."""
        self.call.pause()

    def resume(self) -> None:
        """See `Link`."""
        self.call.resume()

    def end(self, text: str) -> None:
        """See `Link`."""
        logger.warning("Retire backend connection: %s: %s", self._address, text)
        # not in the middle of what the core is at
        self._agents.loop.call_soon(self.call.fail, Status(Code.UNAVAILABLE, text))


def _who(call: Call) -> tuple[str, Identifiers]:
    """The agent's id and identifiers. Refused, BadIdentifiers."""
    ids = [value for name, value in call.metadata if name == "agentid"]
    if len(ids) != 1:
        raise Refused(f"expected one agent ID in the context, got {_go_list(ids)}")
    if len(ids[0]) > MAX_AGENT_ID:
        raise Refused(f"agent ID of more than {MAX_AGENT_ID} bytes")
    texts = [value for name, value in call.metadata if name == "agentidentifiers"]
    if len(texts) > 1:
        raise Refused(
            f"expected at most one set of agent identifiers in the context, got {_go_list(texts)}"
        )
    return ids[0], parse_identifiers(texts[0]) if texts else NO_IDENTIFIERS


def _go_list(values: Sequence[str]) -> str:
    return f"[{' '.join(values)[:200]}]"
