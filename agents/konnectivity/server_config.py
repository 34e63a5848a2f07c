"""Configuration of the server: upstream's flags, checked before the first socket is opened.

Names and defaults: apiserver-network-proxy: cmd/server/app/options/options.go.
"""

from __future__ import annotations

import re
import ssl
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from nodenet.agents.konnectivity.flag_checks import (
    Listener,
    bind_address,
    existing_file,
    not_negative,
    ports_apart,
)
from nodenet.errors import UsageError
from nodenet.konnectivity.go_flags import Flag, Kind, Parsed, parse
from nodenet.konnectivity.strategies import Strategy

PROGRAM: Final = "nodenet konnectivity server"
#: Environment: the server's id where the flag is not given.
SERVER_ID: Final = "PROXY_SERVER_ID"
#: Ports upstream accepts: none that needs a right, none that a client may be given.
LEAST_PORT: Final = 1024
MOST_PORT: Final = 49_151
#: Silence after which a peer is asked for a sign of life, unless the flags say otherwise. With
#: upstream's hour a vanished agent is dialled for two (go's keepalive and its time-out).
KEEPALIVE_SECONDS: Final = 30.0
#: grpc-go: internal.KeepaliveMinServerPingTime.
LEAST_KEEPALIVE_SECONDS: Final = 1.0

FLAGS: Final = (
    Flag("server-cert", Kind.TEXT, "", "Certificate of the frontend port."),
    Flag("server-key", Kind.TEXT, "", "Its key."),
    Flag("server-ca-cert", Kind.TEXT, "", "CAs the frontends' certificates are checked with."),
    Flag("cluster-cert", Kind.TEXT, "", "Certificate of the agents' port; required."),
    Flag("cluster-key", Kind.TEXT, "", "Its key; required."),
    Flag("cluster-ca-cert", Kind.TEXT, "", "CAs the agents' certificates are checked with."),
    Flag("mode", Kind.TEXT, "grpc", "What frontends speak: grpc, http-connect, or any (ours)."),
    Flag("uds-name", Kind.TEXT, "", "Unix socket for frontends; needs --server-port=0."),
    Flag("delete-existing-uds-file", Kind.SWITCH, True, "Remove the socket of an earlier run."),
    Flag("server-port", Kind.NUMBER, 8090, "Port for frontends; 0: none."),
    Flag("server-bind-address", Kind.TEXT, "", "Its address; empty: all."),
    Flag("agent-port", Kind.NUMBER, 8091, "Port for agents."),
    Flag("agent-bind-address", Kind.TEXT, "", "Its address; empty: all."),
    Flag("health-port", Kind.NUMBER, 8092, "Port of health and metrics."),
    Flag("health-bind-address", Kind.TEXT, "", "Its address; empty: all."),
    Flag("admin-port", Kind.NUMBER, 8095, "Port of admin."),
    Flag("admin-bind-address", Kind.TEXT, "127.0.0.1", "Its address; empty: all."),
    Flag("keepalive-time", Kind.DURATION, KEEPALIVE_SECONDS, "Silence before an agent is pinged."),
    Flag(
        "frontend-keepalive-time",
        Kind.DURATION,
        KEEPALIVE_SECONDS,
        "Silence before a frontend is pinged (gRPC).",
    ),
    Flag("enable-profiling", Kind.SWITCH, False, "Serve stacks at the admin port's /debug/pprof."),
    Flag("enable-contention-profiling", Kind.SWITCH, False, "Taken, needs --enable-profiling."),
    Flag("server-id", Kind.TEXT, "", "Id of this server; PROXY_SERVER_ID, else random."),
    Flag("server-count", Kind.NUMBER, 1, "Servers there are, as agents are told."),
    Flag("agent-namespace", Kind.TEXT, "", "Namespace of the agents' service account."),
    Flag("agent-service-account", Kind.TEXT, "", "Name of the agents' service account."),
    Flag("authentication-audience", Kind.TEXT, "", "Audience of the agents' tokens."),
    Flag("kubeconfig", Kind.TEXT, "", "For tokens and leases; empty: the pod's service account."),
    Flag("kubeconfig-qps", Kind.REAL, 0, "Requests a second to the API; 0: 50, below: no limit."),
    Flag("kubeconfig-burst", Kind.NUMBER, 0, "Requests at once to the API; 0: 100."),
    Flag(
        "kube-api-content-type",
        Kind.TEXT,
        "application/vnd.kubernetes.protobuf",
        "Taken; JSON is used.",
    ),
    Flag(
        "proxy-strategies",
        Kind.TEXT,
        "default",
        "Which agent gets a dial, in order: default, destHost, defaultRoute.",
    ),
    Flag("cipher-suites", Kind.LIST, (), "Of TLS 1.2, by Go's names; empty: the library's choice."),
    Flag(
        "tls-min-version",
        Kind.TEXT,
        "",
        "VersionTLS12 (default) or VersionTLS13; older ones are taken and mean VersionTLS12.",
    ),
    Flag(
        "xfr-channel-size",
        Kind.NUMBER,
        10,
        "Taken, without effect: tunnels are bounded in bytes.",
    ),
    # of upstream's newest server
    Flag("frontend-write-channel-size", Kind.NUMBER, 10, "Taken, without effect.", hidden=True),
    Flag("enable-lease-controller", Kind.SWITCH, False, "Keep a lease, so servers can be counted."),
    Flag("lease-namespace", Kind.TEXT, "kube-system", "Where the leases are."),
    Flag("lease-label", Kind.TEXT, "k8s-app=konnectivity-server", "Labels of the leases."),
    Flag(
        "graceful-shutdown-timeout",
        Kind.DURATION,
        0.0,
        "For open tunnels after the first SIGTERM; 0: none.",
    ),
    Flag("backend-dial-timeout", Kind.DURATION, 0.0, "For an agent to answer a dial; 0: 60 s."),
    Flag("warn-on-channel-limit", Kind.SWITCH, True, "Taken, without effect.", hidden=True),
    Flag("admin-socket", Kind.TEXT, "", "Unix socket of admin; empty: the run directory's (ours)."),
)

#: What may follow the prefix of a lease's name (Kubernetes: IsDNS1123Subdomain, 253 bytes in all).
_LEASE_ID: Final = re.compile(r"[-a-z0-9]*[a-z0-9](\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_LEASE_ID: Final = 253 - len("konnectivity-proxy-server-")
_LABEL: Final = re.compile(r"(?:[a-z0-9A-Z._/-]{1,317})=[a-z0-9A-Z._-]{0,63}")


class Mode(Enum):
    """What frontends speak."""

    GRPC = "grpc"
    HTTP_CONNECT = "http-connect"
    ANY = "any"
    """Whichever of the two a connection begins with."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where one listener's TLS comes from. ``ca`` None: clients need no certificate."""

    cert: Path
    key: Path
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class TokenRule:
    """Whose tokens agents must show."""

    namespace: str
    service_account: str
    audience: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything the server is told. Times in seconds; a port 0 takes any free one."""

    server_id: str
    mode: Mode = Mode.GRPC
    uds: Path | None = None
    delete_uds: bool = True
    frontend_host: str = ""
    frontend_port: int | None = 8090
    """None: only the Unix socket."""
    frontend_tls: TlsFiles | None = None
    """None: plain text, which load() allows on a Unix socket only."""
    agent_host: str = ""
    agent_port: int = 8091
    agent_tls: TlsFiles | None = None
    """None: plain text, which load() does not allow."""
    health_host: str = ""
    health_port: int = 8092
    admin_host: str = "127.0.0.1"
    admin_port: int = 8095
    admin_socket: Path | None = None
    """None: that of the instance."""
    agent_keepalive: float = KEEPALIVE_SECONDS
    frontend_keepalive: float = KEEPALIVE_SECONDS
    profiling: bool = False
    server_count: int = 1
    token_rule: TokenRule | None = None
    kubeconfig: Path | None = None
    api_qps: float = 50.0
    api_burst: int = 100
    strategies: tuple[Strategy, ...] = (Strategy.DEFAULT,)
    ciphers: tuple[str, ...] = ()
    """OpenSSL's names."""
    tls_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    leases: bool = False
    lease_namespace: str = "kube-system"
    lease_labels: Mapping[str, str]
    drain_timeout: float = 0.0
    dial_timeout: float = 0.0
    """0: the core's own backstop."""
    ignored: tuple[str, ...] = ()
    """Flags of klog that were given."""
    notices: tuple[str, ...] = ()
    """What else of the flags does not mean what it says."""

    def flags_of_files(self) -> dict[str, Path | None]:
        """The files of TLS by the flags that name them."""
        found: dict[str, Path | None] = {}
        for which, files in (("cluster", self.agent_tls), ("server", self.frontend_tls)):
            if files is not None:
                found[f"--{which}-cert"] = files.cert
                found[f"--{which}-key"] = files.key
                found[f"--{which}-ca-cert"] = files.ca
        return found

    def flags_of_addresses(self) -> dict[tuple[str, int | None], str]:
        """The flags of the addresses that are listened on, by address and port."""
        return {
            (self.frontend_host, self.frontend_port): "--server-bind-address",
            (self.agent_host, self.agent_port): "--agent-bind-address",
            (self.health_host, self.health_port): "--health-bind-address",
            (self.admin_host, self.admin_port): "--admin-bind-address",
        }


def load(arguments: Sequence[str], environ: Mapping[str, str]) -> ServerConfig:
    """The configuration of a command line. UsageError."""
    flags = parse(PROGRAM, FLAGS, arguments)
    _check(flags)
    mode = _mode(flags.text("mode"))
    strategies = _strategies(flags.text("proxy-strategies"))
    token_rule = _token_rule(flags)
    uds = Path(flags.text("uds-name")) if flags.text("uds-name") else None
    frontend_tls = _tls(flags, "server")
    leases = flags.switch("enable-lease-controller")
    port: int | None = flags.number("server-port")
    if uds is not None:
        if port or frontend_tls is not None:
            raise UsageError(
                "--uds-name goes with --server-port=0 and without --server-cert, --server-key and "
                "--server-ca-cert",
                hint="choose one of the two",
            )
        port = None
    elif frontend_tls is None or frontend_tls.ca is None:
        raise UsageError(
            "frontends over TCP need --server-cert, --server-key and --server-ca-cert",
            hint="give them, or --uds-name",
        )
    agent_tls = _tls(flags, "cluster")
    if agent_tls is None:
        raise UsageError(
            "--cluster-cert and --cluster-key are missing",
            hint="agents connect by TLS only: give both, and --cluster-ca-cert or the token flags",
        )
    return ServerConfig(
        server_id=_server_id(flags, environ),
        mode=mode,
        uds=uds,
        delete_uds=flags.switch("delete-existing-uds-file"),
        frontend_host=flags.text("server-bind-address"),
        frontend_port=port,
        frontend_tls=frontend_tls,
        agent_host=flags.text("agent-bind-address"),
        agent_port=flags.number("agent-port"),
        agent_tls=agent_tls,
        health_host=flags.text("health-bind-address"),
        health_port=flags.number("health-port"),
        admin_host=flags.text("admin-bind-address"),
        admin_port=flags.number("admin-port"),
        admin_socket=Path(flags.text("admin-socket")) if flags.text("admin-socket") else None,
        agent_keepalive=_keepalive(flags, "keepalive-time"),
        frontend_keepalive=_keepalive(flags, "frontend-keepalive-time"),
        profiling=flags.switch("enable-profiling"),
        server_count=flags.number("server-count"),
        token_rule=token_rule,
        kubeconfig=existing_file(flags, "kubeconfig"),
        # 0 is no limit to the client and the default to client-go
        api_qps=max(flags.real("kubeconfig-qps") or 50.0, 0.0),
        api_burst=flags.number("kubeconfig-burst") or 100,
        strategies=strategies,
        ciphers=_ciphers(flags.list("cipher-suites")),
        tls_version=_tls_version(flags),
        leases=leases,
        lease_namespace=flags.text("lease-namespace"),
        # upstream looks at it with leases only
        lease_labels=_labels(flags.text("lease-label")) if leases else {},
        drain_timeout=flags.seconds("graceful-shutdown-timeout"),
        dial_timeout=flags.seconds("backend-dial-timeout"),
        ignored=flags.ignored,
        notices=_notices(flags),
    )


def _check(flags: Parsed) -> None:
    defaults = {flag.name: flag.default for flag in FLAGS}
    for name in ("server-port", "agent-port", "health-port", "admin-port"):
        port = flags.number(name)
        if name == "server-port" and flags.text("uds-name"):
            continue
        if not LEAST_PORT <= port <= MOST_PORT:
            raise UsageError(
                f"--{name}={port}: not within {LEAST_PORT} and {MOST_PORT}",
                hint=f"e.g. --{name}={defaults[name]}",
            )
    for name in ("server", "agent", "health", "admin"):
        bind_address(flags, f"{name}-bind-address")
    if flags.number("xfr-channel-size") <= 0:
        raise UsageError("--xfr-channel-size must be greater than 0")
    for name in ("server-count", "kubeconfig-burst"):
        if flags.number(name) < 0:
            raise UsageError(f"--{name} is negative")
    not_negative(flags, [flag.name for flag in FLAGS if flag.kind is Kind.DURATION])
    ports_apart(
        flags,
        [
            Listener(f"{name}-port", f"{name}-bind-address")
            for name in ("server", "agent", "health", "admin")
            if name != "server" or not flags.text("uds-name")
        ],
    )
    if flags.switch("enable-contention-profiling") and not flags.switch("enable-profiling"):
        raise UsageError("--enable-contention-profiling needs --enable-profiling too")


def _keepalive(flags: Parsed, name: str) -> float:
    """Seconds; 0 is the default, and less than the least is that (both as in grpc-go)."""
    seconds = flags.seconds(name)
    return max(seconds, LEAST_KEEPALIVE_SECONDS) if seconds else KEEPALIVE_SECONDS


def _tls(flags: Parsed, which: str) -> TlsFiles | None:
    cert, key = existing_file(flags, f"{which}-cert"), existing_file(flags, f"{which}-key")
    ca = existing_file(flags, f"{which}-ca-cert")
    if cert is None and key is None:
        if ca is not None:
            raise UsageError(f"--{which}-ca-cert needs --{which}-cert and --{which}-key too")
        return None
    if cert is None or key is None:
        raise UsageError(f"--{which}-cert and --{which}-key need each other", hint="give both")
    return TlsFiles(cert, key, ca)


def _server_id(flags: Parsed, environ: Mapping[str, str]) -> str:
    found = flags.text("server-id") or environ.get(SERVER_ID, "") or str(uuid.uuid4())
    if not found.isascii() or not found.isprintable() or len(found) > 1024:
        raise UsageError(f"--server-id={found!r}: only printable ASCII travels", hint="a short one")
    nameable = _LEASE_ID.fullmatch(found) and len(found) <= MAX_LEASE_ID
    if flags.switch("enable-lease-controller") and not nameable:
        raise UsageError(
            f"--server-id={found}: cannot be part of a lease's name",
            hint="lower-case letters, digits, - and . only",
        )
    return found


def _mode(text: str) -> Mode:
    try:
        return Mode(text)
    except ValueError:
        raise UsageError(
            f"--mode={text}: unknown", hint=f"one of: {' '.join(mode.value for mode in Mode)}"
        ) from None


def _token_rule(flags: Parsed) -> TokenRule | None:
    names = ("agent-namespace", "agent-service-account", "authentication-audience")
    values = {name: flags.text(name) for name in names}
    given = [f"--{name}" for name in names if values[name]]
    missing = [f"--{name}" for name in names if not values[name]]
    if not given:
        return None
    if missing:
        raise UsageError(f"{given[0]} needs {' and '.join(missing)} too")
    if flags.text("cluster-ca-cert"):
        raise UsageError(
            "--agent-namespace and --cluster-ca-cert exclude each other",
            hint="agents show either tokens or certificates",
        )
    return TokenRule(*(values[name] for name in names))


def _strategies(text: str) -> tuple[Strategy, ...]:
    found: list[Strategy] = []
    for name in filter(None, text.split(",")):
        try:
            found.append(Strategy(name.strip()))
        except ValueError:
            known = " ".join(strategy.value for strategy in Strategy)
            raise UsageError(
                f"--proxy-strategies={text}: unknown {name!r}", hint=f"one of: {known}"
            ) from None
    if not found:
        raise UsageError("--proxy-strategies is empty", hint="--proxy-strategies=default")
    return tuple(dict.fromkeys(found))


#: No library here speaks them any more; manifests that allow them start all the same.
_OLD_TLS: Final = ("VersionTLS10", "VersionTLS11")


def _notices(flags: Parsed) -> tuple[str, ...]:
    text = flags.text("tls-min-version")
    return (f"--tls-min-version={text}: TLS 1.2 is the least here",) if text in _OLD_TLS else ()


def _tls_version(flags: Parsed) -> ssl.TLSVersion:
    text = flags.text("tls-min-version")
    versions = {
        "": ssl.TLSVersion.TLSv1_2,
        "VersionTLS12": ssl.TLSVersion.TLSv1_2,
        "VersionTLS13": ssl.TLSVersion.TLSv1_3,
        **dict.fromkeys(_OLD_TLS, ssl.TLSVersion.TLSv1_2),
    }
    if text not in versions:
        raise UsageError(f"--tls-min-version={text}: unknown", hint="VersionTLS12 or VersionTLS13")
    names = flags.list("cipher-suites")
    if names and not _ciphers(names):
        # nothing is left for TLS 1.2; an empty list would let the library choose
        return ssl.TLSVersion.TLSv1_3
    return versions[text]


#: Go's names to OpenSSL's (crypto/tls: cipher_suites.go). Those of TLS 1.3 are always on, in both.
_CIPHERS: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
}


def _ciphers(names: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in _CIPHERS]
    if unknown:
        raise UsageError(f"--cipher-suites: {unknown[0]} is not known or not offered here")
    return tuple(filter(None, (_CIPHERS[name] for name in names)))


def _labels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = (each.strip() for each in part.partition("="))
        if not _LABEL.fullmatch(f"{key}={value}") or "=" not in part:
            raise UsageError(f"--lease-label={text}: not of the form key=value,key=value")
        found[key] = value
    return found
