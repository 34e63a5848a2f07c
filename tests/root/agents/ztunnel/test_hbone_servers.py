"""Other proxies as destinations, good ones and bad ones: what is sent, and what comes of it."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, PushPromiseFrame, SettingsFrame, WindowUpdateFrame

from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.asked import metric
from tests.root.agents.ztunnel.h2_peer import Behaviour, H2Peer
from tests.root.agents.ztunnel.meshed import A4, B4, VIP, Meshed, workload
from tests.root.agents.ztunnel.peers import ID_A, ID_B, ForeignProxy, read, tls
from tests.root.agents.ztunnel.proxied import DEADLINE, ends_in_reset, is_reset
from tests.root.world import loaded_capture, random_instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

#: An address of b that no workload has: connections to it are passed through.
PLAIN4 = "10.99.0.50"
#: Another workload there.
QUIET4 = "10.99.0.51"
MIB = 1 << 20


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meshed]:
    """One captured pod; where the other one's proxy should be there is room for anything."""
    directory = tmp_path_factory.mktemp("servers")
    with (
        pytest.MonkeyPatch.context() as environment,
        loaded_capture(random_instance()) as capture,
        Topology() as topology,
    ):
        environment.setenv("POOL_UNUSED_RELEASE_TIMEOUT", "2s")
        made = Meshed(capture, topology, directory)
        with made.b.netlink() as link:
            link.address("eth0", f"{PLAIN4}/24")
            link.address("eth0", f"{QUIET4}/24")
        made.mesh["workloads"].append(workload("quiet", "n2", QUIET4))
        made.start("--stats=127.0.0.1:0", "--connect-timeout=1", nodes=("n1",))
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture(autouse=True)
def unharmed(world: Meshed) -> Iterator[None]:
    """A connection that is passed through by the same proxy stays, and nothing is left."""
    proxy = world.proxies["n1"]
    with world.listen(world.b) as listener:
        with world.connect(world.a, PLAIN4, listener.getsockname()[1]) as client:
            server, _ = listener.accept()
            fresh(world)
            memory = proxy.rss_kib()
            with server:
                yield
                client.sendall(b"still here")
                assert server.recv(100) == b"still here"
    assert proxy.rss_kib() - memory < 24 * 1024


class Log:
    """What n1 says from now on."""

    def __init__(self, world: Meshed) -> None:
        self._proxy = world.proxies["n1"]
        self._start = len(self._proxy.text())

    def line(self, pattern: str = "") -> str:
        """The first complete connection to b with a pattern; waits for it."""
        end = time.monotonic() + DEADLINE
        while True:
            for line in self._proxy.text()[self._start :].splitlines():
                if f"dst.addr={B4}:15008" in line and re.search(pattern, line):
                    return line
            assert time.monotonic() < end, self._proxy.text()[self._start :]
            time.sleep(0.01)


@pytest.fixture
def log(world: Meshed, unharmed: None) -> Log:
    """What n1 says in this test."""
    return Log(world)


def context(world: Meshed, **more: object) -> ssl.SSLContext:
    """Of b's own proxy."""
    return tls(world.directory / "ca", ID_B, server=True, **more)  # type: ignore[arg-type]


def failed(world: Meshed, flag: str) -> float:
    """Connections that n1 counted as failed with a flag."""
    return metric(world.proxies["n1"], "istio_tcp_connections_failed", response_flags=flag)


@contextlib.contextmanager
def tunnel(world: Meshed, host: str = B4, port: int = 80) -> Iterator[socket.socket]:
    """A connection from a that has been answered: an echo is behind it."""
    with world.connect(world.a, host, port) as client:
        client.sendall(b"hello")
        assert read(client, 5) == b"hello"
        yield client


def own(client: socket.socket) -> str:
    """How the log names a client."""
    return f"src.addr={A4}:{client.getsockname()[1]} "


def fresh(world: Meshed) -> None:
    """Waits until no connection of an earlier test is in the pool."""
    end = time.monotonic() + DEADLINE
    while metric(world.proxies["n1"], "nodenet_pool_connections"):
        assert time.monotonic() < end
        time.sleep(0.02)


# -- what is sent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "authority", "forwarded"),
    [
        (B4, f"{B4}:80", rf'for="{A4}:(\d+)"'),
        (VIP, f"{B4}:8080", rf'for="{A4}:(\d+)";host=b\.test\.svc'),
    ],
)
def test_what_a_request_says(world: Meshed, host: str, authority: str, forwarded: str) -> None:
    with ForeignProxy(world.b, context(world)) as other, tunnel(world, host) as client:
        peer = other.peer()
        assert other.clients == [ID_A]
        assert peer.sock.version() == "TLSv1.3"
        assert peer.sock.selected_alpn_protocol() == "h2"
        ((_, heard),) = peer.streams.items()
        assert heard.headers[:2] == [(":method", "CONNECT"), (":authority", authority)]
        names = [name for name, _ in heard.headers]
        assert sorted(names[2:]) == ["baggage", "forwarded", "traceparent"]
        assert heard.get("baggage") == (
            "k8s.cluster.name=Kubernetes,k8s.namespace.name=test,k8s.deployment.name=a,"
            "service.name=a,service.version=v1"
        )
        found = re.fullmatch(forwarded, heard.get("forwarded") or "")
        assert found is not None and int(found[1]) == client.getsockname()[1]
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", heard.get("traceparent") or "")
        said = peer.h2.remote_settings
        assert (said.initial_window_size, said.max_frame_size) == (4 * MIB, MIB)
        assert (said.enable_push, said.max_header_list_size) == (0, 16 * 1024)
        assert peer.h2.outbound_flow_control_window >= 16 * MIB - 100


def test_an_end_goes_through_and_the_other_direction_goes_on(world: Meshed, log: Log) -> None:
    with ForeignProxy(world.b, context(world)) as other, tunnel(world) as client:
        peer = other.peer()
        client.shutdown(socket.SHUT_WR)
        heard = next(iter(peer.streams.values()))
        other.wait(lambda: heard.ended)
        assert client.recv(1) == b""
        line = log.line(f"connection complete.*{own(client)}")
        assert "\tinfo\t" in line and "bytes_sent=5 bytes_recv=5" in line


class Slow(Behaviour):
    """Ends its side at once and goes on reading."""

    def request(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""
        super().request(peer, stream)
        peer.h2.send_data(stream, b"bye", end_stream=True)

    def data(self, peer: H2Peer, stream: int, payload: bytes) -> None:
        """See `Behaviour`."""

    def ended(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""


def test_the_peer_may_end_first(world: Meshed, log: Log) -> None:
    with ForeignProxy(world.b, context(world), Slow()) as other:
        with world.connect(world.a, B4, 80) as client:
            assert client.recv(10) == b"bye"
            assert client.recv(10) == b""
            client.sendall(b"still talking")
            client.shutdown(socket.SHUT_WR)
            other.wait(lambda: next(iter(other.peer().streams.values())).ended)
            line = log.line(f"connection complete.*{own(client)}")
    assert "bytes_sent=13 bytes_recv=3" in line and "error" not in line.partition("direction")[2]


@pytest.mark.parametrize("window", [1, 1000, 70_000])
def test_small_windows(world: Meshed, window: int) -> None:
    settings = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_FRAME_SIZE: 16384}
    size = 2000 if window == 1 else 300_000
    with ForeignProxy(world.b, context(world), settings=settings), tunnel(world) as client:
        data = bytes(range(256)) * (size // 256)
        got = bytearray()

        def read() -> None:
            while len(got) < len(data):
                got.extend(client.recv(1 << 16))

        thread = threading.Thread(target=read)
        thread.start()
        client.sendall(data)
        thread.join(DEADLINE)
        assert got == data


def test_streams_are_spread_as_the_peer_allows(world: Meshed) -> None:
    settings = {SettingCodes.MAX_CONCURRENT_STREAMS: 3}
    with ForeignProxy(world.b, context(world), settings=settings) as other:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(tunnel(world)) for _ in range(10)]
            assert [len(peer.streams) for peer in other.peers] == [3, 3, 3, 1]
            clients[4].shutdown(socket.SHUT_WR)
            assert clients[4].recv(1) == b""
            # the second one has room again
            stack.enter_context(tunnel(world))
            assert [len(peer.streams) for peer in other.peers] == [3, 4, 3, 1]


# -- refusals and resets ---------------------------------------------------------------------------


class Answers(Behaviour):
    """Answers with a status, and ends the stream."""

    def __init__(self, status: str) -> None:
        self.status = status

    def request(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""
        peer.h2.send_headers(stream, [(":status", self.status)], end_stream=True)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("400", "400 Bad Request"),
        ("401", "401 Unauthorized"),
        ("404", "404 Not Found"),
        ("503", "503 Service Unavailable"),
        ("799", "799"),
    ],
)
def test_a_tunnel_refused(world: Meshed, log: Log, status: str, text: str) -> None:
    before = failed(world, "CONNECT")
    with ForeignProxy(world.b, context(world), Answers(status)) as other:
        assert is_reset(world.a, B4, 80)
        assert len(other.peer().streams) == 1
    assert "\terror\t" in log.line(f'connection complete.*error="http status: {text}"')
    assert failed(world, "CONNECT") == before + 1


class Resets(Behaviour):
    """Resets every stream, at the request or at the first byte."""

    def __init__(self, code: ErrorCodes, *, answered: bool) -> None:
        self.code = code
        self.answered = answered

    def request(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""
        if self.answered:
            super().request(peer, stream)
        else:
            peer.h2.reset_stream(stream, self.code)

    def data(self, peer: H2Peer, stream: int, payload: bytes) -> None:
        """See `Behaviour`."""
        peer.h2.reset_stream(stream, self.code)


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize(
    "code", [ErrorCodes.CANCEL, ErrorCodes.INTERNAL_ERROR, ErrorCodes.NO_ERROR]
)
def test_a_stream_reset(world: Meshed, log: Log, code: ErrorCodes, answered: bool) -> None:
    before = failed(world, "CONNECT")
    with ForeignProxy(world.b, context(world), Resets(code, answered=answered)) as other:
        with world.connect(world.a, B4, 80) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"x")
            assert ends_in_reset(client)
        assert len(other.peers) == 1
    log.line(f'complete.*error="h2 failed: stream reset by the peer: {code.name}"')
    assert failed(world, "CONNECT") == before + 1


class RefusesOnce(Behaviour):
    """Has not looked at the first request."""

    def __init__(self) -> None:
        self.refused = 0

    def request(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""
        if self.refused:
            super().request(peer, stream)
        else:
            self.refused += 1
            peer.h2.reset_stream(stream, ErrorCodes.REFUSED_STREAM)


def test_a_stream_the_peer_has_not_looked_at_is_opened_again(world: Meshed, log: Log) -> None:
    behaviour = RefusesOnce()
    with ForeignProxy(world.b, context(world), behaviour):
        with tunnel(world) as client:
            assert behaviour.refused == 1
            source = own(client)
        assert "\tinfo\t" in log.line(f"connection complete.*{source}")


def _goaway(last: int) -> bytes:
    """As it is on the wire: the h2 package sends nothing any more after one of its own."""
    return b"\0\0\x08\x07\0\0\0\0\0" + last.to_bytes(4, "big") + bytes(4)


class GoesAway(Behaviour):
    """Says at the third stream that the second one was the last."""

    def request(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""
        if stream == 5:
            peer.flush()
            peer.raw(_goaway(3))
        else:
            super().request(peer, stream)


def test_goaway(world: Meshed) -> None:
    """Old streams go on, and the one that came too late goes to a new connection."""
    with ForeignProxy(world.b, context(world), GoesAway()) as other:
        with tunnel(world) as first, tunnel(world), tunnel(world) as third:
            assert len(other.peers) == 2
            assert [list(peer.streams) for peer in other.peers] == [[1, 3, 5], [1]]
            for client in (first, third):
                client.sendall(b"again")
                assert read(client, 5) == b"again"
            with tunnel(world):
                assert len(other.peers) == 2


def test_goaway_lets_tunnels_finish(world: Meshed) -> None:
    with ForeignProxy(world.b, context(world)) as other, tunnel(world) as client:
        first = other.peer()
        first.order(lambda: first.raw(_goaway(0x7FFFFFFF)))
        other.wait(lambda: not first._orders)
        client.sendall(b"hello")
        assert read(client, 5) == b"hello"
        with tunnel(world):
            assert len(other.peers) == 2
            client.sendall(b"hello")
            assert read(client, 5) == b"hello"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        # and then the connection ends in order
        other.wait(lambda: first.lost)
        assert first.goaway is not None and first.goaway.error_code == ErrorCodes.NO_ERROR


# -- who is no peer --------------------------------------------------------------------------------


class Raw:
    """A TCP server on 15008 that does something with each connection. A context manager."""

    def __init__(
        self, world: Meshed, serve: Callable[[socket.socket], None], host: str = B4
    ) -> None:
        self._serve = serve
        with world.b.entered():
            self._listener = socket.create_server((host, 15008))
        self._listener.settimeout(0.05)
        self._over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exc: object) -> None:
        self._over = True
        self._thread.join(DEADLINE)
        self._listener.close()

    def _run(self) -> None:
        while not self._over:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            sock.settimeout(2 * DEADLINE)
            with sock, contextlib.suppress(OSError):
                self._serve(sock)


def _closes(sock: socket.socket) -> None:
    """Ends at once."""


def _speaks_http1(sock: socket.socket) -> None:
    sock.recv(100)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")


def _stays_silent(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (_closes, "tls error: .*during the handshake"),
        (_speaks_http1, "tls error: not TLS: wrong version number"),
    ],
)
def test_a_server_that_is_no_proxy(
    world: Meshed, log: Log, serve: Callable[[socket.socket], None], said: str
) -> None:
    before = failed(world, "CONNECT")
    with Raw(world, serve):
        assert is_reset(world.a, B4, 80)
    assert "\terror\t" in log.line(f'connection complete.*error="{said}')
    assert failed(world, "CONNECT") == before + 1


def _other_ca(world: Meshed) -> ssl.SSLContext:
    other = world.directory / "other-ca"
    return tls(other, ID_B, server=True, roots=world.directory / "ca")


def _expired(world: Meshed) -> ssl.SSLContext:
    return context(world, age=60.0, seconds=30.0)


def _somebody(world: Meshed) -> ssl.SSLContext:
    return tls(world.directory / "ca", ID_A, server=True)


def _http1(world: Meshed) -> ssl.SSLContext:
    return context(world, alpn="http/1.1")


def _other_client(world: Meshed) -> ssl.SSLContext:
    return context(world, roots=world.directory / "other-ca")


def _old(world: Meshed) -> ssl.SSLContext:
    made = context(world)
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    return made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (_other_ca, "tls error: peer certificate: "),
        (_expired, "tls error: peer certificate: certificate has expired"),
        (_somebody, f"tls error: server is {ID_A}, expected {ID_B}"),
        (_http1, "tls error: "),
        (_other_client, "tls error: refused by the peer: "),
        (_old, "tls error: .*protocol"),
    ],
)
def test_a_server_that_is_somebody_else(
    world: Meshed, log: Log, made: Callable[[Meshed], ssl.SSLContext], said: str
) -> None:
    before = failed(world, "CONNECT")
    with ForeignProxy(world.b, made(world)):
        assert is_reset(world.a, B4, 80)
    assert "\terror\t" in log.line(f'connection complete.*error="{said}')
    assert failed(world, "CONNECT") == before + 1


def test_nobody_listens(world: Meshed, log: Log) -> None:
    assert is_reset(world.a, B4, 80)
    log.line('connection complete.*error="io error: Connection refused"')


def test_nobody_answers(world: Meshed, log: Log) -> None:
    before = failed(world, "NETWORK_POLICY")
    drop = ("INPUT", "-p", "tcp", "--dport", "15008", "-j", "DROP")
    world.b.run("iptables", "-A", *drop)
    try:
        assert is_reset(world.a, B4, 80)
    finally:
        world.b.run("iptables", "-D", *drop)
    said = "connection timed out, maybe a NetworkPolicy is blocking HBONE port 15008: "
    log.line(f'connection complete.*error="{said}Connection timed out"')
    assert failed(world, "NETWORK_POLICY") == before + 1


# -- who breaks HTTP/2 -----------------------------------------------------------------------------


class Breaks(Behaviour):
    """Answers, and at the first byte sends what it must not."""

    def __init__(self, junk: bytes) -> None:
        self.junk = junk

    def data(self, peer: H2Peer, stream: int, payload: bytes) -> None:
        """See `Behaviour`."""
        peer.flush()
        peer.raw(self.junk)


class BreaksAtOnce(Behaviour):
    """Sends what it must not in place of an answer."""

    def __init__(self, junk: bytes) -> None:
        self.junk = junk

    def request(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""
        peer.flush()
        peer.raw(self.junk)


@pytest.mark.parametrize("kind", [Breaks, BreaksAtOnce])
@pytest.mark.parametrize(
    ("junk", "said"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" * 10, "a frame of", id="http1"),
        pytest.param(WindowUpdateFrame(0, 0x7FFFFFFF).serialize() * 2, "window", id="window"),
        pytest.param(DataFrame(99, b"x").serialize(), "idle stream 99", id="idle-stream"),
        pytest.param(PushPromiseFrame(1, 2).serialize(), "PUSH_PROMISE", id="push"),
        pytest.param(SettingsFrame(0, {2: 1}).serialize(), "ENABLE_PUSH 1", id="settings"),
        pytest.param(b"\0\0\4\x7f\0\0\0\0\0abcd" * 30_000, "of no use", id="unknown-frames"),
    ],
)
def test_a_server_that_breaks_http2(
    world: Meshed, log: Log, kind: Callable[[bytes], Behaviour], junk: bytes, said: str
) -> None:
    before = failed(world, "H2_HANDSHAKE_FAILURE")
    with ForeignProxy(world.b, context(world), kind(junk)):
        with world.connect(world.a, B4, 80) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"x")
            assert ends_in_reset(client)
    assert "\terror\t" in log.line(f'connection complete.*error="h2 failed: .*{said}')
    assert failed(world, "H2_HANDSHAKE_FAILURE") == before + 1


class NeverAnswers(Behaviour):
    """Takes requests and says nothing."""

    def request(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""


def test_peers_that_say_nothing(world: Meshed) -> None:
    """One not in the handshake, 10 seconds; one not to CONNECT, 15: its connection stays."""
    with (
        Raw(world, _stays_silent, QUIET4),
        ForeignProxy(world.b, context(world), NeverAnswers(), host=B4) as other,
        world.connect(world.a, QUIET4, 80) as early,
        world.connect(world.a, B4, 80) as late,
    ):
        for client in (early, late):
            client.settimeout(25)
            assert ends_in_reset(client)
        heard = next(iter(other.peer().streams.values()))
        other.wait(lambda: heard.reset == ErrorCodes.CANCEL)
        assert not other.peer().lost
    for address, error in (
        (QUIET4, "tls error: no end of the handshake within 10 s"),
        (B4, "io error: no answer to CONNECT in time"),
    ):
        world.access("n1", f'complete.*dst.addr={address}:15008.*error="{error}"')


def test_a_connection_whose_streams_are_all_refused_ends_when_idle(world: Meshed) -> None:
    with ForeignProxy(world.b, context(world), Resets(ErrorCodes.CANCEL, answered=False)) as other:
        assert is_reset(world.a, B4, 80)
        peer = other.peer()
        other.wait(lambda: peer.lost)
        assert peer.goaway is not None and peer.goaway.error_code == ErrorCodes.NO_ERROR


def test_windows_that_never_open(world: Meshed) -> None:
    """Tunnels that come and go while nothing can be sent leave nothing behind."""
    proxy = world.proxies["n1"]
    with ForeignProxy(world.b, context(world)) as other:
        other.behaviour = Behaviour()
        with tunnel(world) as stuck:
            peer = other.peer()
            peer.holds = True
            stuck.setblocking(False)
            end = time.monotonic() + DEADLINE
            while peer.h2.inbound_flow_control_window > 0:
                assert time.monotonic() < end
                with contextlib.suppress(BlockingIOError):
                    stuck.send(bytes(65536))
                time.sleep(0.0001)
            before = proxy.fds()
            for _ in range(300):
                with world.connect(world.a, B4, 80) as client:
                    client.sendall(b"x")
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            end = time.monotonic() + DEADLINE
            while proxy.fds() > before:
                assert time.monotonic() < end
                time.sleep(0.05)
