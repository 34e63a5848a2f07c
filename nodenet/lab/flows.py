"""The rows of `lab demo`: who calls whom, what is to be proved of it, and what a row says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from nodenet.capture.records import PodRecord
from nodenet.endpoint import format_endpoint
from nodenet.lab.plan import (
    GUARDED_PORT,
    SERVICE_PORT,
    WORKLOAD_PORT,
    LabPlan,
    Pod,
    VirtualService,
)

Side = Literal["out", "in"]
Expected = Literal["captured-out", "captured-in", "untouched", "denied-out", "denied-in"]
Protocol = Literal["hbone", "tcp"]
Decision = Literal["allow", "deny"]
AppSaw = Literal["answer", "close", "reset", "failure"]
"""How the call ended for the calling application."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's application says of the connection."""

    pod: str
    peer: str
    local: str
    cookie: str
    received: int


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One connection with one request, as the calling application saw it."""

    cookie: str
    local: str | None
    peer: str | None
    """What getpeername said."""
    bytes_sent: int
    bytes_received: int
    seen: Seen | None
    error: str | None
    saw: AppSaw


class FlowWire(msgspec.Struct, frozen=True, kw_only=True):
    """What crossed between the two nodes on behalf of a flow."""

    plaintext_seen: bool
    """Whether the mark that the application sent, or its answer, was there to read."""
    ports: tuple[int, ...]
    """Every port to which the source's address made TCP connections at the server's."""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the demo; the JSON item of ``flows``."""

    from_: str = msgspec.field(name="from")
    to: str
    """The pod that is called, or the service."""
    to_port: int
    server: str
    """The pod that answers, or has to refuse: of a service one of its endpoints."""
    family: Literal[4, 6]
    side: Side | None
    captured_by: Literal["ebpf", "iptables", "none"]
    listener: str | None
    orig_dst: str | None
    bytes_sent: int
    bytes_received: int
    peer_seen: str | None
    """ENDPOINT that the application on this side believes it talks to."""
    conn_id: str | None
    protocol: Protocol
    """Between the pods, as the proxy of this side has it in its access log."""
    src_identity: str | None
    dst_identity: str | None
    decision: Decision | None
    """What the policies said; None: nobody asked them."""
    policy: str | None
    """The policy that denied it."""
    status: int | None
    """The far proxy's answer to the tunnel, from the access log of the near one."""
    app_saw: AppSaw
    wire: FlowWire | None
    """None: it does not cross from node to node."""
    expected: Expected
    ok: bool
    why: str | None
    """What is not as expected; None when all is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Who calls what over which family."""

    source: Pod
    target: Pod | VirtualService
    family: Literal[4, 6]
    port: int = WORKLOAD_PORT

    @property
    def destination(self) -> str:
        """ENDPOINT that the application connects to."""
        return format_endpoint(self.target.address(self.family), self.port)

    @property
    def servers(self) -> tuple[Pod, ...]:
        """The pods that may answer."""
        target = self.target
        return target.endpoints if isinstance(target, VirtualService) else (target,)


class Row(NamedTuple):
    """One thing to prove: a pair, seen from one side, with the pod that is to answer."""

    pair: Pair
    side: Side | None
    server: Pod

    @property
    def server_endpoint(self) -> str:
        """ENDPOINT of the server's application."""
        return format_endpoint(self.server.address(self.pair.family), self.server_port)

    @property
    def server_port(self) -> int:
        """The port its application listens on."""
        return self.pair.port if self.pair.target is self.server else WORKLOAD_PORT

    @property
    def crosses(self) -> bool:
        """Whether it goes from one node to another."""
        return self.pair.source.node != self.server.node


#: Who calls what, and at which port.
Chosen = tuple[Pod, Pod | VirtualService, int]


def pairs(plan: LabPlan, chosen: Sequence[Chosen] = ()) -> list[Pair]:
    """Everything to be shown, or the chosen, in every family of the lab.

    Everything: each pod calls each other pod; in a mesh its members also call each other's guarded
    port and the service.
    """
    wanted = list(chosen)
    if not wanted:
        members = plan.members
        wanted += [(a, b, WORKLOAD_PORT) for a in plan.pods for b in plan.pods if a is not b]
        wanted += [(a, b, GUARDED_PORT) for a in members for b in members if a is not b]
        if plan.service is not None:
            wanted += [(a, plan.service, SERVICE_PORT) for a in members]
    return [
        Pair(source=a, target=b, family=family, port=port)
        for a, b, port in wanted
        for family in plan.family.numbers
    ]


def rows(pair: Pair, enrolled: Mapping[str, PodRecord]) -> list[Row]:
    """What to prove of a pair: the captured sides, or that neither end was touched.

    Of a service: for each of its endpoints, that the caller reaches it.
    """
    out = captures(enrolled.get(pair.source.full_name), "out")
    if isinstance(pair.target, VirtualService):
        return [Row(pair, "out" if out else None, server) for server in pair.servers]
    server = pair.target
    found = [Row(pair, "out", server)] if out else []
    if captures(enrolled.get(server.full_name), "in"):
        found.append(Row(pair, "in", server))
    return found or [Row(pair, None, server)]


def captures(record: PodRecord | None, side: Side) -> bool:
    """Whether connections of that direction are captured in a pod with that record."""
    return record is not None and record.direction in ("both", side)
