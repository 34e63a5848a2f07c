"""The sending half of a connection: the outbox, send windows, streams coming and going."""

from __future__ import annotations

from typing import Any, Final

from nodenet.hbone import frames, hpack_codec
from nodenet.hbone.errors import CannotOpen, ErrorCode, Misuse, NoStream
from nodenet.hbone.flow import ReceiveCredit
from nodenet.hbone.hpack_codec import HeaderBlock
from nodenet.hbone.settings import LocalSettings, PeerSettings, Role
from nodenet.hbone.stream import NEVER_DUE, UNSET, Stream

#: Streams that we reset and the peer may still be sending on; older ones are forgotten, and what
#: arrives on them is answered with a reset each.
MAX_GRACE: Final = 1024
#: RFC 7541 section 6.3: the dynamic table, which is never used here, has no room from now on.
_EMPTY_TABLE: Final = b"\x20"
#: PING of `shutdown`; its answer shows that the peer has read the first GOAWAY.
SHUTDOWN_PING: Final = b"nn-drain"

_HEADER: Final = frames.HEADER
_pack: Final = _HEADER.pack
_pack_into: Final = _HEADER.pack_into


class Outgoing(ReceiveCredit):
    """What this side sends. Control frames go to `outbox`, DATA is written by the caller.

    The caller writes the outbox's content first, then the frame header of `data_header`, then the
    payload: frames leave in the order of the calls.
    """

    __slots__ = (
        "_all_receiving",
        "_blocked",
        "_draining",
        "_grace",
        "_last_local",
        "_last_peer",
        "_receiving",
        "_refuse_above",
        "_streams",
        "_table_update",
        "closed",
        "going_away",
        "peer",
        "role",
        "send_window",
        "streams_opened",
    )

    def __init__(self, role: Role, settings: LocalSettings) -> None:
        super().__init__(role, settings)
        self.role = role
        self.peer = PeerSettings()
        """What the peer announced."""
        self.closed = False
        """The connection is over: nothing is received or sent any more."""
        self.going_away = False
        """No new streams: one side has sent GOAWAY."""
        self.streams_opened = 0
        self.send_window = frames.DEFAULT_WINDOW
        self._blocked = False
        self._streams: dict[int, Stream] = {}
        #: Streams that may receive DATA now. While a header block is incomplete nobody may, and
        #: `_receiving` is an empty dictionary instead of `_all_receiving`.
        self._all_receiving: dict[int, Stream] = {}
        self._receiving = self._all_receiving
        #: Streams that we reset, and the bytes the peer may still have sent on each.
        self._grace: dict[int, int] = {}
        self._last_peer = 0
        self._last_local = -1 if role is Role.CLIENT else 0
        self._refuse_above = frames.MAX_STREAM_ID
        self._draining = False
        self._table_update = False

    @property
    def active(self) -> int:
        """Open streams, half-closed ones included."""
        return len(self._streams)

    def stream(self, stream_id: int) -> Stream | None:
        """An open stream."""
        return self._streams.get(stream_id)

    # -- streams ---------------------------------------------------------------------------------

    def can_open(self) -> bool:
        """Whether `open` would work now."""
        return self._no_stream() is None

    def _no_stream(self) -> NoStream | None:
        if self.going_away or self.closed:
            return NoStream.GOING_AWAY
        if len(self._streams) >= self.peer.max_streams:
            return NoStream.LIMIT
        return NoStream.IDS if self._last_local >= frames.MAX_STREAM_ID else None

    def open(self, headers: HeaderBlock) -> Stream:
        """Sends a request (client only). The caller sets the receiver before anything arrives.

        Raises CannotOpen.
        """
        if self.role is not Role.CLIENT:
            raise Misuse("a server opens no streams")
        reason = self._no_stream()
        if reason is not None:
            raise CannotOpen(reason)
        stream_id = self._last_local + 2
        self._last_local = stream_id
        stream = Stream(stream_id, self.peer.initial_window, self._recv_initial)
        self._streams[stream_id] = stream
        self.streams_opened += 1
        self._send_headers(stream_id, headers, 0)
        return stream

    def respond(
        self,
        stream: Stream,
        status: int,
        headers: HeaderBlock = HeaderBlock(b""),  # noqa: B008 immutable
        end_stream: bool = False,
    ) -> None:
        """Sends the final response (server only); nothing happens when the stream is over.

        ``end_stream`` is a refusal: the stream ends, with NO_ERROR towards a peer that has not
        ended its side (RFC 9113 section 8.1; ztunnel does the same).
        """
        if stream.closed:
            return
        if stream.answered:
            raise Misuse(f"stream {stream.id} was answered before")
        stream.answered = True
        block = hpack_codec.status(status) + headers
        if not end_stream:
            self._send_headers(stream.id, block, 0)
            return
        self._send_headers(stream.id, block, frames.END_STREAM)
        stream.local_ended = True
        if stream.remote_ended:
            self._forget(stream)
        else:
            self.reset(stream, ErrorCode.NO_ERROR)

    def end(self, stream: Stream) -> None:
        """Ends our side of the stream with an empty DATA frame; twice is as good as once."""
        if not (stream.closed or stream.local_ended):
            self.outbox += _pack(frames.DATA, frames.END_STREAM, stream.id)
            self._end_local(stream)

    def reset(self, stream: Stream, code: int = ErrorCode.CANCEL) -> None:
        """Ends the stream in both directions. Its receiver is not called any more."""
        if stream.closed:
            return
        self.outbox += frames.rst_stream(stream.id, code)
        if not stream.remote_ended:
            self._indulge(stream.id, self.may_come(stream))
        self._abandon(stream)

    # -- data ------------------------------------------------------------------------------------

    def sendable(self, stream: Stream) -> int:
        """Payload bytes that the next DATA frame of a stream may have.

        0 means wait: for `Receiver.writable` if the stream's own window is used up, else for
        `Handler.on_writable`. A stream that is over has 0 as well.
        """
        count = stream.send_window
        window = self.send_window
        if window < count:
            count = window
            if count <= 0:
                self._blocked = True
                return 0
        elif count <= 0:
            stream.blocked = True
            return 0
        limit = self.peer.max_frame
        return count if count < limit else limit

    def data_header(self, stream: Stream, count: int, end_stream: bool = False) -> bytes:
        """The header of a DATA frame of ``count`` bytes, at most `sendable`.

        The caller writes it and the payload after everything that is in the outbox now.
        """
        left = stream.send_window - count
        window = self.send_window - count
        if left < 0 or window < 0 or stream.local_ended:
            raise Misuse(f"{count} bytes cannot be sent on stream {stream.id} now")
        stream.send_window = left
        self.send_window = window
        if end_stream:
            self._end_local(stream)
            return _pack(count << 8, frames.END_STREAM, stream.id)
        return _pack(count << 8, 0, stream.id)

    def write_data_header_into(
        self, buffer: Any, offset: int, stream: Stream, count: int, end_stream: bool = False
    ) -> None:
        """`data_header`, written to 9 bytes of a buffer at ``offset``."""
        left = stream.send_window - count
        window = self.send_window - count
        if left < 0 or window < 0 or stream.local_ended:
            raise Misuse(f"{count} bytes cannot be sent on stream {stream.id} now")
        stream.send_window = left
        self.send_window = window
        if end_stream:
            self._end_local(stream)
            _pack_into(buffer, offset, count << 8, frames.END_STREAM, stream.id)
            return
        _pack_into(buffer, offset, count << 8, 0, stream.id)

    # -- connection ------------------------------------------------------------------------------

    def ping(self, opaque: bytes) -> None:
        """Asks the peer for an answer, which comes as `Handler.on_pong`; 8 bytes."""
        if len(opaque) != frames.PING_BYTES:
            raise Misuse(f"a PING carries 8 bytes, not {len(opaque)}")
        if not self.closed:
            self.outbox += frames.ping(opaque)

    def goaway(self, code: int = 0, last: int | None = None, debug: bytes = b"") -> None:
        """Tells the peer that streams above ``last`` are not served; existing ones go on.

        ``last`` is the highest stream received so far when None. With a code other than NO_ERROR
        the caller closes the connection once the outbox is written.
        """
        if self.closed:
            return
        self.going_away = True
        self._refuse_above = self._last_peer if last is None else last
        self.outbox += frames.goaway(self._refuse_above, code, debug)

    def shutdown(self) -> None:
        """Lets the connection run out: no new streams, existing ones go on.

        A server tells the peer first and refuses only what comes after the peer has read that
        (RFC 9113 section 6.8), so no request under way is lost.
        """
        if self.closed or self.going_away:
            return
        if self.role is Role.CLIENT:
            self.goaway()
            return
        self.goaway(last=frames.MAX_STREAM_ID)
        self._draining = True
        self.outbox += frames.ping(SHUTDOWN_PING)

    # -- shared with the receiving half ----------------------------------------------------------

    def _send_headers(self, stream_id: int, block: bytes, flags: int) -> None:
        if self._table_update:
            self._table_update = False
            block = _EMPTY_TABLE + block
        size, limit = len(block), self.peer.max_frame
        outbox = self.outbox
        if size <= limit:
            outbox += _pack(size << 8 | frames.HEADERS, flags | frames.END_HEADERS, stream_id)
            outbox += block
            return
        outbox += frames.header(frames.HEADERS, flags, stream_id, limit)
        outbox += block[:limit]
        for start in range(limit, size, limit):
            part = block[start : start + limit]
            last = frames.END_HEADERS if start + limit >= size else 0
            outbox += frames.header(frames.CONTINUATION, last, stream_id, len(part))
            outbox += part

    def _end_local(self, stream: Stream) -> None:
        stream.local_ended = True
        stream.send_window = 0
        if stream.remote_ended:
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        """The stream is over; bytes that its receiver still holds stay counted."""
        stream.closed = stream.local_ended = stream.remote_ended = True
        stream.send_window = 0
        stream.allowed = NEVER_DUE
        stream.receiver = UNSET  # no cycle is left for the garbage collector
        self._streams.pop(stream.id, None)
        self._all_receiving.pop(stream.id, None)

    def _abandon(self, stream: Stream) -> None:
        """The stream is over, and nobody will consume what it has received."""
        self._forget(stream)
        self.taken += stream.received - stream.taken
        stream.taken = stream.received
        if self._watchful:
            self._look()

    def _indulge(self, stream_id: int, count: int) -> None:
        """The peer does not know yet that the stream is over: ``count`` bytes may still come."""
        grace = self._grace
        grace[stream_id] = count
        if len(grace) > MAX_GRACE:
            del grace[next(iter(grace))]
