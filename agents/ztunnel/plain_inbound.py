"""Plaintext coming in on 15006, in a mesh: judged by the policies, then passed through."""

from __future__ import annotations

from _socket import socket as RawSocket
from typing import TYPE_CHECKING

from nodenet.abi import Direction
from nodenet.agents.ztunnel.address import Address, ip_address
from nodenet.agents.ztunnel.admission import PASSED_ON_FILES
from nodenet.agents.ztunnel.connection import socket_cookie
from nodenet.agents.ztunnel.decision import Route as Dial
from nodenet.agents.ztunnel.ends import PolicyChanged, PolicyRejection
from nodenet.agents.ztunnel.flow_facts import INBOUND, FlowFacts
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.errors import NodenetError
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.rbac import RbacContext, Verdict

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.mesh_pod import MeshPod


class PlainInbound:
    """A connection accepted on 15006 that waits for the pod's workload or a verdict."""

    __slots__ = ("_client", "_context", "_near", "_pod", "_route", "_waits", "_workload")

    def __init__(self, pod: MeshPod, near: RawSocket, client: Address, route: Dial) -> None:
        self._pod = pod
        self._near = near
        self._client = client
        self._route = route
        self._workload: Workload | None = None
        self._waits = False
        destination = route.destination
        self._context = RbacContext(
            ip_address(client.host), None, Endpoint(ip_address(destination.host), destination.port)
        )

    def begin(self) -> bool:
        """Lets it in or not; False when there was no descriptor for its dial."""
        pod = self._pod
        workload = self._workload = pod.workload()
        if workload is None:
            # nobody has judged it yet, but its descriptor counts
            if not self._waits:
                self._waits = True
                pod.served.data_path.admission.opened(PASSED_ON_FILES)
            pod.await_workload(self)
            return True
        self._wait_over()
        verdict = pod.admits(workload, self._context)
        pod.telemetry.judged(verdict.policy, verdict.allowed)
        log = pod.telemetry.opened(self._facts(workload, verdict))
        if not verdict.allowed:
            error = PolicyRejection(verdict.text or "")
            log.closed(0, 0, error.message, error.response_flag)
            reset_on_close(self._near)
            self._near.close()
            return True
        return pod.served.carry(
            self._near, self._client, Direction.IN, self._route, log, judged=self
        )

    def workload_unknown(self) -> None:
        """See `WorkloadWaiter`."""
        pod = self._pod
        pod.forget_waiter(self)
        self._wait_over()
        error = pod.unknown_workload()
        pod.telemetry.failed(self._client, self._route.destination, INBOUND, error.message)
        reset_on_close(self._near)
        self._near.close()

    def _wait_over(self) -> None:
        if self._waits:
            self._waits = False
            self._pod.served.data_path.admission.closed(PASSED_ON_FILES)

    def rejection(self) -> NodenetError | None:
        """See `connection.Judged`."""
        workload = self._workload
        assert workload is not None
        return None if self._pod.admits(workload, self._context).allowed else PolicyChanged()

    def _facts(self, workload: Workload, verdict: Verdict) -> FlowFacts:
        pod = self._pod
        destination = self._route.destination
        return FlowFacts(
            direction=INBOUND,
            conn_id=socket_cookie(self._near),
            pod=pod.served.pod.name,
            src=self._client,
            dst=destination,
            original_dst=destination,
            src_workload=pod.context.state.workload_at(
                pod.context.network, ip_address(self._client.host)
            ),
            dst_workload=workload,
            dst_identity=workload.identity,
            policy=verdict.policy,
        )
