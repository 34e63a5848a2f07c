"""One agent's stream as the server sees it: its dials, its tunnels, what is to be sent. No I/O.

Driven by the agent's messages (`Backend.receive`), by tunnels that have something for it, and by
the stream, which asks for the next message when it can send one (`Backend.pull`). Everything is
keyed by this object: an agent id may stand for several streams, and connection ids are each
stream's own.

What comes from an agent (row numbers are those of the tests):

| row | packet | known | action |
|---|---|---|---|
| B1 | DIAL_RSP ok | pending | the tunnel is open, the frontend is told |
| B2 | DIAL_RSP error | pending | the frontend is told, the tunnel is over |
| B3 | DIAL_RSP | no | CLOSE_REQ for its id: nobody waits for that connection any more |
| B4 | DIAL_CLS | pending | the frontend is told, the tunnel is over |
| B5 | DATA of id 0 | – | ignored |
| B6 | DATA | open | to the frontend, at once; never waits for it |
| B7 | DATA | no | CLOSE_REQ, once an id |
| B8 | CLOSE_RSP | open | to the frontend, the tunnel is over |
| B9 | HALF_CLOSE | open | to the frontend, or the end of both where it knows no half |
| B10 | WINDOW | open | more payload may go to the agent |
| B11 | DRAIN | – | no new dials while there are other agents |
| B12 | others, or unknown ids | – | ignored |
| B13 | end of the stream | – | pending: refused at once; open: closed |

A client that does not read. With windows its tunnel's window stays used up and the agent stops
reading that remote; nothing else notices. An agent without windows can only be stopped as a whole.
So payload is kept, up to `HELD_BYTES` a tunnel; then the stream is held as long as the client
takes something, and the tunnel is cut when it has taken nothing for `STALL_SECONDS`: a slow client
slows down what comes from its agent, a stalled one only costs itself.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from nodenet.konnectivity.extensions import OURS, Extensions
from nodenet.konnectivity.identifiers import Identifiers
from nodenet.konnectivity.packets import (
    CloseDial,
    CloseRequest,
    CloseResponse,
    Data,
    DialResponse,
    Drain,
    HalfClose,
    Packet,
    PacketType,
    Window,
    data_pieces,
    data_span,
    packet_type,
    pull_packet,
    push_packet,
)
from nodenet.konnectivity.payload_queue import Pieces
from nodenet.konnectivity.receive_window import grant
from nodenet.konnectivity.server_counts import DialFailure, Reset
from nodenet.konnectivity.server_tunnel import (
    HALF_CLOSED_IDLE_SECONDS,
    HOLD_ALL_BYTES,
    HOLD_BYTES,
    LEAST_HOLD_BYTES,
    LINGER_SECONDS,
    UNLIMITED,
    End,
    Frontend,
    Refusal,
    State,
    Tunnel,
)
from nodenet.rpc.call import Buffer

if TYPE_CHECKING:
    from nodenet.konnectivity.server_core import ServerCore

#: Bytes of one tunnel that wait for its client where the agent knows no windows.
HELD_BYTES: Final = 16 << 20
#: Seconds without any progress after which such a tunnel is cut; also how long a stalled client
#: can keep the agent's other tunnels waiting, once.
STALL_SECONDS: Final = 1.0
#: Largest payload that is made of smaller ones. An upstream agent keeps up to 150 packets a
#: connection, so it gets smaller ones.
GATHER_BYTES: Final = 512 << 10
GATHER_UPSTREAM_BYTES: Final = 64 << 10
#: Dials of one agent that are not answered yet; each is a socket and a task at the agent.
MAX_DIALS: Final = 8192
#: Messages besides DATA and dials that wait to be sent; above it the agent is not read.
MAX_CONTROL: Final = 16_384
#: Good dials of one agent whose times are kept for people to look at.
RECENT_DIALS: Final = 256
#: Of an error that is kept for people to look at: an agent may send 16 MiB.
LAST_ERROR_CHARS: Final = 1024
#: Ids closed here that a packet may still be on the way for.
RECENT_IDS: Final = 4096

# Upstream's words, which operators look for. What a single dial comes to is at debug.
logger = logging.getLogger(__name__)


class Link(Protocol):
    """The stream to the agent."""

    def want(self) -> None:
        """`Backend.pull` has something."""

    def pause(self) -> None:
        """No more messages than are under way."""

    def resume(self) -> None:
        """The opposite."""

    def end(self, text: str) -> None:
        """Ends the stream with an error; `Backend.lost` follows."""


class Backend:
    """See the module. ``now`` is the time of the loop in seconds, everywhere."""

    def __init__(
        self,
        core: ServerCore,
        link: Link,
        *,
        agent_id: str,
        identifiers: Identifiers,
        peer: Extensions,
        address: str,
        now: float,
    ) -> None:
        self.agent_id = agent_id
        self.identifiers = identifiers
        self.address = address
        """Where the agent connects from, for people."""
        self.connected_at = now
        self.draining = False
        self.alive = True
        self.half_close = OURS.half_close and peer.half_close
        self.window = OURS.window if OURS.shared_with(peer) else 0
        """Where the window of a tunnel begins, in bytes; 0: the agent knows no windows."""
        self.tunnels: dict[int, Tunnel] = {}
        """The open ones, by connection id."""
        self.hold_bytes = HOLD_BYTES
        """What one tunnel holds for the agent before its frontend is held back."""
        self.dials: dict[int, Tunnel] = {}
        """The pending ones, by dial id on the wire."""
        self.dialled = 0
        self.failed = 0
        self.recent_dials: deque[float] = deque(maxlen=RECENT_DIALS)
        """Seconds the latest good dials took."""
        self.last_error: str | None = None
        self.last_error_at = 0.0
        self._core = core
        self._counts = core.counts
        self._link = link
        self._credit = peer.window if self.window else UNLIMITED
        self._gather = GATHER_BYTES if self.window else GATHER_UPSTREAM_BYTES
        self._new_dials: deque[tuple[Tunnel, bytes]] = deque()
        self._control: deque[bytes] = deque()
        self._ring: deque[Tunnel] = deque()
        # a plain dict takes longer to find its first entry the more of those before are gone
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._over: dict[int, Tunnel] = {}
        self._paused = False

    def __str__(self) -> str:
        """As the log names it, with upstream's keys."""
        return f"agentID={self.agent_id} address={self.address}"

    # -- towards the agent ----------------------------------------------------------------------

    def dial(self, tunnel: Tunnel, message: Callable[[int], bytes]) -> None:
        """Has a new tunnel dialled; ``message`` makes the DIAL_REQ for a dial id."""
        while tunnel.wire_id in self.dials or not tunnel.wire_id:
            tunnel.wire_id = self._core.new_dial_id()
        self.dials[tunnel.wire_id] = tunnel
        self.dialled += 1
        self._new_dials.append((tunnel, message(tunnel.wire_id)))
        self._link.want()

    def ready(self, tunnel: Tunnel) -> None:
        """A tunnel has payload, or its end, for the agent."""
        if not tunnel.in_ring and (tunnel.credit > 0 or not tunnel.queue):
            tunnel.in_ring = True
            self._ring.append(tunnel)
            self._link.want()

    def pull(self) -> Pieces | None:
        """The pieces of the next message to the agent, None when there is none now.

        Dials go before payload: a new one never waits behind somebody's upload.
        """
        while True:
            if self._new_dials:
                tunnel, message = self._new_dials.popleft()
                if tunnel.state is State.PENDING:
                    tunnel.dial_sent = True
                    self._counts.to_agent.by_type[PacketType.DIAL_REQ] += 1
                    return (message,)
            elif self._control:
                message = self._control.popleft()
                self._counts.to_agent.count(packet_type(message))
                if self._paused:
                    self._settle()
                return (message,)
            elif self._ring:
                pieces = self._pull_tunnel(self._ring[0])
                if pieces is not None:
                    return pieces
            else:
                return None

    def _pull_tunnel(self, tunnel: Tunnel) -> Pieces | None:
        """The first tunnel of the ring sends something and goes to the end, or leaves it."""
        ring, queue = self._ring, tunnel.queue
        if queue and tunnel.credit > 0 and tunnel.state is State.OPEN:
            pieces, size = queue.pull(tunnel.connect_id, self._gather, tunnel.credit)
            tunnel.credit -= size
            tunnel.sent += size
            self._counts.bytes_to_agents += size
            self._counts.to_agent.by_type[PacketType.DATA] += 1
            if tunnel.held and queue.size <= self.hold_bytes >> 1:
                tunnel.held = False
                if tunnel.frontend is not None:
                    tunnel.frontend.release()
            if tunnel.stop_at is not None:
                self._moved(tunnel)
            if (queue and tunnel.credit > 0) or (not queue and tunnel.end is not None):
                if len(ring) > 1:
                    ring.rotate(-1)
            else:
                ring.popleft()
                tunnel.in_ring = False
            return pieces
        ring.popleft()
        tunnel.in_ring = False
        if queue or tunnel.state is not State.OPEN:
            return None
        if tunnel.end is End.HALF:
            return self._sent_control(HalfClose(tunnel.connect_id), PacketType.HALF_CLOSE)
        if tunnel.end is End.CLOSE:
            if not tunnel.answer_due:
                self._forget(tunnel)
            return self._sent_control(CloseRequest(tunnel.connect_id), PacketType.CLOSE_REQ)
        return None

    def _sent_control(self, packet: HalfClose | CloseRequest, kind: PacketType) -> Pieces:
        self._counts.to_agent.count(kind)
        return (push_packet(packet),)

    def _push(self, packet: CloseRequest | CloseDial | Window) -> None:
        self._control.append(push_packet(packet))
        if len(self._control) > MAX_CONTROL and not self._paused:
            self._settle()
        self._link.want()

    def _moved(self, tunnel: Tunnel) -> None:
        """A tunnel that is closing has made progress."""
        idle = HALF_CLOSED_IDLE_SECONDS if tunnel.end is End.HALF else LINGER_SECONDS
        tunnel.stop_at = self._core.now + idle

    # -- from the agent -------------------------------------------------------------------------

    def receive(self, message: bytes, now: float) -> None:
        """One message of the agent. MalformedPacket: the stream must end."""
        span = data_span(message)
        if span is not None:
            self._counts.from_agent.by_type[PacketType.DATA] += 1
            tunnel = self.tunnels.get(span.connect_id)
            if tunnel is not None:
                self._data(tunnel, message, span.start, span.end, now)
            else:
                self._stray_data(span.connect_id)
            return
        self._packet(pull_packet(message), message, now)

    def receive_pieces(self, pieces: Sequence[Buffer], now: float) -> None:
        """As `receive`, of a large message: payload goes on in the pieces it came in."""
        found = data_pieces(pieces)
        tunnel = None if found is None else self.tunnels.get(found[0])
        if found is None or tunnel is None:
            self.receive(b"".join(pieces), now)
            return
        self._counts.from_agent.by_type[PacketType.DATA] += 1
        size = sum(map(len, found[1]))
        frontend = self._arrived(tunnel, size, now)
        if frontend is not None:
            frontend.data_pieces(tunnel, found[1])
            self._given(tunnel, frontend, size, now)

    def _packet(self, packet: Packet, message: bytes, now: float) -> None:
        self._core.now = now  # not at DATA, which comes more often than anything ends
        counts = self._counts.from_agent
        match packet:
            case DialResponse():
                counts.count(PacketType.DIAL_RSP)
                self._answered(packet, message, now)
            case CloseResponse(error, connect_id):
                counts.count(PacketType.CLOSE_RSP)
                found = self.tunnels.get(connect_id)
                if found is not None:
                    self._closed(found, error, lost=False)
            case Window(connect_id, increment):
                counts.count(PacketType.WINDOW)
                found = self.tunnels.get(connect_id)
                if found is not None and self.window and 0 < increment < UNLIMITED:
                    found.credit += increment
                    if found.queue:
                        self.ready(found)
            case HalfClose(connect_id):
                counts.count(PacketType.HALF_CLOSE)
                found = self.tunnels.get(connect_id)
                if found is not None:
                    self._remote_end(found, now)
            case CloseDial(random):
                counts.count(PacketType.DIAL_CLS)
                self._dial_closed(random)
            case Drain():
                counts.count(PacketType.DRAIN)
                if not self.draining:
                    logger.info("agent is draining: %s", self)
                self.draining = True
            case Data(connect_id, payload):
                counts.count(PacketType.DATA)
                found = self.tunnels.get(connect_id)
                if found is not None:
                    self._data(found, payload, 0, len(payload), now)
                else:
                    self._stray_data(connect_id)
            case _:
                counts.count(packet_type(message))  # B12

    def _answered(self, packet: DialResponse, message: bytes, now: float) -> None:
        tunnel = self.dials.pop(packet.random, None)
        if tunnel is None:
            self._core.failed(DialFailure.UNRECOGNIZED_RESPONSE)
            logger.debug("DIAL_RSP not recognized; dropped: %s dialID=%d", self, packet.random)
            if packet.connect_id > 0:
                self._remember(packet.connect_id)
                self._push(CloseRequest(packet.connect_id))
            return
        if not packet.error and (packet.connect_id <= 0 or packet.connect_id in self.tunnels):
            self._refuse(
                tunnel,
                Refusal(
                    DialFailure.ERROR_RESPONSE,
                    f"the agent answered with connection id {packet.connect_id}",
                ),
            )
            return
        if packet.error:
            self._refuse(tunnel, Refusal(DialFailure.ERROR_RESPONSE, packet.error))
            logger.debug(
                "DIAL_RSP contains failure: %s dialAddress=%s: %r",
                self,
                tunnel.address,
                self.last_error,
            )
            return
        tunnel.state = State.OPEN
        tunnel.connect_id = packet.connect_id
        tunnel.connected_at = tunnel.progress_at = tunnel.granted_at = now
        tunnel.credit = self._credit
        tunnel.window = self.window
        tunnel.room = self.window or UNLIMITED
        self._recent.pop(packet.connect_id, None)
        self.tunnels[packet.connect_id] = tunnel
        self._share()
        self._counts.dial_seconds.observe(now - tunnel.started_at)
        self.recent_dials.append(now - tunnel.started_at)
        assert tunnel.frontend is not None
        tunnel.frontend.connected(tunnel)

    def _share(self) -> None:
        """Tunnels that are many hold less each, where their agent is slow to take it."""
        share = HOLD_ALL_BYTES // (len(self.tunnels) or 1)
        self.hold_bytes = min(HOLD_BYTES, max(LEAST_HOLD_BYTES, share))

    def _dial_closed(self, random: int) -> None:
        tunnel = self.dials.pop(random, None)
        if tunnel is not None:
            text = "the agent gave the dial up"
            self._refuse(tunnel, Refusal(DialFailure.BACKEND_CLOSE, text))

    def _refuse(self, tunnel: Tunnel, refusal: Refusal) -> None:
        """A dial came to nothing. The tunnel is out of the table already."""
        tunnel.state = State.OVER
        self.failed += 1
        self.last_error = refusal.text[:LAST_ERROR_CHARS]
        self.last_error_at = self._core.now
        self._core.failed(refusal.reason)
        frontend, tunnel.frontend = tunnel.frontend, None
        assert frontend is not None
        frontend.refused(tunnel, refusal)

    def _data(self, tunnel: Tunnel, message: Buffer, start: int, end: int, now: float) -> None:
        size = end - start
        frontend = self._arrived(tunnel, size, now)
        if frontend is not None:
            frontend.data(tunnel, message, start, end)
            self._given(tunnel, frontend, size, now)

    def _arrived(self, tunnel: Tunnel, size: int, now: float) -> Frontend | None:
        """Counts payload of the agent; who is to have it."""
        tunnel.received += size
        tunnel.room -= size
        if tunnel.room < 0:
            self._core.now = now
            self.cut(tunnel, Reset.WINDOW, "the agent sent more than the window")
            return None
        if tunnel.stop_at is not None:
            self._moved(tunnel)
        frontend = tunnel.frontend
        if frontend is None or not size:
            self._took(tunnel, size, now)  # nobody wants it, but the remote must not stop for it
            return None
        self._counts.bytes_to_clients += size
        return frontend

    def _given(self, tunnel: Tunnel, frontend: Frontend, size: int, now: float) -> None:
        """A frontend has got payload: whether its client took it decides about the window."""
        if not frontend.congested:
            self._counts.writes += 1
            self._took(tunnel, size, now)
            return
        tunnel.taken += size
        if not tunnel.waited_from:
            tunnel.waited_from = self._core.now = now  # its end may not be told the time
        if not self.window and frontend.backlog() > HELD_BYTES and tunnel.state is State.OPEN:
            if tunnel.connect_id not in self._over:
                tunnel.client_took = tunnel.received - frontend.backlog()
                tunnel.progress_at = now
                self._over[tunnel.connect_id] = tunnel
            self._core.watch_stall(self)
            self._settle()

    def _took(self, tunnel: Tunnel, size: int, now: float) -> None:
        """The client took bytes: they are given back to the agent, half a window at a time."""
        if not self.window:
            return
        tunnel.taken += size
        if tunnel.taken >= tunnel.window >> 1 and tunnel.state is State.OPEN:
            increment = grant(tunnel, len(self.tunnels), now)
            self._push(Window(tunnel.connect_id, increment))

    def drained(self, tunnel: Tunnel, now: float) -> None:
        """A tunnel's client has taken what waited for it."""
        self._core.now = now
        if tunnel.waited_from:
            self._counts.write_seconds.observe(now - tunnel.waited_from)
            tunnel.waited_from = 0.0
        self._took(tunnel, 0, now)
        if self._over.pop(tunnel.connect_id, None) is not None:
            self._settle()

    def _stray_data(self, connect_id: int) -> None:
        if connect_id and connect_id not in self._recent:  # B5, B7
            self._remember(connect_id)
            self._push(CloseRequest(connect_id))
            logger.debug(
                "could not get frontend client; closing connection: %s connectionID=%d",
                self,
                connect_id,
            )

    def _remember(self, connect_id: int) -> None:
        """An id that is closed here: what is still on the way for it is no news."""
        recent = self._recent
        recent[connect_id] = None
        if len(recent) > RECENT_IDS:
            recent.popitem(last=False)

    def _remote_end(self, tunnel: Tunnel, now: float) -> None:
        """B9: the remote sends no more."""
        if tunnel.remote_ended:
            return
        tunnel.remote_ended = True
        frontend = tunnel.frontend
        if frontend is None or tunnel.end is End.CLOSE:
            return  # CLOSE_RSP follows
        if frontend.half_close:
            frontend.remote_ended(tunnel)
            return
        # the client knows no half: for it this is the end, and the agent hears of it
        tunnel.frontend = None
        tunnel.close(now)
        frontend.closed(tunnel, "", lost=False)

    # -- ends -----------------------------------------------------------------------------------

    def cancel(self, tunnel: Tunnel, now: float) -> None:
        """The client gave a pending dial up."""
        self._core.now = now
        if self.dials.pop(tunnel.wire_id, None) is None:
            return
        tunnel.state = State.OVER
        tunnel.frontend = None
        self._core.failed(DialFailure.FRONTEND_CLOSE)
        logger.debug(
            "Dial cancelled (DIAL_CLS) by frontend: %s dialAddress=%s", self, tunnel.address
        )
        if tunnel.dial_sent:
            self._push(CloseDial(tunnel.wire_id))

    def expire(self, tunnel: Tunnel, text: str) -> None:
        """A pending dial has taken too long."""
        if self.dials.pop(tunnel.wire_id, None) is None:
            return
        if tunnel.dial_sent:
            self._push(CloseDial(tunnel.wire_id))
        self._refuse(tunnel, Refusal(DialFailure.BACKEND_DIAL_TIMEOUT, text))

    def cut(self, tunnel: Tunnel, reason: Reset, text: str) -> None:
        """Ends an open tunnel at once, on both sides."""
        if tunnel.state is State.OPEN:
            self._counts.resets[reason] += 1
            connect_id = tunnel.connect_id
            self._closed(tunnel, text, lost=True)
            self._push(CloseRequest(connect_id))

    def unanswered(self, tunnel: Tunnel, now: float) -> None:
        """Nobody waits for the answer to a CLOSE_REQ any more, which may have left already."""
        self._core.now = now
        if not tunnel.in_ring and not tunnel.queue:
            self._forget(tunnel)

    def watch(self, tunnel: Tunnel, now: float) -> None:
        """Has a tunnel looked at that must end by itself."""
        self._core.now = now
        self._core.watch(tunnel)

    def retire(self, text: str) -> None:
        """The agent takes no dials: its stream is ended."""
        self._link.end(text)

    def lost(self, text: str) -> None:
        """B13: the stream is over. Every pending dial is answered, every tunnel closed."""
        if not self.alive:
            return
        self.alive = False
        dials, self.dials = list(self.dials.values()), {}
        for tunnel in dials:
            self._refuse(tunnel, Refusal(DialFailure.BACKEND_CLOSE, text))
        for tunnel in list(self.tunnels.values()):
            self._closed(tunnel, "", lost=True)
        self._new_dials.clear()
        self._control.clear()
        self._ring.clear()
        self._over.clear()

    def _closed(self, tunnel: Tunnel, error: str, *, lost: bool) -> None:
        """An open tunnel is over; its frontend hears it."""
        frontend = tunnel.frontend
        self._forget(tunnel)
        if frontend is not None:
            frontend.closed(tunnel, error, lost=lost)

    def _forget(self, tunnel: Tunnel) -> None:
        """Takes an open tunnel out of every table."""
        del self.tunnels[tunnel.connect_id]
        self._share()
        self._remember(tunnel.connect_id)
        tunnel.state = State.OVER
        tunnel.frontend = None
        tunnel.queue.clear()
        tunnel.stop_at = None
        self._counts.connection_seconds.observe(self._core.now - tunnel.connected_at)
        if self._over.pop(tunnel.connect_id, None) is not None:
            self._settle()

    # -- an agent without windows ---------------------------------------------------------------

    def check_stalled(self, now: float) -> bool:
        """Cuts the tunnels whose clients take nothing; whether to look again."""
        for tunnel in list(self._over.values()):
            frontend = tunnel.frontend
            # without a client nothing waits any more
            backlog = 0 if frontend is None else frontend.backlog()
            took = tunnel.received - backlog
            if took > tunnel.client_took:
                tunnel.client_took = took
                tunnel.progress_at = now
            if backlog <= HELD_BYTES:
                del self._over[tunnel.connect_id]
            elif now - tunnel.progress_at >= STALL_SECONDS:
                self.cut(tunnel, Reset.STALLED, f"the client takes nothing, {backlog} bytes wait")
        self._settle()
        return bool(self._over)

    def _settle(self) -> None:
        """Holds the agent back, or lets it go on."""
        hold = bool(self._over) or len(self._control) > MAX_CONTROL
        if hold != self._paused and self.alive:
            self._paused = hold
            if hold:
                self._link.pause()
            else:
                self._link.resume()
