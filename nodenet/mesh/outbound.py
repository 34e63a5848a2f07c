"""Where an outbound connection goes: rows Z1 to Z10, in order."""

from __future__ import annotations

from random import Random
from typing import Final

from nodenet.abi import HBONE_PORT, INBOUND_PORT, OUTBOUND_PORT
from nodenet.endpoint import IPAddress
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.route import Protocol, Route
from nodenet.mesh.state import MeshState

#: Ports of the proxy's listeners (``illegal_ports``); with SOCKS5 on, 15080 as well.
PROXY_PORTS: Final = frozenset({OUTBOUND_PORT, INBOUND_PORT, HBONE_PORT})


def decide(
    state: MeshState,
    source: Workload,
    client: IPAddress,
    destination: Endpoint,
    *,
    network: str,
    rng: Random,
    proxy_ports: frozenset[int] = PROXY_PORTS,
    trace: None = None,
) -> Route:
    """The route of a connection from a workload; `Refused` when there is none.

    ``client`` is the address the application connects from, ``destination`` where it wanted to go,
    both not v4-mapped. ``network`` is this cluster's (`NETWORK`), which may differ from the
    workload's. The rows are not written yet: every destination is passed through.
    """
    return Route(protocol=Protocol.TCP, next_hop=destination, row="Z5c")
