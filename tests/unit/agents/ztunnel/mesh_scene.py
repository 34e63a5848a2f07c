"""A small mesh to ask about: a shop with a database behind a service, beside some odd ends."""

from __future__ import annotations

import ipaddress

from nodenet.agents.ztunnel.explain import Mesh, Question
from nodenet.mesh.model import (
    ApplicationTunnel,
    Endpoint,
    GatewayAddress,
    Membership,
    NetworkAddress,
    Service,
    TunnelKind,
    TunnelProtocol,
    Workload,
)
from nodenet.mesh.policy import Action, Clause, Match, Policy, Rule, Scope, StringKind, StringMatch
from nodenet.mesh.state import Batch, MeshState

NETWORK = "net"
CART = "spiffe://cluster.local/ns/shop/sa/cart"


def packed(ip: str) -> bytes:
    return ipaddress.ip_address(ip).packed


def endpoint(text: str) -> Endpoint:
    host, _, port = text.rpartition(":")
    return Endpoint(ipaddress.ip_address(host.strip("[]")), int(port))


def gateway(ip: str, port: int = 15008) -> GatewayAddress:
    return GatewayAddress(NetworkAddress(NETWORK, packed(ip)), port)


def pod(
    name: str,
    *ips: str,
    hbone: bool = True,
    account: str = "",
    services: tuple[str, ...] = (),
    waypoint: GatewayAddress | None = None,
    policies: tuple[str, ...] = (),
    network: str = NETWORK,
    network_gateway: GatewayAddress | None = None,
    trust_domain: str = "cluster.local",
    native_tunnel: bool = False,
    tunnel: ApplicationTunnel | None = None,
    node: str = "n1",
    capacity: int = 1,
    hostname: str = "",
) -> Workload:
    return Workload(
        uid=f"c//Pod/shop/{name}",
        name=name,
        namespace="shop",
        addresses=tuple(map(packed, ips)),
        network=network,
        protocol=TunnelProtocol.HBONE if hbone else TunnelProtocol.TCP,
        service_account=account or name,
        services=tuple(Membership(key) for key in services),
        waypoint=waypoint,
        authorization_policies=policies,
        network_gateway=network_gateway,
        trust_domain=trust_domain,
        native_tunnel=native_tunnel,
        application_tunnel=tunnel,
        node=node,
        capacity=capacity,
        hostname=hostname,
    )


def service(
    name: str,
    *vips: str,
    ports: tuple[tuple[int, int], ...] = ((5432, 5432),),
    waypoint: GatewayAddress | None = None,
    names: tuple[str, ...] = (),
) -> Service:
    return Service(
        name=name,
        namespace="shop",
        hostname=f"{name}.shop.svc.cluster.local",
        vips=tuple(NetworkAddress(NETWORK, packed(vip)) for vip in vips),
        ports=ports,
        waypoint=waypoint,
        subject_alt_names=names,
    )


def key(name: str) -> str:
    return f"shop/{name}.shop.svc.cluster.local"


RESOURCES: tuple[Workload | Service, ...] = (
    pod("cart", "10.1.0.1", "fd00::1"),
    pod("web", "10.1.0.9", node="n2"),
    pod("db-0", "10.1.0.2", services=(key("db"),), policies=("shop/selected",)),
    pod("db-1", "10.1.0.3", services=(key("db"),), capacity=3),
    pod("legacy", "10.1.0.4", hbone=False, services=(key("old"),)),
    pod("guarded", "10.1.0.5", waypoint=gateway("10.1.0.6")),
    pod("waypoint", "10.1.0.6", tunnel=ApplicationTunnel(TunnelKind.PROXY, 15088)),
    pod("foreign", "10.1.0.7", trust_domain="elsewhere"),
    pod("native", "10.1.0.8", native_tunnel=True),
    pod("gateway", "10.1.0.10"),
    pod(
        "remote",
        network="far",
        network_gateway=gateway("10.1.0.10"),
        services=(key("remote"), key("nameless")),
    ),
    service("db", "10.96.0.20"),
    service("old", "10.96.0.21"),
    service("empty", "10.96.0.22"),
    service("remote", "10.96.0.23", names=("spiffe://cluster.local/ns/shop/sa/remote",)),
    service("nameless", "10.96.0.24"),
    service("headless"),
)


def mesh(*more: Workload | Service | Policy) -> Mesh:
    state = MeshState(node="n1")
    state.apply(Batch(upserts=(*RESOURCES, *more)))
    return Mesh(state=state, network=NETWORK)


def ask(of: Mesh, destination: str, source: str = "cart") -> Question:
    workload = of.state.workload(f"c//Pod/shop/{source}")
    assert workload is not None
    to = endpoint(destination)
    client = next(ip for ip in workload.ips if ip.version == to.ip.version)
    return Question(source=workload, client=client, destination=to)


def policy(
    name: str,
    action: Action,
    *principals: str,
    scope: Scope = Scope.NAMESPACE,
    dry_run: bool = False,
) -> Policy:
    """For these principals; for everybody without any."""
    texts = tuple(StringMatch(StringKind.EXACT, text) for text in principals)
    clauses = (Clause((Match(principals=texts),)),) if texts else ()
    return Policy(
        name=name,
        namespace="shop",
        scope=scope,
        action=action,
        rules=(Rule(clauses),),
        dry_run=dry_run,
    )


DENY_CART = policy("deny-cart", Action.DENY, CART.removeprefix("spiffe://"))
