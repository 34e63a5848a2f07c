"""What one proxy process is told: options of ``nodenet ztunnel run`` and the environment."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodenet.errors import UsageError
from nodenet.paths import Instance, choose_instance

#: Environment variables, each overruled by its option. NODENET_ID is read by `choose_instance`.
ENV_NODE: Final = "NODE_NAME"
ENV_LOG_LEVEL: Final = "NODENET_LOG_LEVEL"

#: Most connections of one pod at a time; more would be a fault of the pod, and every one costs
#: two descriptors.
DEFAULT_MAX_CONNECTIONS: Final = 65_536
#: Seconds a dial may take (ztunnel: src/proxy.rs, connect timeout).
DEFAULT_CONNECT_SECONDS: Final = 10.0
#: Seconds open connections get after SIGTERM (ztunnel: TERMINATION_GRACE_PERIOD_SECONDS 5).
DEFAULT_DRAIN_SECONDS: Final = 5.0
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class ConfigError(UsageError):
    """A setting has a value that cannot be used."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{name}={value}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason


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
    access_log: bool = False
    """One line for every connection that has ended."""
    log_level: int = logging.INFO


def load(
    env: Mapping[str, str],
    *,
    instance: str | None = None,
    node: str | None = None,
    cgroup: str | None = None,
    max_connections: int | None = None,
    connect_seconds: float | None = None,
    drain_seconds: float | None = None,
    access_log: bool = False,
    log_level: str | None = None,
) -> ZtunnelConfig:
    """The configuration from options (None: not given) and the environment. ConfigError.

    Looks at nothing but which instances exist.
    """
    defaults = ZtunnelConfig()
    return ZtunnelConfig(
        instance=choose_instance(instance, dict(env)),
        node=_node(node, env),
        cgroup=_cgroup(cgroup),
        max_connections=_count("--max-connections", max_connections, defaults.max_connections),
        connect_seconds=_seconds("--connect-timeout", connect_seconds, defaults.connect_seconds),
        drain_seconds=_seconds("--drain", drain_seconds, defaults.drain_seconds, least=0.0),
        access_log=access_log,
        log_level=_level(log_level, env),
    )


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


def _level(given: str | None, env: Mapping[str, str]) -> int:
    name, text = ("--log-level", given) if given else (ENV_LOG_LEVEL, env.get(ENV_LOG_LEVEL))
    text = text or "info"
    if text not in LOG_LEVELS:
        raise ConfigError(name, text, f"one of: {' '.join(LOG_LEVELS)}")
    return logging.getLevelNamesMapping()[text.upper()]
