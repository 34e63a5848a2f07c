"""Where a captured connection goes, or why it goes nowhere. Pure.

Plaintext passthrough: an outbound connection goes where the application wanted it, an inbound one
to the application. What must never happen is that the proxy dials itself: one connection would
become thousands within a second. Three rules see to that (the third needs to know the live
connections and is the worker's): no destination without a redirect, no own port of the pod,
no connection whose client is a socket of the proxy.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from nodenet.abi import (
    DNS_PORT,
    HBONE_PORT,
    INBOUND_PORT,
    MARK,
    OUTBOUND_PORT,
    TRANSPARENT_MARK,
    Direction,
)
from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.pod import Pod

#: Ports of a pod that belong to the proxy (ztunnel: `illegal_ports`, plus DNS).
OWN_PORTS: Final = frozenset({OUTBOUND_PORT, INBOUND_PORT, HBONE_PORT, DNS_PORT})
_LOOPBACK: Final = frozenset({"::1", "::", "0.0.0.0"})


class Reason(Enum):
    """Why a connection was refused; the value is what logs and counters say."""

    NO_ORIGINAL = "no-original-destination"
    OWN_PORT = "own-port"
    OWN_CONNECTION = "own-connection"
    OVER_LIMIT = "over-limit"


class Route(NamedTuple):
    """How to reach the destination. A tuple: one is made for every connection.

    ``source`` is the host the dial must come from, None for the kernel's choice. ``mark`` is the
    SO_MARK of the dialling socket.
    """

    destination: Address
    source: str | None
    mark: int


def decide(
    direction: Direction,
    original: Address | None,
    pod: Pod,
    *,
    client: Address,
    local: Address | None = None,
) -> Route | Reason:
    """The route of a connection accepted in the pod, or why it is refused.

    ``original`` is where it was going before the redirect, ``client`` and ``local`` are the two
    ends of the accepted socket; ``local`` decides nothing unless the destination's port is one of
    `OWN_PORTS` and may be left out otherwise.
    """
    if original is None:
        return Reason.NO_ORIGINAL
    if direction is Direction.OUT:
        if original.port in OWN_PORTS and _is_own(original.host, pod, local):
            return Reason.OWN_PORT
        return Route(original, None, MARK)
    if original.port in OWN_PORTS:
        return Reason.OWN_PORT
    return to_the_application(original, pod, client)


def to_the_application(original: Address, pod: Pod, client: Address) -> Route:
    """How the pod's application is dialled for a client, whose address it is to see."""
    # Replies of the application to the client's address come back to the proxy by the mark: with
    # eBPF the accepted socket takes the mark over and routes by it, with iptables conntrack does.
    mark = TRANSPARENT_MARK if pod.backend == "ebpf" else MARK
    # A link-local client cannot be imitated: its address means something on its link only.
    imitable = client.host != original.host and not client.scope and not is_loopback(client.host)
    return Route(original, client.host if imitable else None, mark)


def _is_own(host: str, pod: Pod, local: Address | None) -> bool:
    # `local` covers an address the pod got after its enrolment
    return host in pod.hosts or is_loopback(host) or (local is not None and host == local.host)


def is_loopback(host: str) -> bool:
    """Whether it is 127.0.0.0/8, ::1 or the unspecified address, which means this host too."""
    return host.startswith("127.") or host in _LOOPBACK
