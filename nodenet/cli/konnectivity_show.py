"""nodenet konnectivity show: the server or the agent of this host, and which agent gets a dial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from nodenet.agents.konnectivity.views import (
    AgentRow,
    AgentsView,
    AgentTunnelRow,
    ServerRow,
    ServersView,
    ServerTunnelRow,
    WhyView,
)
from nodenet.cli import numbers
from nodenet.cli.commands import Verb
from nodenet.cli.globals import Globals, list_options, pass_globals
from nodenet.cli.output import chosen, emit_list, emit_report
from nodenet.cli.style import Style
from nodenet.cli.tables import Column, Elide, render_table
from nodenet.errors import NodenetError, NotFound, NotPermitted, UsageError

if TYPE_CHECKING:
    from nodenet.httpd.client import Answer, TcpAddress

T = TypeVar("T")
#: For a list of a hundred thousand tunnels.
ANSWER_SECONDS = 30.0
#: For a daemon of this host to take a connection.
PROBE_SECONDS = 1.0
SERVER_SOCKET = "konnectivity.sock"
AGENT_SOCKET = "konnectivity-agent.sock"
#: Keys that are new in each answer.
MOVING = ("age_s",)
#: Longest answer that is shown as a daemon's own error.
_SAID = 200


class NoKonnectivity(NotFound):
    """Nobody answers where a daemon would."""

    def __init__(self, where: object, reason: str, role: str | None = None) -> None:
        what, port = ("agent", 8094) if role == "agent" else ("server", 8095)
        left = isinstance(where, Path) and reason == "connection refused"
        super().__init__(
            f"no konnectivity {role or 'here'}: connect {where}: {reason}"
            f"{' (left by one that was killed)' if left else ''}",
            hint=f"start it: nodenet konnectivity {what}, or name one: --admin 127.0.0.1:{port}",
        )


class Refused(NodenetError):
    """Somebody answered, but not as one of ours."""


class NotConnected(NodenetError):
    """A daemon lacks peers; the report is printed already."""


class NobodyFor(NodenetError):
    """No agent would carry a dial to a host; the report is printed already."""


class ServerReport(msgspec.Struct, kw_only=True):
    """``konnectivity show -j`` of a server."""

    ok: bool
    role: str
    server_id: str
    server_count: int
    strategies: list[str]
    draining: bool
    agents: list[AgentRow]


class AgentReport(msgspec.Struct, kw_only=True):
    """``konnectivity show -j`` of an agent."""

    ok: bool
    role: str
    agent_id: str
    connected: int
    known: int
    count_from: str
    draining: bool
    servers: list[ServerRow]


R = TypeVar("R", ServerReport, AgentReport)

AGENTS = (
    Column("AGENT", "agent_id", max=36, elide=Elide.MIDDLE),
    Column("NODE", "node", max=24, elide=Elide.MIDDLE),
    Column("ADDRESS", "address", keep=True),
    Column(
        "IDENTIFIERS",
        "identifiers",
        max=32,
        elide=Elide.END,
        value=lambda row: row.identifiers or None,
    ),
    Column("STREAMS", "streams", right=True),
    Column("CONNS", "conns", right=True),
    Column("DIALS", "dials", right=True),
    Column("FAILED", "failed", right=True),
    Column("AGE", "age_s", numbers.age, right=True),
    Column("STATE", "state", wide=True),
    Column("PENDING", "pending", right=True, wide=True),
    Column("QUEUED", "queue_bytes", numbers.size, right=True, wide=True),
    Column("LAST-ERROR", "last_error", max=48, elide=Elide.END, wide=True),
)
SERVERS = (
    Column("SERVER-ID", "server_id", max=36, elide=Elide.MIDDLE),
    Column("ADDRESS", "address", keep=True),
    Column("STATE", "state"),
    Column("CONNS", "conns", right=True),
    Column("LAST-ERROR", "last_error", max=48, elide=Elide.END),
    Column("DIALS", "dials", right=True, wide=True),
    Column("FAILED", "failed", right=True, wide=True),
    Column("AGE", "age_s", numbers.age, right=True, wide=True),
)
TUNNELS = (
    Column("PEER", "peer", max=36, elide=Elide.MIDDLE, value=lambda row: _peer(row)),
    Column("ID", "connect_id", right=True),
    Column("ADDRESS", "address", keep=True),
    Column("MODE", "mode", value=lambda row: getattr(row, "mode", None)),
    Column("STATE", "state"),
    Column("SENT", "bytes_sent", numbers.size, right=True),
    Column("RECV", "bytes_received", numbers.size, right=True),
    Column("QUEUED", "queue_bytes", numbers.size, right=True),
    Column("AGE", "age_s", numbers.age, right=True),
)


@click.command(
    "show",
    cls=Verb,
    short_help="Agents of the server here, or servers of the agent here.",
    epilog="Example: nodenet konnectivity show --why node1.example:10250",
)
@list_options
@click.option("--why", metavar="HOST", help="Which agent would carry a dial to HOST, and why.")
@click.option("--connections", is_flag=True, help="The tunnels, and the dials under way.")
@click.option(
    "--role",
    type=click.Choice(["server", "agent"]),
    help="Whom to ask where both run (the server).",
)
@click.option("--admin", metavar="HOST:PORT", help="Another daemon; or unix:PATH.")
@pass_globals
def show(
    g: Globals, why: str | None, connections: bool, role: str | None, admin: str | None
) -> int:
    """Show the agents that are connected to the server of this host, or the agent's servers.

    Exit 1 when the server has no agent, or the agent fewer servers than there are, or no agent
    would carry a dial to HOST.
    """
    if why is not None and connections:
        raise UsageError("--why and --connections exclude each other")
    if why == "":
        raise UsageError("--why is empty", hint="--why HOST, or --why HOST:PORT")
    if why is not None:
        _refuse_list_options(g)
    daemon = _Daemon(g, role, admin)
    if why is not None:
        return _show_why(g, daemon, why)
    if connections:
        row: Any
        if daemon.role == "server":
            row, peer = ServerTunnelRow, "agent_id"
        else:
            row, peer = AgentTunnelRow, "server_id"
        emit_list(
            g,
            lambda: list(daemon.ask("/v1/connections", list[row])),
            TUNNELS,
            row_type=row,
            name="connect_id",
            identity=(peer, "connect_id", "address"),  # each peer has its own ids
            empty="no tunnels",
            moving=MOVING,
        )
        return 0
    if daemon.role == "server":
        ask = partial(_server_report, daemon)
        return _show_peers(g, ask, "agents", AgentRow, _server_text, _why_no_agents)
    return _show_peers(
        g, partial(_agent_report, daemon), "servers", ServerRow, _agent_text, _why_fewer
    )


def _refuse_list_options(g: Globals) -> None:
    """UsageError for what would have no effect on an answer that is no list."""
    given = {"--sort": g.sort is not None, "--limit": g.limit is not None}
    for option, there in {**given, "--fail-empty": g.fail_empty}.items():
        if there:
            raise UsageError(
                f"--why and {option} exclude each other",
                hint=f"{option} is for the agents, the servers and --connections",
            )


def _show_peers(
    g: Globals,
    ask: Callable[[], R],
    key: str,
    row_type: type[msgspec.Struct],
    render: Callable[[R, list[Any], Style], str],
    why: Callable[[R], str],
) -> int:
    """A report with a list of peers at ``key``; its head and the status are about all of them."""
    whole: R | None = None

    def report() -> R:
        nonlocal whole
        whole = ask()
        rows = chosen(g, getattr(whole, key), row_type=row_type, empty=f"no {key}")
        return msgspec.structs.replace(whole, **{key: rows})

    def text(shown: R, style: Style) -> str:
        assert whole is not None
        return render(whole, getattr(shown, key), style)

    emit_report(g, report, text, moving=MOVING)
    # what --limit leaves out is there all the same
    if whole is not None and not whole.ok:
        raise NotConnected(why(whole))
    return 0


def _show_why(g: Globals, daemon: _Daemon, host: str) -> int:
    from urllib.parse import quote

    if daemon.role != "server":
        raise UsageError("--why is for a server: an agent chooses nobody", hint="--role server")
    found = emit_report(g, daemon.ask(f"/v1/why?host={quote(host)}", WhyView), _why_text)
    if not found.ok:
        routes = [a for step in found.steps if step.strategy == "defaultRoute" for a in step.agents]
        raise NobodyFor(
            f"{found.host} matches no agent identifier; "
            f"default-route agents: {', '.join(routes) or 'none'}"
        )
    return 0


class _Daemon:
    """Whom to ask: the one that is named, else the server's socket, else the agent's."""

    def __init__(self, g: Globals, role: str | None, admin: str | None) -> None:
        self.where: TcpAddress | Path
        self._wanted = role
        if admin is not None:
            self.where = _address(admin)
            self.role = role or self._role_there()
            return
        sockets = {
            "server": g.own_instance.run / SERVER_SOCKET,
            "agent": g.own_instance.run / AGENT_SOCKET,
        }
        there = [name for name, path in sockets.items() if _answered(path)]
        self.role = role or (there[0] if there else "server")
        self.where = sockets[self.role]

    def ask(self, target: str, kind: type[T]) -> T:
        """One answer. NoKonnectivity, Refused, NotPermitted."""
        answer = self._fetch(target)
        if answer.status != 200:
            # a stranger's page is no message
            said = answer.text if 0 < len(answer.text) <= _SAID else f"HTTP status {answer.status}"
            raise Refused(f"konnectivity at {self.where}: {said}", hint="is it a daemon of ours?")
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except msgspec.DecodeError as error:
            raise Refused(
                f"konnectivity at {self.where}: another version's answer: {error}",
                hint="compare: nodenet version",
            ) from error

    def _role_there(self) -> str:
        return "server" if self._fetch("/v1/agents").status == 200 else "agent"

    def _fetch(self, target: str) -> Answer:
        from nodenet.httpd.client import NoAnswer, NobodyThere, fetch

        try:
            return fetch(self.where, target, answer_seconds=ANSWER_SECONDS)
        except NobodyThere as error:
            reason = error.reason.removesuffix(" or directory")
            raise NoKonnectivity(self.where, reason, self._wanted) from error
        except NoAnswer as error:
            raise Refused(
                f"konnectivity at {error.message}",
                hint="is it an admin port? a server's is 8095, an agent's 8094",
            ) from error
        except PermissionError as error:
            raise NotPermitted(
                f"not permitted: connect {self.where}: permission denied",
                hint="run with sudo, or as a member of the group nodenet",
            ) from error


def _answered(path: Path) -> bool:
    """Whether somebody is behind a socket: a daemon that was killed leaves its file."""
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(PROBE_SECONDS)
        try:
            sock.connect(str(path))
        except (PermissionError, TimeoutError, BlockingIOError):
            return True  # somebody who is not for us, or busy
        except OSError:
            return False
    return True


def _server_report(daemon: _Daemon) -> ServerReport:
    found = daemon.ask("/v1/agents", AgentsView)
    return ServerReport(
        ok=found.ready,
        role=found.role,
        server_id=found.server_id,
        server_count=found.server_count,
        strategies=found.strategies,
        draining=found.draining,
        agents=found.agents,
    )


def _server_text(report: ServerReport, shown: list[Any], style: Style) -> str:
    count = len({row.agent_id for row in report.agents})
    head = (
        f"server {report.server_id}: {count} agents, 1 of {report.server_count} servers, "
        f"strategies {','.join(report.strategies)}{', draining' if report.draining else ''}\n"
    )
    return head + _table(shown, AGENTS, style)


def _table(rows: list[Any], columns: Sequence[Column], style: Style) -> str:
    """Without rows nothing, not even a header."""
    return render_table(rows, columns, style) if rows else ""


def _why_no_agents(report: ServerReport) -> str:
    if report.draining:
        return f"server {report.server_id} is draining: no new connections are taken"
    if report.agents:
        return f"no agent is known to the first strategy, {report.strategies[0]}"
    return f"no agent is connected to server {report.server_id}"


def _agent_report(daemon: _Daemon) -> AgentReport:
    found = daemon.ask("/v1/servers", ServersView)
    return AgentReport(
        ok=found.connected >= found.known > 0,
        role=found.role,
        agent_id=found.agent_id,
        connected=found.connected,
        known=found.known,
        count_from=found.count_from,
        draining=found.draining,
        servers=found.servers,
    )


def _agent_text(report: AgentReport, shown: list[Any], style: Style) -> str:
    head = (
        f"connected to {report.connected} of {report.known} servers "
        f"(count from: {report.count_from}){', draining' if report.draining else ''}\n"
    )
    return head + _table(shown, SERVERS, style)


def _why_fewer(report: AgentReport) -> str:
    said = f"connected to {report.connected} of {report.known} servers"
    for row in sorted(report.servers, key=lambda row: row.state != "failed"):
        if row.last_error is not None:
            error = row.last_error
            return f"{said}: {error if row.address in error else f'{row.address}: {error}'}"
    return said


def _why_text(found: WhyView, style: Style) -> str:
    lines = []
    for step in found.steps:
        mark = ">" if step.fired else " "
        lines.append(f"{mark} {step.strategy:<13} {step.why}")
    lines.append(f"Result: {found.result}")
    return "\n".join(lines)


def _peer(row: ServerTunnelRow | AgentTunnelRow) -> str:
    return row.agent_id if isinstance(row, ServerTunnelRow) else row.server_id


def _address(text: str) -> TcpAddress | Path:
    from nodenet.httpd.client import TcpAddress

    if text.startswith("unix:") or ("/" in text and "://" not in text):
        path = text.removeprefix("unix:")
        # unix:///run/x.sock is a URL's way to write it
        path = path.removeprefix("//") if text.startswith("unix:") else path
        if path:
            return Path(path)
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = (text, "8095") if not text.isdigit() else ("127.0.0.1", text)
    if not port.isdigit() or not 0 < int(port) < 65_536 or not host or "/" in host:
        raise UsageError(f"{text} is no address in --admin", hint="e.g. --admin 127.0.0.1:8095")
    return TcpAddress(host.strip("[]"), int(port))
