"""An HTTP/2 connection that carries CONNECT tunnels, without I/O. The hot path of the proxy.

The caller feeds `Connection.receive` with whatever bytes have arrived and writes what stands in
`Connection.outbox`. Payload of DATA frames goes to the stream's receiver as a piece of the buffer
that was received, and is sent by the caller behind a header from here: this core never copies it
and never holds it. Everything else about a connection (who may send, how much, what a frame does
to a stream) is decided here (RFC 9113).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from nodenet.hbone import frames, headers, nuisance, settings
from nodenet.hbone.errors import ErrorCode, H2Error, code_name
from nodenet.hbone.frames import HEADER_BYTES, STREAM_ID_MASK
from nodenet.hbone.headers import Malformed, Request, Response
from nodenet.hbone.hpack_decoder import Decoder, Undecodable
from nodenet.hbone.incoming import Incoming, fail
from nodenet.hbone.nuisance import Nuisance
from nodenet.hbone.outgoing import SHUTDOWN_PING
from nodenet.hbone.settings import UNLIMITED_STREAMS, LocalSettings, Role, Setting
from nodenet.hbone.stream import NEVER_DUE, UNSET, Stream

#: Answers that may be queued without the outbox being written once: a peer that sends PINGs and
#: never reads is cut off here, with less than 150 KiB waiting for it.
MAX_UNREAD_ANSWERS: Final = 8192
#: CONTINUATION frames of one header block; each costs a round through here, and the block's
#: size alone does not bound empty ones (CVE-2024-27316).
MAX_CONTINUATIONS: Final = 32
#: Header blocks from this size on are paid for, however well-formed.
LARGE_BLOCK: Final = 8 * 1024
_NOBODY: Final[dict[int, Stream]] = {}


class Handler(Protocol):
    """The owner of a connection. Called from inside `Connection.receive`."""

    def on_request(self, stream: Stream, request: Request) -> None:
        """Server: a request that keeps the rules, of any method.

        Sets ``stream.receiver``, or answers with ``end_stream``, or resets, before it returns.
        """

    def on_response(self, stream: Stream, response: Response) -> None:
        """Client: the final response."""

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """The peer takes no more streams; ours above ``last_stream_id`` have been reset."""

    def on_writable(self) -> None:
        """The window of the connection, or SETTINGS, allow more than before."""

    def on_pong(self, opaque: bytes) -> None:
        """The answer to a `Connection.ping`, or, when it is `SHUTDOWN_PING`, to a `shutdown`."""


class Connection(Incoming):
    """One side of a connection. Driven by bytes (`receive`) and by the caller's calls.

    Raises H2Error from `receive` only; everything peers do ends there or in a stream's reset.
    What a callback raises goes through `receive` as well; the connection cannot go on after that.
    """

    __slots__ = (
        "_answers",
        "_answers_end",
        "_continuations",
        "_decoder",
        "_handler",
        "_nuisance",
        "fault",
    )

    def __init__(
        self,
        role: Role,
        settings: LocalSettings,
        handler: Handler,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` returns seconds; asked only when a peer exhausts what it may waste."""
        super().__init__(role, settings)
        self._handler = handler
        self._nuisance = Nuisance(clock)
        self.fault: H2Error | None = None
        """How the peer ended the connection; known before the receivers are told."""
        self._decoder = Decoder(self._max_block)
        self._continuations = 0
        #: Answers queued since the outbox was written, as far as can be seen: it has become shorter
        #: than it was with the last of them.
        self._answers = 0
        self._answers_end = 0

    # -- frames ----------------------------------------------------------------------------------

    def _act(self, kind: int, flags: int, stream_id: int, length: int, payload: memoryview) -> None:
        """Does what an admitted frame says. ``payload`` is the part that `_admit` asked for."""
        if kind == frames.DATA:
            self._data(flags, stream_id, length, payload[0] if payload else None)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, frames.U32.unpack(payload)[0] & frames.MAX_WINDOW)
        elif kind == frames.HEADERS:
            self._headers(flags, stream_id, payload)
        elif kind == frames.RST_STREAM:
            self._rst_stream(stream_id, frames.U32.unpack(payload)[0])
        elif kind == frames.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == frames.PING:
            self._ping(flags, stream_id, bytes(payload))
        elif kind == frames.GOAWAY:
            self._skip = length - 8
            self._goaway(stream_id, *frames.TWO_U32.unpack(payload))
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        elif kind == frames.PRIORITY:
            self._nuisance.spend(nuisance.FRAME, "PRIORITY")
            if not stream_id:
                fail(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        else:
            self._skip = length
            self._nuisance.spend(nuisance.FRAME, f"type {kind:#x}")

    def _data(self, flags: int, stream_id: int, length: int, pad: int | None) -> None:
        """The start of a DATA frame, in all cases that the hot path leaves."""
        padding = 0 if pad is None else pad + 1
        if padding > length:
            fail(ErrorCode.PROTOCOL_ERROR, "DATA with more padding than payload")
        stream = self._all_receiving.get(stream_id)
        self.received += length
        if self.received > self._grant_at:
            self._grant()
        # the pad length itself is read already
        self._skip = pad or 0
        count = length - padding
        if stream is None:
            self.taken += length
            self._skip += count
            self._stray_data(flags, stream_id, length)
            return
        if stream.received + length > stream.allowed and length > self.may_come(stream):
            self.taken += length
            self._skip += count
            self._stream_error(stream, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the window")
            return
        stream.received += length
        if padding:
            self.consumed(stream, padding)
        ends = bool(flags & frames.END_STREAM)
        if not (count or ends):
            self._nuisance.spend(nuisance.FRAME, "empty DATA")
            return
        self._left = count
        self._current = stream
        self._ending = ends

    def _stray_data(self, flags: int, stream_id: int, length: int) -> None:
        """DATA on a stream that may not receive it; the payload is skipped."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            if stream.remote_ended:
                self._stream_error(stream, ErrorCode.STREAM_CLOSED, "DATA after the end")
            else:
                self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "DATA before the response")
            return
        if not stream_id:
            fail(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        self._refuse_idle("DATA", stream_id)
        left = self._grace.get(stream_id)
        if left is not None:
            if length > left:
                fail(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the window of a reset stream")
            if flags & frames.END_STREAM:
                del self._grace[stream_id]
            else:
                self._grace[stream_id] = left - length
                if not length:
                    self._nuisance.spend(nuisance.FRAME, "empty DATA")
            return
        self._answer(nuisance.FRAME, "DATA on a closed stream")
        self.outbox += frames.rst_stream(stream_id, ErrorCode.STREAM_CLOSED)

    def _headers(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if not stream_id:
            fail(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        start, end = 0, len(payload)
        if flags & frames.PADDED:
            if not end:
                fail(ErrorCode.FRAME_SIZE_ERROR, "padded HEADERS without a pad length")
            start, end = 1, end - payload[0]
        if flags & frames.PRIORITY_FLAG:
            start += 5
        if start > end:
            fail(ErrorCode.PROTOCOL_ERROR, "HEADERS with more padding than payload")
        if flags & frames.END_HEADERS:
            self._header_block(stream_id, bytes(payload[start:end]), flags)
            return
        self._block = bytearray(payload[start:end])
        self._block_id = stream_id
        self._block_flags = flags
        self._continuations = 0
        self._receiving = _NOBODY

    def _continuation(self, flags: int, payload: memoryview) -> None:
        block = self._block
        if block is None:
            fail(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._continuations += 1
        block += payload
        if len(block) > self._max_block or self._continuations > MAX_CONTINUATIONS:
            fail(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a header block of {len(block)} bytes in {self._continuations} CONTINUATIONs",
            )
        if flags & frames.END_HEADERS:
            self._block = None
            self._receiving = self._all_receiving
            self._header_block(self._block_id, bytes(block), self._block_flags)

    def _header_block(self, stream_id: int, block: bytes, flags: int) -> None:
        """A complete header block: decoded whatever the stream, or the next one could not be."""
        if len(block) > LARGE_BLOCK:
            self._nuisance.spend(len(block) // nuisance.BLOCK_BYTES, "a large header block")
        try:
            fields = self._decoder.decode(block)
        except Undecodable as error:
            fail(ErrorCode.COMPRESSION_ERROR, str(error))
        ends = bool(flags & frames.END_STREAM)
        stream = self._streams.get(stream_id)
        if stream is None:
            if self.role is Role.SERVER and stream_id & 1 and stream_id > self._last_peer:
                self._request(stream_id, fields, ends)
            else:
                self._stray_headers(stream_id, ends)
            return
        try:
            if fields is None:
                raise Malformed(f"a header list of more than {self._max_block} bytes")
            if self.role is Role.CLIENT and not stream.answered:
                self._response(stream, headers.response(fields, ends))
            else:
                self._trailers(stream, fields, ends)
        except Malformed as error:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, str(error))

    def _stray_headers(self, stream_id: int, ends: bool) -> None:
        self._refuse_idle("HEADERS", stream_id)
        if stream_id not in self._grace:
            fail(ErrorCode.STREAM_CLOSED, f"HEADERS on the closed stream {stream_id}")
        if ends:
            del self._grace[stream_id]
        else:
            self._nuisance.spend(nuisance.FRAME, "HEADERS on a reset stream")

    def _request(self, stream_id: int, fields: headers.Fields | None, ends: bool) -> None:
        self._last_peer = stream_id
        if stream_id > self._refuse_above or len(self._streams) >= self.settings.max_streams:
            self._refuse(stream_id, ErrorCode.REFUSED_STREAM, ends, "a stream too many")
            return
        try:
            if fields is None:
                raise Malformed(f"a header list of more than {self._max_block} bytes")
            request = headers.request(fields, ends)
        except Malformed as error:
            self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR, ends, str(error))
            return
        stream = Stream(stream_id, self.peer.initial_window, self._recv_initial)
        self._streams[stream_id] = stream
        self.streams_opened += 1
        if ends:
            self._end_remote(stream)
        else:
            self._all_receiving[stream_id] = stream
        self._handler.on_request(stream, request)
        if stream.closed:
            return
        if stream.receiver is UNSET:
            raise AssertionError("on_request left a stream without a receiver")
        if ends:
            stream.receiver.ended()

    def _refuse(self, stream_id: int, code: ErrorCode, ends: bool, text: str) -> None:
        """Resets a stream before it comes into being."""
        self._answer(nuisance.STREAM, text)
        self.outbox += frames.rst_stream(stream_id, code)
        if not ends:
            self._indulge(stream_id, self._recv_initial)

    def _response(self, stream: Stream, response: Response) -> None:
        if response.status < 200:
            if response.end_stream:
                raise Malformed("an interim response that ends the stream")
            self._nuisance.spend(nuisance.FRAME, "an interim response")
            return
        stream.answered = True
        if response.end_stream:
            self._end_remote(stream)
        else:
            self._all_receiving[stream.id] = stream
        self._handler.on_response(stream, response)
        if response.end_stream and not stream.closed:
            self._after_end(stream)

    def _trailers(self, stream: Stream, fields: headers.Fields, ends: bool) -> None:
        if stream.remote_ended:
            self._stream_error(stream, ErrorCode.STREAM_CLOSED, "HEADERS after the end")
            return
        if not ends:
            raise Malformed("a second header block that does not end the stream")
        headers.check_trailers(fields)
        self._ended(stream)

    def _rst_stream(self, stream_id: int, code: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            if not stream_id:
                fail(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on stream 0")
            self._refuse_idle("RST_STREAM", stream_id)
            self._grace.pop(stream_id, None)
            return
        if self.role is Role.SERVER:
            self._charge_reset(stream, code)
        receiver = stream.receiver
        self._abandon(stream)
        receiver.reset(code)

    def _charge_reset(self, stream: Stream, code: int) -> None:
        """What a client's reset costs it, when the stream was of no use to anybody."""
        if not stream.answered:
            self._nuisance.spend(nuisance.STREAM, f"RST_STREAM with {code_name(code)}")
        elif not stream.received and stream.send_window == self.peer.initial_window:
            # not a byte either way: windows that are as they began say so without a counter
            self._nuisance.spend(nuisance.UNUSED_STREAM, f"RST_STREAM with {code_name(code)}")

    def _window_update(self, stream_id: int, increment: int) -> None:
        if not stream_id:
            if not increment:
                fail(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
            self.send_window += increment
            if self.send_window > frames.MAX_WINDOW:
                fail(ErrorCode.FLOW_CONTROL_ERROR, "the window of the connection overflows")
            if self._blocked:
                self._blocked = False
                self._handler.on_writable()
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            self._refuse_idle("WINDOW_UPDATE", stream_id)
            return  # it may well cross the end of the stream
        if not increment:
            self._stream_error(stream, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
            return
        if stream.local_ended:
            return
        stream.send_window += increment
        if stream.send_window > frames.MAX_WINDOW:
            self._stream_error(stream, ErrorCode.FLOW_CONTROL_ERROR, "the send window overflows")
        elif stream.blocked and stream.send_window > 0:
            stream.blocked = False
            stream.receiver.writable()

    def _settings(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            fail(ErrorCode.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}")
        if flags & frames.ACK:
            self._acknowledge()
            return
        self._answer(nuisance.SETTINGS, "SETTINGS")
        peer = self.peer
        if not self.greeted:
            self.greeted = True
            peer.max_streams = UNLIMITED_STREAMS  # unless this frame says otherwise
        sender = Role.SERVER if self.role is Role.CLIENT else Role.CLIENT
        window = peer.initial_window
        for setting, value in settings.parse(payload, sender):
            if setting == Setting.INITIAL_WINDOW_SIZE:
                window = value
            elif setting == Setting.MAX_FRAME_SIZE:
                peer.max_frame = value
            elif setting == Setting.MAX_CONCURRENT_STREAMS:
                peer.max_streams = value
            elif setting == Setting.MAX_HEADER_LIST_SIZE:
                peer.max_header_list = value
            elif setting == Setting.HEADER_TABLE_SIZE:
                # our table is empty, but a peer that shrinks it wants to read that we know
                self._table_update |= value < peer.header_table_size
                peer.header_table_size = min(value, peer.header_table_size)
        self._initial_window(window)
        self.outbox += frames.SETTINGS_ACK
        for stream in list(self._streams.values()):
            if stream.blocked and stream.send_window > 0:
                stream.blocked = False
                stream.receiver.writable()
        self._handler.on_writable()

    def _initial_window(self, value: int) -> None:
        """Changes the windows of all streams by the difference (RFC 9113 section 6.9.2)."""
        change = value - self.peer.initial_window
        if not change:
            return
        self.peer.initial_window = value
        for stream in self._streams.values():
            if stream.local_ended:
                continue
            stream.send_window += change
            if stream.send_window > frames.MAX_WINDOW:
                fail(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE overflows a window")

    def _receiving_streams(self) -> Iterator[Stream]:
        return (stream for stream in self._streams.values() if not stream.remote_ended)

    def _ping(self, flags: int, stream_id: int, opaque: bytes) -> None:
        if stream_id:
            fail(ErrorCode.PROTOCOL_ERROR, f"PING on stream {stream_id}")
        if not flags & frames.ACK:
            self._answer(nuisance.FRAME, "PING")
            self.outbox += frames.ping(opaque, ack=True)
        elif self._draining and opaque == SHUTDOWN_PING:
            self._draining = False
            self.goaway()
            self._handler.on_pong(opaque)
        else:
            self._nuisance.spend(nuisance.FRAME, "PING")
            self._handler.on_pong(opaque)

    def _goaway(self, stream_id: int, last: int, code: int) -> None:
        if stream_id:
            fail(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        self._nuisance.spend(nuisance.FRAME, "GOAWAY")
        last &= STREAM_ID_MASK
        self.going_away = True
        if self.role is Role.CLIENT:
            for stream in [s for s in self._streams.values() if s.id > last]:
                if not stream.closed:
                    receiver = stream.receiver
                    self._indulge(stream.id, self.may_come(stream))
                    self._abandon(stream)
                    receiver.reset(ErrorCode.REFUSED_STREAM)
        self._handler.on_goaway(last, code)

    # -- ends ------------------------------------------------------------------------------------

    def _end_remote(self, stream: Stream) -> None:
        """The peer sends nothing more: its receive window is of no interest any more."""
        stream.remote_ended = True
        stream.allowed = NEVER_DUE
        self._all_receiving.pop(stream.id, None)

    def _ended(self, stream: Stream) -> None:
        self._end_remote(stream)
        self._after_end(stream)

    def _after_end(self, stream: Stream) -> None:
        receiver = stream.receiver
        if stream.local_ended:
            self._forget(stream)
        receiver.ended()

    def _stream_error(self, stream: Stream, code: ErrorCode, text: str) -> None:
        """The peer broke a rule on one stream: it is reset, and its receiver told."""
        self._answer(nuisance.STREAM, text)
        stream.error = text
        receiver = stream.receiver
        self.reset(stream, code)
        receiver.reset(code)

    def lost(self, code: int = ErrorCode.INTERNAL_ERROR) -> None:
        """The transport is gone, or given up: every stream is over. Twice is as good as once."""
        self.closed = True
        for stream in list(self._streams.values()):
            if not stream.closed:
                receiver = stream.receiver
                self._forget(stream)
                receiver.reset(code)
        self._partial.clear()
        self._block = None
        self._starved = self._narrowed = self._watchful = False  # nothing is granted any more

    def _die(self, error: H2Error) -> None:
        self.fault = error
        self.goaway(error.code, self._last_peer, error.text.encode())
        self.lost(error.code)

    # -- limits ----------------------------------------------------------------------------------

    def _answer(self, points: int, what: str) -> None:
        """Before something is queued because the peer asked for it."""
        self._nuisance.spend(points, what)
        end = len(self.outbox)
        self._answers = 1 if end < self._answers_end else self._answers + 1
        self._answers_end = end + HEADER_BYTES  # the least an answer has
        if self._answers > MAX_UNREAD_ANSWERS:
            fail(ErrorCode.ENHANCE_YOUR_CALM, f"answers are not read, the last to {what}")

    def _refuse_idle(self, what: str, stream_id: int) -> None:
        """Only PRIORITY may name a stream that was never opened (RFC 9113 section 5.1)."""
        if self.role is Role.SERVER:
            idle = not stream_id & 1 or stream_id > self._last_peer
        else:
            idle = not stream_id & 1 or stream_id > self._last_local
        if idle:
            fail(ErrorCode.PROTOCOL_ERROR, f"{what} on the idle stream {stream_id}")
