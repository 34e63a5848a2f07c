"""The admin surface: ztunnel's paths with their bodies, and nodenet's own under ``/v1``.

It is served at 127.0.0.1:15000 and at a Unix socket in the run directory. Over TCP nothing can be
changed but what ztunnel allows there; the rest needs the socket, whose mode says who may.
Source: ztunnel: src/admin.rs.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from nodenet import __version__
from nodenet.agents.ztunnel import profiler
from nodenet.agents.ztunnel.config_dump import KEYS, config_dump, whole_second
from nodenet.agents.ztunnel.live_connections import connection_of, is_named, security_of
from nodenet.agents.ztunnel.log_control import FilterError, LogControl
from nodenet.agents.ztunnel.readiness import Readiness
from nodenet.agents.ztunnel.telemetry import Telemetry
from nodenet.agents.ztunnel.views import (
    AdminSource,
    CertificateDump,
    CertificateView,
    LogLevelView,
    SecurityView,
    StatusView,
)
from nodenet.httpd import messages
from nodenet.httpd.messages import HttpError, Request, Response, text
from nodenet.httpd.routes import Routes

#: Seconds and looks a second of a profile (ztunnel: src/admin.rs).
PROFILE_SECONDS: Final = (10, 1, 300)
PROFILE_FREQUENCY: Final = (100, 1, 1000)
#: Rows encoded at one go.
_AT_ONCE: Final = 500

_WORDS: Final = {
    "/": "this page",
    "/config_dump": "everything known, as istioctl reads it; ?only=certificates,config",
    "/logging": "POST ?level=FILTER adds to the log filter, ?reset=true goes back",
    "/quitquitquit": "POST: graceful end",
    "/debug/pprof/profile": "?seconds=10&frequency=100: where the time goes, for go tool pprof",
    "/v1/status": "one screen",
    "/v1/connections": "live connections; ?match=ID,IP:PORT also those that ended lately",
    "/v1/security": "which connections have mTLS, for joining them with the kernel's",
    "/v1/pool": "HBONE connections to other proxies",
    "/v1/certificates": "identities, their certificates and their renewal",
    "/v1/policies": "what each policy did here",
    "/v1/explain": "?src=NS/POD&dst=IP:PORT: what would happen",
    "/v1/log-level": "the log filter; POST with ?level= ?reset= ?seconds= over the Unix socket",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What does not change while the process runs."""

    instance: str
    node: str | None
    started_ns: int
    """Unix time."""
    istio_version: str = "unknown"
    """ISTIO_META_ISTIO_VERSION."""


class Admin:
    """The handlers, over what the proxy tells."""

    def __init__(
        self,
        about: About,
        source: AdminSource,
        telemetry: Telemetry,
        logs: LogControl,
        readiness: Readiness,
    ) -> None:
        self._about = about
        self._source = source
        self._telemetry = telemetry
        self._logs = logs
        self._readiness = readiness
        self.listeners: Callable[[], dict[str, list[str]]] = dict
        """Where the surfaces listen, by name; set by who serves them."""
        self._profiling = False
        self._stop_profile = threading.Event()

    def close(self) -> None:
        """Ends a profile that is being taken."""
        self._stop_profile.set()

    def routes(self, *, over_unix: bool) -> Routes:
        """What one kind of socket answers."""
        routes = Routes(
            {
                ("GET", "/"): self._index,
                ("GET", "/config_dump"): self._config_dump,
                ("POST", "/logging"): self._logging,
                ("POST", "/quitquitquit"): self._quit,
                ("GET", "/debug/pprof/profile"): self._profile,
                ("GET", "/v1/status"): self._status,
                ("GET", "/v1/connections"): self._connections,
                ("GET", "/v1/security"): self._security,
                ("GET", "/v1/pool"): lambda _: _array(self._source.pool()),
                ("GET", "/v1/certificates"): self._certificates,
                ("GET", "/v1/policies"): lambda _: _array(self._source.policy_hits()),
                ("GET", "/v1/explain"): self._explain,
                ("GET", "/v1/log-level"): lambda _: messages.json(self._level(None)),
            }
        )
        if over_unix:
            routes.add("POST", "/v1/log-level", self._set_level)
            # a policy to try is too long for a query
            routes.add("POST", "/v1/explain", self._explain)
        return routes

    # -- ztunnel's -------------------------------------------------------------------------------

    def _index(self, _request: Request) -> Response:
        rows = "".join(
            f'<tr><td><a href="{path}">{path}</a></td><td>{words}</td></tr>\n'
            for path, words in _WORDS.items()
        )
        return messages.html(
            f"<!DOCTYPE html>\n<title>ztunnel</title>\n<h1>ztunnel {__version__}</h1>\n"
            f"<table>\n{rows}</table>\n"
        )

    def _config_dump(self, request: Request) -> Response:
        only = [key for key in request.query.get("only", "").split(",") if key] or KEYS
        body = config_dump(
            self._source, self._telemetry, istio_version=self._about.istio_version, only=only
        )
        return Response(content_type=messages.JSON, body=body, compress=True)

    def _logging(self, request: Request) -> Response:
        self._change_level(request, None)
        return text(f"current log level is {self._logs.current}\n")

    def _quit(self, _request: Request) -> Response:
        # the answer goes out first
        asyncio.get_running_loop().call_soon(self._source.shut_down)
        return text("shutdown now\n")

    async def _profile(self, request: Request) -> Response:
        seconds = _number(request, "seconds", *PROFILE_SECONDS)
        frequency = _number(request, "frequency", *PROFILE_FREQUENCY)
        if self._profiling:
            raise HttpError(503, "a profile is being taken already\n")
        self._profiling = True
        try:
            found = await asyncio.to_thread(profiler.sample, seconds, frequency, self._stop_profile)
        finally:
            self._profiling = False
        return Response(content_type="application/octet-stream", body=found)

    # -- nodenet's -------------------------------------------------------------------------------

    def _status(self, _request: Request) -> Response:
        source, about = self._source, self._about
        counts = {
            **source.counts(),
            "certificates": sum(1 for _ in source.certificates()),
            "pods": sum(1 for _ in source.pods()),
            "pool": sum(1 for _ in source.pool()),
            "connections": self._telemetry.live,
        }
        return messages.json(
            StatusView(
                version=__version__,
                pid=os.getpid(),
                node=about.node,
                instance=about.instance,
                started=_moment(about.started_ns / 1e9),
                ready=self._readiness.ready,
                pending=tuple(self._readiness.pending),
                upstreams=source.upstreams(),
                listeners=self.listeners(),
                counts=counts,
                log_level=str(self._logs.current),
            )
        )

    def _connections(self, request: Request) -> Response:
        telemetry, named = self._telemetry, request.query.get("match")
        if named is None:
            return _array(connection_of(f) for f in telemetry.open_flows() if not f.over)
        names = frozenset(named.split(","))
        ended = [e for e in telemetry.recent if is_named(e.flow, names)]
        live = [f for f in telemetry.open_flows() if is_named(f, names)]
        return _array([*(connection_of(e.flow, e) for e in ended), *map(connection_of, live)])

    def _security(self, _request: Request) -> Response:
        telemetry = self._telemetry
        flows = [*(ended.flow for ended in telemetry.recent), *telemetry.open_flows()]
        return messages.json(
            SecurityView(
                connections=[row for row in map(security_of, flows) if row is not None],
                ended={pod: (mtls, plain) for pod, (mtls, plain) in telemetry.ended_bytes.items()},
            ),
            compress=True,
        )

    def _certificates(self, _request: Request) -> Response:
        return _array(map(_certificate_view, self._source.certificates()))

    def _explain(self, request: Request) -> Response:
        try:
            src, dst = request.query["src"], request.query["dst"]
        except KeyError as error:
            raise HttpError(400, f"{error.args[0]} is missing: ?src=NS/POD&dst=IP:PORT\n") from None
        return messages.json(self._source.explain(src, dst, request.body or None))

    def _set_level(self, request: Request) -> Response:
        was = str(self._logs.current)
        seconds = request.query.get("seconds")
        try:
            limit = None if seconds is None else float(seconds)
        except ValueError:
            raise HttpError(400, f"seconds={seconds}: not a number\n") from None
        self._change_level(request, limit)
        return messages.json(self._level(was))

    def _level(self, was: str | None) -> LogLevelView:
        level = str(self._logs.current)
        return LogLevelView(level=level, was=was or level, until=self._logs.until)

    def _change_level(self, request: Request, seconds: float | None) -> None:
        level = request.query.get("level") or None
        reset = request.query.get("reset", "false")
        if reset not in ("true", "false", ""):
            raise HttpError(400, f"reset={reset}: true or false\n")
        wanted = reset != "false"
        if level is None and not wanted:
            return  # only asked
        try:
            self._logs.change(level, reset=wanted, seconds=seconds, now_ns=time.time_ns())
        except FilterError as error:
            raise HttpError(400, f"{error.line()}\n") from error


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    given = request.query.get(name)
    if given is None:
        return default
    if given.isascii() and given.isdigit() and least <= int(given) <= most:
        return int(given)
    raise HttpError(400, f"{name}={given}: give {least} to {most}\n")


def _array(items: Iterable[Any]) -> Response:
    return Response(content_type=messages.JSON, body=_encoded(items), compress=True)


async def _encoded(items: Iterable[Any]) -> AsyncIterator[bytes]:
    """A JSON array, some rows at a time."""
    encode = msgspec.json.encode
    rows: list[bytes] = []
    separator = b"["
    for item in items:
        rows.append(separator + encode(item))
        separator = b","
        if len(rows) == _AT_ONCE:
            yield b"".join(rows)
            rows.clear()
            await asyncio.sleep(0)
    yield b"".join(rows) + (b"[]" if separator == b"[" else b"]")


def _certificate_view(entry: CertificateDump) -> CertificateView:
    leaf = entry.chain[0] if entry.chain else None
    state = entry.state.partition(":")[0].lower()
    return msgspec.convert(
        {
            "identity": entry.identity,
            "state": state,
            "not_before": whole_second(leaf.not_before) if leaf else None,
            "not_after": whole_second(leaf.not_after) if leaf else None,
            "serial": f"{leaf.serial:x}" if leaf else None,
            "refresh_at": None if entry.refresh_at is None else _moment(entry.refresh_at),
            "last_error": entry.error,
            "attempts": entry.attempts,
        },
        CertificateView,
    )


def _moment(unix: float) -> str:
    return whole_second(unix)
