"""Strangers at the inbound port: what they get, what the log says, and that nobody else notices."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator

import hpack
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.hostile import MEMORY_KIB, STRANGER4, Steady, Strange
from tests.root.agents.ztunnel.meshed import B4
from tests.root.agents.ztunnel.peers import ID_A, dial, read, tls
from tests.root.agents.ztunnel.proxied import DEADLINE, ends_in_reset
from tests.root.world import loaded_capture, random_instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strange]:
    """One world for all of them: what one test does must not matter to the next."""
    directory = tmp_path_factory.mktemp("strange")
    with loaded_capture(random_instance()) as capture, Topology() as topology:
        made = Strange(capture, topology, directory)
        made.mesh.start("--stats=127.0.0.1:0", "--connect-timeout=1")
        try:
            yield made
        finally:
            made.mesh.stop()


@pytest.fixture(autouse=True)
def unharmed(strange: Strange) -> Iterator[Steady]:
    """A connection between the pods goes on all the time; the proxies do not grow."""
    proxy = strange.mesh.proxies["n2"]
    with Steady(strange.mesh) as steady:
        memory, fds = proxy.rss_kib(), proxy.fds()
        yield steady
        assert proxy.rss_kib() - memory < MEMORY_KIB
        strange.wait(lambda: proxy.fds() <= fds + 1)


class Log:
    """What n2 says from now on."""

    def __init__(self, strange: Strange) -> None:
        self._strange = strange
        self._proxy = strange.mesh.proxies["n2"]
        self._start = len(self._proxy.text())

    def line(self, pattern: str) -> str:
        """The first line about the stranger with a pattern; waits for it."""
        found: list[str] = []

        def there() -> bool:
            text = self._proxy.text()[self._start :]
            of_the_stranger = [x for x in text.splitlines() if f"src.addr={STRANGER4}:" in x]
            found[:] = [x for x in of_the_stranger if re.search(pattern, x)]
            return bool(found)

        self._strange.wait(there)
        return found[0]


@pytest.fixture
def log(strange: Strange, unharmed: Steady) -> Log:
    """What n2 says in this test."""
    return Log(strange)


def failed(strange: Strange, flag: str) -> float:
    """Connections that n2 counted as failed with a flag."""
    return strange.metric(
        "n2", "istio_tcp_connections_failed", response_flags=flag, reporter="destination"
    )


def test_a_foreign_client_reaches_an_application(strange: Strange, log: Log) -> None:
    with strange.client() as peer, strange.mesh.listen(strange.mesh.b) as listener:
        stream = peer.connect(f"{B4}:{listener.getsockname()[1]}")
        assert peer.answer(stream) == 200
        baggage = peer.streams[stream].get("baggage")
        assert baggage is not None and "k8s.namespace.name=test" in baggage
        server, address = listener.accept()
        with server:
            assert address[0] == f"::ffff:{STRANGER4}"
            peer.send_later(stream, b"question")
            peer.flush()
            assert server.recv(100) == b"question"
            server.sendall(b"answer")
            server.shutdown(socket.SHUT_WR)
            peer.until(lambda: peer.streams[stream].ended)
            assert peer.streams[stream].data == b"answer"
            peer.end_later(stream)
            peer.flush()
            assert server.recv(100) == b""
    log.line("connection complete.*bytes_sent=6 bytes_recv=8")


# -- the handshake ---------------------------------------------------------------------------------


def _nobody(strange: Strange) -> ssl.SSLContext:
    return tls(strange.ca, None, server=False)


def _foreign(strange: Strange) -> ssl.SSLContext:
    return tls(strange.ca.parent / "other-ca", ID_A, server=False)


def _expired(strange: Strange) -> ssl.SSLContext:
    return tls(strange.ca, ID_A, server=False, age=60.0, seconds=30.0)


def _elsewhere(strange: Strange) -> ssl.SSLContext:
    return tls(strange.ca, "spiffe://other.example/ns/test/sa/a", server=False)


def _http1(strange: Strange) -> ssl.SSLContext:
    return tls(strange.ca, ID_A, server=False, alpn="http/1.1")


def _no_alpn(strange: Strange) -> ssl.SSLContext:
    return tls(strange.ca, ID_A, server=False, alpn=None)


def _old_tls(strange: Strange) -> ssl.SSLContext:
    context = tls(strange.ca, ID_A, server=False)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (_nobody, "tls error: .*certificate"),
        (_foreign, "tls error: peer certificate: "),
        (_expired, "tls error: peer certificate: certificate has expired"),
        (_elsewhere, "tls error: peer spiffe://other.example/\\S+ is not of the trust domain"),
        (_http1, "tls error: no application protocol in common"),
        (_no_alpn, "tls error: no application protocol in common: none"),
        (_old_tls, "tls error: unsupported protocol"),
    ],
)
def test_who_is_nobody_is_refused(
    strange: Strange, log: Log, context: Callable[[Strange], ssl.SSLContext], said: str
) -> None:
    before = strange.metric("n2", "nodenet_handshakes_failed", direction="inbound")
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        with dial(strange.stranger, B4, context(strange)) as sock:
            sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            while sock.recv(100):
                pass
            raise ConnectionResetError
    line = log.line(f'connection failed\t.*error="{said}')
    assert "\twarn\t" in line
    assert f'dst.addr={B4}:15008 direction="inbound"' in line
    after = strange.metric("n2", "nodenet_handshakes_failed", direction="inbound")
    assert after == before + 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nhost: b\r\n\r\n", "not TLS", id="http1"),
        pytest.param(b"\0" * 4096, "tls error", id="zeros"),
        pytest.param(b"\x16\x03\x01\xff\xff" + b"\1" * 65535, "tls error", id="large-record"),
        pytest.param(b"", "the peer closed the connection during the handshake", id="nothing"),
    ],
)
def test_what_is_no_tls_is_refused(strange: Strange, log: Log, data: bytes, said: str) -> None:
    with strange.raw() as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(100):
                pass
    assert "connection failed" in log.line(f'error=".*{said}')


def test_a_handshake_that_takes_its_time_is_cut(strange: Strange, unharmed: Steady) -> None:
    """One says nothing, one a byte a second, one all but the last bytes; all at once."""
    hello = _client_hello(strange)
    lines = Log(strange)
    began, sent = time.monotonic(), 0
    with strange.raw() as silent, strange.raw() as slow, strange.raw() as almost:
        almost.sendall(hello)
        slow.settimeout(0.5)
        while True:
            assert time.monotonic() - began < 60
            try:
                slow.sendall(hello[sent : sent + 1])
                sent += 1
                if not slow.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert 9 < time.monotonic() - began < 25
        for sock in (silent, almost):
            with contextlib.suppress(ConnectionError):
                while sock.recv(65536):
                    pass
        unharmed.goes_on()
    assert "connection failed" in lines.line("no end of the handshake within 10 s")


def _client_hello(strange: Strange) -> bytes:
    outgoing = ssl.MemoryBIO()
    hidden = _foreign(strange).wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        hidden.do_handshake()
    return outgoing.read()


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "authority", "status", "said"),
    [
        ("GET", f"{B4}:80", 400, "expected method CONNECT, got GET"),
        ("CONNECT", "10.99.0.1:80", 400, "ip mismatch: 10.99.0.2 != 10.99.0.1"),
        ("CONNECT", "169.254.169.254:80", 400, "ip mismatch: 10.99.0.2 != 169.254.169.254"),
        ("CONNECT", "b", 400, "no valid authority pseudo header: b"),
        ("CONNECT", ":80", 400, "no valid authority pseudo header: :80"),
        ("CONNECT", f"{B4}:99999", 400, "no valid authority pseudo header"),
        ("CONNECT", "[::1]]:80", 400, "no valid authority pseudo header"),
        ("CONNECT", "a" * 250 + ":80", 503, "no service or workload for hostname: a+"),
        ("CONNECT", "a" * 4000 + ":80", 400, "no valid authority pseudo header: a+"),
        ("CONNECT", "nobody.test:80", 503, "no service or workload for hostname: nobody.test"),
        ("CONNECT", "b.test.svc:81", 503, "requested service b.test.svc:81 found, but cannot"),
        ("CONNECT", f"{B4}:15008", 503, "attempted recursive call to ourselves"),
        ("CONNECT", f"{B4}:15001", 503, "attempted recursive call to ourselves"),
    ],
)
def test_what_cannot_be_asked_for(
    strange: Strange, log: Log, method: str, authority: str, status: int, said: str
) -> None:
    opened = strange.metric("n2", "istio_tcp_connections_opened")
    with strange.client() as peer:
        more = [(":scheme", "https"), (":path", "/")] if method == "GET" else []
        stream = peer.h2.get_next_available_stream_id()
        peer.h2.send_headers(stream, [(":method", method), (":authority", authority), *more])
        assert peer.answer(stream) == status
        peer.until(lambda: peer.streams[stream].ended)
        assert peer.streams[stream].headers == [(":status", str(status))]
        # the connection is as good as before
        again = peer.connect("nobody.test:80")
        assert peer.answer(again) == 503
    line = log.line(f'connection failed.*error="{said}')
    assert "\twarn\t" in line
    assert strange.metric("n2", "istio_tcp_connections_opened") == opened


def test_an_application_that_refuses(strange: Strange, log: Log) -> None:
    before = failed(strange, "CONNECT")
    with strange.client() as peer:
        assert peer.answer(peer.connect(f"{B4}:9")) == 503
    line = log.line('connection complete.*error="connection failed: Connection refused"')
    assert "\terror\t" in line
    assert failed(strange, "CONNECT") == before + 1


def test_an_application_that_is_silent(strange: Strange, log: Log) -> None:
    before = failed(strange, "CONNECT")
    with strange.mesh.b.entered():
        full = socket.create_server((B4, 0), backlog=0)
    with full, contextlib.ExitStack() as stack:
        # a queue that is full answers no SYN
        for _ in range(3):
            with strange.mesh.b.entered():
                sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, 36, 0x539)  # SO_MARK: not captured
            sock.connect_ex(full.getsockname())
        assert select.select([full], [], [], DEADLINE)[0]
        with strange.client() as peer:
            stream = peer.connect(f"{B4}:{full.getsockname()[1]}")
            assert peer.answer(stream) == 503
    log.line('connection complete.*error="connection failed: Connection timed out"')
    assert failed(strange, "CONNECT") == before + 1


def test_an_application_that_resets(strange: Strange, log: Log) -> None:
    before = failed(strange, "CONNECT")
    with strange.client() as peer, strange.mesh.listen(strange.mesh.b) as listener:
        stream = peer.connect(f"{B4}:{listener.getsockname()[1]}")
        assert peer.answer(stream) == 200
        server, _ = listener.accept()
        peer.send_later(stream, b"x" * 1000)
        peer.flush()
        server.recv(1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
        peer.until(lambda: peer.streams[stream].reset is not None)
        assert peer.streams[stream].reset == ErrorCodes.CANCEL
        assert peer.answer(peer.connect("nobody.test:80")) == 503
    log.line('connection complete.*error="io error: Connection reset by peer"')
    assert failed(strange, "CONNECT") == before + 1


def test_bytes_before_the_answer(strange: Strange, log: Log) -> None:
    """They are the application's, or they are nobody's and the connection goes on."""
    with strange.client() as peer, strange.mesh.listen(strange.mesh.b) as listener:
        good = peer.connect(f"{B4}:{listener.getsockname()[1]}")
        peer.send_later(good, b"early" * 1000)
        peer.end_later(good)
        refused = [peer.connect(f"{B4}:9") for _ in range(50)]
        for stream in refused:
            peer.send_later(stream, bytes(60_000))
        assert peer.answer(good) == 200
        server, _ = listener.accept()
        with server:
            assert read(server, 5000) == b"early" * 1000
            assert server.recv(1) == b""
        for stream in refused:
            assert peer.answer(stream) == 503
        peer.until(lambda: all(peer.streams[stream].ended for stream in refused))
        assert peer.goaway is None


def test_one_stream_too_many(strange: Strange) -> None:
    """200 are announced; one more is refused as if it had never been looked at."""
    with strange.client() as peer, strange.mesh.listen(strange.mesh.b) as listener:
        address = f"{B4}:{listener.getsockname()[1]}"
        peer.until(lambda: peer.h2.remote_settings.max_concurrent_streams == 200)
        streams = [peer.connect(address) for _ in range(200)]
        for stream in streams:
            assert peer.answer(stream) == 200
        # the h2 package would not send it
        peer.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
        peer.h2.remote_settings.acknowledge()
        one_more = peer.connect(address)
        assert peer.answer(one_more) is None
        assert peer.streams[one_more].reset == ErrorCodes.REFUSED_STREAM
        assert peer.goaway is None


def _request(stream: int, authority: str) -> bytes:
    block = hpack.Encoder().encode(
        [(":method", "CONNECT", True), (":authority", authority, True)], huffman=False
    )
    frame = HeadersFrame(stream, block)
    frame.flags |= {"END_HEADERS"}
    return frame.serialize()


# -- floods and faults of HTTP/2 -------------------------------------------------------------------


def _http1_inside() -> Iterator[bytes]:
    yield b"GET / HTTP/1.1\r\nhost: b\r\n\r\n"


def _even_id() -> Iterator[bytes]:
    yield _request(2, f"{B4}:9")


def _id_going_back() -> Iterator[bytes]:
    yield _request(101, f"{B4}:9")
    yield _request(7, f"{B4}:9")


def _data_on_an_idle_stream() -> Iterator[bytes]:
    yield DataFrame(77, b"x").serialize()


def _data_on_stream_0() -> Iterator[bytes]:
    frame = DataFrame(1, b"x").serialize()
    yield frame[:5] + b"\0\0\0\0" + frame[9:]


def _window_of_nothing() -> Iterator[bytes]:
    yield b"\0\0\4\x08\0\0\0\0\0\0\0\0\0"


def _window_too_large() -> Iterator[bytes]:
    for _ in range(3):
        yield WindowUpdateFrame(0, 0x7FFFFFFF).serialize()


def _frame_too_large() -> Iterator[bytes]:
    yield (2 << 20).to_bytes(3, "big") + b"\0\0\0\0\0\1"
    yield bytes(1 << 16)


def _beyond_all_windows() -> Iterator[bytes]:
    """Of streams that do not exist any more, so that no stream's window is in the way."""
    yield _request(1, "nobody.test:80")
    frame = DataFrame(1, bytes(16000)).serialize()
    for _ in range(2000):
        yield frame


def _headers_without_end() -> Iterator[bytes]:
    frame = HeadersFrame(1, b"\x82" * 1000)
    yield frame.serialize()
    for _ in range(10_000):
        yield ContinuationFrame(1, b"\x82" * 1000).serialize()


def _empty_continuations() -> Iterator[bytes]:
    yield HeadersFrame(1, b"").serialize()
    for _ in range(10_000):
        yield ContinuationFrame(1, b"").serialize()


def _header_bombs() -> Iterator[bytes]:
    """A few bytes on the wire that are megabytes when decoded, again and again."""
    encoder = hpack.Encoder()
    large = encoder.encode([("x", "y" * 4000)])
    for stream in range(1, 4001, 2):
        block = large + b"\xbe" * 15_000
        frame = HeadersFrame(stream, block[:16_000])
        frame.flags |= {"END_HEADERS"}
        yield frame.serialize()


def _not_hpack() -> Iterator[bytes]:
    frame = HeadersFrame(1, b"\xff" * 100)
    frame.flags |= {"END_HEADERS"}
    yield frame.serialize()


def _rapid_reset() -> Iterator[bytes]:
    """10,000 requests, each withdrawn at once."""
    for stream in range(1, 20_001, 2):
        yield _request(stream, f"{B4}:9") + RstStreamFrame(stream, 8).serialize()


def _resets_of_nothing() -> Iterator[bytes]:
    yield _request(1, f"{B4}:9")
    for _ in range(20_001):
        yield RstStreamFrame(99, 8).serialize()


def _pings() -> Iterator[bytes]:
    for _ in range(50_000):
        yield PingFrame(0, b"12345678").serialize()


def _settings() -> Iterator[bytes]:
    for number in range(50_000):
        yield SettingsFrame(0, {4: 65_535 + number % 2}).serialize()


def _unknown_frames() -> Iterator[bytes]:
    for _ in range(50_000):
        yield b"\0\0\4\x7f\0\0\0\0\0abcd"


def _malformed() -> Iterator[bytes]:
    encoder = hpack.Encoder()
    for stream in range(1, 20_001, 2):
        frame = HeadersFrame(stream, encoder.encode([(":method", "CONNECT"), ("UP", "x")]))
        frame.flags |= {"END_HEADERS"}
        yield frame.serialize()


@pytest.mark.parametrize(
    ("attack", "code", "said"),
    [
        (_http1_inside, ErrorCodes.PROTOCOL_ERROR, "not HTTP/2"),
        (_even_id, ErrorCodes.PROTOCOL_ERROR, "idle stream 2"),
        (_id_going_back, ErrorCodes.STREAM_CLOSED, "closed stream 7"),
        (_data_on_an_idle_stream, ErrorCodes.PROTOCOL_ERROR, "idle stream 77"),
        (_data_on_stream_0, ErrorCodes.PROTOCOL_ERROR, "stream 0"),
        (_window_of_nothing, ErrorCodes.PROTOCOL_ERROR, "WINDOW_UPDATE of 0"),
        (_window_too_large, ErrorCodes.FLOW_CONTROL_ERROR, "window"),
        (_frame_too_large, ErrorCodes.FRAME_SIZE_ERROR, "a frame of"),
        (_beyond_all_windows, ErrorCodes.FLOW_CONTROL_ERROR, "window"),
        (_headers_without_end, ErrorCodes.ENHANCE_YOUR_CALM, "header block"),
        (_empty_continuations, ErrorCodes.ENHANCE_YOUR_CALM, "CONTINUATION"),
        (_header_bombs, ErrorCodes.ENHANCE_YOUR_CALM, "too many frames of no use"),
        (_not_hpack, ErrorCodes.COMPRESSION_ERROR, ""),
        (_rapid_reset, ErrorCodes.ENHANCE_YOUR_CALM, "too many frames of no use"),
        (_resets_of_nothing, ErrorCodes.PROTOCOL_ERROR, "idle stream 99"),
        (_pings, ErrorCodes.ENHANCE_YOUR_CALM, ""),
        (_settings, ErrorCodes.ENHANCE_YOUR_CALM, ""),
        (_unknown_frames, ErrorCodes.ENHANCE_YOUR_CALM, "too many frames of no use"),
        (_malformed, ErrorCodes.ENHANCE_YOUR_CALM, "too many frames of no use"),
    ],
)
def test_who_breaks_http2_is_cut_off(
    strange: Strange,
    log: Log,
    unharmed: Steady,
    attack: Callable[[], Iterator[bytes]],
    code: ErrorCodes,
    said: str,
) -> None:
    cpu = strange.mesh.proxies["n2"].cpu_seconds()
    with dial(strange.stranger, B4, tls(strange.ca, ID_A, server=False)) as sock:
        attacker = Attacker(sock)
        if attack is not _http1_inside:
            attacker.push(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize())
        block = bytearray()
        for piece in attack():
            block += piece
            if len(block) > 65_536 and not attacker.push(block):
                break
        attacker.push(block)
        attacker.read_on()
        # a reset may overtake the GOAWAY when much was unread
        assert attacker.goaway in (code, None)
        unharmed.goes_on()
    line = log.line(f'connection failed.*error="h2 failed: .*{said}')
    assert "\twarn\t" in line
    assert strange.mesh.proxies["n2"].cpu_seconds() - cpu < 10


def test_the_tunnels_of_who_breaks_http2(strange: Strange, log: Log) -> None:
    before = failed(strange, "H2_HANDSHAKE_FAILURE")
    with strange.client() as peer, strange.mesh.listen(strange.mesh.b) as listener:
        assert peer.answer(peer.connect(f"{B4}:{listener.getsockname()[1]}")) == 200
        server, _ = listener.accept()
        with server:
            peer.raw(WindowUpdateFrame(0, 0x7FFFFFFF).serialize())
            assert ends_in_reset(server)
            peer.end()
    line = log.line('connection complete.*error="h2 failed: the window of the connection over')
    assert "\terror\t" in line
    assert failed(strange, "H2_HANDSHAKE_FAILURE") == before + 1


class Attacker:
    """Writes what it likes and reads no more than it has to."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._got = bytearray()
        self._over = False
        sock.setblocking(False)

    def push(self, block: bytearray | bytes) -> bool:
        """Sends as much as the peer takes; False when it has ended the connection."""
        view, end = memoryview(bytes(block)), time.monotonic() + DEADLINE
        if isinstance(block, bytearray):
            block.clear()
        while view and not self._over:
            assert time.monotonic() < end
            try:
                view = view[self._sock.send(view) :]
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                select.select([self._sock], [self._sock], [], 0.05)
            except OSError:
                self._over = True
                self._read()
                return False
            self._read()
        return not self._over

    def read_on(self) -> None:
        """Until the end of the connection."""
        end = time.monotonic() + DEADLINE
        while not self._over:
            assert time.monotonic() < end, "it was not cut off"
            select.select([self._sock], [], [], 0.05)
            self._read()

    def _read(self) -> None:
        try:
            while data := self._sock.recv(1 << 16):
                self._got += data
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            pass
        self._over = True

    @property
    def goaway(self) -> int | None:
        """The code of a GOAWAY that came."""
        at, code = 0, None
        while at + 17 <= len(self._got):
            length, kind = int.from_bytes(self._got[at : at + 3], "big"), self._got[at + 3]
            if kind == 7:
                code = int.from_bytes(self._got[at + 13 : at + 17], "big")
            at += 9 + length
        return code
