"""What the admin surface answers under ``/v1``, and what it asks of the proxy to do so.

The structs are also what ``nodenet ztunnel`` decodes; this module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol

import msgspec


class ProxyConnection(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One live connection, as the proxy knows it."""

    id: str
    """Cookie of the accepted socket, hex."""
    pod: str
    dir: Literal["out", "in"]
    local: str
    """ENDPOINT of the pod."""
    peer: str
    """ENDPOINT the pod believes it talks to; outbound the one the application asked for."""
    peer_name: str | None
    """The peer's workload as ``NS/NAME``, when it is known."""
    security: Literal["mtls", "plain"]
    peer_identity: str | None
    """SPIFFE id; None without mTLS."""
    upstream: str
    """ENDPOINT the proxy dialled; inbound the application."""
    policy: str | None
    """What admitted it, inbound."""
    bytes_sent: int | None
    """Payload the pod sent; None when it is counted at the end only."""
    bytes_received: int | None
    start: str
    """RFC 3339."""
    row: str | None
    """Row of the decision that fired."""
    protocol: str
    """``TCP``, ``HBONE``, ``DOUBLEHBONE``."""
    hbone_conn: str | None
    """Which HBONE connection carries it."""
    stream_id: int | None
    src: str
    """ENDPOINT of the client."""
    original_dst: str | None
    """ENDPOINT before the proxy decided; inbound the hostname that was asked for."""
    actual_dst: str
    """ENDPOINT after."""
    service: str | None
    """Hostname of the service that was addressed."""
    dialled_from: str | None
    """ENDPOINT of the proxy's own socket to the destination."""
    end: str | None = None
    """RFC 3339; None while it is open."""
    error: str | None = None
    """As in the access log."""
    flag: str | None = None
    """``response_flags`` of the metrics; None while it is open."""

    @property
    def key(self) -> str:
        """Tells it from all others: tunnels of one HBONE connection have one socket."""
        return (
            self.id
            if self.dir == "out" or self.stream_id is None
            else f"{self.id}/{self.stream_id}"
        )


class SecurityRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How one connection is secured, for joining it with the kernel's record of it."""

    pod: str
    dir: Literal["out", "in"]
    end: str
    """ENDPOINT that the record has too: outbound the application's own, inbound the one from which
    the proxy dialled the application."""
    security: Literal["mtls", "plain"]


class SecurityView(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel cannot know of the connections of a node."""

    connections: list[SecurityRow]
    """Open ones, and the last that have ended."""
    ended: dict[str, tuple[int, int]]
    """By pod the bytes of all connections that have ended: with mTLS, and without."""


class PoolConnection(msgspec.Struct, frozen=True, kw_only=True):
    """One HBONE connection to another proxy."""

    id: str
    pod: str
    remote: str
    """ENDPOINT of the other proxy."""
    source: str | None
    """Address it comes from."""
    identities: tuple[str, ...]
    """SPIFFE ids of which the other side must have one."""
    state: str
    streams: int
    """Tunnels in it now."""
    max_streams: int
    opened: int
    """Tunnels since it was made."""


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """What this proxy did with one policy."""

    key: str
    """``namespace/name``."""
    hits_allow: int
    hits_deny: int
    applies_to: tuple[str, ...]
    """Pods served here that it is for."""


class CertificateView(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate of one identity. Times are RFC 3339."""

    identity: str
    state: Literal["available", "initializing", "unavailable"]
    not_before: str | None
    not_after: str | None
    serial: str | None
    """Hexadecimal."""
    refresh_at: str | None
    """When the CA is asked next; None while it is being asked."""
    last_error: str | None
    attempts: int
    """Failures since the last success."""


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """A control plane as this proxy sees it."""

    name: Literal["xds", "ca", "zds", "file"]
    address: str
    """ENDPOINT, path, or ``embedded``."""
    state: str
    """``synced``, ``connecting``, ``loaded``, …"""
    since: str | None
    """RFC 3339: of the last success."""
    error: str | None = None


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """One screen about a proxy."""

    version: str
    pid: int
    node: str | None
    instance: str
    started: str
    """RFC 3339."""
    ready: bool
    pending: tuple[str, ...]
    """What it waits for before it is ready."""
    upstreams: tuple[Upstream, ...]
    listeners: dict[str, list[str]]
    """ENDPOINTs and paths by name: admin, metrics, readiness."""
    counts: dict[str, int]
    """Workloads, services, policies, certificates, pods, connections, pool."""
    log_level: str


class LogLevelView(msgspec.Struct, frozen=True, kw_only=True):
    """The log filter."""

    level: str
    was: str
    until: str | None
    """RFC 3339: when the filter of before comes back."""


class CertificateParts(Protocol):
    """What is shown of one X.509 certificate (`nodenet.identity.x509.Certificate`)."""

    @property
    def pem(self) -> str: ...
    @property
    def serial(self) -> int: ...
    @property
    def not_before(self) -> float: ...
    @property
    def not_after(self) -> float: ...


class CertificateDump(msgspec.Struct, frozen=True, kw_only=True):
    """One identity as ``/config_dump`` has it; times are Unix time."""

    identity: str
    state: str
    """``Available``, ``Initializing``, ``Unavailable: <error>``."""
    chain: tuple[CertificateParts, ...] = ()
    roots: tuple[CertificateParts, ...] = ()
    refresh_at: float | None = None
    error: str | None = None
    attempts: int = 0


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that is served, or is to be."""

    uid: str
    name: str
    """``NS/NAME``: the name that connections have as their ``pod``."""
    service_account: str
    up: bool


class AdminSource(Protocol):
    """What the admin surface asks of the proxy. Called on the loop; nothing may wait.

    The objects of the mesh are what ``/config_dump`` prints, in its camelCase form: dictionaries
    or structs that msgspec encodes. They are iterated in steps, between which the state may change.
    """

    def workloads(self) -> Iterable[object]:
        """Every workload."""

    def services(self) -> Iterable[object]:
        """Every service."""

    def policies(self) -> Iterable[object]:
        """Every policy."""

    def staged_services(self) -> object:
        """Endpoints whose service is not known, by service."""

    def static_config(self) -> object:
        """What came from a file: an object with ``workloads``, ``services`` and ``policies``."""

    def config(self) -> object:
        """The settings, camelCase."""

    def certificates(self) -> Iterable[CertificateDump]:
        """Every identity."""

    def pods(self) -> Iterable[PodView]:
        """Every pod that is served or pending."""

    def pool(self) -> Iterable[PoolConnection]:
        """HBONE connections to others."""

    def policy_hits(self) -> Iterable[PolicyView]:
        """What each policy did here."""

    def upstreams(self) -> tuple[Upstream, ...]:
        """Control planes."""

    def counts(self) -> dict[str, int]:
        """How many workloads, services and policies are known."""

    def explain(self, src: str, dst: str, policies: bytes | None) -> Any:
        """What would happen to a connection; ``policies``: more of them, JSON. NodenetError."""

    def shut_down(self) -> None:
        """Begins the graceful end, as SIGTERM does; returns at once."""
