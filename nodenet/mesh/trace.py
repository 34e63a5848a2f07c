"""Notes about one outbound decision, row by row.

`nodenet.mesh.outbound.decide` tells a `Notes` what each row found. Nobody listens on the data path
(`Notes` itself ignores all); `Trace` keeps the steps, with all that a random choice could have
fallen on. So the code that decides is the code that explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from nodenet.mesh.candidates import Candidate
from nodenet.mesh.load_balancing import waypoints_listed
from nodenet.mesh.model import Endpoint, GatewayAddress, Service, Workload
from nodenet.mesh.upstream import Upstream

Answer = Literal[
    "yes", "no", "none", "workload", "service", "waypoint", "passthrough",
    "tcp", "hbone", "double-hbone", "refused",
]  # fmt: skip


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one row said."""

    row: str
    """As in `nodenet.mesh.rows`, with a letter where a row has several outcomes: ``Z4b``."""
    fired: bool
    """It decided; the rows after it were not asked."""
    answer: Answer
    why: str
    candidates: tuple[Candidate, ...] = ()


class Notes:
    """What a decision tells while it is made; this one forgets it."""

    __slots__ = ()

    def source(self, source: Workload, destination: Endpoint) -> None:
        """Rows Z1 and Z2: no call to the proxy itself, and who connects."""

    def addressed(
        self, found: Workload | Service | None, destination: Endpoint, network: str
    ) -> None:
        """Row Z3: who has the destination address."""

    def service_waypoint(self, service: Service | None, reference: GatewayAddress | None) -> None:
        """Row Z4: the waypoint that the service wants its connections to take."""

    def upstream(self, row: str, found: Upstream | None, port: int) -> None:
        """Who was chosen to answer, in whatever row; ``port`` is the one asked for."""

    def same_network(self, workload: Workload) -> None:
        """Row Z6 did not fire."""

    def workload_waypoint(
        self, service: Service | None, workload: Workload, from_waypoint: bool
    ) -> None:
        """Rows Z7 and Z8: whether the workload's own waypoint is to be taken."""


UNWATCHED = Notes()


class Trace(Notes):
    """Keeps the steps."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(
        self,
        row: str,
        answer: Answer,
        why: str,
        candidates: Sequence[Candidate] = (),
        *,
        fired: bool = False,
    ) -> None:
        """Adds a step."""
        self.steps.append(
            Step(row=row, fired=fired, answer=answer, why=why, candidates=tuple(candidates))
        )

    def source(self, source: Workload, destination: Endpoint) -> None:
        self.add("Z1", "no", f"{destination} is no listener of the proxy")
        self.add("Z2", "yes", f"{source.uid}, as {source.identity}")

    def addressed(
        self, found: Workload | Service | None, destination: Endpoint, network: str
    ) -> None:
        if isinstance(found, Workload):
            self.add("Z3", "workload", f"workload {found.uid} has {destination.ip}")
        elif found is not None:
            self.add("Z3", "service", f"service {found.key} by VIP")
        else:
            self.add("Z3", "none", f"nobody known has {destination.ip} in network {network!r}")

    def service_waypoint(self, service: Service | None, reference: GatewayAddress | None) -> None:
        if service is None:
            self.add("Z4", "none", "no service was addressed")
        elif reference is None:
            self.add("Z4", "none", "the service has no waypoint")
        else:
            self.add(
                "Z4",
                "waypoint",
                f"waypoint {reference.destination} port {reference.hbone_mtls_port}",
                waypoints_listed(service, reference),
            )

    def upstream(self, row: str, found: Upstream | None, port: int) -> None:
        if found is None:
            self.add(row, "none", "nobody may have the connection")
            return
        among = () if found.among is None else found.among.listed(found.workload.uid)
        through = "" if found.service is None else f" of {found.service.key}"
        mapped = f"port {port} -> {found.port}" if found.port != port else f"port {port}"
        self.add(row, "workload", f"{found.workload.uid}{through}, {mapped}", among)

    def same_network(self, workload: Workload) -> None:
        self.add("Z6", "no", f"{workload.uid} is in the source's network {workload.network!r}")

    def workload_waypoint(
        self, service: Service | None, workload: Workload, from_waypoint: bool
    ) -> None:
        if workload.waypoint is None:
            self.add("Z7", "no", "the destination has no waypoint")
        elif from_waypoint:
            self.add("Z7", "yes", f"the source is its waypoint {workload.waypoint.destination}")
        else:
            self.add("Z7", "no", "the source is not the destination's waypoint")
        if service is not None:
            self.add("Z8", "none", "a service was addressed: its workloads' waypoints do not count")
        elif workload.waypoint is None or from_waypoint:
            self.add("Z8", "none", "no waypoint to take")
