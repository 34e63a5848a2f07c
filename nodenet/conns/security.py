"""How connections are secured, which only the proxies know: their word joined with the records.

A record of the kernel and the proxy's half of the same connection are of two sockets with an id
each. What they share is the address between them: outbound the application's own end, inbound the
end from which the proxy dialled the application.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from nodenet.conns.connection import Connection
from nodenet.conns.totals import Total

Security = Literal["mtls", "plain"]
SECURITIES: Final[tuple[Security, ...]] = ("mtls", "plain")

#: Bytes that the proxies' counts may miss and still count as whole: of connections that were reset
#: the kernel has counted what the proxy never read.
_TOLERANCE: Final = 0.01


class Securities:
    """What the proxies of a node tell. Without any, only what was not captured is known."""

    def __init__(self, *, told: bool = False) -> None:
        self.told = told
        """Whether a proxy has answered."""
        self._by_end: dict[tuple[str, str, str], Security] = {}
        self._ended: dict[str, tuple[int, int]] = {}

    def add(
        self,
        connections: Iterable[tuple[str, str, str, Security]],
        ended: Mapping[str, tuple[int, int]],
    ) -> None:
        """One proxy's word: (pod, ``out`` or ``in``, ENDPOINT, security) of each connection, the
        later ones winning; and by pod the bytes of those that have ended, with mTLS and without.
        """
        self.told = True
        for pod, direction, end, security in connections:
            self._by_end[pod, direction, end] = security
        for pod, (mtls, plain) in ended.items():
            before = self._ended.get(pod, (0, 0))
            self._ended[pod] = (before[0] + mtls, before[1] + plain)

    def of(self, c: Connection) -> Security | None:
        """Of one connection; None when it was captured and no proxy knows it (any more)."""
        if c.captured_by == "none":
            return "plain"
        if c.pod is None or c.dir is None:
            return None
        return self._by_end.get((c.pod, c.dir, c.local if c.dir == "out" else c.remote))

    def shares(self, totals: Sequence[Total]) -> Mapping[str | None, tuple[float, float]]:
        """Of the captured bytes of each pod's closed connections: which part was plain, and which
        part nobody knows. Of connections that ended before the proxy began it knows nothing.
        """
        captured: dict[str | None, int] = {}
        for total in totals:
            if total.captured_by != "none":
                moved = total.bytes_sent + total.bytes_received
                captured[total.pod] = captured.get(total.pod, 0) + moved
        found: dict[str | None, tuple[float, float]] = {}
        for pod, moved in captured.items():
            mtls, plain = self._ended.get(pod or "", (0, 0))
            known = mtls + plain
            if not moved or not known:
                found[pod] = (0.0, 1.0 if moved else 0.0)
                continue
            unknown = max(0.0, 1 - known / moved)
            if unknown < _TOLERANCE:
                unknown = 0.0
            found[pod] = ((1 - unknown) * plain / known, unknown)
        return found
