"""From bytes to frames: the receiving half of a connection. The hot path.

Bytes arrive cut anywhere. A frame is acted on as soon as what it says has arrived: payload of DATA
goes to the stream's receiver piece by piece as it comes, debug data and unknown frames are skipped,
and only frames of a known small size are ever put together. What a frame means is in `connection`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, NoReturn

from nodenet.hbone import frames
from nodenet.hbone.errors import ErrorCode, H2Error
from nodenet.hbone.frames import HEADER_BYTES, STREAM_ID_MASK
from nodenet.hbone.outgoing import Outgoing
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream

#: SETTINGS payload; there are six settings, a few unknown ones and repetitions are allowed.
MAX_SETTINGS_BYTES: Final = 6 * 64
#: What a HEADERS payload may have beside the block: pad length, padding, priority.
_HEADERS_EXTRA: Final = 1 + 255 + 5

_unpack: Final = frames.HEADER.unpack_from
_EXACT: Final = {
    frames.PRIORITY: 5,
    frames.RST_STREAM: 4,
    frames.PING: 8,
    frames.WINDOW_UPDATE: 4,
}


def fail(code: ErrorCode, text: str) -> NoReturn:
    """Ends the connection: the code for it, and what the peer did."""
    raise H2Error(code, text)


class Incoming(Outgoing):
    """Cuts what arrives into frames, and passes payload on."""

    __slots__ = (
        "_block",
        "_block_flags",
        "_block_id",
        "_current",
        "_ending",
        "_left",
        "_max_block",
        "_max_frame",
        "_need",
        "_partial",
        "_preface",
        "_skip",
        "_unfinished",
        "greeted",
    )

    def __init__(self, role: Role, settings: LocalSettings) -> None:
        super().__init__(role, settings)
        self.greeted = False
        """The peer's SETTINGS are there."""
        self._max_frame = settings.max_frame
        self._max_block = settings.header_list(role)
        #: Something of the last view is unfinished: `_resume` goes before everything else.
        self._unfinished = role is Role.SERVER
        self._preface = role is Role.SERVER
        #: The beginning of a frame, and how much of it is needed to act on it.
        self._partial = bytearray()
        self._need = len(frames.PREFACE) if role is Role.SERVER else HEADER_BYTES
        #: A frame acted on whose payload is still arriving: bytes for the stream `_current`, then
        #: bytes to skip, then the end of the stream if `_ending`.
        self._left = 0
        self._skip = 0
        self._current: Stream | None = None
        self._ending = False
        #: A header block waiting for CONTINUATION.
        self._block: bytearray | None = None
        self._block_id = 0
        self._block_flags = 0

    @abstractmethod
    def _act(self, kind: int, flags: int, stream_id: int, length: int, payload: memoryview) -> None:
        """Does what an admitted frame says. ``payload`` is the part that `_admit` asked for."""

    @abstractmethod
    def _ended(self, stream: Stream) -> None:
        """The peer has ended a stream, and everything before that is passed on."""

    @abstractmethod
    def _die(self, error: H2Error) -> None:
        """Queues the GOAWAY and resets all streams."""

    def receive(self, view: memoryview) -> None:
        """Takes bytes from the peer, cut anywhere; does nothing once the connection is over.

        Raises H2Error after the GOAWAY is in the outbox and all streams have been reset.
        """
        if self.closed:
            return
        try:
            size = len(view)
            at = self._resume(view, size) if self._unfinished else 0
            last = size - HEADER_BYTES
            while at <= last:
                head, flags, stream_id = _unpack(view, at)
                if not head & 0xFF and not flags:
                    stream = self._receiving.get(stream_id)
                    length = head >> 8
                    if stream is not None and 0 < length <= self._max_frame:
                        # the hot path: DATA without padding that ends nothing
                        received = stream.received + length
                        if received <= stream.allowed:
                            stream.received = received
                            received = self.received + length
                            self.received = received
                            if received > self._grant_at:
                                self._grant()
                            at += HEADER_BYTES
                            end = at + length
                            if end <= size:
                                stream.receiver.data(view[at:end])
                                at = end
                                continue
                            self._left = end - size
                            self._current = stream
                            self._unfinished = True
                            if at < size:
                                stream.receiver.data(view[at:])
                            return
                at = self._frame(head, flags, stream_id & STREAM_ID_MASK, view, at, size)
            if at < size:
                self._partial += view[at:]
                self._need = HEADER_BYTES
                self._unfinished = True
        except H2Error as error:
            self._die(error)
            raise

    def _resume(self, view: memoryview, size: int) -> int:
        """Goes on with what the last view left unfinished; returns where the next frame begins."""
        if self._left or self._skip:
            at = self._payload(view, 0, size)
            if self._left or self._skip:
                return size
            self._unfinished = False
            return at
        partial = self._partial
        at = 0
        while True:
            count = self._need - len(partial)
            if count > size - at:
                partial += view[at:]
                if self._preface:
                    self._check_preface(partial)
                return size
            partial += view[at : at + count]
            at += count
            if self._preface:
                self._check_preface(partial)
                self._preface = False
                self._need = HEADER_BYTES
                partial.clear()
                break
            head, flags, stream_id = _unpack(partial)
            stream_id &= STREAM_ID_MASK
            length, kind = head >> 8, head & 0xFF
            if self._need == HEADER_BYTES:
                want = self._admit(kind, flags, stream_id, length)
                if want:
                    self._need = HEADER_BYTES + want
                    continue
            payload = memoryview(bytes(partial))[HEADER_BYTES:]
            partial.clear()
            self._need = HEADER_BYTES
            self._unfinished = False
            self._act(kind, flags, stream_id, length, payload)
            return self._rest(view, at, size)
        self._unfinished = False
        return at

    def _check_preface(self, partial: bytearray) -> None:
        if not frames.PREFACE.startswith(partial):
            raise H2Error(ErrorCode.PROTOCOL_ERROR, "not HTTP/2: the connection preface is missing")

    def _frame(
        self, head: int, flags: int, stream_id: int, view: memoryview, at: int, size: int
    ) -> int:
        """Any frame whose header is at ``at``; returns where the next one begins."""
        if self.closed:  # by a callback, earlier in this view
            return size
        kind, length = head & 0xFF, head >> 8
        want = self._admit(kind, flags, stream_id, length)
        body = at + HEADER_BYTES
        end = body + want
        if end > size:
            self._partial += view[at:]
            self._need = HEADER_BYTES + want
            self._unfinished = True
            return size
        self._act(kind, flags, stream_id, length, view[body:end])
        return self._rest(view, end, size)

    def _rest(self, view: memoryview, at: int, size: int) -> int:
        """What follows the part of a frame that was acted on."""
        if self._left or self._skip or self._ending:
            at = self._payload(view, at, size)
            if self._left or self._skip:
                self._unfinished = True
        return at

    def _payload(self, view: memoryview, at: int, size: int) -> int:
        """Passes on and skips payload of the frame under way; returns where it stopped."""
        left = self._left
        if left:
            here = size - at
            if here < left:
                self._left = left - here
                end = size
            else:
                self._left = 0
                end = at + left
            if end > at:
                stream = self._current
                if stream is not None and not stream.closed:
                    stream.receiver.data(view[at:end])
            at = end
            if self._left:
                return at
        if self._skip:
            count = min(self._skip, size - at)
            self._skip -= count
            at += count
            if self._skip:
                return at
        stream, self._current = self._current, None
        if self._ending:
            self._ending = False
            if stream is not None and not stream.closed:
                self._ended(stream)
        return at

    def _admit(self, kind: int, flags: int, stream_id: int, length: int) -> int:
        """Looks at a frame header alone; returns how much payload it takes to act on the frame.

        What is refused here is refused before anything of it is stored.
        """
        if length > self._max_frame:
            fail(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block_id):
            fail(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        if not self.greeted and (kind != frames.SETTINGS or flags & frames.ACK):
            fail(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == frames.DATA:
            if not flags & frames.PADDED:
                return 0
            if not length:
                fail(ErrorCode.FRAME_SIZE_ERROR, "padded DATA without a pad length")
            return 1
        if kind == frames.HEADERS or kind == frames.CONTINUATION:
            if length > self._max_block + _HEADERS_EXTRA:
                fail(ErrorCode.ENHANCE_YOUR_CALM, f"a header block of {length} bytes")
            return length
        exact = _EXACT.get(kind)
        if exact is not None:
            if length != exact:
                fail(ErrorCode.FRAME_SIZE_ERROR, f"{frames.NAMES[kind]} of {length} bytes")
            return length
        if kind == frames.SETTINGS:
            if length % 6 or (length and flags & frames.ACK):
                fail(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {length} bytes")
            if length > MAX_SETTINGS_BYTES:
                fail(ErrorCode.ENHANCE_YOUR_CALM, f"SETTINGS of {length} bytes")
            return length
        if kind == frames.GOAWAY:
            if length < 8:
                fail(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {length} bytes")
            return 8  # the debug data is skipped
        if kind == frames.PUSH_PROMISE:
            fail(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which is switched off")
        return 0  # unknown types are skipped
