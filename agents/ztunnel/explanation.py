"""The answer to "what would happen to this connection", as JSON has it.

The structs are also what ``nodenet ztunnel explain`` decodes; this module imports nothing heavy.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from nodenet.mesh.candidates import Candidate

Result = Literal["mtls", "plain", "denied", "refused"]
AppSees = Literal["proxied", "connect-ok-then-close", "connect-ok-then-reset"]
Security = Literal["mtls", "plain"]
Layer = Literal["proxy", "far-side"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the walk. In each layer the last one fired, if the walk came so far."""

    layer: Layer
    rule: str
    """``Z1`` to ``Z10``, with a letter where a row has several outcomes; ``ID``, ``TLS``,
    ``CONNECT``, ``RBAC``."""
    question: str
    fired: bool
    answer: str
    why: str
    candidates: tuple[Candidate, ...] = ()
    """What a random choice could have fallen on; empty when there was no choice."""
    map: None = None
    key: None = None


class End(msgspec.Struct, frozen=True, kw_only=True):
    """One end of the connection, as the client addressed it."""

    name: str | None
    """``NS/NAME`` of a workload or ``NS/HOSTNAME`` of a service; None: unknown to the mesh."""
    address: str
    port: int | None
    identity: str | None
    """SPIFFE id it has, when it is a workload."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen with one of the endpoints that may be chosen."""

    endpoint: str
    """Uid of its workload."""
    probability: float
    result: Result
    policy: str | None
    error: str | None


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A live connection that would be closed."""

    id: str
    pod: str
    peer: str
    identity: str | None
    policy: str | None
    """None: because no policy allows it any more."""
    error: str


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """What other policies change."""

    policies: tuple[str, ...]
    """Keys of the policies that were taken in addition, or instead of those of the same name."""
    unbound: tuple[str, ...]
    """Those that select workloads by label and that no workload names: they change nothing."""
    result_now: Result
    policy_now: str | None
    cut: tuple[Cut, ...]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. With `what_if` it is the one under the other policies."""

    ok: bool = True
    result: Result
    rule: str
    """Of the step that settled it."""
    security: Security | None
    """Of the bytes between the nodes; None: no connection would come about."""
    protocol: Literal["tcp"] = "tcp"
    src: End
    dst: End
    steps: tuple[Step, ...]
    app_sees: AppSees
    next_hop: str | None
    """ENDPOINT the proxy dials; None: nothing, or a hostname that has to be resolved first."""
    authority: str | None
    """Of the CONNECT request; None: plain TCP."""
    policy: str | None
    """What allowed or denied it at the far side."""
    error: str | None
    """The ``error=`` of the access log, ours or the far side's."""
    outcomes: tuple[Outcome, ...] = ()
    """By endpoint, when there are several."""
    outcomes_left_out: int = 0
    what_if: WhatIf | None = None
    hint: str | None = None
