"""``/config_dump`` as the commands read it: nodenet's, Istio's, or one that was saved.

Only what is shown is decoded; unknown keys are passed over, so newer dumps are read too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nodenet.errors import NodenetError


class DumpError(NodenetError):
    """What was read is no dump."""


class _Part(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """camelCase in JSON."""


class Gateway(_Part, frozen=True, kw_only=True):
    """Where a waypoint is: ``ns/host`` or ``network/ip``."""

    destination: str
    hbone_mtls_port: int = 0


class Workload(_Part, frozen=True, kw_only=True):
    """One workload."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    workload_ips: list[str] = []
    hostname: str = ""
    node: str = ""
    network: str = ""
    protocol: str = "TCP"
    status: str = "Healthy"
    trust_domain: str = "cluster.local"
    service_account: str = ""
    waypoint: Gateway | None = None
    services: list[str] = []
    authorization_policies: list[str] = []

    @property
    def full_name(self) -> str:
        """``NS/NAME``."""
        return f"{self.namespace}/{self.name}"


class Endpoint(_Part, frozen=True, kw_only=True):
    """One endpoint of a service that may have connections."""

    workload_uid: str
    port: dict[str, int] = {}
    status: str = "Healthy"


class Service(_Part, frozen=True, kw_only=True):
    """One service."""

    name: str
    namespace: str
    hostname: str
    vips: list[str] = []
    ports: dict[str, int] = {}
    endpoints: dict[str, Endpoint] = {}
    waypoint: Gateway | None = None
    load_balancer: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """``NS/HOSTNAME``."""
        return f"{self.namespace}/{self.hostname}"


class Policy(_Part, frozen=True, kw_only=True):
    """One authorization policy."""

    name: str
    namespace: str
    scope: str
    action: str
    rules: list[Any] = []
    dry_run: bool = False

    @property
    def key(self) -> str:
        """``NS/NAME``."""
        return f"{self.namespace}/{self.name}"


class CertificateParts(_Part, frozen=True, kw_only=True):
    """One X.509 certificate."""

    serial_number: str
    valid_from: str
    expiration_time: str


class Certificate(_Part, frozen=True, kw_only=True):
    """One identity."""

    identity: str
    state: str
    cert_chain: list[CertificateParts] = []
    root_certs: list[CertificateParts] = []


class Flow(_Part, frozen=True, kw_only=True):
    """One live connection."""

    src: str
    original_dst: str | None = None
    actual_dst: str = ""
    protocol: str = "TCP"


class Flows(_Part, frozen=True, kw_only=True):
    """The connections of a pod."""

    inbound: list[Flow] = []
    outbound: list[Flow] = []


class PodInfo(_Part, frozen=True, kw_only=True):
    """Who a pod is."""

    name: str = ""
    namespace: str = ""
    service_account: str = ""


class PodState(_Part, frozen=True, kw_only=True):
    """One pod that is served."""

    state: str = "Up"
    connections: Flows = Flows()
    info: PodInfo = PodInfo()

    @property
    def name(self) -> str:
        """``NS/NAME``, as the connections name the pod."""
        info = self.info
        return f"{info.namespace}/{info.name}" if info.namespace else info.name


class StaticWorkload(_Part, frozen=True, kw_only=True):
    """A workload of a file; its shape is another one than in the rest of the dump."""

    uid: str = ""


class StaticConfig(_Part, frozen=True, kw_only=True):
    """What came from a file, as far as it is asked about."""

    workloads: list[StaticWorkload] = []


class Dump(_Part, frozen=True, kw_only=True):
    """The whole of it."""

    workloads: list[Workload] = []
    services: list[Service] = []
    policies: list[Policy] = []
    static_config: StaticConfig = StaticConfig()
    version: dict[str, Any] = {}
    config: dict[str, Any] = {}
    certificates: list[Certificate] = []
    workload_state: dict[str, PodState] = {}

    @property
    def node(self) -> str | None:
        """The node whose proxy wrote it, when it says so."""
        found = self.config.get("localNode")
        return found if isinstance(found, str) and found else None


def decode(raw: bytes, where: str) -> Dump:
    """Reads a dump; DumpError names what is wrong and where it came from."""
    try:
        return msgspec.json.decode(raw, type=Dump)
    except msgspec.DecodeError as error:
        reason = str(error)
        if not reason.startswith("JSON"):
            reason = reason[:1].lower() + reason[1:]
        raise DumpError(f"not a dump of a ztunnel: {where}: {reason}") from error


def raw_items(raw: bytes, key: str, where: str) -> list[Any]:
    """The objects of one top-level list as they are."""
    try:
        found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return msgspec.json.decode(found.get(key, b"[]"), type=list[Any])
    except msgspec.DecodeError as error:
        raise DumpError(f"not a dump of a ztunnel: {where}: {error}") from error
