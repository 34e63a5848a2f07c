"""Configuration of the agent: upstream's flags, checked before the first socket is opened."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from nodenet.agents.konnectivity.flag_checks import (
    Listener,
    bind_address,
    existing_file,
    not_negative,
    ports_apart,
)
from nodenet.errors import UsageError
from nodenet.konnectivity.agent_sync import CountSource
from nodenet.konnectivity.go_flags import Flag, Kind, Parsed, go_duration, parse
from nodenet.konnectivity.identifiers import BadIdentifiers, parse_identifiers

PROGRAM: Final = "nodenet konnectivity agent"
#: Environment: the agent's id where the flag is not given.
AGENT_ID: Final = "PROXY_AGENT_ID"
#: Silence after which a server is asked for a sign of life, unless --keepalive-time says otherwise.
#: Upstream's hour leaves a vanished server connected for two; its servers count anything below
#: 30 s as abuse.
KEEPALIVE_SECONDS: Final = 35.0
#: Below this a Go server closes the connection (grpc-go floors its own at the same).
LEAST_KEEPALIVE_SECONDS: Final = 10.0
#: Of a host name; resolvers take more than RFC 1123 has.
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_SIZE_HELP: Final = "Taken, without effect: tunnels are bounded in bytes."

FLAGS: Final = (
    Flag("agent-cert", Kind.TEXT, "", "Certificate shown to the servers."),
    Flag("agent-key", Kind.TEXT, "", "Its key."),
    Flag("ca-cert", Kind.TEXT, "", "CAs the servers' certificates are checked with."),
    Flag("proxy-server-host", Kind.TEXT, "127.0.0.1", "Name or address of the servers."),
    Flag("proxy-server-port", Kind.NUMBER, 8091, "Their port for agents."),
    Flag("alpn-proto", Kind.LIST, (), "ALPN names offered before h2."),
    Flag("health-server-host", Kind.TEXT, "", "Address of health and metrics; empty: all."),
    Flag("health-server-port", Kind.NUMBER, 8093, "Port of health and metrics."),
    Flag("admin-bind-address", Kind.TEXT, "127.0.0.1", "Address of admin; empty: all."),
    Flag("admin-server-port", Kind.NUMBER, 8094, "Port of admin."),
    Flag("enable-profiling", Kind.SWITCH, False, "Serve stacks at the admin port's /debug/pprof."),
    Flag("enable-contention-profiling", Kind.SWITCH, False, "Taken, needs --enable-profiling."),
    Flag("agent-id", Kind.TEXT, "", "Id of this agent; PROXY_AGENT_ID, else random."),
    Flag("agent-identifiers", Kind.TEXT, "", "What it serves: host=H&ipv4=A&default-route=true."),
    Flag("sync-interval", Kind.DURATION, 1.0, "Between two attempts to find more servers."),
    Flag("sync-interval-cap", Kind.DURATION, 10.0, "The most it grows to behind failures."),
    Flag("probe-interval", Kind.DURATION, 1.0, "Taken; a lost connection is noticed at once."),
    Flag("keepalive-time", Kind.DURATION, KEEPALIVE_SECONDS, "Silence before a ping."),
    Flag("service-account-token-path", Kind.TEXT, "", "Token shown to servers, read each time."),
    Flag("warn-on-channel-limit", Kind.SWITCH, False, _SIZE_HELP),
    Flag("sync-forever", Kind.SWITCH, False, "Go on looking when all servers are connected."),
    Flag("xfr-channel-size", Kind.NUMBER, 150, _SIZE_HELP),
    Flag("count-server-leases", Kind.SWITCH, False, "Count servers by their leases."),
    Flag("lease-namespace", Kind.TEXT, "kube-system", "Where the leases are."),
    Flag("lease-label-selector", Kind.TEXT, "k8s-app=konnectivity-server", "Which leases."),
    Flag("lease-label", Kind.TEXT, "", "Older name of --lease-label-selector.", hidden=True),
    Flag("server-count-source", Kind.TEXT, "default", "Leases else servers' word, or max of both."),
    Flag("kubeconfig", Kind.TEXT, "", "For the leases; empty: the pod's service account."),
    Flag(
        "kube-api-content-type",
        Kind.TEXT,
        "application/vnd.kubernetes.protobuf",
        "Taken; JSON is used.",
    ),
    Flag("drain-timeout", Kind.DURATION, 25.0, "For tunnels after the first SIGTERM (ours)."),
    Flag("admin-socket", Kind.TEXT, "", "Unix socket of admin; empty: the run directory's (ours)."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Everything the agent is told. Times in seconds."""

    agent_id: str
    identifiers: str
    server_host: str
    server_port: int
    ca_cert: Path
    cert: Path | None
    key: Path | None
    alpn: tuple[str, ...]
    token_path: Path | None
    health_host: str
    health_port: int
    admin_host: str
    admin_port: int
    admin_socket: Path | None
    """None: that of the instance."""
    profiling: bool
    sync_interval: float
    sync_interval_cap: float
    sync_forever: bool
    keepalive: float
    count_leases: bool
    lease_namespace: str
    lease_selector: str
    count_source: CountSource
    kubeconfig: Path | None
    drain_timeout: float
    ignored: tuple[str, ...] = ()
    """Flags of klog that were given."""

    def flags_of_files(self) -> dict[str, Path | None]:
        """The files of TLS by the flags that name them."""
        return {"--ca-cert": self.ca_cert, "--agent-cert": self.cert, "--agent-key": self.key}

    def flags_of_addresses(self) -> dict[tuple[str, int | None], str]:
        """The flags of the addresses that are listened on, by address and port."""
        return {
            (self.health_host, self.health_port): "--health-server-host",
            (self.admin_host, self.admin_port): "--admin-bind-address",
        }


def load(arguments: Sequence[str], environ: Mapping[str, str]) -> AgentConfig:
    """The configuration of a command line. UsageError."""
    flags = parse(PROGRAM, FLAGS, arguments)
    _check(flags)
    cert, key = existing_file(flags, "agent-cert"), existing_file(flags, "agent-key")
    ca_cert = existing_file(flags, "ca-cert")
    if ca_cert is None:
        raise UsageError("--ca-cert is missing", hint="give the CAs of the servers' certificates")
    if (cert is None) != (key is None):
        raise UsageError("--agent-cert and --agent-key need each other", hint="give both")
    keepalive = max(flags.seconds("keepalive-time"), LEAST_KEEPALIVE_SECONDS)
    source = flags.text("server-count-source") or "default"
    older = flags.text("lease-label") if "lease-label" in flags.given else ""
    return AgentConfig(
        agent_id=_agent_id(flags, environ),
        identifiers=_identifiers(flags.text("agent-identifiers")),
        server_host=_server_host(flags),
        server_port=flags.number("proxy-server-port"),
        ca_cert=ca_cert,
        cert=cert,
        key=key,
        alpn=flags.list("alpn-proto"),
        token_path=existing_file(flags, "service-account-token-path"),
        health_host=flags.text("health-server-host"),
        health_port=flags.number("health-server-port"),
        admin_host=flags.text("admin-bind-address"),
        admin_port=flags.number("admin-server-port"),
        admin_socket=Path(flags.text("admin-socket")) if flags.text("admin-socket") else None,
        profiling=flags.switch("enable-profiling"),
        sync_interval=flags.seconds("sync-interval"),
        sync_interval_cap=flags.seconds("sync-interval-cap"),
        sync_forever=flags.switch("sync-forever"),
        keepalive=keepalive,
        count_leases=flags.switch("count-server-leases"),
        lease_namespace=flags.text("lease-namespace"),
        lease_selector=older or flags.text("lease-label-selector"),
        count_source="max" if source == "max" else "default",
        kubeconfig=existing_file(flags, "kubeconfig"),
        drain_timeout=flags.seconds("drain-timeout"),
        ignored=flags.ignored,
    )


def _check(flags: Parsed) -> None:
    for name in ("proxy-server-port", "health-server-port", "admin-server-port"):
        port = flags.number(name)
        if not 0 < port < 65_536:
            raise UsageError(f"--{name}={port}: not a port", hint="1 to 65535")
    if flags.number("xfr-channel-size") <= 0:
        raise UsageError("--xfr-channel-size must be greater than 0")
    if flags.switch("enable-contention-profiling") and not flags.switch("enable-profiling"):
        raise UsageError("--enable-contention-profiling needs --enable-profiling too")
    not_negative(flags, [flag.name for flag in FLAGS if flag.kind is Kind.DURATION])
    interval, cap = flags.seconds("sync-interval"), flags.seconds("sync-interval-cap")
    if not interval:
        raise UsageError("--sync-interval must be greater than 0", hint="e.g. --sync-interval=1s")
    if interval > cap:
        raise UsageError(
            f"--sync-interval={go_duration(interval)} is more than "
            f"--sync-interval-cap={go_duration(cap)}",
            hint="raise the cap or lower the interval",
        )
    if flags.text("server-count-source") not in ("", "default", "max"):
        raise UsageError("--server-count-source is neither default nor max")
    host = _server_host(flags)
    if not host:
        raise UsageError("--proxy-server-host is empty")
    if not _is_host(host):
        raise UsageError(
            f"--proxy-server-host={host}: neither a name nor an address",
            hint="without scheme and port, those are --proxy-server-port",
        )
    for name in ("health-server-host", "admin-bind-address"):
        bind_address(flags, name)
    ports_apart(
        flags,
        [
            Listener("health-server-port", "health-server-host"),
            Listener("admin-server-port", "admin-bind-address"),
        ],
    )
    for name in flags.list("alpn-proto"):
        if not (name.isascii() and len(name) < 256):
            raise UsageError(f"--alpn-proto={name}: not a protocol name")


def _server_host(flags: Parsed) -> str:
    """Without the brackets of an IPv6 address, which it may have."""
    text = flags.text("proxy-server-host")
    return text[1:-1] if text.startswith("[") and text.endswith("]") and ":" in text else text


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        return len(text) < 256 and all(_LABEL.fullmatch(label) for label in labels)
    return True


def _agent_id(flags: Parsed, environ: Mapping[str, str]) -> str:
    found = flags.text("agent-id") or environ.get(AGENT_ID, "") or str(uuid.uuid4())
    if not found.isascii() or not found.isprintable() or len(found) > 1024:
        raise UsageError(f"--agent-id={found!r}: only printable ASCII travels", hint="a short name")
    return found


def _identifiers(text: str) -> str:
    try:
        found = parse_identifiers(text)
    except BadIdentifiers as error:
        raise UsageError(f"--agent-identifiers: {error.message}") from error
    # a server knows uid and ignores it; upstream's agent refuses it (cmd/agent/app/options)
    keys = [name for name, _ in parse_qsl(text, keep_blank_values=True)]
    unknown = found.unknown + (("uid",) if "uid" in keys else ())
    if unknown:
        raise UsageError(
            f"--agent-identifiers: unknown address type: {unknown[0]}",
            hint="one of: ipv4 ipv6 host cidr default-route",
        )
    if not text.isascii() or not text.isprintable() or len(text) > 16_384:
        raise UsageError("--agent-identifiers: escape what is not printable ASCII as %XX")
    return text
