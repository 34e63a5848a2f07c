"""One Proxy stream: a client that speaks packets. No I/O.

Driven by the client's messages (`ProxyStream.receive`, `ProxyStream.ended`), by its tunnel, and by
the stream, which asks for the next message when it can send one (`ProxyStream.pull`).

N: no dial yet; P: a dial is pending; E: connected. *Stop*: what follows is discarded until the
client ends the stream. Row numbers are those of the tests.

| row | packet | state | action |
|---|---|---|---|
| F1 | DIAL_REQ | N | dial; without an agent DIAL_RSP with the error, stop |
| F2 | DIAL_REQ | P, E | DIAL_RSP with an error: a stream is one dial |
| F3 | DATA | N | CLOSE_RSP "backend not initialized", stop |
| F4 | DATA of id 0 | any | ignored |
| F5 | DATA | P | CLOSE_RSP with an error, the dial is given up, stop |
| F6 | DATA of the id | E | to the agent |
| F7 | DATA of another id | E | CLOSE_RSP "mismatched connection IDs" for both, close, stop |
| F8 | CLOSE_REQ | N | CLOSE_RSP "backend uninitialized" |
| F9 | CLOSE_REQ of the id | E | to the agent behind the DATA, stop |
| F10 | CLOSE_REQ of another id | E | CLOSE_RSP with an error: it may be another client's |
| F11 | CLOSE_REQ | P | the dial is given up, CLOSE_RSP, stop |
| F12 | DIAL_CLS of the dial | P, E | the dial is given up, or the tunnel closed; stop |
| F13 | HALF_CLOSE of the id | E | to the agent, where the client named the extension |
| F14 | others | any | ignored |
| F15 | end of the stream | any | the dial is given up, or the tunnel closed behind its DATA |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from nodenet.konnectivity.extensions import Extensions
from nodenet.konnectivity.packets import (
    CloseDial,
    CloseRequest,
    CloseResponse,
    Data,
    DialRequest,
    DialResponse,
    HalfClose,
    Packet,
    PacketType,
    data_pieces,
    data_span,
    packet_type,
    pull_packet,
    push_packet,
)
from nodenet.konnectivity.payload_queue import PayloadQueue, Pieces
from nodenet.konnectivity.server_tunnel import UNLIMITED, Refusal, Tunnel
from nodenet.rpc.call import Buffer

if TYPE_CHECKING:
    from nodenet.konnectivity.server_core import ServerCore

#: Bytes that wait for the client before it counts as congested, and the end of that.
CONGESTED_BYTES: Final = 256 << 10
RELAXED_BYTES: Final = 64 << 10
#: Largest payload that is made of smaller ones: konnectivity-client reads ten packets ahead.
GATHER_BYTES: Final = 128 << 10
#: Answers that wait for a client that sends nonsense and does not read.
MAX_ANSWERS: Final = 64

NOT_INITIALIZED: Final = "backend not initialized"
UNINITIALIZED: Final = "backend uninitialized"
MISMATCHED: Final = "mismatched connection IDs"


class Line(Protocol):
    """The stream to the client."""

    def want(self) -> None:
        """`ProxyStream.pull` has something."""

    def pause(self) -> None:
        """No more messages than a window."""

    def resume(self) -> None:
        """The opposite."""


class Phase(Enum):
    """What the stream is at."""

    NEW = "N"
    PENDING = "P"
    OPEN = "E"
    STOPPED = "stopped"


class ProxyStream:
    """See the module; also the `Frontend` of its tunnel."""

    def __init__(self, core: ServerCore, line: Line, peer: Extensions) -> None:
        self.half_close = peer.half_close
        self.congested = False
        self.phase = Phase.NEW
        self.tunnel: Tunnel | None = None
        self._core = core
        self._counts = core.counts
        self._line = line
        self._first: deque[bytes] = deque()
        self._queue = PayloadQueue()
        self._last: deque[bytes] = deque()

    @property
    def waiting(self) -> bool:
        """Whether there is something for the client that was not asked for yet (`pull`)."""
        return bool(self._queue or self._last)

    # -- the client -----------------------------------------------------------------------------

    def receive(self, message: bytes, now: float) -> None:
        """One message of the client. MalformedPacket: the stream must end."""
        span = data_span(message)
        if span is not None:
            self._counts.from_client.by_type[PacketType.DATA] += 1
            tunnel = self.tunnel
            if tunnel is not None and self.phase is Phase.OPEN:
                if span.connect_id == tunnel.connect_id:
                    tunnel.send(message, span.start, span.end)
                    return
            self._odd_data(span.connect_id, now)
            return
        packet = pull_packet(message)
        self._counts.from_client.count(packet_type(message))
        if self.phase is not Phase.STOPPED:
            self._packet(packet, message, now)

    def receive_pieces(self, pieces: Sequence[Buffer], now: float) -> None:
        """As `receive`, of a large message: payload goes on in the pieces it came in."""
        found = data_pieces(pieces)
        tunnel = self.tunnel
        if (
            found is None
            or tunnel is None
            or self.phase is not Phase.OPEN
            or found[0] != tunnel.connect_id
        ):
            self.receive(b"".join(pieces), now)
            return
        self._counts.from_client.by_type[PacketType.DATA] += 1
        tunnel.send_pieces(found[1])

    def _packet(self, packet: Packet, message: bytes, now: float) -> None:
        tunnel = self.tunnel
        match packet:
            case DialRequest():
                self._dial(packet, message, now)
            case Data(connect_id, payload):
                if tunnel is not None and connect_id == tunnel.connect_id != 0:
                    tunnel.send(payload, 0, len(payload))
                else:
                    self._odd_data(connect_id, now)
            case CloseRequest(connect_id):
                self._close(connect_id, now)
            case CloseDial(random):
                if tunnel is not None and random == tunnel.dial_id:  # F12
                    self._stop()
                    tunnel.close(now)
            case HalfClose(connect_id):
                if self.half_close and tunnel is not None and connect_id == tunnel.connect_id:
                    tunnel.end_of_data(now)
            case _:
                pass  # F14

    def ended(self, now: float) -> None:
        """F15: the client has ended the stream, or it was lost."""
        self._stop()
        self._queue.clear()
        tunnel, self.tunnel = self.tunnel, None
        if tunnel is not None:
            tunnel.close(now)

    def _dial(self, packet: DialRequest, message: bytes, now: float) -> None:
        if self.phase is not Phase.NEW:  # F2
            text = "a dial was made on this stream already"
            self._answer(self._first, DialResponse(text, 0, packet.random))
            return
        self.phase = Phase.PENDING
        found = self._core.dial(
            self,
            packet.address,
            now,
            dial_id=packet.random,
            message=message,
            protocol=packet.protocol,
        )
        if isinstance(found, Tunnel):
            self.tunnel = found
        else:
            self._stop()
            self._answer(self._first, DialResponse(found.text, 0, packet.random))

    def _odd_data(self, connect_id: int, now: float) -> None:
        if not connect_id or self.phase is Phase.STOPPED:  # F4
            return
        tunnel = self.tunnel
        if tunnel is None:  # F3
            self._answer(self._last, CloseResponse(NOT_INITIALIZED, connect_id))
        elif self.phase is Phase.PENDING:  # F5
            self._answer(self._last, CloseResponse("data before the dial's answer", connect_id))
            tunnel.close(now)
        else:  # F7
            for each in dict.fromkeys((tunnel.connect_id, connect_id)):
                self._answer(self._last, CloseResponse(MISMATCHED, each))
            tunnel.close(now)
        self._stop()

    def _close(self, connect_id: int, now: float) -> None:
        tunnel = self.tunnel
        if tunnel is None:  # F8
            self._answer(self._last, CloseResponse(UNINITIALIZED, connect_id))
        elif self.phase is Phase.PENDING:  # F11
            self._stop()
            tunnel.close(now)
            self._answer(self._last, CloseResponse("", connect_id))
        elif connect_id == tunnel.connect_id:  # F9
            self._stop()
            tunnel.close(now, answer=True)
        else:  # F10
            self._answer(self._last, CloseResponse("unknown connectID", connect_id))

    def _stop(self) -> None:
        self.phase = Phase.STOPPED

    # -- towards the client ---------------------------------------------------------------------

    def pull(self) -> Pieces | None:
        """The pieces of the next message to the client, None when there is none now."""
        if self._first:
            return self._pulled(self._first.popleft())
        queue, tunnel = self._queue, self.tunnel
        if queue:
            connect_id = 0 if tunnel is None else tunnel.connect_id
            pieces, _ = queue.pull(connect_id, GATHER_BYTES, UNLIMITED)
            self._counts.to_client.by_type[PacketType.DATA] += 1
            if self.congested and queue.size <= RELAXED_BYTES:
                self.congested = False
                if tunnel is not None:
                    tunnel.drained(self._core.now)
            return pieces
        return self._pulled(self._last.popleft()) if self._last else None

    def _pulled(self, message: bytes) -> Pieces:
        self._counts.to_client.count(packet_type(message))
        return (message,)

    def _answer(self, queue: deque[bytes], packet: Packet) -> None:
        if len(queue) < MAX_ANSWERS:
            queue.append(push_packet(packet))
            self._line.want()

    # -- Frontend -------------------------------------------------------------------------------

    def connected(self, tunnel: Tunnel) -> None:
        """See `Frontend`."""
        self.phase = Phase.OPEN
        self._answer(self._first, DialResponse("", tunnel.connect_id, tunnel.dial_id))

    def refused(self, tunnel: Tunnel, refusal: Refusal) -> None:
        """See `Frontend`."""
        self.tunnel = None
        self._stop()
        self._answer(self._first, DialResponse(refusal.text, 0, tunnel.dial_id))

    def data(self, tunnel: Tunnel, message: Buffer, start: int, end: int) -> None:
        """See `Frontend`."""
        self._queue.push(message, start, end)
        self._queued()

    def data_pieces(self, tunnel: Tunnel, pieces: Sequence[Buffer]) -> None:
        """See `Frontend`."""
        for piece in pieces:
            self._queue.push(piece, 0, len(piece))
        self._queued()

    def _queued(self) -> None:
        if self._queue.size >= CONGESTED_BYTES:
            self.congested = True
        self._line.want()

    def remote_ended(self, tunnel: Tunnel) -> None:
        """See `Frontend`."""
        self._answer(self._last, HalfClose(tunnel.connect_id))

    def closed(self, tunnel: Tunnel, error: str, *, lost: bool) -> None:
        """See `Frontend`."""
        self._stop()
        self._answer(self._last, CloseResponse(error, tunnel.connect_id))

    def backlog(self) -> int:
        """See `Frontend`."""
        return self._queue.size

    def hold(self) -> None:
        """See `Frontend`."""
        self._line.pause()

    def release(self) -> None:
        """See `Frontend`."""
        self._line.resume()
