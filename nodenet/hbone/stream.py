"""One stream of an HTTP/2 connection, and who takes what arrives on it."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Protocol

#: `Stream.allowed` of a stream that receives nothing more: no grant is ever due.
NEVER_DUE: Final = 1 << 62


class Receiver(Protocol):
    """Takes what the peer sends on one stream. Called from inside `Connection.receive`."""

    def data(self, payload: memoryview) -> None:
        """A piece of the tunnel's bytes, valid only during the call.

        A piece is whatever part of a frame has arrived. When the bytes have been passed on, the
        receiver calls `Connection.consumed`, at once or later.
        """

    def ended(self) -> None:
        """The peer sends nothing more (END_STREAM). After all data."""

    def reset(self, code: int) -> None:
        """The stream is over in both directions: RST_STREAM, or the connection was lost."""

    def writable(self) -> None:
        """`Connection.sendable` was 0 because of this stream's window, and no longer is."""


class _Unset:
    """The receiver of a stream before its owner gave it one."""

    def data(self, payload: memoryview) -> None:
        raise AssertionError("a stream has no receiver")

    def ended(self) -> None:
        pass

    def reset(self, code: int) -> None:
        pass

    def writable(self) -> None:
        pass


UNSET: Final[Receiver] = _Unset()


class StreamState(Enum):
    """RFC 9113 section 5.1, without the states of server push."""

    OPEN = "open"
    HALF_CLOSED_LOCAL = "half-closed (local)"
    HALF_CLOSED_REMOTE = "half-closed (remote)"
    CLOSED = "closed"


class Stream:
    """State of one stream. Made by the connection; `receiver` and `user` belong to the caller.

    Received bytes are counted up, never down: ``received`` so far, ``taken`` of these by the
    caller, ``allowed`` until the window is used up. The window and what waits are differences.
    """

    __slots__ = (
        "allowed",
        "answered",
        "blocked",
        "closed",
        "error",
        "id",
        "local_ended",
        "received",
        "receiver",
        "remote_ended",
        "send_window",
        "taken",
        "user",
    )

    def __init__(self, stream_id: int, send_window: int, recv_window: int) -> None:
        self.id = stream_id
        self.receiver: Receiver = UNSET
        """Who takes the data: set in `Handler.on_request`, or right after `Connection.open`.

        The connection lets go of it when the stream is over.
        """
        self.user: Any = None
        """Whatever the caller wants to find here again."""
        self.send_window = send_window
        """Bytes the peer takes on this stream; negative after it lowered its initial window."""
        self.received = 0
        self.taken = 0
        self.allowed = recv_window
        self.local_ended = False
        self.remote_ended = False
        self.answered = False
        """The final response has been sent (server) or received (client)."""
        self.closed = False
        self.blocked = False
        """The caller was told that nothing can be sent because of this stream's window."""
        self.error: str | None = None
        """What the peer did wrong, if that is why the stream was reset."""

    @property
    def recv_window(self) -> int:
        """Bytes the peer may still send; 0 when it may not send at all."""
        return 0 if self.remote_ended or self.closed else self.allowed - self.received

    @property
    def unconsumed(self) -> int:
        """Bytes received, or begun to be received, and not consumed."""
        return self.received - self.taken

    @property
    def state(self) -> StreamState:
        """Where the stream is in its life."""
        if self.closed:
            return StreamState.CLOSED
        if self.local_ended:
            return StreamState.HALF_CLOSED_LOCAL
        return StreamState.HALF_CLOSED_REMOTE if self.remote_ended else StreamState.OPEN

    def __repr__(self) -> str:
        return f"<Stream {self.id} {self.state.value}>"
