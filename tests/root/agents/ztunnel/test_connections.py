"""What single connections see: addresses, ends, errors, refusals."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time

import pytest

from nodenet.abi import DNS_PORT, HBONE_PORT, INBOUND_PORT, OUTBOUND_PORT
from nodenet.agents.ztunnel.source_ports import SOURCE_PORTS
from tests.root.agents.ztunnel.proxied import (
    OUT4,
    OUT6,
    POD4,
    POD6,
    Proxied,
    accept,
    ends_in_reset,
    is_reset,
)

pytestmark = [pytest.mark.root]
both_backends = pytest.mark.parametrize("backend", ["ebpf", "iptables"])


def peer(sock: socket.socket) -> tuple[str, int]:
    host, port = sock.getpeername()[:2]
    return host.removeprefix("::ffff:"), port


def own(sock: socket.socket) -> tuple[str, int]:
    host, port = sock.getsockname()[:2]
    return host.removeprefix("::ffff:"), port


def exchange(one: socket.socket, other: socket.socket) -> None:
    """Bytes and both ends, each direction by itself."""
    one.sendall(b"question")
    assert other.recv(100) == b"question"
    one.shutdown(socket.SHUT_WR)
    assert other.recv(100) == b""
    other.sendall(b"answer")
    other.shutdown(socket.SHUT_WR)
    assert one.recv(100) == b"answer"
    assert one.recv(100) == b""


@pytest.mark.parametrize(("host", "pod"), [(OUT4, POD4), (OUT6, POD6)])
def test_outbound(world: Proxied, host: str, pod: str) -> None:
    proxy = world.proxy("--access-log")
    with world.outbound(host) as (client, server):
        assert peer(server)[0] == pod
        assert peer(server)[1] in SOURCE_PORTS
        assert peer(client) == own(server)
        source, destination = own(client), peer(client)
        exchange(client, server)
    line = proxy.wait_for(r"(?m)^.*\taccess\t(.*)$")[1]
    assert 'direction="outbound" bytes_sent=8 bytes_recv=6' in line
    shown = "[{}]:{}" if ":" in host else "{}:{}"
    assert f"src.addr={shown.format(*source)} dst.addr={shown.format(*destination)}" in line
    assert "error" not in line


@both_backends
@pytest.mark.parametrize(("host", "client_host"), [(POD4, OUT4), (POD6, OUT6)])
def test_inbound_keeps_the_clients_address(world: Proxied, host: str, client_host: str) -> None:
    proxy = world.proxy("--access-log")
    with world.inbound(host) as (client, server):
        assert peer(server)[0] == client_host
        # the client's own port is that of the connection which is carried
        assert peer(server)[1] != own(client)[1]
        assert peer(server)[1] in SOURCE_PORTS
        exchange(client, server)
    line = proxy.wait_for(r"(?m)^.*\taccess\t(.*)$")[1]
    assert 'direction="inbound"' in line and "bytes_sent=6 bytes_recv=8" in line


def test_an_access_line_bears_the_accepted_sockets_cookie(world: Proxied) -> None:
    proxy = world.proxy("--access-log")
    with world.outbound() as (client, _server):
        port = own(client)[1]
        listed = world.pod.run("ss", "-tnieH", "sport", "=", f":{OUTBOUND_PORT}").stdout
        cookie = re.search(rf"{POD4}\]?:{port}\b.*?sk:([0-9a-f]+)", listed)
        assert cookie is not None, listed
    assert proxy.wait_for(r"conn\.id=([0-9a-f]+)")[1] == cookie[1]


def test_an_ipv4_pod_on_a_host_without_ipv6(world: Proxied) -> None:
    world.pod.sysctl({"net.ipv6.conf.all.disable_ipv6": 1})
    world.proxy()
    for pair in (world.outbound, world.inbound):
        with pair() as (client, server):
            exchange(client, server)


@both_backends
@pytest.mark.parametrize("direction", ["outbound", "inbound"])
@pytest.mark.parametrize("who", ["client", "server"])
def test_a_reset_is_passed_on(world: Proxied, direction: str, who: str) -> None:
    world.proxy()
    with contextlib.ExitStack() as stack:
        pair = stack.enter_context(getattr(world, direction)())
        one, other = pair if who == "client" else reversed(pair)
        one.sendall(b"last words")
        assert other.recv(100) == b"last words"
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
        assert ends_in_reset(other)


@both_backends
@pytest.mark.parametrize("host", [POD4, POD6])
def test_an_application_that_refuses_is_a_reset_for_the_client(world: Proxied, host: str) -> None:
    proxy = world.proxy()
    assert is_reset(world.out, host, 9)
    proxy.wait_for(r"dial to \S+:9 for \S+ failed: Connection refused")


def test_a_destination_that_refuses_is_a_reset_for_the_application(world: Proxied) -> None:
    proxy = world.proxy()
    assert is_reset(world.pod, OUT4, 9)
    line = proxy.wait_for(r"(?m)^.*dial to 10.99.0.2:9 .*$")[0]
    pattern = rf"\twarn\tztunnel.served\tconn.id=[0-9a-f]+ pod={world.pod.name} dial to "
    assert re.search(pattern + r"10.99.0.2:9 for 10.99.0.1:\d+ failed: Connection refused$", line)


def test_a_destination_without_a_route_is_a_reset_at_once(world: Proxied) -> None:
    # redirected before it is routed, as with eBPF: the rule is for an address of the link
    world.pod.run("ip", "route", "add", "unreachable", "10.99.0.99", "table", "539")
    mark = ["fwmark", "0x539/0xfff", "lookup", "539", "pref", "100"]
    world.pod.run("ip", "rule", "add", *mark)
    proxy = world.proxy()
    assert is_reset(world.pod, "10.99.0.99", 80)
    proxy.wait_for(r"dial to 10.99.0.99:80 for \S+ failed: (No route to host|Host is unreachable)")


def test_a_destination_that_does_not_answer_is_a_reset_after_the_deadline(world: Proxied) -> None:
    world.out.run("iptables", "-A", "INPUT", "-p", "tcp", "--dport", "7", "-j", "DROP")
    proxy = world.proxy("--connect-timeout=0.3")
    started = time.monotonic()
    with world.connect(world.pod, OUT4, 7) as client:
        assert ends_in_reset(client)
        assert time.monotonic() - started >= 0.25
    proxy.wait_for(r"dial to 10.99.0.2:7 for \S+ failed: Connection timed out")


@both_backends
@pytest.mark.parametrize("port", [OUTBOUND_PORT, INBOUND_PORT, HBONE_PORT, DNS_PORT])
@pytest.mark.parametrize("host", [POD4, POD6])
def test_nobody_outside_reaches_the_proxys_own_ports(world: Proxied, host: str, port: int) -> None:
    proxy = world.proxy()
    assert is_reset(world.out, host, port)
    proxy.wait_for("refused: own-port")


@pytest.mark.parametrize("host", [POD4, POD6, "127.0.0.1", "::1"])
@pytest.mark.parametrize("port", [OUTBOUND_PORT, INBOUND_PORT])
def test_an_application_that_talks_to_the_proxy_is_refused(
    world: Proxied, host: str, port: int
) -> None:
    """Not redirected; conntrack, where it runs, names the listener itself as the original."""
    proxy = world.proxy()
    assert is_reset(world.pod, host, port)
    proxy.wait_for(r"refused: (no-original-destination|own-port)")


def test_a_capture_that_takes_the_proxys_dials_does_not_loop_for_ever(world: Proxied) -> None:
    # what a wrong --cgroup would do: nothing exempts the proxy's sockets
    world.pod.run("iptables", "-t", "nat", "-F", "OUTPUT")
    redirect = ["-p", "tcp", "--dport", "80", "-j", "REDIRECT", "--to-ports", "15001"]
    world.pod.run("iptables", "-t", "nat", "-A", "OUTPUT", *redirect)
    proxy = world.proxy()
    assert is_reset(world.pod, OUT4, 80)
    proxy.wait_for("refused: own-connection")
    assert proxy.text().count("refused: own-connection") == 1


def test_a_client_may_come_from_the_ports_of_our_dials(world: Proxied) -> None:
    world.proxy()
    with contextlib.ExitStack() as stack, world.listen(world.pod) as listener:
        port = listener.getsockname()[1]
        pairs = []
        for source in range(20000, 20020):
            client = stack.enter_context(world.connect(world.out, POD4, port, source))
            pairs.append((client, stack.enter_context(accept(listener))))
        taken = {own(client)[1] for client, _ in pairs}
        assert not taken & {peer(server)[1] for _, server in pairs}
        for client, server in pairs:
            exchange(client, server)


def test_reserved_ports_stay_the_applications(world: Proxied) -> None:
    free = SOURCE_PORTS[100]
    reserved = f"{SOURCE_PORTS[0]}-{free - 1},{free + 1}-{SOURCE_PORTS[-1]}"
    with world.pod.entered(), open("/proc/sys/net/ipv4/ip_local_reserved_ports", "w") as file:
        file.write(reserved)
    world.proxy()
    with world.outbound() as (_client, server):
        assert peer(server)[1] == free or peer(server)[1] not in SOURCE_PORTS


def test_an_application_may_listen_on_a_port_the_proxy_dials_from(world: Proxied) -> None:
    world.proxy()
    with world.inbound() as (client, server), world.outbound() as (app, outside):
        for port in (peer(server)[1], peer(outside)[1]):
            world.listen(world.pod, port).close()
        exchange(client, server)
        exchange(app, outside)
