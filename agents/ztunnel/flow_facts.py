"""What is known about one connection when it is counted and logged.

The proxies fill this in, the metrics, the access log and the admin surface read it. Label sources
and their precedence: ztunnel: src/proxy/metrics.rs.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

import msgspec

from nodenet.agents.ztunnel.address import Address
from nodenet.hbone.baggage import Baggage
from nodenet.hbone.errors import HboneError
from nodenet.identity.errors import CertificateRevoked, IdentityError, TlsError
from nodenet.mesh.model import Service, Workload

#: Directions, in the words of the access log.
OUTBOUND: Final = "outbound"
INBOUND: Final = "inbound"


class Security(Enum):
    """How the connection between the proxies is secured; values of the metrics' label."""

    PLAIN = "unknown"
    MTLS = "mutual_tls"


class ResponseFlag(Enum):
    """How a connection ended; values of the metrics' label."""

    NONE = "-"
    """Well, or cut because the proxy or the pod leaves."""
    DENY = "DENY"
    """By policy, at the start or later."""
    CONNECT = "CONNECT"
    """By any other error, failed TLS handshakes outbound included."""
    TLS_FAILURE = "TLS_FAILURE"
    """The TLS settings could not be made."""
    H2_HANDSHAKE_FAILURE = "H2_HANDSHAKE_FAILURE"
    """The peer broke HTTP/2."""
    NETWORK_POLICY = "NETWORK_POLICY"
    """No answer to the TCP connect for HBONE in time."""
    IDENTITY_ERROR = "IDENTITY_ERROR"
    """No certificate."""
    CERT_REVOKED = "CERT_REVOKED"

    @staticmethod
    def of(error: BaseException | None) -> ResponseFlag:
        """The flag of an error: its attribute ``response_flag``, else by its kind."""
        if error is None:
            return ResponseFlag.NONE
        flag = getattr(error, "response_flag", None)
        if isinstance(flag, ResponseFlag):
            return flag
        # a failed handshake reaches ztunnel as an I/O error, so the flag of TLS is for the rest
        if type(error) is TlsError:
            return ResponseFlag.TLS_FAILURE
        for kind, meant in _FLAGS:
            if isinstance(error, kind):
                return meant
        return ResponseFlag.CONNECT


#: Errors of rooms below, which know nothing of flags.
_FLAGS: Final = (
    (CertificateRevoked, ResponseFlag.CERT_REVOKED),
    (IdentityError, ResponseFlag.IDENTITY_ERROR),
    (HboneError, ResponseFlag.H2_HANDSHAKE_FAILURE),
)


class Progress(Protocol):
    """A live connection's bytes so far, seen from the pod."""

    @property
    def sent(self) -> int: ...
    @property
    def received(self) -> int: ...


class FlowFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One connection as far as it is known when it is counted as opened.

    Of the two ends ``src`` opened the connection, whichever of them the pod is.
    """

    direction: str
    """`OUTBOUND`: the pod is the source; `INBOUND`: it is the destination."""
    conn_id: str
    """Cookie of the accepted socket, hex."""
    pod: str
    """Name of the pod that is served, ``NS/NAME``."""
    src: Address
    """The client."""
    dst: Address
    """Outbound the next hop, inbound the pod at 15008 or, for plain TCP, the original
    destination."""
    original_dst: Address | None = None
    """What the application asked for, or was asked for at."""
    hbone_addr: str | None = None
    """Authority of the CONNECT request; None: plain TCP."""
    protocol: str = "TCP"
    """``TCP``, ``HBONE`` or ``DOUBLEHBONE``."""
    security: Security = Security.PLAIN
    src_workload: Workload | None = None
    src_baggage: Baggage | None = None
    """For what the workload does not tell."""
    src_identity: str | None = None
    """SPIFFE id; proved by mTLS, so None without."""
    dst_workload: Workload | None = None
    dst_baggage: Baggage | None = None
    dst_identity: str | None = None
    """SPIFFE id: the peer's own with mTLS; None: the one the workload would have."""
    service: Service | None = None
    """What was addressed; None: an address."""
    row: str | None = None
    """Row of the decision that fired, ``Z9``."""
    policy: str | None = None
    """What admitted an inbound connection: ``ns/name``, or that there are no policies."""
