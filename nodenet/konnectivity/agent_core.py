"""What an agent knows about one stream to one server: dials, tunnels, credit. No I/O.

Driven by messages from the server (`AgentCore.receive`), by the sockets (`connected`, `readable`,
`writable`…), by the clock (`handle_timer`) and by the stream, which asks for the next message when
it can send one (`pull`). A remote is read at that moment and not before: nothing read is ever kept
here, a lone packet leaves at once, and what a fast remote has sent in between leaves as one DATA.

The table of a tunnel (row numbers are those of the tests):

| row | event | action |
|---|---|---|
| A1 | DIAL_REQ | dial; a network other than TCP, a bad address or a dial too many is answered |
| A2 | connected, or not | DIAL_RSP with the id, or with the error |
| A3 | DIAL_CLS | the dial is given up without an answer; a tunnel is closed as by CLOSE_REQ |
| A4 | DATA of id 0 | ignored |
| A5 | DATA of an unknown id | CLOSE_RSP, unless it was closed here a moment ago |
| A6 | DATA | written; what the remote does not take waits, up to the limits below |
| A7 | CLOSE_REQ | CLOSE_RSP; what waits is written out, then the remote is closed |
| A8 | CLOSE_REQ of an unknown id | CLOSE_RSP with an error |
| A9 | remote ends | HALF_CLOSE where the server knows it, else as CLOSE_REQ |
| A10 | HALF_CLOSE | what waits is written out, then the remote gets a FIN |
| A11 | both have ended | CLOSE_RSP |
| A12 | remote fails | CLOSE_RSP with the error; what it sent before was sent on before |
| A13 | WINDOW | the remote is read on |
| A14 | more than its window | CLOSE_RSP with an error, the remote is reset |
| A15 | stream lost | every remote is reset, every dial given up |
| A16 | others | ignored |

Memory. With the extension ``window`` a tunnel holds at most its window. An upstream server has no
such thing and its stream can only be held as a whole, so a tunnel may hold a quarter of what is
still free of `HELD_BYTES`. Over that, the stream is held while the remote makes progress, and the
tunnel is reset when it has made none for `STALL_SECONDS`: a slow remote slows the stream down, a
stalled one costs only itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from nodenet.konnectivity.agent_tunnel import (
    LEAST_READ_BYTES,
    MOST_READ_BYTES,
    UNLIMITED,
    Counts,
    Line,
    Remotes,
    Tunnel,
    split_address,
)
from nodenet.konnectivity.dial_errors import bad_address, too_many_dials, unknown_network
from nodenet.konnectivity.extensions import NONE, OURS, Extensions
from nodenet.konnectivity.packets import (
    CloseDial,
    CloseRequest,
    CloseResponse,
    DialRequest,
    DialResponse,
    Drain,
    HalfClose,
    Packet,
    PacketType,
    UnknownPacket,
    Window,
    data_pieces,
    data_prefix,
    data_span,
    pull_packet,
    push_packet,
)
from nodenet.konnectivity.payload_queue import CRUMB_BYTES, JOINED_BYTES
from nodenet.konnectivity.receive_window import grant
from nodenet.rpc.call import Buffer, kept

#: Bytes of all tunnels of a stream that wait for their remotes.
HELD_BYTES: Final = 256 * 1024 * 1024
#: Seconds without any progress after which a tunnel over its limit is reset.
STALL_SECONDS: Final = 1.0
#: Dials of one server under way at a time; each has a descriptor. Upstream has no bound.
MAX_DIALS: Final = 4096
#: Messages that wait to be sent, DATA not counted; above it the server is not read.
MAX_CONTROL: Final = 16_384
#: Ids closed here that a packet may still be on the way for.
RECENT_IDS: Final = 1024
#: Dials the percentiles are made of.
RECENT_DIALS: Final = 256

_NETWORKS: Final = frozenset({"tcp", "tcp4", "tcp6"})

UNKNOWN_DATA: Final = "unrecognized connectID"
UNKNOWN_CLOSE: Final = "Unknown connectID"


class AgentCore:
    """See the module. ``now`` is monotonic time in seconds, everywhere."""

    def __init__(
        self, line: Line, remotes: Remotes, *, peer: Extensions = NONE, counts: Counts | None = None
    ) -> None:
        self.tunnels: dict[int, Tunnel] = {}
        """The connected ones, by id."""
        self.dials: dict[int, Tunnel] = {}
        """Those under way, by dial id."""
        self.counts = counts or Counts()
        self.held_bytes = 0
        """Bytes of all tunnels that wait for their remotes."""
        self.dialled = 0
        """Dials that got a connection."""
        self.failed_dials = 0
        self.recent_dials: deque[float] = deque(maxlen=RECENT_DIALS)
        """Seconds the last dials took."""
        self.half_close = OURS.half_close and peer.half_close
        both = OURS.shared_with(peer)
        self.window = OURS.window if both else 0
        """Where the window of a tunnel begins, in bytes; 0 without flow control a tunnel."""
        self._credit = peer.window if both else UNLIMITED
        self._line = line
        self._remotes = remotes
        self._last_id = 0
        self._by_random: dict[int, Tunnel] = {}
        self._control: deque[bytes] = deque()
        self._ring: deque[Tunnel] = deque()
        self._recent: deque[int] = deque(maxlen=RECENT_IDS)
        self._recent_set: set[int] = set()
        self._over: dict[int, Tunnel] = {}
        self._paused = False

    # -- the server -------------------------------------------------------------------------------

    def receive(self, message: bytes, now: float) -> None:
        """One message of the server. MalformedPacket: the stream must end."""
        counts = self.counts.packets_in
        span = data_span(message)
        if span is not None:
            counts[4] = counts.get(4, 0) + 1
            tunnel = self.tunnels.get(span.connect_id)
            if tunnel is None:
                self._stray_data(span.connect_id)
            else:
                self._data(tunnel, (memoryview(message)[span.start : span.end],), now)
            return
        self._packet(pull_packet(message), now)

    def receive_pieces(self, pieces: Sequence[Buffer], now: float) -> None:
        """As `receive`, of a large message: payload goes on in the pieces it came in."""
        found = data_pieces(pieces)
        tunnel = None if found is None else self.tunnels.get(found[0])
        if found is None or tunnel is None:
            self.receive(b"".join(pieces), now)
            return
        counts = self.counts.packets_in
        counts[4] = counts.get(4, 0) + 1
        self._data(tunnel, found[1], now)

    def _packet(self, packet: Packet, now: float) -> None:
        counts = self.counts.packets_in
        kind = _type_of(packet)
        counts[kind] = counts.get(kind, 0) + 1
        match packet:
            case DialRequest():
                self._dial(packet, now)
            case CloseRequest(connect_id):
                self._close(connect_id)
            case CloseDial(random):
                self._close_dial(random)
            case HalfClose(connect_id):
                self._server_end(connect_id)
            case Window(connect_id, increment):
                self._widen(connect_id, increment)
            case _ if kind == PacketType.DATA:
                self._odd_data(packet, now)
            case _:
                pass  # A16

    def drain(self) -> None:
        """Tells the server to dial nobody here any more."""
        self._push(Drain())

    def lost(self) -> None:
        """A15: the stream is gone."""
        for tunnel in [*self.dials.values(), *self.tunnels.values()]:
            tunnel.up = False
            tunnel.held.clear()
            tunnel.endpoint.abort()
        for table in (self.dials, self.tunnels, self._by_random, self._over):
            table.clear()
        self._control.clear()
        self._ring.clear()
        self.held_bytes = 0

    def pull(self) -> Sequence[bytes] | None:
        """The pieces of the next message to the server; None when there is none now."""
        control = self._control
        while True:
            if control:
                message = control.popleft()
                if self._paused:
                    self._settle()
                return (message,)
            if not self._ring:
                return None
            data = self._read(self._ring[0])
            if data is not None:
                return data

    # -- the sockets ------------------------------------------------------------------------------

    def connected(self, tunnel: Tunnel, now: float) -> None:
        """A2: a dial has its connection."""
        if self.dials.pop(tunnel.random, None) is None:
            return
        tunnel.up = True
        tunnel.progress_at = tunnel.granted_at = now
        seconds = max(0.0, now - tunnel.dialled_at)
        self.dialled += 1
        self.recent_dials.append(seconds)
        self.counts.dialled(seconds)
        self.tunnels[tunnel.connect_id] = tunnel
        self._push(DialResponse("", tunnel.connect_id, tunnel.random))
        if tunnel.endpoint.readable:
            self.readable(tunnel)

    def dial_failed(self, tunnel: Tunnel, text: str, *, timeout: bool = False) -> None:
        """A2: a dial came to nothing; ``text`` as Go's dialler says it."""
        if self.dials.pop(tunnel.random, None) is None:
            return
        self._by_random.pop(tunnel.random, None)
        self._refuse(tunnel.random, text, timeout=timeout)

    def readable(self, tunnel: Tunnel) -> None:
        """A tunnel's remote has something to read, or has ended."""
        if tunnel.up and not tunnel.in_ring and not tunnel.remote_ended and tunnel.credit > 0:
            tunnel.in_ring = True
            self._ring.append(tunnel)
            self._line.want()

    def writable(self, tunnel: Tunnel, now: float) -> None:
        """A tunnel's remote takes bytes again."""
        if not tunnel.up or not tunnel.held:
            return
        held, taken = tunnel.held, 0
        try:
            while held:
                sent = tunnel.endpoint.write((held[0],))
                taken += sent
                if sent < len(held[0]):
                    held[0] = memoryview(kept(held[0], sent, len(held[0])))
                    break
                held.popleft()
        except OSError:
            self._break(tunnel)
            return
        tunnel.held_bytes -= taken
        self.held_bytes -= taken
        self._took(tunnel, taken, now)
        if not held and tunnel.server_ended:
            self._shut(tunnel)

    def failed(self, tunnel: Tunnel, error: OSError) -> None:
        """A12: a tunnel's socket has an error that no read or write will tell."""
        if tunnel.up:
            self._finish(tunnel, f"read tcp {tunnel.address}: {_reason(error)}")

    # -- the clock --------------------------------------------------------------------------------

    def next_timer(self) -> float | None:
        """When `handle_timer` has something to do."""
        if not self._over:
            return None
        return min(t.progress_at for t in self._over.values()) + STALL_SECONDS

    def handle_timer(self, now: float) -> None:
        """Resets the tunnels over their limit whose remotes have stalled."""
        for tunnel in [t for t in self._over.values() if now - t.progress_at >= STALL_SECONDS]:
            self._count_reset("stalled")
            held = tunnel.held_bytes
            self._cut(tunnel, f"write tcp {tunnel.address}: remote stalled, {held} bytes wait")
        self._settle()

    # -- dials ------------------------------------------------------------------------------------

    def _dial(self, packet: DialRequest, now: float) -> None:
        self._last_id += 1
        address, random = packet.address, packet.random
        if random in self._by_random:
            return  # the server cannot tell the two answers apart either
        if packet.protocol not in _NETWORKS:
            self._refuse(random, unknown_network(packet.protocol))
            return
        found = split_address(address)
        if found is None:
            self._refuse(random, bad_address(packet.protocol, address))
            return
        if len(self.dials) >= MAX_DIALS:
            self._refuse(random, too_many_dials(packet.protocol, address, MAX_DIALS))
            return
        tunnel = Tunnel(
            self._last_id,
            random,
            address,
            credit=self._credit,
            window=self.window,
            now=now,
        )
        self.dials[random] = self._by_random[random] = tunnel
        tunnel.endpoint = self._remotes.dial(tunnel, packet.protocol, *found)

    def _refuse(self, random: int, text: str, *, timeout: bool = False) -> None:
        self.failed_dials += 1
        failures = self.counts.dial_failures
        reason = "timeout" if timeout else "unknown"
        failures[reason] += 1
        self._push(DialResponse(text, 0, random))

    def _close_dial(self, random: int) -> None:
        tunnel = self._by_random.get(random)
        if tunnel is None:
            return
        if self.dials.pop(random, None) is not None:
            del self._by_random[random]
            tunnel.endpoint.abort()
        else:  # A3: it crossed our DIAL_RSP
            self._finish(tunnel, "")

    # -- data from the server ---------------------------------------------------------------------

    def _data(self, tunnel: Tunnel, pieces: Sequence[Buffer], now: float) -> None:
        size = sum(map(len, pieces))
        tunnel.received += size
        tunnel.room -= size
        if tunnel.room < 0:
            self._count_reset("window")
            self._cut(tunnel, "more data than the window allows")
            return
        if tunnel.broken or tunnel.server_ended:
            self._took(tunnel, size, now)
            return
        taken = 0
        if not tunnel.held:
            try:
                taken = tunnel.endpoint.write(pieces)
            except OSError:
                self._break(tunnel)
                return
            if taken == size:
                self._took(tunnel, size, now)
                return
            tunnel.progress_at = now
        skip, held = taken, tunnel.held
        for piece in pieces:
            left = len(piece) - skip
            if left > CRUMB_BYTES or not held or len(held[-1]) > JOINED_BYTES:
                if left > 0:
                    held.append(memoryview(kept(piece, skip, len(piece))))
            elif left > 0:
                held[-1] = memoryview(b"".join((held[-1], memoryview(piece)[skip:])))
            skip = max(0, -left)
        tunnel.held_bytes += size - taken
        self.held_bytes += size - taken
        if taken:
            self._took(tunnel, taken, now)
        if tunnel.held_bytes > (HELD_BYTES - self.held_bytes) // 4:
            self._over[tunnel.connect_id] = tunnel
            self._settle()

    def _took(self, tunnel: Tunnel, size: int, now: float) -> None:
        """The remote took bytes: they are given back, and it is not stalled."""
        tunnel.progress_at = now
        if self.window:
            tunnel.taken += size
            if tunnel.taken >= tunnel.window >> 1 and not tunnel.server_ended:
                increment = grant(tunnel, len(self.tunnels), now)
                self._push(Window(tunnel.connect_id, increment))
        if self._over:
            if tunnel.held_bytes <= (HELD_BYTES - self.held_bytes) // 8:
                self._over.pop(tunnel.connect_id, None)
            self._settle()

    def _odd_data(self, packet: Packet, now: float) -> None:
        """DATA that is not written as every known encoder does."""
        connect_id: int = getattr(packet, "connect_id", 0)
        payload: bytes = getattr(packet, "payload", b"")
        tunnel = self.tunnels.get(connect_id)
        if tunnel is None:
            self._stray_data(connect_id)
        else:
            self._data(tunnel, (payload,), now)

    def _stray_data(self, connect_id: int) -> None:
        if connect_id and connect_id not in self._recent_set:  # A4, A5
            self._push(CloseResponse(UNKNOWN_DATA, connect_id))
            self._remember(connect_id)

    def _break(self, tunnel: Tunnel) -> None:
        """The remote takes nothing any more. It may still have something to say, so it is read."""
        tunnel.broken = True
        dropped = tunnel.held_bytes
        tunnel.held.clear()
        tunnel.held_bytes = 0
        self.held_bytes -= dropped
        self._over.pop(tunnel.connect_id, None)
        self._settle()
        if tunnel.remote_ended:
            self._finish(tunnel, "")
        else:
            self.readable(tunnel)

    def _server_end(self, connect_id: int) -> None:
        tunnel = self.tunnels.get(connect_id)
        if tunnel is None or tunnel.server_ended:
            return
        tunnel.server_ended = True
        if not tunnel.held:
            self._shut(tunnel)

    def _shut(self, tunnel: Tunnel) -> None:
        """A10: everything for the remote is written."""
        if tunnel.remote_ended:
            self._finish(tunnel, "")  # A11; closing sends the FIN
            return
        if not tunnel.broken:
            try:
                tunnel.endpoint.shut()
            except OSError:
                self._break(tunnel)

    # -- data to the server -----------------------------------------------------------------------

    def _read(self, tunnel: Tunnel) -> Sequence[bytes] | None:
        """Reads the first of the ring and puts it to its end, or takes it out."""
        ring, endpoint = self._ring, tunnel.endpoint
        if not tunnel.up:
            ring.popleft()
            tunnel.in_ring = False
            return None
        size = tunnel.read_size
        if size > tunnel.credit:
            size = tunnel.credit
        try:
            data = endpoint.read(size)
        except OSError as error:
            ring.popleft()
            tunnel.in_ring = False
            self.failed(tunnel, error)
            return None
        count = len(data) if data is not None else 0
        if data is None or not count:
            ring.popleft()
            tunnel.in_ring = False
            if data is not None:
                self._remote_end(tunnel)
            return None
        if count == tunnel.read_size < MOST_READ_BYTES:
            tunnel.read_size <<= 2
        elif count < tunnel.read_size >> 4 and count < LEAST_READ_BYTES:
            tunnel.read_size = LEAST_READ_BYTES
        tunnel.credit -= count
        tunnel.sent += count
        if endpoint.readable and tunnel.credit > 0:
            ring.rotate(-1)
        else:
            ring.popleft()
            tunnel.in_ring = False
        counts = self.counts.packets_out
        counts[4] = counts.get(4, 0) + 1
        return (data_prefix(tunnel.connect_id, count), data)

    def _remote_end(self, tunnel: Tunnel) -> None:
        tunnel.remote_ended = True
        if not self.half_close:
            self._finish(tunnel, "")
        elif tunnel.broken or (tunnel.server_ended and not tunnel.held):
            self._finish(tunnel, "")
        else:
            self._push(HalfClose(tunnel.connect_id))

    def _widen(self, connect_id: int, increment: int) -> None:
        tunnel = self.tunnels.get(connect_id)
        if tunnel is None or increment <= 0:
            return
        tunnel.credit = min(tunnel.credit + increment, UNLIMITED)
        if tunnel.endpoint.readable:
            self.readable(tunnel)

    # -- the end of a tunnel ----------------------------------------------------------------------

    def _close(self, connect_id: int) -> None:
        tunnel = self.tunnels.get(connect_id)
        if tunnel is None:
            self._push(CloseResponse(UNKNOWN_CLOSE, connect_id))
        else:
            self._finish(tunnel, "")

    def _finish(self, tunnel: Tunnel, error: str) -> None:
        """Answers CLOSE_RSP; what the remote is owed is still written."""
        held = list(tunnel.held)
        self._forget(tunnel, error)
        tunnel.endpoint.leave(held)

    def _cut(self, tunnel: Tunnel, error: str) -> None:
        """Answers CLOSE_RSP and resets the remote."""
        self._forget(tunnel, error)
        tunnel.endpoint.abort()

    def _forget(self, tunnel: Tunnel, error: str) -> None:
        tunnel.up = False
        self.held_bytes -= tunnel.held_bytes
        tunnel.held_bytes = 0
        tunnel.held.clear()
        self.tunnels.pop(tunnel.connect_id, None)
        self._by_random.pop(tunnel.random, None)
        self._over.pop(tunnel.connect_id, None)
        self._remember(tunnel.connect_id)
        self._push(CloseResponse(error, tunnel.connect_id))
        self._settle()

    def _remember(self, connect_id: int) -> None:
        recent = self._recent
        if len(recent) == RECENT_IDS:
            self._recent_set.discard(recent[0])
        recent.append(connect_id)
        self._recent_set.add(connect_id)

    # -- small things -----------------------------------------------------------------------------

    def _push(self, packet: Packet) -> None:
        kind = _type_of(packet)
        counts = self.counts.packets_out
        counts[kind] = counts.get(kind, 0) + 1
        self._control.append(push_packet(packet))
        if len(self._control) > MAX_CONTROL:
            self._settle()
        self._line.want()

    def _settle(self) -> None:
        """Holds the stream, or lets it go on."""
        limit = MAX_CONTROL // 2 if self._paused else MAX_CONTROL
        wanted = bool(self._over) or len(self._control) > limit
        if wanted != self._paused:
            self._paused = wanted
            if wanted:
                self._line.pause()
            else:
                self._line.resume()

    def _count_reset(self, reason: str) -> None:
        self.counts.resets[reason] += 1


_TYPES: Final[dict[type, int]] = {
    DialRequest: PacketType.DIAL_REQ,
    DialResponse: PacketType.DIAL_RSP,
    CloseRequest: PacketType.CLOSE_REQ,
    CloseResponse: PacketType.CLOSE_RSP,
    CloseDial: PacketType.DIAL_CLS,
    Drain: PacketType.DRAIN,
    HalfClose: PacketType.HALF_CLOSE,
    Window: PacketType.WINDOW,
}


def _type_of(packet: Packet) -> int:
    """Its type; -1 for all that are unknown, so that a peer cannot make the counts grow."""
    if isinstance(packet, UnknownPacket):
        return -1
    return _TYPES.get(type(packet), PacketType.DATA)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
