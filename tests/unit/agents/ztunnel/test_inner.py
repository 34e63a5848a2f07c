"""Tunnels within tunnels: how the outer one ends, and whom the inner one leads to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.agents.ztunnel.inner import InnerClient
from nodenet.agents.ztunnel.transport import Transport
from nodenet.errors import NodenetError
from nodenet.hbone import hpack_codec
from nodenet.hbone.connection import Connection
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream
from nodenet.identity.errors import CertificateRevoked
from tests.unit.agents.ztunnel.hbone_scene import SERVER, Opener, Scene, ServerSide, Silent

Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def scene(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(loop, tmp_path)
    made.answers = False
    yield made
    made.close()


class FarProxy:
    """The end of an inner connection: TLS and HTTP/2 in the stream of a gateway."""

    def __init__(self, scene: Scene, gateway: ServerSide, outer: Stream) -> None:
        self._gateway, self._outer = gateway, outer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = scene.server_context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.core = Connection(Role.SERVER, LocalSettings(), self)
        self._secured = False
        self.streams: list[Stream] = []
        self.outer_ended = False
        outer.receiver = self
        gateway.core.respond(outer, 200)
        gateway.flush()

    def data(self, payload: memoryview) -> None:
        self._incoming.write(payload)
        self._gateway.core.consumed(self._outer, len(payload))
        try:
            if not self._secured:
                self._tls.do_handshake()
                self._secured = True
            while piece := self._tls.read(1 << 16):
                self.core.receive(memoryview(piece))
        except ssl.SSLError:  # more is needed, or it is over
            pass
        self.flush()

    def flush(self) -> None:
        if self._secured and self.core.outbox:
            self._tls.write(bytes(self.core.outbox))
            self.core.outbox.clear()
        if data := self._outgoing.read():
            if not self._outer.closed:
                header = self._gateway.core.data_header(self._outer, len(data))
                self._gateway.core.outbox += header + data
                self._gateway.flush()

    def ended(self) -> None:
        self.outer_ended = True

    def reset(self, code: int) -> None: ...
    def writable(self) -> None: ...

    def on_request(self, stream: Stream, request: Request) -> None:
        self.streams.append(stream)
        stream.receiver = Silent()
        self.core.respond(stream, 200)

    def on_response(self, stream: Stream, response: Response) -> None: ...
    def on_goaway(self, last_stream_id: int, code: int) -> None: ...
    def on_writable(self) -> None: ...
    def on_pong(self, opaque: bytes) -> None: ...


class DoubleOpener(Opener):
    """Opens an inner connection in its tunnel, and joins its application to that."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.inner: InnerClient | None = None
        self.live: set[Transport] = set()
        self.refuses: NodenetError | None = None
        self.failed: NodenetError | None = None

    def _check(self, _tls: ssl.SSLObject) -> None:
        if self.refuses is not None:
            raise self.refuses

    def answered(self, response: Response) -> None:
        assert self.connection is not None and self.stream is not None
        assert self.connection.transport is not None
        block = hpack_codec.connect(b"far.svc:80")
        self.inner = InnerClient(self, (SERVER,), block, check=self._check, live=self.live)
        self.inner.start(
            self.scene.wires,
            self.connection.transport,
            self.stream,
            self.scene.client_context,
            self.connection.ended,
        )

    def inner_answered(self, response: Response) -> None:
        assert self.inner is not None and self.inner.wire is not None
        assert self.inner.stream is not None
        self.after = self.inner.close
        self.join(self.scene.wires, self.inner.wire, self.inner.stream)

    def inner_failed(self, error: NodenetError) -> None:
        self.failed = error


def opened(scene: Scene, until: Until, opener: DoubleOpener) -> FarProxy:
    scene.openers.append(opener)
    scene.pool.checkout(scene.key(), opener)
    until(lambda: scene.servers and scene.servers[0].streams)
    return FarProxy(scene, scene.servers[0], scene.servers[0].streams[0])


def test_the_outer_connection_is_idle_when_the_gateway_has_ended_the_tunnel(
    scene: Scene, until: Until
) -> None:
    opener = DoubleOpener(scene)
    far = opened(scene, until, opener)
    until(lambda: opener.tunnel is not None)
    assert len(opener.live) == 1
    opener.app.close()
    far.core.end(far.streams[0])
    far.flush()
    until(lambda: opener.over and far.outer_ended)
    assert opener.error is None
    assert not opener.live
    assert not scene.timers.idle
    gateway, outer = scene.servers[0], scene.servers[0].streams[0]
    gateway.core.end(outer)
    gateway.flush()
    until(lambda: len(scene.timers.idle))
    assert not scene.wires.drains
    left: list[bool] = []
    scene.pool.leave(lambda: left.append(True))
    until(lambda: left)


def test_a_far_proxy_that_must_not_be_talked_to(scene: Scene, until: Until) -> None:
    opener = DoubleOpener(scene)
    opener.refuses = CertificateRevoked(1)
    opened(scene, until, opener)
    until(lambda: opener.failed is not None)
    assert opener.failed is opener.refuses
    assert not opener.live
