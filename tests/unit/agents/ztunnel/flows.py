"""Facts about connections between two workloads, as the proxies fill them in."""

from __future__ import annotations

from typing import Any, Final

from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND, FlowFacts, Security
from nodenet.mesh.model import Locality, Service, Workload

CART: Final = Workload(
    uid="Kubernetes//Pod/shop/cart-7d9f6b",
    name="cart-7d9f6b",
    namespace="shop",
    workload_name="cart",
    canonical_name="cart-app",
    canonical_revision="v2",
    service_account="cart",
    locality=Locality("r1", "z1"),
)
DB: Final = Workload(
    uid="Kubernetes//Pod/shop/db-0",
    name="db-0",
    namespace="shop",
    workload_name="db",
    canonical_name="db",
    canonical_revision="latest",
    service_account="db",
)
SERVICE: Final = Service(name="db", namespace="shop", hostname="db.shop.svc.cluster.local")
CART_ID: Final = "spiffe://cluster.local/ns/shop/sa/cart"
DB_ID: Final = "spiffe://cluster.local/ns/shop/sa/db"
APP: Final = Address("10.42.1.7", 51034)
VIP: Final = Address("10.96.0.20", 5432)
HBONE: Final = Address("10.42.2.9", 15008)


def outbound(**changes: Any) -> FlowFacts:
    """cart to the service db, by HBONE."""
    facts: dict[str, Any] = {
        "direction": OUTBOUND,
        "conn_id": "3a01",
        "pod": "shop/cart-7d9f6b",
        "src": APP,
        "dst": HBONE,
        "original_dst": VIP,
        "hbone_addr": "10.42.2.9:5432",
        "protocol": "HBONE",
        "security": Security.MTLS,
        "src_workload": CART,
        "src_identity": CART_ID,
        "dst_workload": DB,
        "dst_identity": DB_ID,
        "service": SERVICE,
        "row": "Z9",
    }
    return FlowFacts(**facts | changes)


def inbound(**changes: Any) -> FlowFacts:
    """The same connection where it arrives."""
    facts: dict[str, Any] = {
        "direction": INBOUND,
        "conn_id": "3b10",
        "pod": "shop/db-0",
        "original_dst": Address("10.42.2.9", 5432),
        "policy": "no policies",
        "row": None,
    }
    return outbound(**facts | changes)


def plain(**changes: Any) -> FlowFacts:
    """A connection that is passed through to somebody unknown."""
    facts: dict[str, Any] = {
        "direction": OUTBOUND,
        "conn_id": "3a02",
        "pod": "shop/cart-7d9f6b",
        "src": APP,
        "dst": Address("203.0.113.9", 443),
        "original_dst": Address("203.0.113.9", 443),
        "src_workload": CART,
        "row": "Z5c",
    }
    return FlowFacts(**facts | changes)


class Bytes:
    """How far a connection is."""

    def __init__(self, sent: int = 0, received: int = 0) -> None:
        self.sent = sent
        self.received = received
