"""What one proxy process is told: options of ``nodenet ztunnel run`` and the environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodenet.agents.ztunnel import variables
from nodenet.agents.ztunnel.access_log import LogFormat
from nodenet.agents.ztunnel.log_control import ACCESS, FilterError, LogFilter
from nodenet.agents.ztunnel.pool import IDLE_SECONDS, MAX_STREAMS
from nodenet.agents.ztunnel.variables import ConfigError
from nodenet.errors import NotThereYet
from nodenet.identity.store import DEFAULT_TTL_SECONDS
from nodenet.identity.tls import Compliance, TlsOptions
from nodenet.paths import Instance, choose_instance

#: Environment variables, each overruled by its option. NODENET_ID is read by `choose_instance`.
ENV_NODE: Final = "NODE_NAME"
ENV_LOG_LEVEL: Final = "NODENET_LOG_LEVEL"
#: ztunnel's own variables (ztunnel: src/config.rs), each overruled by its option if it has one.
ENV_MESH_FILE: Final = "LOCAL_XDS_PATH"
ENV_NETWORK: Final = "NETWORK"
ENV_TTL: Final = "SECRET_TTL"
ENV_DRAIN: Final = "CONNECTION_TERMINATION_DEADLINE"
ENV_MAX_STREAMS: Final = "POOL_MAX_STREAMS_PER_CONNECTION"
ENV_POOL_IDLE: Final = "POOL_UNUSED_RELEASE_TIMEOUT"
ENV_BAGGAGE: Final = "ENABLE_RESPONSE_BAGGAGE"
ENV_CRL: Final = "CRL_PATH"
ENV_SOCKS5: Final = "UNSTABLE_ENABLE_SOCKS5"
ENV_TLS12: Final = "TLS12_ENABLED"
ENV_COMPLIANCE: Final = "COMPLIANCE_POLICY"
ENV_LOG_FORMAT: Final = "LOG_FORMAT"
ENV_RUST_LOG: Final = "RUST_LOG"

#: Most connections of one pod at a time; more would be a fault of the pod, and every one costs
#: two descriptors.
DEFAULT_MAX_CONNECTIONS: Final = 65_536
#: Seconds a dial may take (ztunnel: src/proxy.rs, connect timeout).
DEFAULT_CONNECT_SECONDS: Final = 10.0
#: Seconds open connections get after SIGTERM (ztunnel: TERMINATION_GRACE_PERIOD_SECONDS 5).
DEFAULT_DRAIN_SECONDS: Final = 5.0
#: Where the proxy of a host is asked (ztunnel: src/config.rs).
ADMIN: Final = "localhost:15000"
STATS: Final = "*:15020"
READINESS: Final = "*:15021"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZtunnelConfig:
    """The settings of one proxy."""

    instance: Instance = Instance()
    """Whose pods to serve."""
    node: str | None = None
    """The node this proxy is on; None on a host that is one node."""
    cgroup: Path | None = None
    """The cgroup to join, None for the instance's own."""
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    """Live connections of one pod at most; the next ones are refused."""
    connect_seconds: float = DEFAULT_CONNECT_SECONDS
    drain_seconds: float = DEFAULT_DRAIN_SECONDS
    log_filter: LogFilter = LogFilter()
    """What is logged; the access log is the target ``access``."""
    log_format: LogFormat = LogFormat.PLAIN
    mesh_file: Path | None = None
    """The static mesh; None: plaintext passthrough, no mesh at all."""
    ca_directory: Path | None = None
    """Of the embedded CA; needed with a mesh."""
    network: str = ""
    """This cluster's network."""
    ttl_seconds: float = DEFAULT_TTL_SECONDS
    """How long certificates are to live."""
    max_streams: int = MAX_STREAMS
    """Streams of one connection to another proxy."""
    pool_idle_seconds: float = IDLE_SECONDS
    response_baggage: bool = True
    socks5: bool = False
    """Pods have a SOCKS5 listener on loopback."""
    crl: Path | None = None
    tls: TlsOptions = TlsOptions()
    admin: str | None = ADMIN
    """ADDRESS:PORT of the admin surface besides the socket; None: the socket alone. The address may
    be ``localhost`` or ``*``, of both families."""
    stats: str | None = STATS
    """ADDRESS:PORT of the metrics."""
    readiness: str | None = READINESS
    """ADDRESS:PORT of the readiness probe."""

    @property
    def log_level(self) -> int:
        """Level of everything without an entry of its own, as `logging` numbers it."""
        return self.log_filter.number("")

    @property
    def access_level(self) -> int:
        """Least level of the access log's lines."""
        return self.log_filter.number(ACCESS)


#: Variables of ztunnel's that are not understood yet and change what it does; what to do instead.
PLANNED: Final = {
    "XDS_ADDRESS": "give a mesh file: --mesh FILE",
    "CA_ADDRESS": "use the embedded CA: --embedded-ca DIRECTORY",
    "INPOD_UDS": "enrol pods by command: nodenet capture enroll",
}


def load(
    env: Mapping[str, str],
    *,
    instance: str | None = None,
    node: str | None = None,
    cgroup: str | None = None,
    max_connections: int | None = None,
    connect_seconds: float | None = None,
    drain_seconds: float | None = None,
    access_log: bool | None = None,
    log_level: str | None = None,
    mesh: str | None = None,
    embedded_ca: str | None = None,
    network: str | None = None,
    admin: str | None = None,
    stats: str | None = None,
    readiness: str | None = None,
) -> ZtunnelConfig:
    """The configuration from options (None: not given) and the environment. ConfigError.

    Looks at nothing but which instances exist.
    """
    for variable, instead in PLANNED.items():
        # a proxy that starts without its control plane would pass everything on in plaintext
        if env.get(variable):
            raise NotThereYet(f"{variable}={env[variable]}", f"unset it, and {instead}")
    defaults = ZtunnelConfig()
    chosen = choose_instance(instance, dict(env))
    # of the instances of labs and tests there may be many on one host
    known = chosen.id is None
    mesh_file = _path("--mesh", mesh, ENV_MESH_FILE, env)
    return ZtunnelConfig(
        instance=chosen,
        node=_node(node, env),
        cgroup=_cgroup(cgroup),
        max_connections=_count("--max-connections", max_connections, defaults.max_connections),
        connect_seconds=_seconds("--connect-timeout", connect_seconds, defaults.connect_seconds),
        drain_seconds=_drain(drain_seconds, env, defaults.drain_seconds),
        # every connection of the mesh is worth a line, every one that is only passed on is not
        log_filter=_filter(
            log_level, env, access=mesh_file is not None if access_log is None else access_log
        ),
        log_format=_log_format(env),
        mesh_file=mesh_file,
        ca_directory=_ca_directory(embedded_ca, mesh_file),
        network=env.get(ENV_NETWORK, "") if network is None else network,
        ttl_seconds=variables.duration(env, ENV_TTL, defaults.ttl_seconds, least=1.0),
        max_streams=variables.number(env, ENV_MAX_STREAMS, defaults.max_streams, most=65_535),
        pool_idle_seconds=variables.duration(env, ENV_POOL_IDLE, defaults.pool_idle_seconds),
        response_baggage=variables.switch(env, ENV_BAGGAGE, defaults.response_baggage),
        socks5=variables.switch(env, ENV_SOCKS5, defaults.socks5),
        crl=_path("CRL_PATH", None, ENV_CRL, env),
        tls=_tls(env),
        admin=_address("--admin", admin, defaults.admin if known else None),
        stats=_address("--stats", stats, defaults.stats if known else None),
        readiness=_address("--readiness", readiness, defaults.readiness if known else None),
    )


def _drain(given: float | None, env: Mapping[str, str], default: float) -> float:
    if given is not None:
        return _seconds("--drain", given, default, least=0.0)
    return variables.duration(env, ENV_DRAIN, default, least=0.0)


def _path(option: str, given: str | None, variable: str, env: Mapping[str, str]) -> Path | None:
    name, text = (option, given) if given is not None else (variable, env.get(variable))
    if not text:
        return None
    path = Path(text).absolute()
    if path.is_dir():
        raise ConfigError(name, text, "is a directory; name a file")
    return path


def _ca_directory(given: str | None, mesh_file: Path | None) -> Path | None:
    if given is not None:
        return Path(given).absolute()
    if mesh_file is not None:
        raise ConfigError("--mesh", mesh_file, "needs a CA for it; add --embedded-ca DIRECTORY")
    return None


def _tls(env: Mapping[str, str]) -> TlsOptions:
    text = env.get(ENV_COMPLIANCE, "")
    try:
        compliance = Compliance(text)
    except ValueError as error:
        raise ConfigError(ENV_COMPLIANCE, text, "must be pqc or not set") from error
    return TlsOptions(tls12=variables.switch(env, ENV_TLS12, False), compliance=compliance)


def _log_format(env: Mapping[str, str]) -> LogFormat:
    text = env.get(ENV_LOG_FORMAT) or LogFormat.PLAIN.value
    try:
        return LogFormat(text)
    except ValueError as error:
        raise ConfigError(ENV_LOG_FORMAT, text, "must be plain or json") from error


def _address(option: str, given: str | None, default: str | None) -> str | None:
    """An empty one is none."""
    if given is None:
        return default
    if given == "":
        return None
    host, colon, port = given.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) <= 65_535):
        raise ConfigError(option, given, "write ADDRESS:PORT, as 127.0.0.1:15000")
    return given


def _node(given: str | None, env: Mapping[str, str]) -> str | None:
    name, value = ("--node", given) if given is not None else (ENV_NODE, env.get(ENV_NODE))
    if value is not None and (not value.isprintable() or "/" in value or len(value) > 253):
        raise ConfigError(name, repr(value), "not a node's name")
    return value or None


def _cgroup(given: str | None) -> Path | None:
    if given is None:
        return None
    path = Path(given)
    if not path.is_absolute():
        raise ConfigError("--cgroup", given, "give the directory's full path")
    return path


def _count(name: str, given: int | None, default: int) -> int:
    if given is not None and given < 1:
        raise ConfigError(name, given, "must be at least 1")
    return default if given is None else given


def _seconds(name: str, given: float | None, default: float, *, least: float = 0.01) -> float:
    if given is not None and not (math.isfinite(given) and given >= least):
        raise ConfigError(name, given, f"must be at least {least:g} seconds")
    return default if given is None else given


def _filter(given: str | None, env: Mapping[str, str], *, access: bool) -> LogFilter:
    """Of the option, else of the first variable that is set."""
    name, text = "--log-level", given
    for variable in (ENV_LOG_LEVEL, ENV_RUST_LOG):
        if not text:
            name, text = variable, env.get(variable)
    try:
        found = LogFilter.parse(text) if text else LogFilter()
        return found if access else found.merged(f"{ACCESS}=off")
    except FilterError as error:
        raise ConfigError(name, error.text, error.reason) from error
