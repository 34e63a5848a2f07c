"""`conn watch`: events as they come, one a line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nodenet.cli import numbers
from nodenet.cli.globals import Globals
from nodenet.cli.output import Stream
from nodenet.cli.style import Style
from nodenet.cli.tables import printable

if TYPE_CHECKING:
    from nodenet.conns.events import Event, Lost
    from nodenet.conns.filters import Filter

#: How often a quiet stream looks whether its time is over, seconds.
_PATIENCE = 0.5
#: Columns that most processes and addresses fit into; longer ones push the rest of the line.
_PROCESS_WIDTH, _LOCAL_WIDTH = 16, 21


def watch_events(
    g: Globals,
    wanted: Filter,
    *,
    events: tuple[str, ...] | None,
    until_count: int | None,
    timeout: float | None,
    proxy: bool,
    raw: bool,
) -> None:
    """Prints events until Ctrl-C, ``until_count`` of them, or ``timeout`` seconds."""
    from nodenet.conns.events import ALL_EVENTS, Event, EventReader
    from nodenet.conns.filters import compile_filter
    from nodenet.conns.names import Names

    names = Names(g.instance)
    compiled = compile_filter(wanted, names, time.time_ns())
    spaces = None if compiled.netns is None else {str(n) for n in compiled.netns}
    kinds = [name for name in ALL_EVENTS if events is None or name in events]
    deadline = None if timeout is None else time.monotonic() + timeout
    shown = 0

    def passes(item: Event | Lost) -> bool:
        if not isinstance(item, Event):
            return True  # what was lost might have passed
        return (
            (proxy or not item.proxy)
            and (spaces is None or item.netns_cookie in spaces)
            and (compiled.test is None or compiled.test(item))
        )

    def line(item: Any, style: Style) -> str:
        return event_line(item, raw=raw, style=style)

    reader = EventReader(g.instance, kinds, names=names, who="conn watch")
    with reader, Stream(g, line) as stream:
        while until_count is None or shown < until_count:
            rest = _PATIENCE if deadline is None else deadline - time.monotonic()
            if rest <= 0:
                break
            batch = [item for item in reader.read(min(rest, _PATIENCE)) if passes(item)]
            if until_count is not None:
                batch = batch[: until_count - shown]
            shown += len(batch)
            if batch:
                stream.put(batch)


def event_line(item: Event | Lost, *, raw: bool = False, style: Style | None = None) -> str:
    """``10:42:07.482 closed   out shop/cart curl[4902]  LOCAL -> PEER  id=3a44 ...``."""
    from nodenet.conns.events import Lost

    clock = numbers.local_clock(item.time)
    if isinstance(item, Lost):
        return f"{clock} lost     count={'?' if item.count is None else item.count}"
    peer = item.peer if raw else item.peer_label
    name = f"{item.event:<8}"
    who = f"{item.pod_label} {item.process or '-':<{_PROCESS_WIDTH}}"
    path = f"{item.local:<{_LOCAL_WIDTH}} -> {peer}"
    facts = " ".join(f"{key}={value}" for key, value in _facts(item))
    word = style.paint(item.event, name) if style else name
    return f"{clock} {word} {item.dir or '-':<3} {printable(who)} {path}  {facts}"


def _facts(item: Event) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]]
    if item.event == "refused":
        facts = [("reason", item.reason), ("rule", item.rule), ("errno", item.errno)]
        return [(key, value) for key, value in facts if value is not None]
    facts = [("id", item.id), ("via", item.captured_by)]
    if item.captured_by == "none":
        facts.append(("reason", item.reason))
    if item.event == "closed":
        rtt = None if item.rtt_us is None else numbers.microseconds(item.rtt_us)
        lasted = None
        if item.duration_us is not None:
            lasted = numbers.duration(item.duration_us / 1_000_000)
        facts += [
            ("sent", item.bytes_sent),
            ("recv", item.bytes_received),
            ("rtt", rtt),
            ("retr", item.retransmits),
            ("dur", lasted),
            ("end", item.end_reason or "none"),
            ("by", item.end_by),
            ("errno", item.errno),
        ]
    return [(key, value) for key, value in facts if value is not None]
