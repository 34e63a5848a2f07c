"""What the proxies say of the connections they carried: their access logs, in JSON.

A proxy writes a line when a connection has ended. Identities are those of the certificates that
the two proxies have shown each other, so they are evidence; the mesh file is only a wish.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from nodenet.errors import NodenetError
from nodenet.lab.flows import Decision, Protocol

_POLL_SECONDS: Final = 0.01
_ACCESS: Final = b'"scope":"access"'
_STATUS: Final = re.compile(r"http status: (\d{3})\b")
_DENIED_BY: Final = re.compile(r"explicitly denied by: (\S+)")
#: The answer to a tunnel that the policies do not let in.
UNAUTHORIZED: Final = 401


class LogUnreadable(NodenetError):
    """A line of an access log is not what a proxy writes."""


class AccessLine(msgspec.Struct, frozen=True, kw_only=True):
    """One connection that has ended. Names of fields: ztunnel: src/proxy/metrics.rs."""

    message: str
    direction: Literal["inbound", "outbound"]
    source: str = msgspec.field(name="src.addr")
    src_identity: str | None = msgspec.field(name="src.identity", default=None)
    destination: str | None = msgspec.field(name="dst.addr", default=None)
    tunnelled_to: str | None = msgspec.field(name="dst.hbone_addr", default=None)
    dst_identity: str | None = msgspec.field(name="dst.identity", default=None)
    error: str | None = None
    conn_id: str | None = msgspec.field(name="conn.id", default=None)
    """Cookie of the socket that the proxy accepted, hex; a refused one is told without."""

    @property
    def protocol(self) -> Protocol:
        """How it went between the pods."""
        return "hbone" if self.tunnelled_to is not None else "tcp"

    @property
    def reached(self) -> str | None:
        """ENDPOINT of the application at the other end."""
        return self.tunnelled_to or self.destination

    @property
    def status(self) -> int | None:
        """What the far proxy answered instead of opening the tunnel."""
        found = _STATUS.search(self.error or "")
        return int(found[1]) if found else None

    @property
    def policy(self) -> str | None:
        """Namespace and name of the policy that denied it, which the denying proxy knows."""
        found = _DENIED_BY.search(self.error or "")
        return found[1] if found else None

    @property
    def decision(self) -> Decision | None:
        """What was decided by policies. None: nobody was asked, or it ended for another reason.

        A connection that leaves in plaintext is judged by nobody here.
        """
        if self.policy is not None or self.status == UNAUTHORIZED:
            return "deny"
        asked = self.direction == "inbound" or self.protocol == "hbone"
        return "allow" if asked and self.error is None else None


class AccessLog:
    """Lines of several proxies, found by what both ends know of a connection."""

    def __init__(self, lines: Iterable[AccessLine] = ()) -> None:
        self._outbound: dict[str, AccessLine] = {}
        self._inbound: dict[tuple[str, str], list[AccessLine]] = {}
        for line in lines:
            if line.direction == "outbound":
                self._outbound[line.conn_id or line.source] = line
            else:
                where = host_of(line.source), line.reached or ""
                self._inbound.setdefault(where, []).append(line)

    def outbound(self, conn_id: str, source: str) -> AccessLine | None:
        """The application's connection that the proxy accepted as the one or from the other."""
        return self._outbound.get(conn_id) or self._outbound.get(source)

    def inbound(self, source: str, destination: str) -> list[AccessLine]:
        """Connections from that address to that ENDPOINT, those that asked for a service too.

        A proxy's tunnel hides the port the application had.
        """
        return self._inbound.get((source, destination), [])


class LogTail:
    """What is written to some files from now on."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._starts = {path: path.stat().st_size if path.exists() else 0 for path in paths}

    def read(self) -> AccessLog:
        """Every whole line so far."""
        return AccessLog(line for path in self._starts for line in self._lines(path))

    def read_until(self, enough: Callable[[AccessLog], bool], seconds: float) -> AccessLog:
        """The same, when it is enough, or after that many seconds whatever it is then."""
        deadline = time.monotonic() + seconds
        while True:
            log = self.read()
            if enough(log) or time.monotonic() >= deadline:
                return log
            time.sleep(_POLL_SECONDS)  # a proxy's writer is some milliseconds behind

    def _lines(self, path: Path) -> Iterator[AccessLine]:
        try:
            with path.open("rb") as file:
                file.seek(self._starts[path])
                text = file.read()
        except FileNotFoundError:
            return
        for line in text[: text.rfind(b"\n") + 1].splitlines():
            if _ACCESS in line:
                try:
                    found = msgspec.json.decode(line, type=AccessLine)
                except msgspec.DecodeError as error:
                    raise LogUnreadable(f"line in {path}: {error}") from error
                if found.message != "connection opened":
                    yield found


def host_of(endpoint: str) -> str:
    """The host of an ENDPOINT, without brackets."""
    return endpoint.rpartition(":")[0].strip("[]")
