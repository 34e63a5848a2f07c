"""`ztunnel log-level`: what a proxy logs, asked and changed."""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec

from nodenet.agents.ztunnel.views import LogLevelView
from nodenet.cli import numbers
from nodenet.cli.style import Style
from nodenet.cli.ztunnel_ask import Asked, OfItsOwn, Proxy, checked, fetched, own
from nodenet.errors import UsageError

#: How ztunnel's answer to /logging begins.
_HEAD = "current log level is "


class LogLevelRow(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of one proxy, as ``ztunnel log-level -j`` prints it."""

    level: str
    was: str
    until: str | None
    """RFC 3339: when the filter of before comes back."""
    node: str | None
    """Of the proxy; None when there is one only."""


def change(
    asked: Asked, wanted: str | None, *, reset: bool, seconds: float | None
) -> list[LogLevelRow]:
    """The filter of each proxy after the change; without one as it is."""
    if not asked.live:
        raise UsageError("-f: a saved dump has no log level to show")
    if seconds is not None and wanted is None and not reset:
        raise UsageError("--for: says for how long a filter is set", hint="give a filter")
    proxies = asked.proxies()
    rows = []
    for proxy in proxies:
        view = _changed(proxy, wanted, reset, seconds)
        node = proxy.node if len(proxies) > 1 else None
        rows.append(LogLevelRow(level=view.level, was=view.was, until=view.until, node=node))
    return rows


def render(rows: list[LogLevelRow], _style: Style) -> str:
    """A line a proxy: the filter now in force."""
    return "".join(f"{_line(row)}\n" for row in rows)


def _line(row: LogLevelRow) -> str:
    until = f" until {numbers.local_time(row.until)[:19]}" if row.until else ""
    return f"{row.node + '  ' if row.node else ''}{row.level}{until}"


def _changed(proxy: Proxy, wanted: str | None, reset: bool, seconds: float | None) -> LogLevelView:
    query = {}
    if wanted is not None:
        query["level"] = wanted
    if reset:
        query["reset"] = "true"
    if seconds is not None:
        query["seconds"] = f"{seconds:g}"
    if not query:
        found = own(fetched(proxy, "/v1/log-level"), proxy, LogLevelView)
    else:
        target = f"/v1/log-level?{urlencode(query)}"
        found = own(fetched(proxy, target, method="POST"), proxy, LogLevelView)
    if found is not None:
        return found
    # over TCP, and of Istio's proxy, there is this
    if seconds is not None:
        raise OfItsOwn("a level that goes back by itself (--for)", f"ztunnel at {proxy.where}")
    was = _logging(proxy, "")
    return LogLevelView(
        level=_logging(proxy, f"?{urlencode(query)}") if query else was, was=was, until=None
    )


def _logging(proxy: Proxy, query: str) -> str:
    answer = checked(fetched(proxy, f"/logging{query}", method="POST"), proxy)
    return answer.text.removeprefix(_HEAD)
