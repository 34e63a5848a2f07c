"""A proxy as the admin surface asks it, with a little of everything."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from nodenet.agents.ztunnel.access_log import AccessLog, LogFormat
from nodenet.agents.ztunnel.admin import About, Admin
from nodenet.agents.ztunnel.log_control import LogControl, LogFilter
from nodenet.agents.ztunnel.readiness import PROXY, Readiness
from nodenet.agents.ztunnel.telemetry import Telemetry
from nodenet.agents.ztunnel.views import (
    CertificateDump,
    PodView,
    PolicyView,
    PoolConnection,
    Upstream,
)
from nodenet.errors import NotFound
from tests.unit.agents.ztunnel.flows import CART_ID, DB_ID, Bytes, inbound, outbound


@dataclass(frozen=True)
class Cert:
    """As much of a certificate as is shown."""

    pem: str
    serial: int
    not_before: float
    not_after: float


LEAF: Final = Cert("-----BEGIN CERTIFICATE-----\nleaf\n", 0x51C0A9E2, 1_000_000_000, 1_000_086_400)
ROOT: Final = Cert("-----BEGIN CERTIFICATE-----\nroot\n", 1, 900_000_000, 1_900_000_000)


@dataclass
class Source:
    """What the proxy would tell."""

    workload: list[Any] = field(
        default_factory=lambda: [{"uid": "u1", "name": "cart"}, {"uid": "u2", "name": "db"}]
    )
    shut: int = 0
    asked: list[tuple[str, str, bytes | None]] = field(default_factory=list)

    def workloads(self) -> Iterable[object]:
        return iter(self.workload)

    def services(self) -> Iterable[object]:
        return []

    def policies(self) -> Iterable[object]:
        return [{"name": "deny", "namespace": "shop", "rules": [[[]]]}]

    def staged_services(self) -> object:
        return {}

    def static_config(self) -> object:
        return {"workloads": [], "policies": [], "services": []}

    def config(self) -> object:
        return {"network": "", "localNode": "n1"}

    def certificates(self) -> Iterable[CertificateDump]:
        return [
            CertificateDump(
                identity=DB_ID,
                state="Unavailable: ca 10.96.0.5:15012: UNAUTHENTICATED",
                error="ca 10.96.0.5:15012: UNAUTHENTICATED",
                attempts=4,
                refresh_at=1_000_000_012,
            ),
            CertificateDump(
                identity=CART_ID,
                state="Available",
                chain=(LEAF,),
                roots=(ROOT,),
                refresh_at=1_000_043_200,
            ),
        ]

    def pods(self) -> Iterable[PodView]:
        return [
            PodView(uid="p1", name="shop/cart-7d9f6b", service_account="cart", up=True),
            PodView(uid="p2", name="shop/db-0", service_account="db", up=False),
        ]

    def pool(self) -> Iterable[PoolConnection]:
        return []

    def policy_hits(self) -> Iterable[PolicyView]:
        return [PolicyView(key="shop/deny", hits_allow=0, hits_deny=2, applies_to=("shop/db-0",))]

    def upstreams(self) -> tuple[Upstream, ...]:
        return (Upstream(name="ca", address="embedded", state="ready", since=None),)

    def counts(self) -> dict[str, int]:
        return {"workloads": 2, "services": 0, "policies": 1}

    def explain(self, src: str, dst: str, policies: bytes | None) -> Any:
        self.asked.append((src, dst, policies))
        if src == "shop/nobody":
            raise NotFound("no workload shop/nobody", hint="nearest: shop/cart")
        return {"ok": True, "result": "captured"}

    def shut_down(self) -> None:
        self.shut += 1


class World:
    """An admin surface over a `Source`, with two live connections."""

    def __init__(self) -> None:
        self.source = Source()
        self.telemetry = Telemetry(AccessLog(LogFormat.PLAIN, len), level=logging.CRITICAL)
        self.telemetry.opened(outbound(), Bytes(12_702, 3_250_586))
        flow = self.telemetry.opened(inbound())
        flow.hbone_conn, flow.stream_id = "77", 3
        self.filters: list[str] = []
        self.logs = LogControl(LogFilter(), lambda f: self.filters.append(str(f)))
        self.readiness = Readiness(PROXY)
        about = About(instance="nodenet", node="n1", started_ns=1_000_000_000_000_000_000)
        self.admin = Admin(about, self.source, self.telemetry, self.logs, self.readiness)
