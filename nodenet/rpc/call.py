"""One call: a stream of messages each way, and what its owner is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from nodenet.hbone.errors import ErrorCode
from nodenet.rpc.errors import CallOver
from nodenet.rpc.headers import Metadata
from nodenet.rpc.status import OK, Code, Status

if TYPE_CHECKING:
    from nodenet.rpc.connection import Connection

Buffer = bytes | memoryview

#: A message of so much is handed on in the pieces it came in: joining them is a copy.
PIECES_BYTES: Final = 32 << 10
#: Pieces that are smaller on average are joined: each is a write and an entry of queues further on.
_LEAST_PIECE_SHIFT: Final = 12
#: What has come of a message is joined when it is more pieces than this and one for each KiB: a
#: peer that sends a byte a frame would have us hold fifty for each.
_CRUMBS: Final = 64

#: Messages of a call that do not wait for the end of a turn. When fifty dials come at once they
#: would all wait in one process while the other has nothing to do, and then the other way round.
HURRY_MESSAGES: Final = 24
#: Of a message up to so much one piece is made: a copy costs less than a piece.
_JOINED_BYTES: Final = 2 << 10
#: Before every message: not compressed, and its length in four bytes.
_PREFIX_BYTES: Final = 5


class CallHandler:
    """What the owner of a call is told; every method may use the call, none may block.

    The order is `answered` (clients), `received`…, `ended`, `closed`. ``closed`` is always the last
    and comes once, unless the owner itself ended the call by `Call.cancel`.
    """

    def answered(self, metadata: Metadata) -> None:
        """The server's initial metadata."""

    def received(self, message: bytes) -> None:
        """One message."""

    def received_pieces(self, pieces: Sequence[Buffer]) -> None:
        """One large message as it arrived, the pieces are the handler's to keep.

        For who passes payload on; others need not know: it comes as `received`.
        """
        self.received(b"".join(pieces))

    def ended(self) -> None:
        """The client sends no more messages; the server still may."""

    def closed(self, status: Status) -> None:
        """The call is over: the server's status, or how the stream or the connection was lost."""

    def pull(self) -> Sequence[Buffer] | None:
        """The pieces of the next message to send, None when there is none.

        Asked for after `Call.want` as long as the peer takes more.
        """
        return None


_NOBODY: Final = CallHandler()


class Call:
    """One stream. Made by `Connection`; the owner uses the methods below `metadata`."""

    __slots__ = (
        "_connection",
        "_end",
        "_head",
        "_held",
        "_local_ended",
        "_need",
        "_out",
        "_out_bytes",
        "_parts",
        "_parts_bytes",
        "_peer_ended",
        "_queued",
        "_recv_window",
        "_send_window",
        "_taken",
        "_told",
        "_wanted",
        "answered",
        "handler",
        "id",
        "metadata",
        "over",
        "path",
        "wants",
    )

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        path: str,
        metadata: Metadata,
        *,
        send_window: int,
        recv_window: int,
    ) -> None:
        self._connection = connection
        self.id = stream_id
        self.path = path
        self.metadata = metadata
        """Of the request."""
        self.handler: CallHandler = _NOBODY
        self.answered = False
        """Whether the initial metadata went out (server) or came in (client)."""
        self.over = False
        self.wants = False
        self._wanted = 0
        """How often `want` was called since then."""
        # what is to be sent
        self._out: deque[Buffer] = deque()
        self._out_bytes = 0
        self._send_window = send_window
        self._queued = False
        """Whether the connection has it in its round."""
        self._end: Status | None = None
        self._local_ended = False
        # what comes in
        self._recv_window = recv_window
        self._taken = 0
        """Bytes the owner has taken that the window was not given back for."""
        self._held = False
        self._peer_ended = False
        self._told = False
        self._head = b""
        self._need = -1
        self._parts: list[Buffer] = []
        self._parts_bytes = 0

    @property
    def unsent(self) -> int:
        """Bytes of messages that wait for the peer to take them."""
        return self._out_bytes

    @property
    def connection(self) -> Connection:
        """What it runs on."""
        return self._connection

    @property
    def paused(self) -> bool:
        """Whether the peer is kept from sending more than a window."""
        return self._held

    def want(self) -> None:
        """Has the handler's `pull` asked as soon as the peer takes something.

        That is at the end of the turn, or at once when `HURRY_MESSAGES` wait for it.
        """
        if self.over:
            return
        if not self.wants:
            self.wants = True
            self._wanted = 0
            self._schedule()
        self._wanted += 1
        if self._wanted == HURRY_MESSAGES:
            self._connection.hurry()

    def send(self, message: bytes) -> None:
        """Queues one message; who sends much uses `want` or looks at `unsent`. CallOver."""
        if self.over or self._end is not None:
            raise CallOver(f"call {self.path}: message after its end")
        self.enqueue((message,))
        self._schedule()

    def answer(self, metadata: Metadata = ()) -> None:
        """Sends the initial metadata (server), at most once. CallOver."""
        if self.over or self.answered:
            raise CallOver(f"call {self.path}: initial metadata after it")
        self._connection.send_answer(self, metadata)

    def end(self, status: Status = OK) -> None:
        """After what is queued and wanted: the status (server), or no more messages (client).

        Waits for the peer as messages do.
        """
        if not self.over and self._end is None:
            self._end = status
            self._schedule()

    def fail(self, status: Status) -> None:
        """Ends the call with a status now (server), whatever is queued; `closed` follows."""
        if not self.over:
            self._connection.refuse(self, status)

    def cancel(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Ends the call at once; what is queued is not sent, and the handler is told nothing."""
        if not self.over:
            self._told = True
            self._connection.reset(self, code)

    def pause(self) -> None:
        """Gives no window back until `resume`: at most a window of bytes still arrives."""
        self._held = True

    def resume(self) -> None:
        """The opposite of `pause`."""
        if self._held:
            self._held = False
            if self._taken and not self.over:
                self._connection.give_back(self)

    # -- for the connection ---------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._queued:
            self._connection.queue(self)

    def enqueue(self, pieces: Sequence[Buffer]) -> None:
        """Puts the pieces of one message behind what is queued."""
        out, size = self._out, 0
        for piece in pieces:
            size += len(piece)
        prefix = b"\x00" + size.to_bytes(4, "big")
        if size <= _JOINED_BYTES:
            out.append(b"".join((prefix, *pieces)))
        else:
            out.append(prefix)
            # an empty one would stay as the last, as if there were something to send
            out.extend([piece for piece in pieces if piece])
        self._out_bytes += size + _PREFIX_BYTES

    def take(self, room: int, into: list[Buffer]) -> None:
        """Moves ``room`` bytes, which are there, from the queue to ``into``."""
        out = self._out
        if room == self._out_bytes:
            into.extend(out)
            out.clear()
            self._out_bytes = 0
            return
        self._out_bytes -= room
        while room:
            piece = out[0]
            size = len(piece)
            if size > room:
                view = memoryview(piece)
                into.append(view[:room])
                out[0] = view[room:]
                return
            into.append(piece)
            out.popleft()
            room -= size

    def feed(self, data: Buffer, at: int, end: int, limit: int) -> None:
        """Takes ``data[at:end]`` of the message stream. MessageRefused over ``limit`` bytes."""
        handler = self.handler
        while at < end:
            need = self._need
            if need < 0:
                head = self._head
                if head or end - at < _PREFIX_BYTES:
                    more = data[at : min(end, at + _PREFIX_BYTES - len(head))]
                    at += len(more)
                    head += more
                    if len(head) < _PREFIX_BYTES:
                        self._head = head
                        return
                    self._head = b""
                    flag, need = head[0], int.from_bytes(head[1:], "big")
                else:
                    flag = data[at]
                    need = int.from_bytes(data[at + 1 : at + 5], "big")
                    at += _PREFIX_BYTES
                if flag:
                    raise MessageRefused(Code.UNIMPLEMENTED, "compressed message")
                if need > limit:
                    text = f"message of {need} bytes, over {limit}"
                    raise MessageRefused(Code.RESOURCE_EXHAUSTED, text)
            left = end - at
            if left < need:
                if left:
                    self._parts.append(kept(data, at, end))
                    self._parts_bytes += left
                    if len(self._parts) > _CRUMBS + (self._parts_bytes >> 10):
                        self._parts = [b"".join(self._parts)]
                self._need = need - left
                return
            start, at = at, at + need
            self._need = -1
            size = self._parts_bytes + need
            if size >= PIECES_BYTES and len(self._parts) < size >> _LEAST_PIECE_SHIFT:
                pieces, self._parts = self._parts, []
                self._parts_bytes = 0
                pieces.append(kept(data, start, at))
                handler.received_pieces(pieces)
            elif self._parts:
                self._parts.append(data[start:at])
                message = b"".join(self._parts)
                self._parts.clear()
                self._parts_bytes = 0
                handler.received(message)
            else:
                handler.received(bytes(data[start:at]))
            if self.over:
                return

    def broken_off(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._need >= 0 or bool(self._head)

    def tell_closed(self, status: Status) -> None:
        """Tells the handler the end, unless it knows."""
        self.over = True
        self._out.clear()
        self._out_bytes = 0
        self._parts.clear()
        # the two hold each other: without this only the garbage collector ends them
        handler, self.handler = self.handler, _NOBODY
        if not self._told:
            self._told = True
            handler.closed(status)


def kept(data: Buffer, start: int, end: int) -> Buffer:
    """Part of a chunk, to be kept: a view where that is a good part of what it keeps alive."""
    alive = len(data) if isinstance(data, bytes) else len(cast(bytes, data.obj))
    if (end - start) << 2 < alive:
        return bytes(data[start:end])
    return memoryview(data)[start:end]


class MessageRefused(Exception):
    """A message cannot be taken; its call ends with this status."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.status = Status(code, text)
