"""The access log: one line for each connection that has ended, in ztunnel's form.

Fields, their order and when they are left out: ztunnel: src/proxy/metrics.rs; the form of a line:
src/telemetry.rs. One field is nodenet's own and comes last: ``conn.id``, by which `nodenet conn`
and `nodenet ztunnel connections` find the connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.flow_facts import FlowFacts, Security
from nodenet.agents.ztunnel.labels import party
from nodenet.agents.ztunnel.timestamps import Timestamps

SCOPE: Final = "access"


class LogFormat(Enum):
    """Values of LOG_FORMAT."""

    PLAIN = "plain"
    JSON = "json"


class Fragment(NamedTuple):
    """What lines of many connections have in common, rendered once.

    Each ends where the next varying field begins.
    """

    after_src: str
    """From behind ``src.addr`` up to ``dst.addr``."""
    after_hbone: str
    """From behind ``dst.hbone_addr`` to the direction."""


class AccessLog:
    """Renders lines and hands them to ``write``; knows nothing of levels."""

    def __init__(
        self,
        form: LogFormat,
        write: Callable[[bytes], object],
        timestamps: Timestamps | None = None,
    ) -> None:
        self._json = form is LogFormat.JSON
        self._write = write
        self._now = timestamps or Timestamps()

    def fragment(self, facts: FlowFacts) -> Fragment:
        """The common part of all connections with these facts; addresses are not looked at."""
        pairs = self._pairs
        source = party(facts.src_workload, facts.src_baggage)
        to = party(facts.dst_workload, facts.dst_baggage)
        mtls = facts.security is Security.MTLS
        src, dst = facts.src_workload, facts.dst_workload
        return Fragment(
            pairs(
                ("src.workload", (src.name if src else "") or source.canonical_service),
                ("src.namespace", source.namespace),
                ("src.identity", facts.src_identity if mtls else None),
                ("src.cluster", source.cluster),
            ),
            pairs(
                ("dst.service", facts.service.hostname if facts.service else None),
                ("dst.workload", (dst.name if dst else "") or to.canonical_service),
                ("dst.namespace", to.namespace),
                ("dst.identity", facts.dst_identity if mtls else None),
                ("dst.cluster", to.cluster),
                ("direction", facts.direction),
            ),
        )

    def opened(self, facts: FlowFacts, fragment: Fragment) -> None:
        """``connection opened``, at DEBUG."""
        head = self._head("debug", "connection opened", facts, fragment)
        own = f',"conn.id":"{facts.conn_id}"}}\n' if self._json else f" conn.id={facts.conn_id}\n"
        self._write((head + own).encode())

    def complete(
        self,
        facts: FlowFacts,
        fragment: Fragment,
        sent: int,
        received: int,
        seconds: float,
        error: str | None,
    ) -> None:
        """``connection complete``, at INFO, or at ERROR with the error.

        ``sent`` and ``received`` are seen from the pod.
        """
        level = "info" if error is None else "error"
        head = self._head(level, "connection complete", facts, fragment)
        milliseconds = int(seconds * 1000)
        if self._json:
            why = "" if error is None else f',"error":{json.dumps(error)}'
            line = (
                f'{head},"bytes_sent":{sent},"bytes_recv":{received},'
                f'"duration":"{milliseconds}ms"{why},"conn.id":"{facts.conn_id}"}}\n'
            )
        else:
            why = "" if error is None else f" error={quoted(error)}"
            line = (
                f"{head} bytes_sent={sent} bytes_recv={received} "
                f'duration="{milliseconds}ms"{why} conn.id={facts.conn_id}\n'
            )
        self._write(line.encode(errors="backslashreplace"))

    def failed(self, src: Address, dst: Address | None, direction: str, error: str) -> None:
        """``connection failed``, at WARN: it ended before it was counted as opened."""
        now = self._now.text()
        if self._json:
            to = "" if dst is None else f',"dst.addr":"{dst}"'
            line = (
                f'{{"level":"warn","time":"{now}","scope":"{SCOPE}","message":"connection failed",'
                f'"src.addr":"{src}"{to},"direction":"{direction}","error":{json.dumps(error)}}}\n'
            )
        else:
            to = "" if dst is None else f" dst.addr={dst}"
            line = (
                f"{now}\twarn\t{SCOPE}\tconnection failed\tsrc.addr={src}{to} "
                f'direction="{direction}" error={quoted(error)}\n'
            )
        self._write(line.encode(errors="backslashreplace"))

    def _head(self, level: str, message: str, facts: FlowFacts, fragment: Fragment) -> str:
        now, hbone = self._now.text(), facts.hbone_addr
        if self._json:
            tunnel = f',"dst.hbone_addr":{json.dumps(hbone)}' if hbone else ""
            return (
                f'{{"level":"{level}","time":"{now}","scope":"{SCOPE}","message":"{message}",'
                f'"src.addr":"{facts.src}"{fragment.after_src},"dst.addr":"{facts.dst}"'
                f"{tunnel}{fragment.after_hbone}"
            )
        tunnel = f" dst.hbone_addr={_bare(hbone)}" if hbone else ""
        return (
            f"{now}\t{level}\t{SCOPE}\t{message}\tsrc.addr={facts.src}{fragment.after_src} "
            f"dst.addr={facts.dst}{tunnel}{fragment.after_hbone}"
        )

    def _pairs(self, *pairs: tuple[str, str | None]) -> str:
        if self._json:
            return "".join(f',"{key}":{json.dumps(value)}' for key, value in pairs if value)
        return "".join(f" {key}={quoted(value)}" for key, value in pairs if value)


def _bare(address: str) -> str:
    """An address without quotes, unless a peer has put something else there."""
    if address.isprintable() and " " not in address and '"' not in address:
        return address
    return quoted(address)


def quoted(text: str) -> str:
    """A string of a plain line: in double quotes, on one line, with backslash escapes."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = text.replace("\\", "\\\\").replace('"', '\\"')
    if not out.isprintable():
        out = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in out)
    return f'"{out}"'
