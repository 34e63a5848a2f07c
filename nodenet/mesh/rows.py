"""The rows of the outbound decision as data: what each asks and what it means when it decides.

`nodenet.mesh.outbound` decides, this table explains; ``ztunnel explain`` and the tests read it, so
that a row has one text. Source of the order: ztunnel: src/proxy/outbound.rs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the decision order."""

    id: str
    question: str
    """Short, as printed by explain."""
    meaning: str
    """What happens to the connection when the row decides, or what it finds out."""


ROWS: Final = (
    Row(id="Z0", question="addresses", meaning="client and original destination are known"),
    Row(id="Z1", question="proxy's own port", meaning="refused: the proxy would call itself"),
    Row(id="Z2", question="own workload", meaning="refused when the mesh does not know the pod"),
    Row(
        id="Z3",
        question="address",
        meaning="who has the destination address: a workload, else a service",
    ),
    Row(
        id="Z4",
        question="service waypoint",
        meaning="HBONE to the service's waypoint, by a gateway when that is in another network",
    ),
    Row(
        id="Z5",
        question="upstream",
        meaning="a service before a workload, in the workload's network; an endpoint is chosen. "
        "An unknown destination is passed through in plaintext",
    ),
    Row(
        id="Z6",
        question="other network",
        meaning="double HBONE through the gateway of the destination's network",
    ),
    Row(
        id="Z7",
        question="from the waypoint",
        meaning="what comes from the destination's own waypoint does not go there again",
    ),
    Row(
        id="Z8",
        question="workload waypoint",
        meaning="HBONE to the waypoint of a workload addressed by its own address",
    ),
    Row(id="Z9", question="HBONE", meaning="HBONE to port 15008 of the destination"),
    Row(id="Z10", question="TCP", meaning="plaintext to the destination"),
)
