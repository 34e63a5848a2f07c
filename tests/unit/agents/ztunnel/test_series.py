"""The text of the connection metrics, read back with prometheus-client's parsers."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from nodenet.agents.ztunnel.flow_facts import ResponseFlag
from nodenet.agents.ztunnel.series import FAMILIES, LINES_AT_ONCE, AllSeries
from nodenet.mesh.model import Workload
from tests.unit.agents.ztunnel.flows import inbound, outbound, plain

NAMES = [f"{family.name}_total" for family in FAMILIES]


def samples(text: bytes) -> dict[tuple[str, str, str], float]:
    """By name, reporter and flag."""
    found = {}
    for family in parse_plain(text.decode()):
        assert family.type == "counter"
        for sample in family.samples:
            labels = sample.labels
            found[sample.name, labels["reporter"], labels["response_flags"]] = sample.value
    return found


def test_each_counter_has_its_line() -> None:
    every = AllSeries()
    series = every.of(outbound())
    series.opened, series.received, series.sent = 3, 11, 22
    series.ended(ResponseFlag.NONE)
    series.ended(ResponseFlag.DENY)
    series.ended(ResponseFlag.DENY)
    opened, closed, received, sent, failed = NAMES
    assert samples(b"".join(every.text(openmetrics=False))) == {
        (opened, "source", "-"): 3,
        (closed, "source", "-"): 1,
        (closed, "source", "DENY"): 2,
        (received, "source", "-"): 11,
        (sent, "source", "-"): 22,
        (failed, "source", "DENY"): 2,
    }


def test_openmetrics_is_parsed_too() -> None:
    every = AllSeries()
    every.of(outbound()).opened = 1
    every.of(inbound()).opened = 1
    text = b"".join(every.text(openmetrics=True)).decode() + "# EOF\n"
    families = list(parse_open(text))  # type: ignore[no-untyped-call]
    assert [family.name for family in families] == [family.name for family in FAMILIES]
    assert len(families[0].samples) == 2


def test_the_same_labels_are_one_series() -> None:
    every = AllSeries()
    assert every.of(outbound()) is every.of(outbound(conn_id="9"))
    assert every.of(outbound()) is not every.of(inbound())
    assert len(every) == 2


def test_too_many_label_sets_are_counted_together() -> None:
    every = AllSeries(max_series=2)
    kept = [every.of(outbound()), every.of(inbound())]
    late = every.of(plain())
    assert every.of(plain(src_workload=None)) is late
    assert late not in kept
    assert every.of(outbound()) is kept[0]
    assert every.overflowed == 2
    assert set(late.values.head) == {"source", "tcp", "unknown"}


def test_long_texts_come_in_pieces() -> None:
    every = AllSeries()
    for number in range(LINES_AT_ONCE * 2):
        every.of(plain(src_workload=Workload(uid=str(number), workload_name=f"w{number}")))
    pieces = list(every.text(openmetrics=False))
    assert max(piece.count(b"\n") for piece in pieces) <= LINES_AT_ONCE + 2
    assert b"".join(pieces).count(b"\n") == 3 * LINES_AT_ONCE * 2 + 2 * len(FAMILIES)
