"""Where a tunnel that arrives leads: every row of the validation, the next hop and the tunnels."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import pytest

from nodenet.mesh.authority import HostPort, parse_authority
from nodenet.mesh.inbound import (
    InboundRefused,
    InboundRoute,
    decide,
    read_request,
    service_for_labels,
    source_for_labels,
)
from nodenet.mesh.model import (
    ApplicationTunnel,
    Endpoint,
    GatewayAddress,
    Membership,
    NamespacedHostname,
    NetworkAddress,
    Service,
    TunnelKind,
    Visibility,
    WeightedWaypoint,
    Workload,
)
from nodenet.mesh.state import Batch, MeshState

NETWORK = "net"
IP = ipaddress.ip_address


def packed(text: str) -> bytes:
    return IP(text).packed


def by_address(ip: str, network: str = NETWORK) -> GatewayAddress:
    return GatewayAddress(NetworkAddress(network, packed(ip)), 15008)


def by_hostname(hostname: str, namespace: str = "default") -> GatewayAddress:
    return GatewayAddress(NamespacedHostname(namespace, hostname), 15008)


def workload(
    name: str,
    ip: str,
    *,
    waypoint: GatewayAddress | None = None,
    tunnel: ApplicationTunnel | None = None,
    services: dict[str, tuple[tuple[int, int], ...]] | None = None,
    namespace: str = "default",
) -> Workload:
    return Workload(
        uid=f"cluster//Pod/{namespace}/{name}",
        name=name,
        namespace=namespace,
        addresses=(packed(ip),),
        network=NETWORK,
        waypoint=waypoint,
        application_tunnel=tunnel,
        services=tuple(Membership(key, ports) for key, ports in (services or {}).items()),
    )


def service(
    name: str,
    *vips: str,
    ports: tuple[tuple[int, int], ...] = ((80, 8080),),
    waypoint: GatewayAddress | None = None,
    weighted: tuple[WeightedWaypoint, ...] = (),
    namespace: str = "default",
    visibility: Visibility = Visibility.PUBLIC,
) -> Service:
    return Service(
        name=name,
        namespace=namespace,
        hostname=f"{name}.example.com",
        vips=tuple(NetworkAddress(NETWORK, packed(vip)) for vip in vips),
        ports=ports,
        waypoint=waypoint,
        weighted_waypoints=weighted,
        visibility=visibility,
    )


def mesh(*resources: Workload | Service) -> MeshState:
    state = MeshState()
    state.apply(Batch(upserts=resources))
    return state


def ask(
    state: MeshState,
    local: Workload,
    authority: str,
    *,
    connection: str | None = None,
    loopback_tunnels: bool = True,
) -> InboundRoute:
    return decide(
        state,
        local,
        IP(connection) if connection else local.ips[0],
        read_request("CONNECT", authority),
        network=NETWORK,
        loopback_tunnels=loopback_tunnels,
    )


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(InboundRefused) as caught:
        call()
    return caught.value.status, str(caught.value)


# steps 1 and 2


def test_only_connect() -> None:
    assert refusal(lambda: read_request("GET", "10.0.0.1:80")) == (
        400,
        "expected method CONNECT, got GET",
    )


@pytest.mark.parametrize("authority", ["", "10.0.0.1", "db", "db:http", "/"])
def test_no_authority(authority: str) -> None:
    assert refusal(lambda: read_request("CONNECT", authority)) == (
        400,
        f"no valid authority pseudo header: {authority}",
    )


def test_what_is_quoted_is_bounded_and_printable() -> None:
    status, text = refusal(lambda: read_request("CONNECT", "\x1b" + "x" * 60_000))
    assert status == 400
    assert text.startswith("no valid authority pseudo header: ?xxx")
    assert len(text) < 300


# step 4 and the address part of step 5. A pod "server" (192.168.0.2), services in front of it;
# waypoints "plain" (192.168.0.5), "tunnelled" (192.168.0.6) and "override" (192.168.0.7), the
# last two with an application tunnel.

SERVER, PLAIN, PROXIED, OVERRIDE = "192.168.0.2", "192.168.0.5", "192.168.0.6", "192.168.0.7"
WAYPOINT_SERVICE = "default/waypoint.example.com"


def scene() -> tuple[MeshState, dict[str, Workload]]:
    pods = {
        "server": workload("server", SERVER, services={"default/vip.example.com": ((80, 9090),)}),
        "behind-pod": workload("behind-pod", "192.168.0.12", waypoint=by_address(PLAIN)),
        "behind-svc": workload("behind-svc", "192.168.0.13", waypoint=by_address("10.10.0.2")),
        "behind-host": workload(
            "behind-host", "192.168.0.14", waypoint=by_hostname("waypoint.example.com")
        ),
        "behind-bare": workload(
            "behind-bare", "192.168.0.15", waypoint=by_hostname("bare.example.com")
        ),
        "behind-nothing": workload(
            "behind-nothing", "192.168.0.16", waypoint=by_hostname("gone.example.com")
        ),
        "plain": workload("plain", PLAIN, services={WAYPOINT_SERVICE: ()}),
        "tunnelled": workload(
            "tunnelled", PROXIED, tunnel=ApplicationTunnel(TunnelKind.PROXY, 15088)
        ),
        "override": workload(
            "override", OVERRIDE, tunnel=ApplicationTunnel(TunnelKind.NONE, 15088)
        ),
    }
    services = [
        service("vip", "10.10.0.1"),
        service("waypoint", "10.10.0.2", ports=((15008, 15008),)),
        service("svc-behind-pod", "10.10.0.3", waypoint=by_address(PLAIN)),
        service("svc-behind-svc", "10.10.0.4", waypoint=by_address("10.10.0.2")),
        service("svc-behind-host", "10.10.0.5", waypoint=by_hostname("waypoint.example.com")),
        service(
            "svc-weighted",
            "10.10.0.6",
            weighted=(WeightedWaypoint(by_address(PLAIN), 1),),
        ),
    ]
    return mesh(*pods.values(), *services), pods


@pytest.mark.parametrize(
    ("local", "authority", "destination"),
    [
        # its own address
        ("server", f"{SERVER}:80", f"{SERVER}:80"),
        # any application tunnel takes anything, its port replaces the one asked for
        ("override", f"{SERVER}:80", f"{OVERRIDE}:15088"),
        ("override", "203.0.113.9:80", f"{OVERRIDE}:15088"),
        ("tunnelled", f"{SERVER}:80", f"{PROXIED}:15088"),
        # the waypoint of a workload: by the pod's address, a VIP, a hostname
        ("plain", "192.168.0.12:80", f"{PLAIN}:80"),
        ("plain", "192.168.0.13:80", f"{PLAIN}:80"),
        ("plain", "192.168.0.14:80", f"{PLAIN}:80"),
        # the waypoint of a service, in the same three ways
        ("plain", "10.10.0.3:80", f"{PLAIN}:80"),
        ("plain", "10.10.0.4:80", f"{PLAIN}:80"),
        ("plain", "10.10.0.5:80", f"{PLAIN}:80"),
        # a hostname is not compared; the endpoint's own port comes first
        ("server", "vip.example.com:80", f"{SERVER}:9090"),
        ("plain", "vip.example.com:80", f"{PLAIN}:8080"),
    ],
)
def test_accepted(local: str, authority: str, destination: str) -> None:
    state, pods = scene()
    route = ask(state, pods[local], authority)
    assert str(route.destination) == destination


@pytest.mark.parametrize(
    ("local", "authority"),
    [
        # nobody's, somebody else's without a waypoint
        ("server", "203.0.113.9:80"),
        ("server", f"{PLAIN}:80"),
        ("plain", f"{SERVER}:80"),
        # of a service that has no waypoint although its endpoints have
        ("plain", "10.10.0.1:80"),
        # behind another waypoint
        ("server", "192.168.0.12:80"),
        ("server", "192.168.0.13:80"),
        ("server", "10.10.0.3:80"),
        # a waypoint that leads nowhere
        ("plain", "192.168.0.15:80"),
        ("plain", "192.168.0.16:80"),
        # weighted waypoints are not asked
        ("plain", "10.10.0.6:80"),
    ],
)
def test_ip_mismatch(local: str, authority: str) -> None:
    state, pods = scene()
    own = pods[local].ips[0]
    host = authority.rpartition(":")[0]
    assert refusal(lambda: ask(state, pods[local], authority)) == (
        400,
        f"ip mismatch: {own} != {host}",
    )


def test_no_crossing_over_between_service_and_workload_waypoints() -> None:
    """An address of a service asks for the service's waypoint, even if its endpoint has one."""
    waypoint = workload("wp", PLAIN)
    endpoint = workload(
        "ep", "192.168.0.20", waypoint=by_address(PLAIN), services={"default/s.example.com": ()}
    )
    state = mesh(waypoint, endpoint, service("s", "10.10.0.9"))
    assert refusal(lambda: ask(state, waypoint, "10.10.0.9:80"))[0] == 400
    other = workload("ep2", "192.168.0.21", services={"default/t.example.com": ()})
    state = mesh(waypoint, other, service("t", "10.10.0.8", waypoint=by_address(PLAIN)))
    assert refusal(lambda: ask(state, waypoint, "192.168.0.21:80"))[0] == 400


def test_the_network_is_the_own_one() -> None:
    elsewhere = workload("wp", PLAIN)
    state = mesh(elsewhere, service("s", "10.10.0.9", waypoint=by_address(PLAIN, "other")))
    assert refusal(lambda: ask(state, elsewhere, "10.10.0.9:80"))[0] == 400


def test_a_waypoint_known_by_its_bare_hostname() -> None:
    bare = Workload(
        uid="bare",
        name="bare",
        namespace="default",
        addresses=(packed(PLAIN),),
        network=NETWORK,
        hostname="bare.example.com",
    )
    target = workload("t", "192.168.0.30", waypoint=by_hostname("bare.example.com"))
    route = ask(mesh(bare, target), bare, "192.168.0.30:80")
    assert str(route.destination) == f"{PLAIN}:80"


def test_the_pod_is_dialled_at_the_address_it_was_reached_at() -> None:
    both = Workload(
        uid="both",
        namespace="default",
        addresses=(packed(SERVER), packed("fd00::2")),
        network=NETWORK,
    )
    route = ask(mesh(both), both, "[fd00::2]:80", connection="fd00::2")
    assert str(route.dial) == "[fd00::2]:80"
    # an address of its own that is not the one it was reached at
    assert refusal(lambda: ask(mesh(both), both, f"{SERVER}:80", connection="fd00::2")) == (
        400,
        f"ip mismatch: fd00::2 != {SERVER}",
    )


# step 5


@pytest.mark.parametrize(
    ("ports", "own", "destination_port"),
    [
        (((80, 8080),), None, 8080),
        (((80, 8080),), ((80, 9090),), 9090),
        (((80, 0),), ((80, 9090),), 9090),
        ((), ((80, 9090),), 9090),
        (((80, 0),), None, None),
        (((80, 0),), ((81, 9090),), None),
        (((81, 8080),), None, None),
        ((), (), None),
    ],
)
def test_port_of_a_hostname(
    ports: tuple[tuple[int, int], ...],
    own: tuple[tuple[int, int], ...] | None,
    destination_port: int | None,
) -> None:
    local = workload(
        "server", SERVER, services=None if own is None else {"default/s.example.com": own}
    )
    state = mesh(local, service("s", ports=ports))
    if destination_port is None:
        assert refusal(lambda: ask(state, local, "s.example.com:80")) == (
            503,
            "requested service s.example.com:80 found, but cannot resolve port",
        )
    else:
        route = ask(state, local, "s.example.com:80")
        assert route.destination == Endpoint(IP(SERVER), destination_port)


def test_unknown_hostname() -> None:
    local = workload("server", SERVER)
    assert refusal(lambda: ask(mesh(local), local, "gone.example.com:80")) == (
        503,
        "no service or workload for hostname: gone.example.com",
    )


def test_hostname_of_the_own_namespace_first() -> None:
    local = workload("server", SERVER, namespace="mine")
    state = mesh(
        local,
        service("s", ports=((80, 1),)),
        service("s", ports=((80, 2),), namespace="mine"),
    )
    assert ask(state, local, "s.example.com:80").destination.port == 2


def test_a_service_that_the_own_namespace_does_not_see() -> None:
    local = workload("server", SERVER, namespace="mine")
    state = mesh(local, service("s", ports=((80, 1),), visibility=Visibility.NAMESPACE))
    assert ask(state, local, "s.example.com:80").destination.port == 1


@pytest.mark.parametrize("port", [15001, 15006, 15008])
def test_ports_of_the_proxy(port: int) -> None:
    self_call = (503, "attempted recursive call to ourselves")
    local = workload("server", SERVER)
    state = mesh(local, service("s", ports=((80, port),)))
    assert refusal(lambda: ask(state, local, f"{SERVER}:{port}")) == self_call
    assert refusal(lambda: ask(state, local, "s.example.com:80")) == self_call
    tunnelled = workload("server", SERVER, tunnel=ApplicationTunnel(TunnelKind.NONE, port))
    assert refusal(lambda: ask(mesh(tunnelled), tunnelled, f"{SERVER}:80")) == self_call


# application tunnels


@pytest.mark.parametrize("kind", list(TunnelKind))
@pytest.mark.parametrize(("port", "dialled"), [(15088, 15088), (None, 80)])
def test_port_of_a_tunnel(kind: TunnelKind, port: int | None, dialled: int) -> None:
    local = workload("w", SERVER, tunnel=ApplicationTunnel(kind, port))
    route = ask(mesh(local), local, "203.0.113.9:80", loopback_tunnels=False)
    assert route.destination == route.dial == Endpoint(IP(SERVER), dialled)
    assert route.source is None
    target = Endpoint(IP("203.0.113.9"), 80)
    assert route.proxy_target == (target if kind is TunnelKind.PROXY else None)


@pytest.mark.parametrize(("ip", "loopback"), [(SERVER, "127.0.0.1"), ("fd00::2", "::1")])
def test_loopback_tunnel(ip: str, loopback: str) -> None:
    local = workload("w", ip, tunnel=ApplicationTunnel(TunnelKind.PROXY, 15088))
    route = ask(mesh(local), local, "203.0.113.9:80")
    assert route.dial == Endpoint(IP(loopback), 15088)
    assert route.source == IP(loopback)
    # policies are asked about the pod
    assert route.destination == Endpoint(IP(ip), 15088)


def test_a_tunnel_without_header_is_not_dialled_over_loopback() -> None:
    local = workload("w", SERVER, tunnel=ApplicationTunnel(TunnelKind.NONE, 15088))
    route = ask(mesh(local), local, "203.0.113.9:80")
    assert (route.dial, route.source) == (Endpoint(IP(SERVER), 15088), None)


@pytest.mark.parametrize(
    ("vips", "target"),
    [
        ([("net", "10.10.0.1")], "10.10.0.1:80"),
        ([("net", "fd00::9"), ("net", "10.10.0.1")], "10.10.0.1:80"),
        ([("other", "10.10.0.1"), ("net", "fd00::9")], "[fd00::9]:80"),
        ([("other", "10.10.0.1")], "10.10.0.1:80"),
    ],
)
def test_target_of_a_hostname(vips: list[tuple[str, str]], target: str) -> None:
    local = workload("w", SERVER, tunnel=ApplicationTunnel(TunnelKind.PROXY, 15088))
    named = Service(
        name="s",
        namespace="default",
        hostname="s.example.com",
        vips=tuple(NetworkAddress(network, packed(ip)) for network, ip in vips),
        ports=((80, 8080),),
    )
    route = ask(mesh(local, named), local, "s.example.com:80")
    assert str(route.proxy_target) == target
    assert route.destination.port == 15088


def test_a_hostname_without_addresses() -> None:
    local = workload("w", SERVER, tunnel=ApplicationTunnel(TunnelKind.PROXY, 15088))
    state = mesh(local, service("s"))
    assert refusal(lambda: ask(state, local, "s.example.com:80")) == (
        503,
        "requested service s.example.com found, but has no IP addresses",
    )
    without_header = workload("w", SERVER, tunnel=ApplicationTunnel(TunnelKind.NONE, 15088))
    assert ask(mesh(without_header, service("s")), without_header, "s.example.com:80")


# labels


def labelled(local: Workload, state: MeshState, authority: str, host: str | None) -> str | None:
    found = service_for_labels(ask(state, local, authority), local, host)
    return None if found is None else found.name


def test_service_for_labels() -> None:
    local = workload(
        "w",
        SERVER,
        services={
            "default/a.example.com": (),
            "default/b.example.com": ((80, 7070),),
            "default/c.example.com": (),
            "default/unknown.example.com": (),
        },
    )
    state = mesh(
        local,
        service("a", ports=((80, 8080),)),
        service("b", ports=((80, 0),)),
        service("c", ports=((81, 8080),)),
        service("elsewhere", ports=((80, 6060),)),
    )
    # the header, if it names one of its services
    assert labelled(local, state, f"{SERVER}:8080", "c.example.com") == "c"
    assert labelled(local, state, f"{SERVER}:9999", "b.example.com") == "b"
    # else the first whose port leads there, by its own mapping or by the endpoint's
    assert labelled(local, state, f"{SERVER}:8080", None) == "a"
    assert labelled(local, state, f"{SERVER}:8080", "elsewhere.example.com") == "a"
    assert labelled(local, state, f"{SERVER}:7070", None) == "b"
    assert labelled(local, state, f"{SERVER}:9999", None) is None
    # a hostname leaves one candidate
    assert labelled(local, state, "elsewhere.example.com:80", None) == "elsewhere"


@pytest.mark.parametrize(
    ("forwarded_network", "found"),
    [(None, True), ("net", True), ("NET", True), ("other", False), ("", False)],
)
def test_source_for_labels(forwarded_network: str | None, found: bool) -> None:
    client = workload("client", "192.168.0.40")
    source = source_for_labels(
        mesh(client), client.ips[0], network=NETWORK, forwarded_network=forwarded_network
    )
    assert source == (client if found else None)


def test_source_nobody_knows() -> None:
    assert source_for_labels(mesh(), IP("192.168.0.40"), network="", forwarded_network="") is None


def test_authority_of_a_request() -> None:
    assert read_request("CONNECT", "db.shop:80") == HostPort("db.shop", 80)
    assert read_request("CONNECT", "10.0.0.1:80") == parse_authority("10.0.0.1:80")
