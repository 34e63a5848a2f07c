"""What one connection leaves in the metrics and in the log, from either side."""

from __future__ import annotations

import logging

import pytest

from nodenet.agents.ztunnel.access_log import AccessLog, LogFormat
from nodenet.agents.ztunnel.ends import Draining
from nodenet.agents.ztunnel.flow_facts import FlowFacts, ResponseFlag
from nodenet.agents.ztunnel.series import Series
from nodenet.agents.ztunnel.telemetry import MAX_SHAPES, Telemetry
from nodenet.identity.errors import NotTls
from nodenet.mesh.model import Workload
from tests.unit.agents.ztunnel.flows import APP, VIP, Bytes, inbound, outbound, plain


class World:
    """A telemetry with a clock that is set by hand, and its lines."""

    def __init__(self, level: int = logging.INFO) -> None:
        self.lines: list[str] = []
        self.now = 100.0
        log = AccessLog(LogFormat.PLAIN, lambda raw: self.lines.append(raw.decode()))
        self.telemetry = Telemetry(log, level=level, clock=lambda: self.now)

    def series(self, facts: FlowFacts) -> Series:
        return self.telemetry.series.of(facts)

    def words(self) -> list[tuple[str, str]]:
        """Level and message of each line."""
        return [(line.split("\t")[1], line.split("\t")[3]) for line in self.lines]


@pytest.mark.parametrize(
    ("facts", "sent", "received"),
    [
        # the client sends 11 and gets 22: so the metrics of both sides, the log by the pod
        (outbound(), 11, 22),
        (inbound(), 22, 11),
    ],
    ids=["outbound", "inbound"],
)
def test_both_sides_count_bytes_from_the_client(facts: FlowFacts, sent: int, received: int) -> None:
    world = World()
    flow = world.telemetry.opened(facts)
    world.now += 0.25
    flow.closed(sent, received)
    series = world.series(facts)
    assert (series.opened, series.closed) == (1, 1)
    assert (series.received, series.sent) == (11, 22)
    (line,) = world.lines
    assert f'bytes_sent={sent} bytes_recv={received} duration="250ms"' in line


def test_opened_and_closed_do_not_pair_by_flag() -> None:
    world = World()
    flow = world.telemetry.opened(inbound())
    flow.closed(0, 0, "connection closed due to policy change", ResponseFlag.DENY)
    series = world.series(inbound())
    assert (series.opened, series.closed, series.flagged) == (1, 0, {ResponseFlag.DENY: 1})
    assert world.words() == [("error", "connection complete")]


def test_cut_by_a_drain_is_an_error_without_a_flag() -> None:
    world = World()
    flow = world.telemetry.opened(outbound())
    flow.closed(1, 2, "connection closed due to connection drain")
    assert world.series(outbound()).closed == 1
    assert world.words() == [("error", "connection complete")]


def test_a_second_end_counts_nothing() -> None:
    world = World()
    flow = world.telemetry.opened(outbound())
    flow.closed(1, 1)
    flow.closed(5, 5, "again", ResponseFlag.CONNECT)
    series = world.series(outbound())
    assert (series.closed, series.flagged, series.received) == (1, {}, 1)
    assert len(world.lines) == 1


def test_failures_before_the_decision_are_a_line_and_no_metric_of_the_mesh() -> None:
    world = World()
    world.telemetry.failed(APP, VIP, "outbound", "no healthy upstream: 10.96.0.20:5432")
    assert world.words() == [("warn", "connection failed")]
    assert len(world.telemetry.series) == 0
    assert world.telemetry.failures == {"outbound": 1, "inbound": 0}


@pytest.mark.parametrize(
    ("level", "messages"),
    [
        (logging.DEBUG, ["opened", "complete", "opened", "complete", "failed"]),
        (logging.INFO, ["complete", "complete", "failed"]),
        (logging.WARNING, ["complete", "failed"]),
        (logging.ERROR, ["complete"]),
        (logging.CRITICAL + 10, []),
    ],
)
def test_levels(level: int, messages: list[str]) -> None:
    world = World(level)
    world.telemetry.opened(outbound()).closed(1, 1)
    world.telemetry.opened(outbound()).closed(1, 1, "why", ResponseFlag.CONNECT)
    world.telemetry.failed(APP, None, "outbound", "why")
    assert [message.removeprefix("connection ") for _, message in world.words()] == messages
    assert world.series(outbound()).opened == 2


def test_bytes_of_live_connections_are_counted_when_asked_for_and_once() -> None:
    world = World()
    progress = Bytes(100, 1000)
    flow = world.telemetry.opened(outbound(), progress)
    unknown = world.telemetry.opened(outbound())
    list(world.telemetry.count_live())
    series = world.series(outbound())
    assert (series.received, series.sent) == (100, 1000)
    progress.sent += 1
    list(world.telemetry.count_live())
    assert (series.received, series.sent) == (101, 1000)
    flow.closed(150, 1000)
    unknown.closed(7, 0)
    assert (series.received, series.sent) == (157, 1000)
    assert series.closed == 2


def test_live_connections_are_counted_in_steps() -> None:
    world = World()
    flows = [world.telemetry.opened(outbound(), Bytes(1, 1)) for _ in range(5)]
    steps = world.telemetry.count_live(at_once=2)
    next(steps)
    for flow in flows:  # all end between two steps
        flow.closed(1, 1)
    list(steps)
    assert world.series(outbound()).received == 5


def test_open_connections_are_known_until_they_end() -> None:
    world = World()
    first = world.telemetry.opened(outbound())
    world.now += 1
    second = world.telemetry.opened(inbound())
    assert world.telemetry.open_flows() == [first, second]
    first.closed(0, 0)
    assert world.telemetry.open_flows() == [second]
    assert world.telemetry.live == 1


def test_what_replaces_a_workload_is_counted_apart_and_what_equals_it_is_not() -> None:
    world = World()
    for number in range(3):
        # the mesh decodes a workload anew now and then
        again = Workload(uid="u", workload_name="web")
        world.telemetry.opened(plain(src_workload=again)).closed(number, 0)
    other = Workload(uid="u", workload_name="web2")
    world.telemetry.opened(plain(src_workload=other)).closed(0, 0)
    assert len(world.telemetry.series) == 2
    assert world.series(plain(src_workload=again)).opened == 3


def test_many_pairs_of_workloads_are_forgotten_and_found_again() -> None:
    world = World(logging.CRITICAL)
    workloads = [Workload(uid=str(n), workload_name=f"w{n % 10}") for n in range(MAX_SHAPES + 10)]
    for workload in workloads + workloads:
        world.telemetry.opened(plain(src_workload=workload)).closed(1, 0)
    assert len(world.telemetry.series) == 10
    total = sum(world.series(plain(src_workload=w)).opened for w in workloads[:10])
    assert total == 2 * len(workloads)


def test_sockets_are_counted_by_direction_and_tunnels_that_arrive_are_none() -> None:
    telemetry = World().telemetry
    flows = [
        telemetry.opened(facts)
        for facts in (outbound(), plain(), inbound(), inbound(hbone_addr=None))
    ]
    assert telemetry.sockets == {"outbound": 2, "inbound": 1}
    for flow in flows:
        flow.closed(0, 0)
    assert telemetry.sockets == {"outbound": 0, "inbound": 0}


def test_who_answered_behind_a_gateway_is_told_later() -> None:
    world = World()
    far = plain(src_workload=None)
    flow = world.telemetry.opened(far, Bytes(1, 1))
    list(world.telemetry.count_live())
    assert world.telemetry.retold(flow, outbound()) is flow
    flow.closed(11, 22)
    before, after = world.series(far), world.series(outbound())
    assert (before.opened, before.closed, before.received) == (1, 0, 1)
    assert (after.opened, after.closed, after.received) == (0, 1, 10)
    assert 'dst.workload="db-0"' in world.lines[0]


def test_verdicts_are_counted_by_policy() -> None:
    telemetry = World().telemetry
    telemetry.judged("shop/deny", False)
    telemetry.judged("shop/deny", False)
    telemetry.judged(None, True)
    assert telemetry.policy_hits == {("shop/deny", False): 2}


def test_handshakes_are_counted_by_what_went_wrong() -> None:
    telemetry = World().telemetry
    telemetry.handshake_failed("inbound", NotTls("SSH"))
    telemetry.handshake_failed("inbound", Draining())
    assert telemetry.handshakes_failed == {("inbound", "NotTls"): 1}
