"""One HTTP/2 connection that carries gRPC calls, client or server, without I/O.

Driven by its owner (`open`, the methods of `Call`, `drain`), by bytes from the peer (`receive`)
and by the clock (`handle_timer`). What is to be written is fetched with `flush`; ``wake`` is called
once when there is something to fetch. Messages go straight from the bytes that arrived to the
handler of their call: no event objects, because payload comes this way.

Flow control. The connection's window is given back as bytes arrive, a call's window as its handler
took them and unless the call is paused. So a paused call costs its own window and stops no other.
Sending is pulled: a call's handler is asked for the next message when the peer takes it.

The fields of `Call` that begin with an underscore belong to this module too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from nodenet.hbone import frames
from nodenet.hbone.errors import ErrorCode
from nodenet.hbone.settings import Setting
from nodenet.rpc import headers
from nodenet.rpc.call import Buffer, Call, CallHandler, MessageRefused
from nodenet.rpc.errors import CallOver, PeerViolation
from nodenet.rpc.headers import Metadata
from nodenet.rpc.limits import Limits
from nodenet.rpc.status import Code, Status, of_http, of_reset

#: Small messages of one call that go into one frame.
_GATHER_BYTES: Final = 16 << 10
#: What a message may be larger than a call's share of a turn: prefixes and the like.
_SPARE_BYTES: Final = 4 << 10
#: Control frames a peer may make us queue while it does not read (a flood of PINGs).
_MAX_OUTBOX_FRAMES: Final = 10_000
_PING: Final = b"nodenet\0"
_USER_AGENT: Final = "nodenet"


class Role(Enum):
    """Which end of the connection this is."""

    CLIENT = "client"
    SERVER = "server"


#: Decides about a call that a client opens: its handler, or None for an unknown path.
Accept = Callable[[Call], CallHandler | None]


def _nothing() -> None:
    return None


class Connection:
    """See the module. ``now`` is the time of the loop in seconds, everywhere."""

    def __init__(
        self,
        role: Role,
        *,
        now: float,
        limits: Limits | None = None,
        accept: Accept | None = None,
        authority: str = "localhost",
        secure: bool = False,
        wake: Callable[[], None] = _nothing,
        hurry: Callable[[], None] = _nothing,
    ) -> None:
        self.role = role
        self.limits = limits = limits or Limits()
        self.calls: dict[int, Call] = {}
        self.congested = False
        """Set by the owner while the transport takes nothing: payload stays with the calls."""
        self.over: Status | None = None
        """Why the connection ended, None while it goes on."""
        self.draining = False
        """No new calls: the peer said so, or we did."""
        self.on_draining: Callable[[], None] = _nothing
        """Told when the peer wants no new calls (GOAWAY)."""
        self.wake = wake
        self.hurry = hurry
        """As `wake`, when so much waits that it should not wait for the end of the turn."""
        self._accept = accept
        self._authority = authority
        self._secure = secure
        self._reader = headers.HeaderReader(limits.max_header_bytes)
        self._outbox: list[Buffer] = []
        self._ready: deque[Call] = deque()
        self._woken = False
        self._next_id = 1
        self._last_peer_id = 0
        self._send_window = frames.DEFAULT_WINDOW
        self._peer_initial_window = frames.DEFAULT_WINDOW
        self._peer_max_frame = frames.DEFAULT_MAX_FRAME
        self._recv_window = limits.connection_window
        self._taken = 0
        # parsing
        self._rest = b""
        self._preface = frames.PREFACE if role is Role.SERVER else b""
        self._data_left = 0
        self._data_call: Call | None = None
        self._data_ends = False
        self._block: list[bytes] | None = None
        self._block_head = (0, 0)
        self._block_bytes = 0
        # liveness
        self._last_received = now
        self._pinged_at: float | None = None
        self._start()

    # -- the owner ------------------------------------------------------------------------------

    def open(self, path: str, handler: CallHandler, metadata: Metadata = ()) -> Call:
        """Opens a call (client). CallOver when the connection takes no new ones."""
        if self.over is not None or self.draining or self._next_id > frames.MAX_STREAM_ID:
            raise CallOver(f"call {path}: {self.over or 'the connection takes no new calls'}")
        block = headers.request(
            path,
            authority=self._authority,
            secure=self._secure,
            user_agent=_USER_AGENT,
            metadata=metadata,
        )
        call = self._new_call(self._next_id, path, metadata)
        call.handler = handler
        self._next_id += 2
        self._headers(call, block, end_stream=False)
        return call

    def drain(self) -> None:
        """Takes no new calls; those under way go on."""
        if not self.draining and self.over is None:
            self.draining = True
            self._control(frames.goaway(self._last_peer_id, ErrorCode.NO_ERROR))

    def close(self, status: Status | None = None) -> None:
        """Ends everything: a GOAWAY to fetch, and every call is told."""
        if self.over is None:
            self._control(frames.goaway(self._last_peer_id, ErrorCode.NO_ERROR))
            self._finish(status or Status(Code.UNAVAILABLE, "connection closed"))

    def release(self) -> None:
        """Forgets its owner, who holds it: called when nothing will be asked of it any more."""
        self.wake = self.hurry = self.on_draining = _nothing
        self._accept = None

    def lost(self, text: str) -> None:
        """The transport is gone."""
        if self.over is None:
            self._finish(Status(Code.UNAVAILABLE, text))

    @property
    def pending(self) -> bool:
        """Whether `flush` would return something now."""
        may_send = not self.congested and self._send_window > 0
        return bool(self._outbox) or (may_send and bool(self._ready))

    def flush(self) -> list[Buffer]:
        """What to write now, at most about `Limits.flush_bytes` of payload.

        `pending` says afterwards whether to come back once the transport took this.
        """
        self._woken = False
        if self._ready and not self.congested and self.over is None:
            self._pump()
        out, self._outbox = self._outbox, []
        return out

    # -- the clock ------------------------------------------------------------------------------

    def next_timer(self) -> float | None:
        """When `handle_timer` has something to do."""
        if self.over is not None:
            return None
        if self._pinged_at is not None:
            return self._pinged_at + self.limits.keepalive_timeout_seconds
        return self._last_received + self.limits.keepalive_seconds

    def handle_timer(self, now: float) -> None:
        """Sends a PING after long silence, ends the connection when that is not answered."""
        if self.over is not None:
            return
        if self._pinged_at is not None:
            if now - self._pinged_at >= self.limits.keepalive_timeout_seconds:
                self._finish(Status(Code.UNAVAILABLE, "keepalive ping not answered"))
        elif now - self._last_received >= self.limits.keepalive_seconds:
            self._pinged_at = now
            self._control(frames.ping(_PING))

    # -- the peer -------------------------------------------------------------------------------

    def receive(self, data: Buffer, now: float) -> None:
        """Takes bytes from the peer. What breaks the protocol ends the connection (`over`)."""
        if self.over is not None:
            return
        self._last_received = now
        self._pinged_at = None
        try:
            self._receive(data)
        except PeerViolation as error:
            if self.over is None:
                debug = error.message.encode()[:200]
                self._control(frames.goaway(self._last_peer_id, error.code, debug))
                self._finish(Status(Code.INTERNAL, error.message))

    def _receive(self, data: Buffer) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end = 0, len(data)
        if self._preface:
            size = min(len(self._preface), end)
            if data[:size] != self._preface[:size]:
                raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "not HTTP/2")
            self._preface = self._preface[size:]
            at = size
        while at < end:
            if self._data_left:
                size = min(self._data_left, end - at)
                self._data(data, at, at + size)
                at += size
                if self.over is not None:
                    return
                continue
            if end - at < 9:
                break
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            kind, flags = data[at + 3], data[at + 4]
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFF_FFFF
            if self._block is not None and kind != frames.CONTINUATION:
                raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "header block interrupted")
            if kind == 0 and not flags & frames.PADDED:
                at += 9
                self._begin_data(stream_id, length, flags)
                continue
            if length > self.limits.max_frame_bytes:
                raise PeerViolation(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
            if kind and length > self.limits.max_header_bytes:
                raise PeerViolation(ErrorCode.FRAME_SIZE_ERROR, f"control frame of {length} bytes")
            if end - at < 9 + length:
                break
            at += 9
            self._frame(kind, flags, stream_id, bytes(data[at : at + length]))
            at += length
            if self.over is not None:
                return
        if at < end:
            self._rest = bytes(data[at:])

    # -- DATA -----------------------------------------------------------------------------------

    def _begin_data(self, stream_id: int, length: int, flags: int) -> None:
        if length > self.limits.max_frame_bytes:
            raise PeerViolation(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
        call = self._account(stream_id, length)
        self._data_call = call
        self._data_ends = bool(flags & frames.END_STREAM)
        self._data_left = length
        if not length:
            self._end_data()

    def _account(self, stream_id: int, length: int) -> Call | None:
        """Counts ``length`` bytes of DATA against both windows; the call, None if it is over."""
        self._recv_window -= length
        if self._recv_window < 0:
            raise PeerViolation(ErrorCode.FLOW_CONTROL_ERROR, "connection window exceeded")
        self._taken += length
        if self._taken >= self.limits.connection_window >> 1:
            self._control(frames.window_update(0, self._taken))
            self._recv_window += self._taken
            self._taken = 0
        call = self.calls.get(stream_id)
        if call is None:
            self._must_be_over(stream_id)
            return None
        if call._peer_ended:
            raise PeerViolation(ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
        call._recv_window -= length
        if call._recv_window < 0:
            raise PeerViolation(ErrorCode.FLOW_CONTROL_ERROR, "stream window exceeded")
        return call

    def _data(self, data: Buffer, at: int, end: int) -> None:
        self._data_left -= end - at
        call = self._data_call
        if call is not None and not call.over:
            try:
                call.feed(data, at, end, self.limits.max_message_bytes)
            except MessageRefused as error:
                self.refuse(call, error.status)
            else:
                call._taken += end - at
                if call._taken >= self.limits.stream_window >> 1 and not call._held:
                    self.give_back(call)
        if not self._data_left:
            self._end_data()

    def _end_data(self) -> None:
        call, self._data_call = self._data_call, None
        if call is not None and self._data_ends and not call.over:
            self._peer_end(call)

    def give_back(self, call: Call) -> None:
        """Lets the peer send what the call's handler took."""
        if not call.over and not call._peer_ended:
            self._control(frames.window_update(call.id, call._taken))
            call._recv_window += call._taken
            call._taken = 0

    # -- other frames ---------------------------------------------------------------------------

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        match kind:
            case frames.DATA:
                self._padded_data(flags, stream_id, payload)
            case frames.HEADERS:
                self._begin_block(flags, stream_id, payload)
            case frames.CONTINUATION:
                self._continue_block(flags, stream_id, payload)
            case frames.RST_STREAM:
                self._got_reset(stream_id, payload)
            case frames.SETTINGS:
                self._got_settings(flags, stream_id, payload)
            case frames.PING:
                if len(payload) != 8 or stream_id:
                    raise PeerViolation(ErrorCode.FRAME_SIZE_ERROR, "PING")
                if not flags & frames.ACK:
                    self._control(frames.ping(payload, ack=True))
            case frames.GOAWAY:
                self._got_goaway(payload)
            case frames.WINDOW_UPDATE:
                self._got_window(stream_id, payload)
            case frames.PUSH_PROMISE:
                raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE")
            case _:
                pass  # PRIORITY and whatever is not known

    def _padded_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not payload or payload[0] >= len(payload):
            raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
        self._data_call = call = self._account(stream_id, len(payload))
        self._data_ends = bool(flags & frames.END_STREAM)
        data = payload[1 : len(payload) - payload[0]]
        if call is not None:
            call._taken += len(payload) - len(data)
        if data:
            self._data_left = len(data)
            self._data(data, 0, len(data))
        else:
            self._end_data()

    def _begin_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream")
        at, end = 0, len(payload)
        if flags & frames.PADDED:
            if not payload:
                raise PeerViolation(ErrorCode.FRAME_SIZE_ERROR, "HEADERS")
            at, end = 1, end - payload[0]
        if flags & frames.PRIORITY_FLAG:
            at += 5
        if at > end:
            raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
        self._block_head = (flags, stream_id)
        if flags & frames.END_HEADERS:
            self._got_headers(payload[at:end])
            return
        self._block = [payload[at:end]]
        self._block_bytes = end - at

    def _continue_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None or stream_id != self._block_head[1]:
            raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        block.append(payload)
        self._block_bytes += len(payload)
        # empty frames cost as well, and a block of one frame has none
        if self._block_bytes > self.limits.max_header_bytes or len(block) > 64:
            raise PeerViolation(ErrorCode.ENHANCE_YOUR_CALM, "header block without an end")
        if flags & frames.END_HEADERS:
            self._block = None
            self._got_headers(b"".join(block))

    def _got_headers(self, block: bytes) -> None:
        flags, stream_id = self._block_head
        pseudo, fields = headers.split(self._reader.read(block))
        ends = bool(flags & frames.END_STREAM)
        call = self.calls.get(stream_id)
        if self.role is Role.SERVER:
            if call is not None:  # trailers of a client say nothing
                if not ends or call._peer_ended:
                    raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "HEADERS in a request")
                self._peer_end(call)
            elif stream_id <= self._last_peer_id and stream_id & 1:
                pass  # of a call that we have ended
            else:
                self._opened(stream_id, pseudo, fields, ends)
        elif call is None:
            self._must_be_over(stream_id)
        else:
            self._answered(call, pseudo, fields, ends)

    def _opened(self, stream_id: int, pseudo: dict[str, str], fields: Metadata, ends: bool) -> None:
        """A client opens a call."""
        if not stream_id & 1:
            raise PeerViolation(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} of a client")
        self._last_peer_id = stream_id
        if self.draining or len(self.calls) >= self.limits.max_calls:
            self._control(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return
        if pseudo.get(":method") != "POST":
            self._answer_http(stream_id, 405)
            return
        if not dict(fields).get("content-type", "").startswith("application/grpc"):
            self._answer_http(stream_id, 415)
            return
        call = self._new_call(stream_id, pseudo.get(":path", ""), fields)
        handler = None if self._accept is None else self._accept(call)
        if call.over:
            return
        if handler is None:
            call._told = True
            call.end(Status(Code.UNIMPLEMENTED, f"unknown method {call.path[:200]}"))
            return
        call.handler = handler
        if ends:
            self._peer_end(call)

    def _answer_http(self, stream_id: int, status: int) -> None:
        block = headers.refusal(status)
        self._control(
            headers.frame(stream_id, block, end_stream=True, max_frame=self._peer_max_frame)
        )
        self._control(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))

    def _answered(self, call: Call, pseudo: dict[str, str], fields: Metadata, ends: bool) -> None:
        """A server answers: initial metadata, trailers, or both in one."""
        call._peer_ended = ends
        if not call.answered:
            status = pseudo.get(":status", "")
            if status[:1] == "1" and not ends:
                return
            if status != "200":
                self._close_call(call, of_http(status), ErrorCode.CANCEL)
                return
            if not ends:
                call.answered = True
                call.handler.answered(fields)
                return
        elif not ends:
            raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "HEADERS in an answer")
        self._close_call(call, headers.status_of(fields), ErrorCode.CANCEL)

    def _peer_end(self, call: Call) -> None:
        """END_STREAM of the peer."""
        call._peer_ended = True
        if call.broken_off():
            self.refuse(call, Status(Code.INTERNAL, "the stream ended inside a message"))
        elif self.role is Role.CLIENT:
            status = Status(Code.INTERNAL, "the server ended the stream without a status")
            self._close_call(call, status, ErrorCode.CANCEL)
        else:
            call.handler.ended()

    def refuse(self, call: Call, status: Status) -> None:
        """Ends a call now, by its status (server) or a reset (client)."""
        if self.role is Role.CLIENT:
            self._close_call(call, status, ErrorCode.CANCEL)
            return
        call._out.clear()
        call._out_bytes = 0
        call.wants = False
        self._send_trailers(call, status)
        call.tell_closed(status)

    def _got_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4 or not stream_id:
            raise PeerViolation(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM")
        call = self.calls.pop(stream_id, None)
        if call is None:
            self._must_be_over(stream_id)
            return
        call.tell_closed(of_reset(int.from_bytes(payload, "big")))

    def _got_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) % 6 or (flags & frames.ACK and payload):
            raise PeerViolation(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS")
        if flags & frames.ACK:
            return
        for name, value in frames.SETTING.iter_unpack(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise PeerViolation(ErrorCode.FLOW_CONTROL_ERROR, "initial window")
                change = value - self._peer_initial_window
                self._peer_initial_window = value
                for call in list(self.calls.values()):
                    self._widen(call, change)
            elif name == Setting.MAX_FRAME_SIZE:
                if not frames.DEFAULT_MAX_FRAME <= value < 1 << 24:
                    raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "maximum frame size")
                self._peer_max_frame = value
        self._control(frames.SETTINGS_ACK)

    def _got_goaway(self, payload: bytes) -> None:
        if len(payload) < 8:
            raise PeerViolation(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY")
        last = int.from_bytes(payload[:4], "big") & 0x7FFF_FFFF
        code = int.from_bytes(payload[4:8], "big")
        self.draining = True
        if self.role is Role.CLIENT:
            text = payload[8:208].decode("utf-8", "replace")
            status = Status(Code.UNAVAILABLE, f"the server goes away (code {code}) {text}".rstrip())
            for call in [c for c in self.calls.values() if c.id > last]:
                del self.calls[call.id]
                call.tell_closed(status)
        self.on_draining()

    def _got_window(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise PeerViolation(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE")
        increment = int.from_bytes(payload, "big") & 0x7FFF_FFFF
        if not stream_id:
            self._send_window += increment
            if not increment or self._send_window > frames.MAX_WINDOW:
                raise PeerViolation(ErrorCode.FLOW_CONTROL_ERROR, "connection window")
            if self._ready:
                self._need_flush()
            return
        call = self.calls.get(stream_id)
        if call is None:
            self._must_be_over(stream_id)
        elif not increment:
            raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        else:
            self._widen(call, increment)

    def _widen(self, call: Call, change: int) -> None:
        call._send_window += change
        if call._send_window > frames.MAX_WINDOW:
            raise PeerViolation(ErrorCode.FLOW_CONTROL_ERROR, "stream window")
        if call._send_window > 0 and (call._out or call.wants or call._end is not None):
            call._schedule()

    def _must_be_over(self, stream_id: int) -> None:
        """A frame of a stream that is not there: late is fine, never opened is not."""
        ours = bool(stream_id & 1) == (self.role is Role.CLIENT)
        opened = self._next_id if ours else self._last_peer_id + 1
        if stream_id >= opened or not stream_id:
            raise PeerViolation(ErrorCode.PROTOCOL_ERROR, f"frame of idle stream {stream_id}")

    # -- sending --------------------------------------------------------------------------------

    def queue(self, call: Call) -> None:
        """Puts a call that has something to send into the round."""
        if not call._queued and not call.over:
            call._queued = True
            self._ready.append(call)
            if not self.congested:
                self._need_flush()

    def _pump(self) -> None:
        """Lets the calls send, one after the other, a quantum each."""
        ready, budget = self._ready, self.limits.flush_bytes
        while ready and budget > 0:
            call = ready.popleft()
            call._queued = False
            if call.over:
                continue
            sent = self._send_some(call, min(budget, self.limits.quantum_bytes))
            budget -= sent
            if call.over or call._queued:
                continue
            if not (call._out or call.wants):
                if call._end is not None:
                    self._send_end(call)
            elif call._send_window <= 0:
                pass  # the peer's WINDOW_UPDATE puts it back
            elif self._send_window <= 0:
                call._queued = True
                ready.appendleft(call)
                return
            else:
                call._queued = True
                ready.append(call)

    def _send_some(self, call: Call, budget: int) -> int:
        """Sends up to ``budget`` bytes of a call's messages; how many it were."""
        sent = 0
        while sent < budget:
            if self._send_window <= 0 or call._send_window <= 0:
                return sent  # nor is the owner asked for what could not go
            while call.wants and call._out_bytes < _GATHER_BYTES:
                pieces = call.handler.pull()
                if call.over:
                    return sent
                if pieces is None:
                    call.wants = False
                else:
                    call.enqueue(pieces)
            size = call._out_bytes
            if not size:
                return sent
            # the last bytes of a message do not wait for another turn
            room = min(
                size,
                budget - sent + _SPARE_BYTES,
                self._send_window,
                call._send_window,
                self._peer_max_frame,
            )
            if room <= 0:
                return sent
            if not call.answered and self.role is Role.SERVER:
                self.send_answer(call, ())
            self._outbox.append(frames.header(0, 0, call.id, room))
            call.take(room, self._outbox)
            self._send_window -= room
            call._send_window -= room
            sent += room
        return sent

    def _send_end(self, call: Call) -> None:
        status = call._end
        assert status is not None
        if self.role is Role.SERVER:
            self._send_trailers(call, status)
            call.tell_closed(status)
        elif not call._local_ended:
            call._local_ended = True
            self._outbox.append(frames.header(0, frames.END_STREAM, call.id, 0))

    def _send_trailers(self, call: Call, status: Status) -> None:
        block = headers.trailers(status, alone=not call.answered)
        call.answered = True
        self._headers(call, block, end_stream=True)
        if not call._peer_ended:
            # the client may still be sending: it need not (RFC 9113 section 8.1)
            self._control(frames.rst_stream(call.id, ErrorCode.NO_ERROR))
        self.calls.pop(call.id, None)

    def send_answer(self, call: Call, metadata: Metadata) -> None:
        """Sends a call's initial metadata (server)."""
        call.answered = True
        self._headers(call, headers.answer(metadata), end_stream=False)

    def reset(self, call: Call, code: ErrorCode) -> None:
        """Ends a call by RST_STREAM."""
        self._close_call(call, Status(Code.CANCELLED, "cancelled"), code)

    def _close_call(self, call: Call, status: Status, code: ErrorCode) -> None:
        if self.calls.pop(call.id, None) is not None and not (
            call._peer_ended and call._local_ended
        ):
            self._control(frames.rst_stream(call.id, code))
        call.tell_closed(status)

    def _headers(self, call: Call, block: bytes, *, end_stream: bool) -> None:
        self._control(
            headers.frame(call.id, block, end_stream=end_stream, max_frame=self._peer_max_frame)
        )

    def _control(self, frame: bytes) -> None:
        self._outbox.append(frame)
        if len(self._outbox) > _MAX_OUTBOX_FRAMES and self.over is None and self.congested:
            self._finish(Status(Code.RESOURCE_EXHAUSTED, "the peer does not read our answers"))
        self._need_flush()

    def _need_flush(self) -> None:
        if not self._woken:
            self._woken = True
            self.wake()

    # -- beginning and end ----------------------------------------------------------------------

    def _start(self) -> None:
        limits = self.limits
        values = {
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
            Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
        }
        if self.role is Role.CLIENT:
            self._outbox.append(frames.PREFACE)
            values[Setting.ENABLE_PUSH] = 0
        else:
            values[Setting.MAX_CONCURRENT_STREAMS] = limits.max_calls
        self._control(frames.settings(list(values.items())))
        if wider := limits.connection_window - frames.DEFAULT_WINDOW:
            self._control(frames.window_update(0, wider))

    def _new_call(self, stream_id: int, path: str, metadata: Metadata) -> Call:
        call = Call(
            self,
            stream_id,
            path,
            metadata,
            send_window=self._peer_initial_window,
            recv_window=self.limits.stream_window,
        )
        self.calls[stream_id] = call
        return call

    def _finish(self, status: Status) -> None:
        self.over = status
        calls, self.calls = list(self.calls.values()), {}
        self._ready.clear()
        for call in calls:
            call.tell_closed(status)
        self._need_flush()
