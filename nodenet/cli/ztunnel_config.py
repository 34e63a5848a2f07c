"""`ztunnel config`: one screen about each proxy, or its dump as it is."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime

from nodenet.agents.ztunnel.views import StatusView
from nodenet.cli import numbers
from nodenet.cli.globals import Format, Globals
from nodenet.cli.output import emit_report
from nodenet.cli.style import Style
from nodenet.cli.ztunnel_ask import Asked, checked, fetched
from nodenet.cli.ztunnel_dump import Dump, decode
from nodenet.errors import UsageError
from nodenet.times import parse_rfc3339


def show(g: Globals, asked: Asked) -> None:
    """The dump with -j, else a screen a proxy."""
    if g.format is Format.NAME:
        raise UsageError("-o name: this command prints a report, which has no names")
    if g.format in (Format.TABLE, Format.WIDE):
        sys.stdout.write("\n".join(_screens(asked, g.style)))
        return
    if asked.live:
        proxy = asked.one()
        raw = checked(fetched(proxy, "/config_dump"), proxy).body
    else:
        _, raw, where = next(iter(asked.raw()))
        decode(raw, where)  # nothing else may come out as a dump
    if g.format is Format.YAML:
        import msgspec

        emit_report(g, msgspec.json.decode(raw), lambda found, _: str(found))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(raw if raw.endswith(b"\n") else raw + b"\n")
    sys.stdout.buffer.flush()
    g.documents += 1


def _screens(asked: Asked, style: Style) -> list[str]:
    if asked.live:
        answers = asked.told("/v1/status", StatusView)
        if all(status is not None for _, status in answers):
            return [render(status, style) for _, status in answers if status is not None]
    return [_of_dump(dump) for _, dump in asked.dumps()]


def render(status: StatusView, style: Style) -> str:
    """One screen."""
    up = datetime.now(UTC) - parse_rfc3339(status.started)
    state = "ready" if status.ready else f"not ready, pending: {', '.join(status.pending)}"
    counts = status.counts
    lines = [
        style.joined(
            [
                f"ztunnel {status.version}",
                f"pid {status.pid}",
                f"node {status.node or '-'}",
                status.instance,
                f"up {numbers.age(up.total_seconds())}",
                style.paint("ready" if status.ready else "pending", state),
            ]
        )
    ]
    for upstream in status.upstreams:
        since = ""
        if upstream.since is not None:
            ago = datetime.now(UTC) - parse_rfc3339(upstream.since)
            since = f" {numbers.age(ago.total_seconds())} ago"
        error = f"; {upstream.error}" if upstream.error else ""
        lines.append(f"{upstream.name:<10} {upstream.address}  {upstream.state}{since}{error}")
    if not status.upstreams:
        lines.append("mesh       none: every connection goes where it wanted to")
    for name, addresses in status.listeners.items():
        lines.append(f"{name:<10} {', '.join(addresses)}")
    known = ("workload", "service", "policy", "certificate")
    lines.append(f"{'knows':<10} {', '.join(_many(counts, word) for word in known)}")
    lines.append(
        f"{'carries':<10} {_many(counts, 'connection')} of {_many(counts, 'pod')}, "
        f"{counts.get('pool', 0)} to other proxies"
    )
    lines.append(f"{'log':<10} {status.log_level}")
    return "\n".join(lines) + "\n"


def _many(counts: dict[str, int], word: str) -> str:
    """``1 policy``, ``2 policies``."""
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    count = counts.get(plural, 0)
    return f"{count} {word if count == 1 else plural}"


def _of_dump(dump: Dump) -> str:
    """As much as a dump tells."""
    flows = sum(
        len(pod.connections.inbound) + len(pod.connections.outbound)
        for pod in dump.workload_state.values()
    )
    states = Counter(entry.state.partition(":")[0] for entry in dump.certificates)
    certificates = ", ".join(f"{count} {state}" for state, count in states.items()) or "none"
    return (
        f"ztunnel {dump.version.get('version', '?')}, node {dump.node or '-'}\n"
        f"{'knows':<10} {len(dump.workloads)} workloads, {len(dump.services)} services, "
        f"{len(dump.policies)} policies\n"
        f"{'certified':<10} {certificates}\n"
        f"{'carries':<10} {flows} connections of {len(dump.workload_state)} pods\n"
    )
