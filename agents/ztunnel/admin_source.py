"""What a proxy tells the admin surface and the metrics about itself."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from nodenet.abi import HBONE_PORT, INBOUND_PORT, OUTBOUND_PORT
from nodenet.agents.ztunnel import explain, explain_question
from nodenet.agents.ztunnel.client_connection import ClientConnection
from nodenet.agents.ztunnel.config import ZtunnelConfig
from nodenet.agents.ztunnel.membership import Membership
from nodenet.agents.ztunnel.metrics import ProxyFigures
from nodenet.agents.ztunnel.pods import RecordPodSource
from nodenet.agents.ztunnel.telemetry import Telemetry
from nodenet.agents.ztunnel.views import (
    CertificateDump,
    PodView,
    PolicyView,
    PoolConnection,
    Upstream,
)
from nodenet.agents.ztunnel.what_if import LiveInbound, live_inbound
from nodenet.agents.ztunnel.worker import LocalWorker
from nodenet.errors import NotFound
from nodenet.mesh import dump
from nodenet.times import rfc3339_ns

#: Rows of an identity's certificate states, for the gauge.
_STATES: Final = ("available", "initializing", "unavailable")


class NoMesh(NotFound):
    """The proxy passes everything through: it has no mesh to ask."""

    def __init__(self) -> None:
        super().__init__(
            "this proxy is in no mesh: every connection goes where it wanted to",
            hint="start it with: nodenet ztunnel run --mesh FILE --embedded-ca DIRECTORY",
        )


class ProxySource:
    """Implements `views.AdminSource` over the parts of one proxy. Of the loop's thread."""

    def __init__(
        self,
        config: ZtunnelConfig,
        worker: LocalWorker,
        pods: RecordPodSource,
        telemetry: Telemetry,
        member: Membership | None,
        shut_down: Callable[[], None],
    ) -> None:
        self._config = config
        self._worker = worker
        self._pods = pods
        self._telemetry = telemetry
        self._member = member
        self.shut_down = shut_down
        """See `views.AdminSource`."""

    # -- the mesh --------------------------------------------------------------------------------

    def workloads(self) -> Iterable[object]:
        """See `views.AdminSource`."""
        return () if self._member is None else dump.workloads(self._member.mesh.state)

    def services(self) -> Iterable[object]:
        """See `views.AdminSource`."""
        return () if self._member is None else dump.services(self._member.mesh.state)

    def policies(self) -> Iterable[object]:
        """See `views.AdminSource`."""
        return () if self._member is None else dump.policies(self._member.mesh.state)

    def staged_services(self) -> object:
        """See `views.AdminSource`."""
        return {} if self._member is None else dump.staged_services(self._member.mesh.state)

    def static_config(self) -> object:
        """See `views.AdminSource`."""
        return dump.static_config(None if self._member is None else self._member.file.mesh)

    def counts(self) -> dict[str, int]:
        """See `views.AdminSource`."""
        if self._member is None:
            return {"workloads": 0, "services": 0, "policies": 0}
        state = self._member.mesh.state
        return {
            "workloads": len(state.workloads),
            "services": len(state.services),
            "policies": len(state.policies),
        }

    def policy_hits(self) -> Iterable[PolicyView]:
        """See `views.AdminSource`."""
        if self._member is None:
            return
        state, hits = self._member.mesh.state, self._telemetry.policy_hits
        applies: dict[str, list[str]] = {}
        for served in self._worker.served():
            workload = served.mesh.workload() if served.mesh is not None else None
            for policy in () if workload is None else state.policies_of(workload):
                applies.setdefault(policy.key, []).append(served.pod.name)
        for policy in state.policies:
            yield PolicyView(
                key=policy.key,
                hits_allow=hits[policy.key, True],
                hits_deny=hits[policy.key, False],
                applies_to=tuple(sorted(applies.get(policy.key, ()))),
            )

    def explain(self, src: str, dst: str, policies: bytes | None) -> Any:
        """See `views.AdminSource`."""
        if self._member is None:
            raise NoMesh
        mesh = explain.Mesh(
            state=self._member.mesh.state,
            network=self._member.mesh.network,
            certificates={c.identity: c.state.lower() for c in self.certificates()},
            live=self._live(),
            served=self._served_uids(),
        )
        return explain_question.answer(
            mesh, src, dst, rng=random.Random(), node=self._config.node or "", policies=policies
        )

    def _served_uids(self) -> frozenset[str]:
        found = (s.mesh.workload() for s in self._worker.served() if s.mesh is not None)
        return frozenset(workload.uid for workload in found if workload is not None)

    # -- identities ------------------------------------------------------------------------------

    def certificates(self) -> Iterable[CertificateDump]:
        """See `views.AdminSource`."""
        if self._member is None:
            return
        for entry in self._member.mesh.certificates.snapshot():
            found = entry.certificate
            yield CertificateDump(
                identity=str(entry.identity),
                state=entry.state_text,
                chain=() if found is None else (found.leaf, *found.intermediates),
                roots=() if found is None else found.roots,
                refresh_at=entry.next_request,
                error=entry.error,
                attempts=entry.attempts,
            )

    def upstreams(self) -> tuple[Upstream, ...]:
        """See `views.AdminSource`."""
        if self._member is None:
            return ()
        file = self._member.file
        return (
            Upstream(
                name="file",
                address=str(file.path),
                state="loaded" if file.error is None else "not in force",
                since=rfc3339_ns(file.loaded_ns),
                error=file.error,
            ),
            Upstream(name="ca", address="embedded", state="ready", since=None),
        )

    # -- pods and connections --------------------------------------------------------------------

    def pods(self) -> Iterable[PodView]:
        """See `views.AdminSource`."""
        for served in self._worker.served():
            workload = served.mesh.workload() if served.mesh is not None else None
            yield PodView(
                uid=served.pod.uid or f"netns-{served.pod.cookie}",
                name=served.pod.name,
                service_account=workload.service_account if workload is not None else "",
                up=served.serving,
            )

    def pool(self) -> Iterable[PoolConnection]:
        """See `views.AdminSource`."""
        for pod, connection in self._pooled():
            yield PoolConnection(
                id=connection.conn_id,
                pod=pod,
                remote=str(connection.key.destination),
                source=connection.key.source,
                identities=connection.key.identities,
                state=_state(connection),
                streams=connection.streams,
                max_streams=self._config.max_streams,
                opened=connection.opened,
            )

    def config(self) -> object:
        """See `views.AdminSource`."""
        config = self._config
        return {
            "adminAddr": config.admin,
            "statsAddr": config.stats,
            "readinessAddr": config.readiness,
            "outboundAddr": f"[::]:{OUTBOUND_PORT}",
            "inboundPlaintextAddr": f"[::]:{INBOUND_PORT}",
            "inboundAddr": f"[::]:{HBONE_PORT}",
            "illegalPorts": [OUTBOUND_PORT, INBOUND_PORT, HBONE_PORT],
            "proxyMode": "Shared",
            "network": config.network,
            "localNode": config.node,
            "clusterId": "Kubernetes",
            "clusterDomain": "cluster.local",
            "localXdsConfig": None if config.mesh_file is None else str(config.mesh_file),
            "crlPath": None if config.crl is None else str(config.crl),
            "secretTtl": f"{config.ttl_seconds:g}s",
            "poolMaxStreamsPerConn": config.max_streams,
            "poolUnusedReleaseTimeout": f"{config.pool_idle_seconds:g}s",
            "selfTerminationDeadline": f"{config.drain_seconds:g}s",
            "connectTimeout": f"{config.connect_seconds:g}s",
            "maxConnectionsPerPod": config.max_connections,
            "enableEnhancedBaggage": config.response_baggage,
            "logFormat": config.log_format.value,
            "instance": config.instance.name,
            "pid": os.getpid(),
        }

    def figures(self) -> ProxyFigures:
        """What the metrics count besides connections."""
        worker, telemetry = self._worker, self._telemetry
        served = worker.served()
        refused: Counter[str] = Counter()
        dials: Counter[str] = Counter()
        reset = 0
        for counters in (worker.gone, *(each.counters for each in served)):
            for reason, count in counters.refused.items():
                refused[reason.value] += count
            dials.update(counters.dial_failed)
            reset += counters.reset
        pooled = list(self._pooled())
        peers = [peer for each in served if each.mesh for peer in each.mesh.peers]
        states = Counter(c.state.partition(":")[0].lower() for c in self.certificates())
        return ProxyFigures(
            active_proxies=sum(each.serving for each in served),
            pending_proxies=len(self._pods.pending),
            proxies_started=worker.started,
            proxies_stopped=worker.started - sum(each.serving for each in served),
            pool_connections=len(pooled),
            pool_streams=sum(connection.streams for _, connection in pooled),
            peer_connections=len(peers),
            peer_streams=sum(len(peer.flows) for peer in peers),
            handshakes_failed=telemetry.handshakes_failed,
            refused=refused,
            dials_failed=dials,
            reset=reset,
            crl_rejections=self._crl_rejections(),
            certificates={state: states[state] for state in _STATES},
            mesh=self.counts(),
        )

    def _crl_rejections(self) -> Mapping[str, int] | None:
        revocation = None if self._member is None else self._member.mesh.revocation
        return None if revocation is None else revocation.rejections

    def _pooled(self) -> Iterator[tuple[str, ClientConnection]]:
        for served in self._worker.served():
            if served.mesh is not None:
                for connection in list(served.mesh.pool.connections):
                    yield served.pod.name, connection

    def _live(self) -> Iterator[LiveInbound]:
        for flow in self._telemetry.open_flows():
            found = live_inbound(flow.facts)
            if found is not None:
                yield found


def _state(connection: ClientConnection) -> str:
    if not connection.usable:
        return "draining"
    return "ready" if connection.conn_id else "connecting"
