"""`ztunnel log-level`: what a proxy logs, asked and changed."""

from __future__ import annotations

from urllib.parse import urlencode

from nodenet.agents.ztunnel.views import LogLevelView
from nodenet.cli import numbers
from nodenet.cli.style import Style
from nodenet.cli.ztunnel_ask import Asked, OfItsOwn, Proxy, checked, fetched, own
from nodenet.errors import UsageError

#: How ztunnel's answer to /logging begins.
_HEAD = "current log level is "


def change(
    asked: Asked, wanted: str | None, *, reset: bool, seconds: float | None
) -> list[LogLevelView]:
    """The filter of each proxy after the change; without one as it is."""
    if not asked.live:
        raise UsageError("-f: a saved dump has no log level to show")
    if seconds is not None and wanted is None and not reset:
        raise UsageError("--for: says for how long a filter is set", hint="give a filter")
    return [_changed(proxy, wanted, reset, seconds) for proxy in asked.proxies()]


def render(views: list[LogLevelView], _style: Style) -> str:
    """A line a proxy: the filter now in force."""
    return "".join(f"{_line(view)}\n" for view in views)


def _line(view: LogLevelView) -> str:
    if view.until is None:
        return view.level
    return f"{view.level} until {numbers.local_time(view.until)[:19]}"


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
