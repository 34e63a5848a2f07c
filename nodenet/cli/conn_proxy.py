"""What the proxies add to the kernel's records: `conn show` and `conn summary` ask them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from nodenet.cli.globals import Globals
from nodenet.conns.security import Securities
from nodenet.errors import NodenetError
from nodenet.times import parse_rfc3339

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.views import ProxyConnection
    from nodenet.conns.connection import Connection

#: Seconds a proxy has for its word; the records are there without it.
ANSWER_SECONDS = 3.0


def securities(g: Globals) -> Securities:
    """How the connections are secured, as far as proxies of this instance answer."""
    from nodenet.agents.ztunnel.views import SecurityView
    from nodenet.cli.ztunnel_ask import fetched, local_proxies, own

    found = Securities()
    for proxy in local_proxies(g.instance):
        try:
            answer = fetched(proxy, "/v1/security", answer_seconds=ANSWER_SECONDS)
            view = own(answer, proxy, SecurityView)
        except NodenetError:
            continue
        if view is not None:
            rows = ((row.pod, row.dir, row.end, row.security) for row in view.connections)
            found.add(rows, view.ended)
    return found


def proxys_half(g: Globals, c: Connection) -> tuple[ProxyConnection | None, bool]:
    """What a proxy knows of the same connection, and whether any proxy answered."""
    from nodenet.agents.ztunnel.views import ProxyConnection
    from nodenet.cli.ztunnel_ask import fetched, local_proxies, own

    answered = False
    found: list[ProxyConnection] = []
    for proxy in local_proxies(g.instance):
        target = f"/v1/connections?match={','.join((c.id, c.local, c.remote))}"
        try:
            views = own(
                fetched(proxy, target, answer_seconds=ANSWER_SECONDS), proxy, list[ProxyConnection]
            )
        except NodenetError:
            continue
        if views is not None:
            answered = True
            found += (view for view in views if is_half(c, view))
    return _nearest(c, found), answered


def is_half(c: Connection, view: ProxyConnection) -> bool:
    """Whether the proxy's connection is the record's, or was one with the same addresses."""
    if view.id == c.id:
        return True
    if view.pod != c.pod or view.dir != c.dir or c.captured_by == "none":
        return False
    return c.local == view.src if c.dir == "out" else c.remote == view.dialled_from


def _nearest(c: Connection, views: list[ProxyConnection]) -> ProxyConnection | None:
    """Ports are used again: of several the one that began when the record did."""
    if c.start is None or len(views) < 2:
        return views[-1] if views else None
    start = parse_rfc3339(c.start)

    def distance(view: ProxyConnection) -> float:
        return abs((_moment(view) - start).total_seconds())

    return min(views, key=distance)


def _moment(view: ProxyConnection) -> datetime:
    return parse_rfc3339(view.start)
