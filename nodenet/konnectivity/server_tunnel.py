"""One connection through the server: from its dial to its end. No I/O.

A tunnel stands between a frontend (one Proxy stream or one CONNECT socket) and a backend (one
agent's stream). Payload towards the agent waits here, payload towards the client waits with the
frontend. Both are bounded: a frontend is held back when much waits here, and the agent by the
tunnel's window, or as `backend.Backend` says where the agent knows no windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from nodenet.konnectivity.payload_queue import PayloadQueue
from nodenet.konnectivity.server_counts import DialFailure
from nodenet.rpc.call import Buffer

if TYPE_CHECKING:
    from nodenet.konnectivity.backend import Backend

#: A frontend is held when so much payload waits for the agent, and let go on below half of it: two
#: reads of a fast client, so the agent's stream never runs dry in between. What is under way then
#: still comes: the rest of a read, or a gRPC stream's window. Views of large reads keep up to four
#: times their own size.
HOLD_BYTES: Final = 1 << 20
#: When all tunnels of an agent could hold more than this, each holds less, but at least that.
HOLD_ALL_BYTES: Final = 512 << 20
LEAST_HOLD_BYTES: Final = 128 << 10
#: Seconds without a byte after which a tunnel is cut whose client has ended its half: a client
#: that closes altogether looks the same until something is written to it.
HALF_CLOSED_IDLE_SECONDS: Final = 300.0
#: Seconds for an agent to take what a closed client has left, counted from the last byte taken.
LINGER_SECONDS: Final = 30.0
#: Seconds for an agent to answer a CLOSE_REQ (konnectivity-client waits 10).
CLOSE_SECONDS: Final = 10.0

UNLIMITED: Final = 1 << 62


class State(Enum):
    """Where a tunnel is in its life."""

    PENDING = "pending"
    OPEN = "open"
    OVER = "over"


class End(Enum):
    """What follows the payload that waits for the agent."""

    HALF = "half-close"
    CLOSE = "close"


class Refusal(msgspec.Struct, frozen=True):
    """Why a dial came to nothing, and what the frontend is told."""

    reason: DialFailure
    text: str


class Frontend(Protocol):
    """The client's side of a tunnel. Nothing here may block or call back into the tunnel's end."""

    half_close: bool
    """Whether it can go on after `remote_ended`."""
    congested: bool
    """It holds payload that its client has not taken, more than it likes."""

    def connected(self, tunnel: Tunnel) -> None:
        """The agent has the connection."""

    def refused(self, tunnel: Tunnel, refusal: Refusal) -> None:
        """The dial came to nothing; the tunnel is over."""

    def data(self, tunnel: Tunnel, message: Buffer, start: int, end: int) -> None:
        """The payload ``message[start:end]``; the rest of the message is its DATA prefix."""

    def data_pieces(self, tunnel: Tunnel, pieces: Sequence[Buffer]) -> None:
        """Bare payload in pieces, none of which is empty."""

    def remote_ended(self, tunnel: Tunnel) -> None:
        """No more DATA; only where `half_close`."""

    def closed(self, tunnel: Tunnel, error: str, *, lost: bool) -> None:
        """The tunnel is over; ``lost`` when that was not the remote's end."""

    def backlog(self) -> int:
        """Bytes that the client has not taken."""

    def hold(self) -> None:
        """Sends no more for now."""

    def release(self) -> None:
        """The opposite."""


class Tunnel:
    """See the module. The methods are for its frontend, the fields for the backend to write."""

    __slots__ = (
        "address",
        "answer_due",
        "backend",
        "client_took",
        "connect_id",
        "connected_at",
        "credit",
        "dial_id",
        "dial_sent",
        "end",
        "frontend",
        "granted_at",
        "held",
        "in_ring",
        "progress_at",
        "queue",
        "received",
        "remote_ended",
        "room",
        "sent",
        "started_at",
        "state",
        "stop_at",
        "taken",
        "waited_from",
        "window",
        "wire_id",
    )

    def __init__(
        self, backend: Backend, frontend: Frontend, address: str, dial_id: int, now: float
    ) -> None:
        self.backend = backend
        self.frontend: Frontend | None = frontend
        """None when the client has gone and only its payload is still on the way."""
        self.address = address
        self.dial_id = dial_id
        """As the client chose it."""
        self.wire_id = dial_id
        """As the agent knows it: another one where the client's was taken."""
        self.dial_sent = False
        self.connect_id = 0
        self.state = State.PENDING
        self.started_at = now
        self.connected_at = 0.0
        self.queue = PayloadQueue()
        self.credit = UNLIMITED
        """Bytes the agent takes before its next WINDOW."""
        self.room = UNLIMITED
        """Bytes we take before our next WINDOW."""
        self.taken = 0
        """Bytes of the agent's that no WINDOW has given back."""
        self.window = 0
        self.granted_at = now
        """See `receive_window.Receiving`."""
        self.in_ring = False
        self.held = False
        self.end: End | None = None
        self.answer_due = False
        """The client waits for the CLOSE_RSP."""
        self.remote_ended = False
        self.stop_at: float | None = None
        """When it is cut if nothing happens; moved on by every byte."""
        self.progress_at = now
        """When the client last took something, or began to be owed it."""
        self.client_took = 0
        """What it had taken by then, where that is watched."""
        self.waited_from = 0.0
        """Since when the client has been owed something, 0: it has taken all."""
        self.sent = 0
        """Bytes towards the remote."""
        self.received = 0

    # -- the frontend ---------------------------------------------------------------------------

    def send(self, message: Buffer, start: int, end: int) -> None:
        """Payload for the remote; see `PayloadQueue.push`. After the client's end it is dropped."""
        if self.end is not None or self.state is not State.OPEN or start == end:
            return
        self.queue.push(message, start, end)
        self._sent()

    def send_pieces(self, pieces: Iterable[Buffer]) -> None:
        """As `send`, of bare pieces, none of which is empty."""
        if self.end is not None or self.state is not State.OPEN:
            return
        push = self.queue.push
        for piece in pieces:
            push(piece, 0, len(piece))
        self._sent()

    def _sent(self) -> None:
        queue = self.queue
        self.backend.ready(self)
        if queue.size >= self.backend.hold_bytes and not self.held and self.frontend is not None:
            self.held = True
            self.frontend.hold()

    def end_of_data(self, now: float) -> None:
        """The client sends no more and still listens; a close where the agent knows no half."""
        if self.state is not State.OPEN or self.end is not None:
            return
        if not self.backend.half_close or self.remote_ended:
            self.close(now)
            return
        self.end = End.HALF
        self.stop_at = now + HALF_CLOSED_IDLE_SECONDS
        self.backend.watch(self, now)
        self.backend.ready(self)

    def close(self, now: float, *, answer: bool = False) -> None:
        """The client is done: what waits is delivered, then CLOSE_REQ.

        The frontend is told nothing any more, unless it waits for the ``answer``.
        """
        if self.state is State.PENDING:
            self.backend.cancel(self, now)
            return
        if self.state is State.OVER:
            return
        if not answer:
            self.frontend = None
        if self.end is End.CLOSE:
            if self.answer_due and not answer:
                self.answer_due = False
                self.backend.unanswered(self, now)
            return
        self.end = End.CLOSE
        self.answer_due = answer
        self.stop_at = now + (CLOSE_SECONDS if answer else LINGER_SECONDS)
        self.backend.watch(self, now)
        self.backend.ready(self)

    def drained(self, now: float) -> None:
        """The frontend is congested no more."""
        if self.state is State.OPEN:
            self.backend.drained(self, now)
