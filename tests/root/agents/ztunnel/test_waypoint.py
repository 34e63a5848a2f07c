"""Through others: waypoints, gateways to other networks, several endpoints, names in the DNS."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.asked import metric
from tests.root.agents.ztunnel.h2_peer import Behaviour, H2Peer, Headers
from tests.root.agents.ztunnel.meshed import A4, B4, Meshed, workload
from tests.root.agents.ztunnel.peers import ID_A, ForeignProxy, read, tls
from tests.root.agents.ztunnel.proxied import is_reset
from tests.root.world import loaded_capture, random_instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

WAYPOINT4, ONE4, TWO4, NAMED4, GATEWAY4 = (f"10.99.0.{n}" for n in (21, 31, 32, 33, 41))


def service(name: str, vip: str, **more: object) -> dict[str, object]:
    """A service of the mesh file, in namespace ``test``, of port 80."""
    return {
        "name": name,
        "namespace": "test",
        "hostname": f"{name}.test.svc",
        "vips": [f"/{vip}"],
        "ports": {80: 8080},
    } | more


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meshed]:
    """One captured pod, and a mesh whose other members are all in the other namespace."""
    by_address = {"waypoint": {"destination": f"/{WAYPOINT4}"}}
    by_service = {"waypoint": {"destination": "test/w.test.svc"}}
    by_name = {"waypoint": {"destination": "test/bare.example"}}
    balanced = {"test/lb.test.svc": {80: 8080}}
    directory = tmp_path_factory.mktemp("waypoint")
    with loaded_capture(random_instance()) as capture, Topology() as topology:
        made = Meshed(capture, topology, directory)
        with made.b.netlink() as link:
            for address in (WAYPOINT4, ONE4, TWO4, NAMED4, GATEWAY4):
                link.address("eth0", f"{address}/24")
        made.mesh["workloads"] += [
            workload("w", "n2", WAYPOINT4, services={"test/w.test.svc": {15008: 15008}}),
            workload("bare", "n2", WAYPOINT4, serviceAccount="w", hostname="bare.example"),
            workload("c", "n2", "10.99.0.60", **by_address),
            workload("d", "n2", "10.99.0.61", **by_service),
            workload("e", "n2", "10.99.0.62", **by_name),
            workload("one", "n2", ONE4, services=balanced),
            workload("two", "n2", TWO4, services=balanced),
            workload("named", "n2", hostname=NAMED4, services={"test/dns.test.svc": {80: 8080}}),
            workload(
                "nobody",
                "n2",
                hostname="does-not-exist.invalid",
                services={"test/nodns.test.svc": {80: 8080}},
            ),
            workload("gw", "n2", GATEWAY4),
            workload(
                "remote",
                "n9",
                network="net2",
                networkGateway={"destination": f"/{GATEWAY4}"},
                services={"test/remote.test.svc": {80: 8080}},
            ),
        ]
        made.mesh["services"] += [
            service("w", "10.200.0.10", ports={15008: 15008}),
            service("s1", "10.200.0.11", **by_address),
            service("s2", "10.200.0.12", **by_service),
            service("lb", "10.200.0.20"),
            service("dns", "10.200.0.30"),
            service("nodns", "10.200.0.31"),
            service(
                "remote",
                "10.200.0.40",
                subjectAltNames=["spiffe://cluster.local/ns/test/sa/remote"],
            ),
        ]
        made.start("--stats=127.0.0.1:0", "--connect-timeout=1", nodes=("n1",))
        try:
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def proxy(
    world: Meshed, account: str, host: str, behaviour: Behaviour | None = None
) -> Iterator[ForeignProxy]:
    """A foreign proxy with the certificate of a service account."""
    context = tls(world.directory / "ca", _identity(account), server=True)
    with ForeignProxy(world.b, context, behaviour, host=host) as made:
        yield made


def _identity(account: str) -> str:
    return f"spiffe://cluster.local/ns/test/sa/{account}"


def echoed(world: Meshed, host: str, port: int = 80) -> None:
    """A connection from a is answered, and ends well."""
    with world.connect(world.a, host, port) as client:
        client.sendall(b"hello world")
        assert read(client, 11) == b"hello world"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


@pytest.mark.parametrize("host", ["10.99.0.60", "10.99.0.61", "10.99.0.62"])
def test_a_workloads_waypoint(world: Meshed, host: str) -> None:
    with proxy(world, "w", WAYPOINT4) as waypoint:
        echoed(world, host)
        ((_, heard),) = waypoint.peer().streams.items()
        assert heard.get(":authority") == f"{host}:80"
        assert waypoint.clients == [ID_A]
        line = world.access("n1", f"complete.*dst.hbone_addr={host}:80")
        assert f"dst.addr={WAYPOINT4}:15008" in line
        assert "bytes_sent=11 bytes_recv=11" in line


@pytest.mark.parametrize(("vip", "name"), [("10.200.0.11", "s1"), ("10.200.0.12", "s2")])
def test_a_services_waypoint(world: Meshed, vip: str, name: str) -> None:
    with proxy(world, "w", WAYPOINT4) as waypoint:
        echoed(world, vip)
        ((_, heard),) = waypoint.peer().streams.items()
        assert heard.get(":authority") == f"{vip}:80"
        assert (heard.get("forwarded") or "").endswith(f";host={name}.test.svc")
        line = world.access("n1", f"complete.*dst.hbone_addr={vip}:80")
        assert f'dst.service="{name}.test.svc"' in line


def test_connections_go_to_all_endpoints(world: Meshed) -> None:
    with proxy(world, "one", ONE4) as one, proxy(world, "two", TWO4) as two:
        for _ in range(40):
            echoed(world, "10.200.0.20")
        for each, host in ((one, ONE4), (two, TWO4)):
            (peer,) = each.peers
            assert len(peer.streams) >= 8  # of 40, at random: less once in a million runs
            assert {h.get(":authority") for h in peer.streams.values()} == {f"{host}:8080"}


class Unavailable(Behaviour):
    """Its application is not there."""

    def request(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""
        peer.h2.send_headers(stream, [(":status", "503")], end_stream=True)


@pytest.mark.parametrize("how", ["not there", "503"])
def test_another_endpoint_is_tried(world: Meshed, how: str) -> None:
    """Whichever is drawn first, every connection is answered by the good one."""
    with contextlib.ExitStack() as stack:
        if how == "503":
            stack.enter_context(proxy(world, "two", TWO4, Unavailable()))
        one = stack.enter_context(proxy(world, "one", ONE4))
        for _ in range(12):
            echoed(world, "10.200.0.20")
        assert len(one.peer().streams) == 12


def test_when_every_endpoint_refuses_the_application_is_told(world: Meshed) -> None:
    failed = metric(world.proxies["n1"], "istio_tcp_connections_failed", response_flags="CONNECT")
    with (
        proxy(world, "one", ONE4, Unavailable()) as one,
        proxy(world, "two", TWO4, Unavailable()) as two,
    ):
        assert is_reset(world.a, "10.200.0.20", 80)
        assert len(one.peer().streams) == len(two.peer().streams) == 1
    after = metric(world.proxies["n1"], "istio_tcp_connections_failed", response_flags="CONNECT")
    assert after == failed + 1


def test_a_workload_known_by_its_hostname(world: Meshed) -> None:
    with proxy(world, "named", NAMED4) as named:
        echoed(world, "10.200.0.30")
        ((_, heard),) = named.peer().streams.items()
        assert heard.get(":authority") == f"{NAMED4}:8080"


def test_a_hostname_that_nobody_knows(world: Meshed) -> None:
    assert is_reset(world.a, "10.200.0.31", 80)
    line = world.access("n1", "no ip addresses were resolved")
    assert "connection failed" in line
    assert 'error="no ip addresses were resolved for workload: cluster1//Pod/test/nobody"' in line


# -- double HBONE ----------------------------------------------------------------------------------


class Inner:
    """TLS and HTTP/2 of the far side, in the bytes of one stream: an echo."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self._h2.initiate_connection()
        self._shaken = False
        self.requests: list[Headers] = []
        self.refused = ""

    def feed(self, payload: bytes) -> bytes:
        """Takes bytes and gives those that are the answer."""
        self._incoming.write(payload)
        with contextlib.suppress(ssl.SSLWantReadError):
            try:
                if not self._shaken:
                    self.tls.do_handshake()
                    self._shaken = True
                while data := self.tls.read(1 << 16):
                    for event in self._h2.receive_data(data):
                        self._take(event)
            except ssl.SSLWantReadError:
                raise
            except ssl.SSLError as error:
                self.refused = str(error)
                return self._outgoing.read()
        if self._shaken and (data := self._h2.data_to_send()):
            self.tls.write(data)
        return self._outgoing.read()

    def _take(self, event: h2.events.Event) -> None:
        stream = getattr(event, "stream_id", 0)
        if isinstance(event, h2.events.RequestReceived):
            self.requests.append([(str(k), str(v)) for k, v in event.headers or ()])
            baggage = "k8s.cluster.name=far,k8s.namespace.name=there,k8s.pod.name=behind"
            self._h2.send_headers(stream, [(":status", "200"), ("baggage", baggage)])
        elif isinstance(event, h2.events.DataReceived) and event.data:
            self._h2.send_data(stream, event.data)
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
        elif isinstance(event, h2.events.StreamEnded):
            self._h2.end_stream(stream)


class Gateway(Behaviour):
    """Ends the outer tunnels; in each of them there is another proxy."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.inner: dict[int, Inner] = {}

    def data(self, peer: H2Peer, stream: int, payload: bytes) -> None:
        """See `Behaviour`."""
        inner = self.inner.setdefault(stream, Inner(self._context))
        peer.send_later(stream, inner.feed(payload))


def test_another_network(world: Meshed) -> None:
    context = tls(world.directory / "ca", _identity("remote"), server=True)
    behaviour = Gateway(context)
    with proxy(world, "gw", GATEWAY4, behaviour) as gateway:
        for _ in range(3):
            echoed(world, "10.200.0.40")
        (peer,) = gateway.peers  # the outer connection is shared, the inner ones are not
        assert len(peer.streams) == len(behaviour.inner) == 3
        for heard in peer.streams.values():
            assert heard.get(":authority") == "remote.test.svc:80"
            assert heard.get("x-forwarded-network") is None
            assert b"hello world" not in heard.data
        for inner in behaviour.inner.values():
            ((*request,),) = inner.requests
            assert (":authority", "remote.test.svc:80") in request
            assert ("x-forwarded-network", "") in request
            assert any(name == "traceparent" for name, _ in request)
        gateway.wait(lambda: all(heard.ended for heard in peer.streams.values()))
        line = world.access("n1", "complete.*remote")
        assert f"dst.addr={GATEWAY4}:15008 dst.hbone_addr=remote.test.svc:80" in line
        assert f'dst.identity="{_identity("remote")}"' in line
        assert 'dst.namespace="there"' in line and 'dst.cluster="far"' in line
        assert "bytes_sent=11 bytes_recv=11" in line


def test_another_network_where_somebody_else_answers(world: Meshed) -> None:
    behaviour = Gateway(tls(world.directory / "ca", _identity("gw"), server=True))
    with proxy(world, "gw", GATEWAY4, behaviour) as gateway:
        assert is_reset(world.a, "10.200.0.40", 80)
        (heard,) = gateway.peer().streams.values()
        gateway.wait(lambda: heard.reset is not None or heard.ended)
    assert f"server is {_identity('gw')}" in world.access("n1", "error=.*expected.*sa/remote")


# -- a waypoint of ours ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["NONE", "PROXY"])
def test_a_proxy_before_a_waypoint(
    capture: Capture, topology: Topology, tmp_path: Path, kind: str
) -> None:
    """b is the waypoint of c, and its application gets what is meant for c."""
    made = Meshed(capture, topology, tmp_path)
    made.mesh["workloads"][1]["applicationTunnel"] = {"protocol": kind, "port": 15088}
    made.mesh["workloads"].append(
        workload("c", "n3", "10.99.0.60", waypoint={"destination": f"/{B4}"})
    )
    try:
        made.start()
        with made.listen(made.b, 15088) as listener:
            with made.connect(made.a, "10.99.0.60", 80) as client:
                client.sendall(b"question")
                server, address = listener.accept()
                server.settimeout(15)
                with server:
                    if kind == "PROXY":
                        assert address[0] == "::ffff:127.0.0.1"
                        head = read(server, 16)
                        assert head[:14] == b"\r\n\r\n\0\r\nQUIT\n\x21\x11"
                        rest = read(server, int.from_bytes(head[14:16], "big"))
                        assert rest[:8] == socket.inet_aton(A4) + socket.inet_aton("10.99.0.60")
                        assert rest[10:12] == (80).to_bytes(2, "big")
                        assert rest[12:15] == b"\xd0" + len(ID_A).to_bytes(2, "big")
                        assert rest[15:] == ID_A.encode()
                    else:
                        assert address[0] == f"::ffff:{A4}"
                    assert read(server, 8) == b"question"
                    server.sendall(b"answer")
                    server.shutdown(socket.SHUT_WR)
                    assert read(client, 10) == b"answer"
        line = made.access("n2", "connection complete")
        assert "dst.hbone_addr=10.99.0.60:80" in line
        assert re.search(r"bytes_sent=6 bytes_recv=8", line)
    finally:
        made.stop()
