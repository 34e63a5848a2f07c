"""Proxies of two nodes and their mesh, served at real sockets from a thread."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.admin_socket import admin_socket
from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND, FlowFacts, Security
from nodenet.agents.ztunnel.views import CertificateDump, PodView, PolicyView, Upstream
from nodenet.httpd.routes import Routes
from nodenet.httpd.server import HttpServer
from nodenet.httpd.sockets import open_unix
from nodenet.mesh.model import Workload
from nodenet.paths import Instance
from nodenet.times import rfc3339_ns
from tests.unit.agents.ztunnel.admin_world import Cert, Source, World

INSTANCE: Final = Instance("nn-shop")
HOUR: Final = 3600.0
#: What a moment to come is later than its text says. Texts of hours are cut to minutes, so neither
#: a moment to come nor one that is past is another text before the test is over.
ROUNDED: Final = 59.0
SHOP: Final = "spiffe://cluster.local/ns/shop/sa"


def _pod(name: str, account: str, ip: str, node: str, **more: Any) -> dict[str, Any]:
    return {
        "workloadIps": [ip],
        "protocol": "HBONE",
        "networkMode": "Standard",
        "uid": f"Kubernetes//Pod/shop/{name}",
        "name": name,
        "namespace": "shop",
        "trustDomain": "cluster.local",
        "serviceAccount": account,
        "node": node,
        "status": "Healthy",
        "clusterId": "Kubernetes",
        "capacity": 1,
    } | more


DB_KEY: Final = "shop/db.shop.svc.cluster.local"
WORKLOADS: Final = [
    _pod("db-1", "db", "10.42.2.9", "n2", services=[DB_KEY]),
    _pod(
        "cart-7d9f6b", "cart", "10.42.1.7", "n1",
        waypoint={"destination": "shop/waypoint.shop.svc.cluster.local", "hboneMtlsPort": 15008},
    ),
    _pod("db-0", "db", "10.42.1.9", "n1", services=[DB_KEY], authorizationPolicies=["shop/deny"],
         status="Unhealthy"),
    {
        "workloadIps": [], "protocol": "TCP", "networkMode": "Standard", "uid": "ext/mail",
        "name": "mail", "namespace": "ext", "hostname": "mail.example.com", "status": "Healthy",
        "clusterId": "Kubernetes", "capacity": 1,
    },
]  # fmt: skip
SERVICES: Final = [
    {
        "name": "db", "namespace": "shop", "hostname": "db.shop.svc.cluster.local",
        "vips": ["/10.96.0.20"], "ports": {"5432": 5432, "80": 8080}, "subjectAltNames": [],
        "endpoints": {
            "Kubernetes//Pod/shop/db-1": {
                "workloadUid": "Kubernetes//Pod/shop/db-1", "port": {"80": 8081},
                "status": "Healthy",
            },
        },
        "canonical": True, "visibility": "Public",
    },
]  # fmt: skip
POLICIES: Final = [
    {
        "name": "deny", "namespace": "shop", "scope": "WorkloadSelector", "action": "Deny",
        "rules": [[[{"principals": [{"Exact": "cluster.local/ns/x/sa/y"}]}]]], "dryRun": False,
    },
    {
        "name": "open", "namespace": "shop", "scope": "Namespace", "action": "Allow",
        "rules": [[], []], "dryRun": True,
    },
]  # fmt: skip


class ShopSource(Source):
    """The mesh of the shop, as the proxy of one node knows it."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self.node = node
        self.known = True
        self.error: str | None = None
        self.workload = list(WORKLOADS)

    def workloads(self) -> Iterable[object]:
        return self.workload if self.known else []

    def services(self) -> Iterable[object]:
        return SERVICES if self.known else []

    def policies(self) -> Iterable[object]:
        return POLICIES if self.known else []

    def config(self) -> object:
        return {"network": "", "localNode": self.node}

    def static_config(self) -> object:
        return {"workloads": [{"uid": "ext/mail", "services": {}}], "policies": [], "services": []}

    def policy_hits(self) -> Iterable[PolicyView]:
        hits = 2 if self.node == "n1" else 1
        pods = ("shop/db-0",) if self.node == "n1" else ()
        yield PolicyView(key="shop/deny", hits_allow=0, hits_deny=hits, applies_to=pods)
        yield PolicyView(key="shop/open", hits_allow=hits, hits_deny=0, applies_to=())

    def certificates(self) -> Iterable[CertificateDump]:
        now = time.time()
        if self.node != "n1":
            return
        leaf = Cert("x", 0x51C0A9E2, now - 2.75 * HOUR, now + 21.25 * HOUR + ROUNDED)
        yield CertificateDump(
            identity=f"{SHOP}/cart",
            state="Available",
            chain=(leaf,),
            roots=(Cert("y", 1, now - 100 * HOUR, now + 1000 * HOUR),),
            refresh_at=now + 9.25 * HOUR + ROUNDED,
        )
        yield CertificateDump(
            identity=f"{SHOP}/db",
            state="Unavailable: ca 10.96.0.5:15012: UNAUTHENTICATED",
            error="ca 10.96.0.5:15012: UNAUTHENTICATED",
            attempts=4,
            refresh_at=now + 1.2 * HOUR + ROUNDED,
        )

    def pods(self) -> Iterable[PodView]:
        if self.node == "n1":
            yield PodView(uid="p1", name="shop/cart-7d9f6b", service_account="cart", up=True)
            yield PodView(uid="p2", name="shop/db-0", service_account="db", up=True)
        else:
            yield PodView(uid="p3", name="shop/db-1", service_account="db", up=True)

    def upstreams(self) -> tuple[Upstream, ...]:
        since = rfc3339_ns(time.time_ns() - int(1.2 * HOUR * 1e9))
        state = "synced" if self.known else "connecting"
        return (
            Upstream(
                name="xds", address="10.96.0.5:15012", state=state, since=since, error=self.error
            ),
        )

    def counts(self) -> dict[str, int]:
        return {"workloads": len(self.workload), "services": 1, "policies": 2}


class Progress:
    """Bytes so far."""

    def __init__(self, sent: int, received: int) -> None:
        self.sent, self.received = sent, received


class Proxy(World):
    """The proxy of a node, with the connections of the documentation's example."""

    source: ShopSource

    def __init__(self, node: str) -> None:
        super().__init__()
        self.source = ShopSource(node)
        self.admin._source = self.source
        for flow in self.telemetry.open_flows():
            flow.closed(0, 0)
        if node == "n1":
            self._connect()
        self.readiness.done("proxy")

    def _connect(self) -> None:
        db = Workload(uid="db-1", name="db-1", namespace="shop")
        out = FlowFacts(
            direction=OUTBOUND, conn_id="3a01", pod="shop/cart-7d9f6b",
            src=Address("10.42.1.7", 51034), dst=Address("10.42.2.9", 15008),
            original_dst=Address("10.96.0.20", 5432), protocol="HBONE", security=Security.MTLS,
            src_identity=f"{SHOP}/cart", dst_workload=db, dst_identity=f"{SHOP}/db", row="Z9",
        )  # fmt: skip
        into = FlowFacts(
            direction=INBOUND, conn_id="3b10", pod="shop/db-0", src=Address("10.42.7.3", 40110),
            dst=Address("10.42.1.9", 5432), original_dst=Address("10.42.1.9", 5432),
        )  # fmt: skip
        first = self.telemetry.opened(out, Progress(12_702, 3_250_586))
        second = self.telemetry.opened(into, Progress(2253, 10_276_045))
        now = time.time_ns()
        first.started_ns = now - int((2 * HOUR + 5 * 60) * 1e9)
        second.started_ns = now - int(1.25 * HOUR * 1e9)

    def foreign(self) -> Routes:
        """As Istio's ztunnel answers."""
        own = self.admin.routes(over_unix=False)
        return Routes(
            {(m, p): own.find(m, p) for p, ms in own.paths() for m in ms if p[:3] != "/v1"}
        )


class Served:
    """Proxies at their sockets below a run directory; a context manager."""

    def __init__(self, proxies: dict[str | None, Proxy], *, foreign: bool = False) -> None:
        """By node; None: the only one of a host."""
        self.proxies = proxies
        self._foreign = foreign
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._ready = threading.Event()

    def path(self, node: str | None) -> Path:
        """The socket of a node's proxy."""
        return admin_socket(INSTANCE, node)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        servers = []
        for node, proxy in self.proxies.items():
            routes = proxy.foreign() if self._foreign else proxy.admin.routes(over_unix=True)
            servers.append(HttpServer("admin", routes, [open_unix(self.path(node), "-")]))
        for server in servers:
            await server.__aenter__()
        self._ready.set()
        await self._stop.wait()
        for server in servers:
            await server.__aexit__(None, None, None)
        for proxy in self.proxies.values():
            proxy.logs.close()


def saved(path: Path) -> Path:
    """A dump of the shop as a file."""
    source = ShopSource("n1")
    path.write_text(
        json.dumps(
            {
                "workloads": source.workload,
                "services": SERVICES,
                "policies": POLICIES,
                "stagedServices": {},
                "staticConfig": {"workloads": [], "policies": [], "services": []},
                "version": {"version": "1.31"},
                "config": source.config(),
                "certificates": [{"identity": f"{SHOP}/cart", "state": "Available"}],
                "workloadState": {
                    "p1": {
                        "state": "Up",
                        "connections": {
                            "inbound": [],
                            "outbound": [
                                {
                                    "src": "10.42.1.7:51034",
                                    "originalDst": "10.96.0.20:5432",
                                    "actualDst": "10.42.2.9:15008",
                                    "protocol": "HBONE",
                                }
                            ],
                        },
                        "info": {"name": "cart-7d9f6b", "namespace": "shop",
                                 "serviceAccount": "cart"},
                    }
                },
            }
        )
    )  # fmt: skip
    return path
