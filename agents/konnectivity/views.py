"""What the daemons answer below ``/v1``, and `nodenet konnectivity show` prints."""

from __future__ import annotations

import msgspec


class AgentRow(msgspec.Struct, kw_only=True):
    """One stream of an agent, as ``/v1/agents`` has it."""

    agent_id: str
    node: str | None
    address: str
    identifiers: str
    state: str
    """``ready`` or ``draining``."""
    extensions: bool
    """Whether it does flow control a tunnel and half-close."""
    streams: int
    """Of this agent id."""
    conns: int
    pending: int
    dials: int
    failed: int
    age_s: float
    last_error: str | None
    last_error_at: str | None
    dial_ms_p50: float | None
    dial_ms_p99: float | None
    queue_bytes: int


class AgentsView(msgspec.Struct, kw_only=True):
    """``/v1/agents``."""

    role: str = "server"
    server_id: str
    server_count: int
    strategies: list[str]
    ready: bool
    draining: bool
    agents: list[AgentRow]


class ServerTunnelRow(msgspec.Struct, kw_only=True):
    """One tunnel, or a dial under way, as ``/v1/connections`` has it."""

    agent_id: str
    connect_id: int
    address: str
    mode: str
    state: str
    """``dialling``, ``open`` or ``half-closed``."""
    age_s: float
    bytes_sent: int
    bytes_received: int
    queue_bytes: int


class WhyStep(msgspec.Struct, kw_only=True):
    """What one strategy says of a host."""

    strategy: str
    fired: bool
    why: str
    agents: list[str]


class WhyView(msgspec.Struct, kw_only=True):
    """``/v1/why``."""

    ok: bool
    host: str
    candidates: list[str]
    """Agents one of which would carry the dial, with the same probability."""
    result: str
    steps: list[WhyStep]


class ServerRow(msgspec.Struct, kw_only=True):
    """One server, or an address where none answers, as ``/v1/servers`` has it."""

    server_id: str | None
    address: str
    state: str
    """``ready``, ``draining`` or ``failed``."""
    conns: int
    dials: int
    failed: int
    age_s: float | None
    last_error: str | None
    last_error_at: str | None
    dial_ms_p50: float | None
    dial_ms_p99: float | None
    queue_bytes: int


class ServersView(msgspec.Struct, kw_only=True):
    """``/v1/servers``."""

    role: str = "agent"
    agent_id: str
    connected: int
    known: int
    count_from: str
    draining: bool
    servers: list[ServerRow]


class AgentTunnelRow(msgspec.Struct, kw_only=True):
    """One tunnel, or a dial under way, as ``/v1/connections`` has it."""

    server_id: str
    connect_id: int
    address: str
    state: str
    """``dialling``, ``open`` or ``half-closed``."""
    age_s: float
    bytes_sent: int
    bytes_received: int
    queue_bytes: int
