"""One HTTP/2 connection of the h2 package, in either role, and what a server of it does."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from tests.root.agents.ztunnel.proxied import DEADLINE

Headers = list[tuple[str, str]]


@dataclass
class Heard:
    """What came on one stream."""

    headers: Headers = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    ended: bool = False
    reset: int | None = None

    def get(self, name: str) -> str | None:
        """The first value of a field."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def status(self) -> int | None:
        """Of the response, when there is one."""
        text = self.get(":status")
        return None if text is None else int(text)


class Behaviour:
    """What a server does: takes every tunnel and sends everything back."""

    def request(self, peer: H2Peer, stream: int) -> None:
        """The header block of a stream is there."""
        peer.h2.send_headers(stream, [(":status", "200")])

    def data(self, peer: H2Peer, stream: int, payload: bytes) -> None:
        """Bytes have come."""
        peer.send_later(stream, payload)

    def ended(self, peer: H2Peer, stream: int) -> None:
        """The client sends nothing more."""
        peer.end_later(stream)


class H2Peer:
    """One connection in either role. A client is driven by `until`, a server by its thread."""

    def __init__(
        self,
        sock: ssl.SSLSocket,
        *,
        client: bool,
        behaviour: Behaviour | None = None,
        settings: dict[h2.settings.SettingCodes, int] | None = None,
    ) -> None:
        self.sock = sock
        self.behaviour = behaviour
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=client,
                header_encoding="utf-8",
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        if settings:
            codes = h2.settings.SettingCodes
            self.h2.local_settings = h2.settings.Settings(client=client, initial_values=settings)
            self.h2.max_inbound_frame_size = settings.get(codes.MAX_FRAME_SIZE, 16384)
        self.streams: dict[int, Heard] = defaultdict(Heard)
        self.goaway: h2.events.ConnectionTerminated | None = None
        self.lost = False
        self.holds = False
        """Received bytes are not acknowledged: windows close."""
        self.silent = False
        """Reads nothing and answers nothing."""
        self.keeps = True
        """Received bytes are kept, and not only counted."""
        self._later: dict[int, bytearray] = defaultdict(bytearray)
        self._ending: set[int] = set()
        self._orders: deque[Callable[[], object]] = deque()
        self._wake, self._woken = socket.socketpair()
        sock.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self.h2.initiate_connection()

    def close(self) -> None:
        """Closes the socket, without a word to the peer."""
        self._selector.close()
        self.sock.close()
        self._wake.close()
        self._woken.close()

    def order(self, call: Callable[[], object]) -> None:
        """Has something done by the thread that drives this."""
        self._orders.append(call)
        self._wake.send(b"x")

    def connect(self, authority: str, *more: tuple[str, str], method: str = "CONNECT") -> int:
        """Sends a CONNECT; the new stream."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [(":method", method), (":authority", authority), *more])
        return stream

    def send_later(self, stream: int, payload: bytes) -> None:
        """Sends as soon as the windows allow it."""
        self._later[stream] += payload
        self._pour()

    def end_later(self, stream: int) -> None:
        """Ends our side after everything that is to be sent."""
        self._ending.add(stream)
        self._pour()

    def until(self, condition: Callable[[], object], seconds: float = DEADLINE) -> None:
        """Goes on until a condition holds; AssertionError when it does not in time."""
        end = time.monotonic() + seconds
        self.flush()
        while not condition():
            left = end - time.monotonic()
            assert left > 0, f"it did not come to pass: {dict(self.streams)}, lost={self.lost}"
            assert not self.lost, f"the connection was lost: {dict(self.streams)}, {self.goaway}"
            self.turn(min(left, 0.2))

    def answer(self, stream: int, seconds: float = DEADLINE) -> int | None:
        """The status of a stream; None when it was reset instead."""
        heard = self.streams[stream]
        self.until(lambda: heard.headers or heard.reset is not None, seconds)
        return heard.status

    def end(self, seconds: float = DEADLINE) -> None:
        """Goes on until the peer has closed the connection."""
        limit = time.monotonic() + seconds
        while not self.lost:
            assert time.monotonic() < limit, "the peer has not closed the connection"
            self.turn(0.1)

    def turn(self, seconds: float) -> None:
        """Reads and writes what can be now; waits for something to read."""
        if not self.sock.pending():
            self._selector.select(seconds)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096, socket.MSG_DONTWAIT)
        while self._orders:
            self._orders.popleft()()
        if self.silent:
            return
        try:
            data = self.sock.recv(1 << 16)
        except (ssl.SSLWantReadError, BlockingIOError):
            data = None
        except (OSError, ssl.SSLError):
            self.lost = True
            return
        if data == b"":
            self.lost = True
            return
        if data:
            try:
                for event in self.h2.receive_data(data):
                    self._take(event)
            except h2.exceptions.ProtocolError:
                self.lost = True
                raise
        self._pour()
        self.flush()

    def flush(self) -> None:
        """Writes what is to be written."""
        self.raw(self.h2.data_to_send())

    def raw(self, data: bytes) -> None:
        """Writes bytes as they are."""
        view = memoryview(data)
        end = time.monotonic() + DEADLINE
        while view and not self.lost:
            try:
                view = view[self.sock.send(view) :]
            except (ssl.SSLWantWriteError, BlockingIOError):
                assert time.monotonic() < end, "the peer takes nothing"
                time.sleep(0.001)
            except OSError:
                self.lost = True

    def _pour(self) -> None:
        for stream, waiting in list(self._later.items()):
            try:
                while waiting:
                    room = min(
                        self.h2.local_flow_control_window(stream),
                        self.h2.max_outbound_frame_size,
                        len(waiting),
                    )
                    if room <= 0:
                        break
                    self.h2.send_data(stream, bytes(waiting[:room]))
                    del waiting[:room]
                if not waiting:
                    del self._later[stream]
            except h2.exceptions.ProtocolError:  # the stream is over
                del self._later[stream]
        for stream in list(self._ending):
            if stream not in self._later:
                self._ending.discard(stream)
                with contextlib.suppress(h2.exceptions.ProtocolError):
                    self.h2.end_stream(stream)

    def _take(self, event: h2.events.Event) -> None:
        behaviour = self.behaviour
        if isinstance(event, (h2.events.RequestReceived, h2.events.ResponseReceived)):
            assert event.stream_id is not None and event.headers is not None
            self.streams[event.stream_id].headers = [(str(k), str(v)) for k, v in event.headers]
            if behaviour is not None:
                behaviour.request(self, event.stream_id)
        elif isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None and event.data is not None
            heard = self.streams[event.stream_id]
            heard.size += len(event.data)
            if self.keeps:
                heard.data += event.data
            if not self.holds and event.flow_controlled_length:
                with contextlib.suppress(h2.exceptions.ProtocolError):
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if behaviour is not None:
                behaviour.data(self, event.stream_id, event.data)
        elif isinstance(event, h2.events.StreamEnded):
            assert event.stream_id is not None
            self.streams[event.stream_id].ended = True
            if behaviour is not None:
                behaviour.ended(self, event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            assert event.stream_id is not None and event.error_code is not None
            self.streams[event.stream_id].reset = int(event.error_code)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = event
