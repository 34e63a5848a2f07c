"""What would happen to an outbound connection, row by row: the answer of ``ztunnel explain``.

The walk is made by `nodenet.mesh.outbound.decide` itself, against the live state or the one of a
dump; nothing is sent. A random choice is made once and shown with all it could have fallen on.
"""

from __future__ import annotations

from random import Random
from typing import Final, Literal

import msgspec

from nodenet.endpoint import IPAddress
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.outbound import PROXY_PORTS, decide
from nodenet.mesh.refused import Refused
from nodenet.mesh.route import Protocol, Route
from nodenet.mesh.rows import ROWS
from nodenet.mesh.state import MeshState
from nodenet.mesh.trace import Answer, Step, Trace

Result = Literal["mtls", "plain", "refused"]

_ANSWERS: Final[dict[Protocol, Answer]] = {
    Protocol.TCP: "tcp",
    Protocol.HBONE: "hbone",
    Protocol.DOUBLE_HBONE: "double-hbone",
}


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One decision with its reasons. Exactly one of ``route`` and ``refused`` is set."""

    result: Result
    """What it means for the bytes; policies of the far side are asked elsewhere."""
    steps: tuple[Step, ...]
    """The rows that were asked, in order; the last one decided."""
    route: Route | None
    refused: Refused | None

    @property
    def unasked(self) -> tuple[str, ...]:
        """Ids of the rows after the one that decided; `nodenet.mesh.rows` has what they mean."""
        asked = {_number(step.row) for step in self.steps}
        return tuple(row.id for row in ROWS if _number(row.id) > max(asked))


def explain(
    state: MeshState,
    source: Workload,
    client: IPAddress,
    destination: Endpoint,
    *,
    network: str,
    rng: Random,
    proxy_ports: frozenset[int] = PROXY_PORTS,
) -> Explanation:
    """Decides as for a connection and keeps the reasons; a refusal is an answer too."""
    trace = Trace()
    trace.add("Z0", "yes", f"{client} to {destination}")
    route: Route | None = None
    refused: Refused | None = None
    try:
        route = decide(
            state,
            source,
            client,
            destination,
            network=network,
            rng=rng,
            proxy_ports=proxy_ports,
            trace=trace,
        )
    except Refused as error:
        refused = error
    if refused is not None:
        trace.add(refused.row, "refused", refused.message, fired=True)
    elif route is not None:
        trace.add(route.row, _ANSWERS[route.protocol], _reason(route), fired=True)
    result: Result
    if route is None:
        result = "refused"
    else:
        result = "plain" if route.protocol is Protocol.TCP else "mtls"
    return Explanation(result=result, steps=tuple(trace.steps), route=route, refused=refused)


def _reason(route: Route) -> str:
    where = _dialled(route)
    match route.protocol:
        case Protocol.TCP:
            if route.row == "Z5a":
                return f"{where} as it is: the service is PASSTHROUGH"
            return f"{where} as it is: nobody known" if route.workload is None else where
        case Protocol.HBONE:
            text = f"{where}, as {' or '.join(route.identities)}"
            return text if route.row == "Z9" else f"{text}, for {route.authority}"
        case Protocol.DOUBLE_HBONE:
            assert route.inner is not None  # it is what makes it double
            inner = " or ".join(route.inner.identities) or "nobody, so it fails"
            outer = " or ".join(route.identities)
            return f"{where}, as {outer}, for {route.authority}, inside as {inner}"


def _dialled(route: Route) -> str:
    if route.next_hop is not None:
        return str(route.next_hop)
    assert route.resolve is not None  # a route has one of the two
    return f"{route.resolve.hostname}:{route.resolve.port}, by DNS"


def _number(row: str) -> int:
    return int(row.lstrip("Z").rstrip("abc"))
