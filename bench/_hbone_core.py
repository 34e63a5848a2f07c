"""Microseconds of Python the HTTP/2 core costs: a DATA frame in, a DATA frame out, a tunnel.

``python bench/_hbone_core.py`` prints one line a figure: CPU time, the best of several rounds: what
the code costs when nothing else runs. No sockets, no TLS.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import hpack

from nodenet.hbone import frames, hpack_codec
from nodenet.hbone.connection import Connection
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.hpack_decoder import Decoder
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream

ROUNDS = 15
BAGGAGE = (
    b"k8s.cluster.name=Kubernetes,k8s.namespace.name=default,"
    b"k8s.deployment.name=productpage-v1,service.name=productpage,service.version=v1,"
    b"cloud.region=eu-west-1,cloud.availability_zone=eu-west-1a"
)
FORWARDED = b'for="10.244.2.31:%d";host=reviews.default.svc.cluster.local'
TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-%016x-00"


class Sink:
    """Takes tunnels and their bytes, as a proxy would whose receiver is never slow."""

    def __init__(self) -> None:
        self.connection: Connection
        self.stream: Stream
        self.bytes = 0

    def on_request(self, stream: Stream, request: Request) -> None:
        stream.receiver = self
        self.stream = stream
        self.connection.respond(stream, 200)

    def on_response(self, stream: Stream, response: Response) -> None:
        pass

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        pass

    def on_writable(self) -> None:
        pass

    def on_pong(self, opaque: bytes) -> None:
        pass

    def data(self, payload: memoryview) -> None:
        self.connection.consumed(self.stream, len(payload))

    def ended(self) -> None:
        self.connection.end(self.stream)

    def reset(self, code: int) -> None:
        pass

    def writable(self) -> None:
        pass


class Idle(Sink):
    """Takes bytes and does nothing at all: what is left is the core's own time."""

    def data(self, payload: memoryview) -> None:
        pass


def server(sink: Sink) -> Connection:
    """A server whose client has opened tunnel 1."""
    connection = sink.connection = Connection(Role.SERVER, LocalSettings(), sink)
    settings = [(0x4, 1 << 30), (0x5, 1 << 20)]
    connection.receive(memoryview(frames.PREFACE + frames.settings(settings)))
    connection.receive(memoryview(frames.window_update(0, 1 << 30)))
    block = hpack_codec.connect(b"10.0.0.1:80")
    connection.receive(memoryview(frames.header(1, 4, 1, len(block)) + block))
    return connection


def best(count: int, prepare: Callable[[], Callable[[], None]]) -> float:
    """Microseconds for each of the ``count`` things that one call does."""
    times = []
    for _ in range(ROUNDS):
        run = prepare()
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return min(times) / count * 1e6


def received(sink: type[Sink], size: int, count: int, view_bytes: int) -> float:
    """DATA frames of one size arriving in views of one size; time for a frame."""

    def prepare() -> Callable[[], None]:
        one = frames.header(0, 0, 1, size) + bytes(size)
        repeat = max(1, view_bytes // len(one))
        view = memoryview(one * repeat)
        whole = sink()
        connection = server(whole)

        def run() -> None:
            for _ in range(count // repeat):
                connection.receive(view)
                if isinstance(whole, Idle):
                    connection.consumed(whole.stream, size * repeat)
                connection.outbox.clear()

        return run

    return best(count, prepare)


def pieces(count: int) -> float:
    """One frame of 1 MiB arriving in views of 16 KiB; time for a view."""

    def prepare() -> Callable[[], None]:
        sink = Sink()
        connection = server(sink)
        part = memoryview(bytes(16384))
        head = memoryview(frames.header(0, 0, 1, 1 << 20))

        def run() -> None:
            for _ in range(count // 64):
                connection.receive(head)
                for _ in range(64):
                    connection.receive(part)
                connection.outbox.clear()

        return run

    return best(count, prepare)


def sent(count: int, into: bool) -> float:
    """Headers of DATA frames, with the question how much may be sent before each."""

    def prepare() -> Callable[[], None]:
        sink = Sink()
        connection = server(sink)
        stream = sink.stream
        buffer = bytearray(64)

        def run_into() -> None:
            sendable, write = connection.sendable, connection.write_data_header_into
            for _ in range(count):
                if sendable(stream) >= 1000:
                    write(buffer, 0, stream, 1000)

        def run() -> None:
            sendable, header = connection.sendable, connection.data_header
            for _ in range(count):
                if sendable(stream) >= 1000:
                    header(stream, 1000)

        return run_into if into else run

    return best(count, prepare)


def fields_of(number: int) -> list[tuple[bytes, bytes]]:
    """The header list of one tunnel."""
    return [
        (b":method", b"CONNECT"),
        (b":authority", b"10.244.1.17:8080"),
        (b"baggage", BAGGAGE),
        (b"forwarded", FORWARDED % (number % 60000)),
        (b"traceparent", TRACEPARENT % number),
    ]


def our_block(number: int) -> bytes:
    """Encoded by this core, the baggage once for all."""
    return hpack_codec.connect(
        b"10.244.1.17:8080",
        _BAGGAGE_FIELD
        + hpack_codec.field(b"forwarded", FORWARDED % (number % 60000))
        + hpack_codec.field(b"traceparent", TRACEPARENT % number),
    )


_BAGGAGE_FIELD = hpack_codec.field(b"baggage", BAGGAGE)


def encoded(count: int, ours: bool) -> float:
    def prepare() -> Callable[[], None]:
        encoder = hpack.Encoder()

        def run() -> None:
            for number in range(count):
                if ours:
                    our_block(number)
                else:
                    encoder.encode(fields_of(number))

        return run

    return best(count, prepare)


def decoded(count: int, kind: str) -> float:
    def prepare() -> Callable[[], None]:
        encoder = hpack.Encoder()
        if kind == "ours":
            blocks = [our_block(number) for number in range(count)]
        else:
            blocks = [encoder.encode(fields_of(number)) for number in range(count)]
        decoder = Decoder(65536)
        library = hpack.Decoder()

        def run() -> None:
            for block in blocks:
                decoder.decode(block)

        def run_library() -> None:
            for block in blocks:
                library.decode(block, raw=True)

        return run_library if kind == "library" else run

    return best(count, prepare)


def served(count: int, theirs: bool) -> float:
    """Whole tunnels on the server: CONNECT, 200, 100 bytes each way, both ends."""

    def prepare() -> Callable[[], None]:
        sink = Sink()
        connection = server(sink)
        encoder = hpack.Encoder()
        views = []
        for number in range(count):
            stream_id = number * 2 + 3
            block = encoder.encode(fields_of(number)) if theirs else our_block(number)
            views.append(
                memoryview(
                    frames.header(1, 4, stream_id, len(block))
                    + block
                    + frames.header(0, 0, stream_id, 100)
                    + bytes(100)
                    + frames.header(0, 1, stream_id, 0)
                )
            )

        def run() -> None:
            for view in views:
                connection.receive(view)
                connection.outbox.clear()

        return run

    return best(count, prepare)


def opened(count: int) -> float:
    """Whole tunnels on the client, the server's bytes prepared."""

    def prepare() -> Callable[[], None]:
        sink = Sink()
        connection = sink.connection = Connection(Role.CLIENT, LocalSettings(), sink)
        connection.receive(memoryview(frames.settings([(0x3, 1000), (0x4, 1 << 20)])))
        connection.receive(memoryview(frames.window_update(0, 1 << 30)))
        blocks = [our_block(number) for number in range(count)]
        answer = hpack_codec.status(200)
        views = []
        for number in range(count):
            stream_id = number * 2 + 1
            views.append(
                memoryview(
                    frames.header(1, 4, stream_id, len(answer))
                    + answer
                    + frames.header(0, 0, stream_id, 100)
                    + bytes(100)
                    + frames.header(0, 1, stream_id, 0)
                )
            )

        def run() -> None:
            for block, view in zip(blocks, views, strict=True):
                stream = connection.open(hpack_codec.HeaderBlock(block))
                stream.receiver = sink
                sink.stream = stream
                connection.data_header(stream, 100)
                connection.receive(view)
                connection.outbox.clear()

        return run

    return best(count, prepare)


def main() -> None:
    """Prints every figure."""
    figures = {
        "DATA in, 1 KiB frames, 256 KiB views, core alone": received(Idle, 1024, 20480, 262144),
        "DATA in, 1 KiB frames, with consumed()": received(Sink, 1024, 20480, 262144),
        "DATA in, 16 KiB frames, with consumed()": received(Sink, 16384, 20480, 262144),
        "DATA in, 64 B frame a view, with consumed()": received(Sink, 64, 20480, 1),
        "DATA in, 1 MiB frames, 16 KiB views, a view": pieces(20480),
        "DATA out, sendable() and data_header()": sent(20000, False),
        "DATA out, sendable() and header into a buffer": sent(20000, True),
        "encode CONNECT with four fields": encoded(2000, True),
        "encode CONNECT with four fields, hpack": encoded(500, False),
        "decode our CONNECT": decoded(2000, "ours"),
        "decode an indexed, Huffman-coded CONNECT": decoded(500, "theirs"),
        "decode an indexed, Huffman-coded CONNECT, hpack": decoded(500, "library"),
        "tunnel on the server, our client": served(2000, False),
        "tunnel on the server, Huffman client": served(500, True),
        "tunnel on the client": opened(2000),
    }
    for name, microseconds in figures.items():
        print(f"{microseconds:8.2f} us  {name}")


if __name__ == "__main__":
    main()
