"""What the proxies tell about their connections: opened, closed, failed. Counts and logs them.

Costs a connection some microseconds and its bytes nothing: bytes are taken from the connection
when it ends, and from live ones when somebody asks.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from nodenet.agents.ztunnel.access_log import AccessLog, Fragment, LogFormat
from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.flow_facts import (
    INBOUND,
    OUTBOUND,
    FlowFacts,
    Progress,
    ResponseFlag,
    Security,
)
from nodenet.agents.ztunnel.series import AllSeries, Series

#: Combinations of two workloads remembered with their series; found again in a microsecond.
MAX_SHAPES: Final = 4096
#: Connections remembered after their end, a kilobyte each.
MAX_RECENT: Final = 4096
#: Pods whose bytes are remembered after their end.
MAX_PODS: Final = 4096

NONE: Final = ResponseFlag.NONE


class Shape:
    """What all connections between the same two ends share."""

    __slots__ = ("_held", "fragment", "series")

    def __init__(self, facts: FlowFacts, series: Series) -> None:
        self.series = series
        self.fragment: Fragment | None = None
        """Rendered when the first line is written."""
        # keeps alive the objects whose ids are in the key
        self._held = (facts.src_workload, facts.dst_workload, facts.service)


class Ended(NamedTuple):
    """A connection that has ended, seen from the pod."""

    flow: OpenFlow
    sent: int
    received: int
    error: str | None
    flag: ResponseFlag
    end_ns: int
    """Unix time."""


class OpenFlow:
    """One connection from `Telemetry.opened` until `closed`."""

    __slots__ = (
        "_counted_received",
        "_counted_sent",
        "_shape",
        "_telemetry",
        "dialled_from",
        "facts",
        "hbone_conn",
        "over",
        "policy",
        "progress",
        "started",
        "started_ns",
        "stream_id",
    )

    def __init__(
        self, telemetry: Telemetry, facts: FlowFacts, shape: Shape, progress: Progress | None
    ) -> None:
        self.facts = facts
        self.progress = progress
        """The bytes of this moment; may be set later."""
        self.dialled_from: Address | None = None
        """Our own end of the connection to the destination, for who joins it with the kernel's."""
        self.policy = facts.policy
        """What admitted it, when that is known later."""
        self.hbone_conn: str | None = None
        """Which HBONE connection carries it, and as which stream."""
        self.stream_id: int | None = None
        self.over = False
        self.started = telemetry.clock()
        self.started_ns = telemetry.wall_ns()
        self._telemetry = telemetry
        self._shape = shape
        self._counted_sent = 0
        self._counted_received = 0

    def closed(
        self,
        sent: int,
        received: int,
        error: str | None = None,
        flag: ResponseFlag = NONE,
    ) -> None:
        """It has ended after so many bytes, seen from the pod. A second call does nothing."""
        if self.over:
            return
        self.over = True
        self.progress = None
        telemetry = self._telemetry
        telemetry.forget(self)
        self.count(sent, received)
        self._shape.series.ended(flag)
        telemetry.remember(Ended(self, sent, received, error, flag, telemetry.wall_ns()))
        level = logging.INFO if error is None else logging.ERROR
        if level >= telemetry.level:
            fragment = self._shape.fragment or telemetry.render(self._shape, self.facts)
            telemetry.log.complete(
                self.facts, fragment, sent, received, telemetry.clock() - self.started, error
            )

    def tell(self, facts: FlowFacts, shape: Shape) -> None:
        """For `Telemetry.retold`."""
        self.facts, self._shape = facts, shape

    def count(self, sent: int, received: int) -> None:
        """Brings the metrics up to so many bytes, seen from the pod."""
        series = self._shape.series
        # the metrics see both from the client
        if self.facts.direction == OUTBOUND:
            series.received += sent - self._counted_sent
            series.sent += received - self._counted_received
        else:
            series.sent += sent - self._counted_sent
            series.received += received - self._counted_received
        self._counted_sent, self._counted_received = sent, received


class Telemetry:
    """The one place where connections are counted and logged. Of the loop's thread."""

    def __init__(
        self,
        log: AccessLog,
        *,
        level: int = logging.INFO,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``clock`` is in seconds, from any moment on."""
        self.log = log
        self.level = level
        """Least level of the access log's lines, one of `logging`'s."""
        self.clock = clock
        self.wall_ns = wall_ns
        self.series = AllSeries()
        self.sockets = {OUTBOUND: 0, INBOUND: 0}
        """Open connections with a socket of their own: all but tunnels that have arrived."""
        self.failures = {OUTBOUND: 0, INBOUND: 0}
        """Connections that ended before they were counted as opened."""
        self.handshakes_failed: Counter[tuple[str, str]] = Counter()
        """With other proxies, by direction and kind of error."""
        self.policy_hits: Counter[tuple[str, bool]] = Counter()
        """Connections by the policy that settled it and whether it let them in."""
        self.recent: deque[Ended] = deque(maxlen=MAX_RECENT)
        """Connections that have ended, the last one last."""
        self.ended_bytes: dict[str, list[int]] = {}
        """By pod, both ways, of connections that have ended: with mTLS, and without."""
        self._shapes: dict[tuple[Any, ...], Shape] = {}
        self._open: set[OpenFlow] = set()

    def opened(self, facts: FlowFacts, progress: Progress | None = None) -> OpenFlow:
        """Counts a connection whose way is known, before its outcome is.

        ``progress`` tells the bytes while it lives; without it they are counted at the end.
        """
        shape = self._shape(facts)
        shape.series.opened += 1
        flow = OpenFlow(self, facts, shape, progress)
        self._open.add(flow)
        if facts.hbone_addr is None or facts.direction == OUTBOUND:
            self.sockets[facts.direction] += 1
        if self.level <= logging.DEBUG:
            self.log.opened(facts, shape.fragment or self.render(shape, facts))
        return flow

    def retold(self, flow: OpenFlow, facts: FlowFacts) -> OpenFlow:
        """Other things are known of an open connection: that another endpoint answers.

        It stays counted as opened with what was known then; its end and its bytes go with this.
        """
        flow.tell(facts, self._shape(facts))
        return flow

    def failed(self, src: Address, dst: Address | None, direction: str, error: str) -> None:
        """A connection ended before its way was known: a line, and none of the mesh's metrics."""
        self.failures[direction] += 1
        if self.level <= logging.WARNING:
            self.log.failed(src, dst, direction, error)

    def handshake_failed(self, direction: str, error: Exception) -> None:
        """An HBONE connection has ended before it was ready."""
        if ResponseFlag.of(error) is not NONE:
            self.handshakes_failed[direction, type(error).__name__] += 1

    def judged(self, policy: str | None, allowed: bool) -> None:
        """A connection that arrived was let in or not, by a policy (``ns/name``) or by none."""
        if policy is not None:
            self.policy_hits[policy, allowed] += 1

    def open_flows(self) -> list[OpenFlow]:
        """Connections that are open now, the oldest first."""
        return sorted(self._open, key=lambda flow: flow.started)

    @property
    def live(self) -> int:
        """How many are open."""
        return len(self._open)

    def count_live(self, at_once: int = 2000) -> Iterator[None]:
        """Brings the metrics up to the bytes of this moment, so many connections a step."""
        for number, flow in enumerate(list(self._open), 1):
            progress = flow.progress
            if progress is not None:
                flow.count(progress.sent, progress.received)
            if number % at_once == 0:
                yield

    def remember(self, ended: Ended) -> None:
        """For `OpenFlow`."""
        self.recent.append(ended)
        facts = ended.flow.facts
        moved = self.ended_bytes.get(facts.pod)
        if moved is None:
            if len(self.ended_bytes) >= MAX_PODS:
                del self.ended_bytes[next(iter(self.ended_bytes))]
            moved = self.ended_bytes[facts.pod] = [0, 0]
        moved[facts.security is not Security.MTLS] += ended.sent + ended.received

    def forget(self, flow: OpenFlow) -> None:
        """For `OpenFlow`."""
        self._open.discard(flow)
        facts = flow.facts
        if facts.hbone_addr is None or facts.direction == OUTBOUND:
            self.sockets[facts.direction] -= 1

    def render(self, shape: Shape, facts: FlowFacts) -> Fragment:
        """For `OpenFlow`: the common part of the lines, kept with the shape."""
        shape.fragment = self.log.fragment(facts)
        return shape.fragment

    def _shape(self, facts: FlowFacts) -> Shape:
        # by identity: comparing workloads field by field would cost more than rendering them
        key = (
            id(facts.src_workload),
            id(facts.dst_workload),
            id(facts.service),
            facts.src_identity,
            facts.dst_identity,
            facts.direction,
            facts.security is Security.MTLS,
            facts.src_baggage,
            facts.dst_baggage,
        )
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = Shape(facts, self.series.of(facts))
        return shape


def silent() -> Telemetry:
    """Counts and writes nothing."""
    return Telemetry(AccessLog(LogFormat.PLAIN, len), level=logging.CRITICAL + 10)
