"""The connection metrics: one set of counters for each combination of labels, and their text.

A mesh has as many combinations as pairs of workloads that talk, so these are not prometheus-client
metrics: that library takes 50 us for a line with 27 labels, sorts them, and keeps an object for
every number. Here the labels are rendered once, and a scrape is one addition of strings a line.
The names and what each counts: ztunnel: src/proxy/metrics.rs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from nodenet.agents.ztunnel.flow_facts import FlowFacts, ResponseFlag
from nodenet.agents.ztunnel.labels import LabelValues, label_values, party, rendered

#: Combinations kept apart: some 2 KB each, four lines or more of a scrape. Later ones are counted
#: together, so that a scan of addresses costs no more than this.
MAX_SERIES: Final = 50_000
#: Lines of a scrape made at one go, about a millisecond of the event loop.
LINES_AT_ONCE: Final = 500

NONE: Final = ResponseFlag.NONE


class Family(NamedTuple):
    """One metric: its name without ``_total``, and its help."""

    name: str
    help: str


OPENED: Final = Family(
    "istio_tcp_connections_opened", "TCP connections opened, counted before their outcome is known"
)
CLOSED: Final = Family("istio_tcp_connections_closed", "TCP connections closed, by final flag")
RECEIVED: Final = Family(
    "istio_tcp_received_bytes", "Bytes from the client to the server, for both reporters"
)
SENT: Final = Family(
    "istio_tcp_sent_bytes", "Bytes from the server to the client, for both reporters"
)
FAILED: Final = Family(
    "istio_tcp_connections_failed", "TCP connections that ended with an error, by flag (unstable)"
)
FAMILIES: Final = (OPENED, CLOSED, RECEIVED, SENT, FAILED)


class Series:
    """The counters of one combination of labels."""

    __slots__ = ("_head", "_tail", "closed", "flagged", "opened", "received", "sent", "values")

    def __init__(self, values: LabelValues) -> None:
        self.values = values
        self.opened = 0
        self.closed = 0
        """With flag ``-``."""
        self.flagged: dict[ResponseFlag, int] = {}
        """Closed with another flag."""
        self.received = 0
        """Bytes from client to server."""
        self.sent = 0
        """Bytes from server to client."""
        self._head, self._tail = rendered(values)

    def ended(self, flag: ResponseFlag) -> None:
        """One connection is closed."""
        if flag is NONE:
            self.closed += 1
        else:
            self.flagged[flag] = self.flagged.get(flag, 0) + 1

    def samples(self, family: Family) -> Iterator[tuple[str, int]]:
        """Labels as text, without braces, and value of each line of a family."""
        if family is CLOSED and self.closed:
            yield self._labels(NONE), self.closed
        if family is CLOSED or family is FAILED:
            for flag, count in self.flagged.items():
                yield self._labels(flag), count
        elif family is OPENED:
            yield self._labels(NONE), self.opened
        elif family is RECEIVED:
            yield self._labels(NONE), self.received
        else:
            yield self._labels(NONE), self.sent

    def _labels(self, flag: ResponseFlag) -> str:
        return f"{self._head}{flag.value}{self._tail}"


class AllSeries:
    """Every series there is, by its labels."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max = max_series
        self._by_values: dict[LabelValues, Series] = {}
        self._overflow: dict[str, Series] = {}
        self.overflowed = 0
        """Connections counted together because there were too many combinations."""

    def __len__(self) -> int:
        return len(self._by_values) + len(self._overflow)

    def of(self, facts: FlowFacts) -> Series:
        """The counters a connection is counted in."""
        source = party(facts.src_workload, facts.src_baggage)
        destination = party(facts.dst_workload, facts.dst_baggage)
        values = label_values(facts, source, destination)
        found = self._by_values.get(values)
        if found is not None:
            return found
        if len(self._by_values) >= self._max:
            return self._together(facts)
        found = self._by_values[values] = Series(values)
        return found

    def text(self, *, openmetrics: bool) -> Iterator[bytes]:
        """The exposition of all families in pieces; others may run between two of them.

        The text format wants the name with ``_total`` in the comments, OpenMetrics without.
        """
        # the dictionary may grow between two pieces; what comes meanwhile is in the next scrape
        every = [*self._by_values.values(), *self._overflow.values()]
        for family in FAMILIES:
            name = f"{family.name}_total"
            named = family.name if openmetrics else name
            lines = [f"# HELP {named} {family.help}\n# TYPE {named} counter\n"]
            for series in every:
                for labels, value in series.samples(family):
                    lines.append(f"{name}{{{labels}}} {value}\n")
                if len(lines) >= LINES_AT_ONCE:
                    yield "".join(lines).encode()
                    lines.clear()
            yield "".join(lines).encode()

    def _together(self, facts: FlowFacts) -> Series:
        self.overflowed += 1
        found = self._overflow.get(facts.direction)
        if found is None:
            nothing = FlowFacts(
                direction=facts.direction, conn_id="", pod="", src=facts.src, dst=facts.dst
            )
            nobody = party(None, None)
            found = Series(label_values(nothing, nobody, nobody))
            self._overflow[facts.direction] = found
        return found
