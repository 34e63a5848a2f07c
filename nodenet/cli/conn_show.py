"""`conn show`: every key of one connection, in blocks, and the proxy's half of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from nodenet.cli import numbers
from nodenet.cli.style import Style
from nodenet.cli.tables import ABSENT, printable, text
from nodenet.errors import UsageError

if TYPE_CHECKING:
    from nodenet.cli.conn_detail import ConnectionDetail
    from nodenet.cli.globals import Globals
    from nodenet.conns.connection import Connection
    from nodenet.conns.reader import ConnReader

#: Every JSON key once, where a reader would look for it.
BLOCKS: dict[str, tuple[str, ...]] = {
    "who": ("id", "pod", "pid", "comm", "cgroup", "netns_cookie", "proxy"),
    "path": (
        "dir", "family", "local", "remote", "orig_dst", "peer_name", "captured_by", "reason",
        "rule",
    ),
    "counters": (
        "bytes_sent", "bytes_acked", "bytes_received", "segs_out", "segs_in", "retransmits", "lost",
    ),
    "kernel": (
        "state", "rtt_us", "rtt_min_us", "cwnd", "start", "end", "duration_us", "end_reason",
        "end_by", "errno",
    ),
}  # fmt: skip
#: Of the proxy's half what the record has not.
PROXY_KEYS = (
    "id", "security", "peer_identity", "protocol", "row", "policy", "service", "upstream",
    "original_dst", "hbone_conn", "stream_id", "bytes_sent", "bytes_received", "start", "end",
    "error", "flag",
)  # fmt: skip
_LABEL_WIDTH = max(len(key) for keys in BLOCKS.values() for key in keys) + 1


def parse_id(given: str) -> int:
    """The socket cookie of an id as `conn list` or ``ss -e`` prints it. UsageError."""
    digits = given.removeprefix("sk:").removeprefix("0x")
    try:
        if digits.isalnum() and (cookie := int(digits, 16)) < 1 << 64:
            return cookie
    except ValueError:
        pass
    raise UsageError(
        f"{given} is not a connection id", hint="ids are hexadecimal, see: nodenet conn list"
    )


def detail(reader: ConnReader, cookie: int) -> Connection:
    """The connection, with its process looked up where the record names none. NoConnection."""
    found = reader.find(cookie)
    if found.pid is None and found.end is None:
        from nodenet.conns.unrecorded import ListenerOwners

        (found,) = ListenerOwners(reader.names).named([found])
    return found


def with_proxy(g: Globals, c: Connection) -> ConnectionDetail:
    """The connection with the proxy's half of it, where a ztunnel answers and knows it."""
    from nodenet.cli.conn_detail import ConnectionDetail
    from nodenet.cli.conn_proxy import proxys_half

    half, answered = proxys_half(g, c)
    if not answered and c.captured_by != "none":
        g.notice("no ztunnel answers: the proxy's half is missing")
    return ConnectionDetail(**msgspec.structs.asdict(c), ztunnel=half)


def render(c: ConnectionDetail, style: Style) -> str:
    """Blocks of ``label: value``."""
    lines: list[str] = []
    for block, keys in BLOCKS.items():
        lines.append(block)
        for key in keys:
            shown = _shown(key, getattr(c, key), style.exact)
            if key == "state":
                shown = style.paint(shown)
            lines.append(f"  {key + ':':<{_LABEL_WIDTH}}  {shown}")
    if c.ztunnel is not None:
        lines.append("ztunnel")
        for key in PROXY_KEYS:
            shown = _shown(key, getattr(c.ztunnel, key), style.exact)
            lines.append(f"  {key + ':':<{_LABEL_WIDTH}}  {shown}")
    return "\n".join(lines) + "\n"


def _shown(key: str, value: Any, exact: bool) -> str:
    if value is None:
        return ABSENT
    plain = printable(text(value))
    if exact:
        return plain
    if key.startswith("bytes_") and value >= 1024:
        return f"{plain} ({numbers.size(value)})"
    if key == "duration_us":
        return f"{plain} ({numbers.duration(value / 1_000_000)})"
    if key.endswith("_us"):
        return f"{plain} ({numbers.microseconds(value)})"
    return plain
