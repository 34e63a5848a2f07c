"""The table and the sentences of ``nodenet lab demo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodenet.cli import numbers
from nodenet.cli.style import Style
from nodenet.cli.tables import Column, render_table

if TYPE_CHECKING:
    from nodenet.lab.demo import DemoReport
    from nodenet.lab.flows import Flow
    from nodenet.lab.wire import WireReport

#: The port that a pod is called at unless something else is said.
_USUAL_PORTS: Final = (80, 8080)


def short(name: str) -> str:
    """``a1`` of ``lab/a1``."""
    return name.rpartition("/")[2]


def _to(flow: Flow) -> str:
    port = "" if flow.to_port in _USUAL_PORTS else f":{flow.to_port}"
    return f"{short(flow.to)}{port}{' (v6)' if flow.family == 6 else ''}"


def _identity(flow: Flow) -> str | None:
    """The one at the other end, without scheme and trust domain."""
    found = flow.src_identity if flow.side == "in" else flow.dst_identity
    return found and found.removeprefix("spiffe://").partition("/")[2]


def _decision(flow: Flow) -> str | None:
    return f"{flow.decision} {flow.status}" if flow.status else flow.decision


def _listener(flow: Flow) -> str | None:
    """``a1:15001``: the pod whose namespace the listener is in, by name."""
    if flow.listener is None:
        return None
    owner = flow.server if flow.side == "in" else flow.from_
    return f"{short(owner)}:{flow.listener.rpartition(':')[2]}"


def _verdict(flow: Flow) -> str:
    if not flow.ok:
        return f"FAIL  {flow.why}"
    if flow.decision == "deny":
        return f"ok  {flow.policy}"
    if flow.to != flow.server:
        return f"ok  by {short(flow.server)}"
    return "ok" if flow.side else "ok  untouched"


def _count(count: int, flow: Flow) -> int | None:
    """None for a denied flow: what the app could write before it was cut off is chance."""
    return None if flow.decision == "deny" else count


_COLUMNS: Final = (
    Column("FROM", "from_", value=lambda f: short(f.from_)),
    Column("TO", "to", value=_to),
    Column("SIDE", "side"),
    Column("VIA", "captured_by"),
    Column("PROTO", "protocol"),
    Column("IDENTITY", "dst_identity", value=_identity),
    Column("DECISION", "decision", value=_decision),
    Column("LISTENER", "listener", value=_listener),
    Column("SENT", "bytes_sent", numbers.size, right=True, value=lambda f: _count(f.bytes_sent, f)),
    Column(
        "RECV",
        "bytes_received",
        numbers.size,
        right=True,
        value=lambda f: _count(f.bytes_received, f),
    ),
    Column("ORIGINAL DST", "orig_dst", wide=True),
    Column("PEER SEEN", "peer_seen", wide=True),
    Column("CONN", "conn_id", wide=True),
    Column("CHECK", "ok", keep=True, value=_verdict),
)


def demo_text(report: DemoReport, style: Style) -> str:
    """All of it: the table, what it proves, what to do next."""
    flows = report.flows
    good = sum(flow.ok for flow in flows)
    denied = [flow for flow in flows if flow.decision == "deny"]
    said = [f"{len(flows)} rows, {good} ok."]
    if good == len(flows):
        which = "every answered row" if denied else "every row"
        said.append(f"The apps saw the true peer in {which} (getpeername).")
    rules = report.iptables_rules
    said.append(
        "No iptables rule in any namespace."
        if not rules
        else f"{rules} iptables rule{'s' * (rules > 1)} in the lab's namespaces."
    )
    lines = [render_table(flows, _COLUMNS, style), " ".join(said), "\n"]
    lines += [_wire_text(report.wire, mesh=report.mesh), "\n"]
    far = {flow.to for flow in flows if flow.side == "in"}
    captured = next((f for f in flows if f.side == "out" and f.ok and f.to in far), None)
    if captured is not None:
        explain = f"nodenet capture explain {short(captured.from_)} {captured.orig_dst}"
        next_ = f" {style.dot} ".join(["nodenet conn top", explain, "nodenet lab down"])
        lines.append(f"Next: {next_}\n")
    return "".join(lines)


def _wire_text(wire: WireReport, *, mesh: bool) -> str:
    head = f"Inter-node link: {wire.packets} packets; "
    if not mesh:
        return f"{head}plaintext marker seen {wire.plaintext_elsewhere} times: there is no mesh."
    if wire.ok:
        between = "TLS to 15008 only" if wire.ports else "nothing"
    else:
        between = "NOT only TLS to 15008"
        if wire.lost:
            between = f"nothing is proved, {wire.lost} packets are missing"
    return (
        f"{head}between enrolled pods {between}, plaintext marker seen {wire.plaintext_in_mesh} "
        f"times (elsewhere {wire.plaintext_elsewhere} times)."
    )
