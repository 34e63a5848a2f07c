"""``/debug/pprof`` of both daemons: where the time goes, and what everything waits for."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from typing import Final

from nodenet.agents.ztunnel import profiler
from nodenet.httpd.messages import HttpError, Request, Response, text
from nodenet.httpd.routes import Routes

#: Seconds and looks a second of a profile that does not say (Go's default, and its rate).
PROFILE_SECONDS: Final = 30.0
PROFILE_FREQUENCY: Final = 100
_LONGEST_SECONDS: Final = 120.0
_INDEX: Final = (
    "/debug/pprof/profile?seconds=30  where the time goes, for go tool pprof\n"
    "/debug/pprof/goroutine           threads and tasks with their stacks\n"
)


class Pprof:
    """The handlers; one profile at a time."""

    def __init__(self) -> None:
        self._running = False
        self._stop = threading.Event()

    def close(self) -> None:
        """Ends a profile that is being taken."""
        self._stop.set()

    def add_to(self, routes: Routes) -> None:
        """Serves them."""
        routes.add("GET", "/debug/pprof", lambda _: text(_INDEX))
        routes.add("GET", "/debug/pprof/", lambda _: text(_INDEX))
        routes.add("GET", "/debug/pprof/profile", self._profile)
        routes.add("GET", "/debug/pprof/goroutine", _stacks)

    async def _profile(self, request: Request) -> Response:
        try:
            seconds = float(request.query.get("seconds", PROFILE_SECONDS))
        except ValueError:
            raise HttpError(400, "seconds is no number\n") from None
        if not 0 < seconds <= _LONGEST_SECONDS:
            raise HttpError(400, f"seconds must be within 0 and {_LONGEST_SECONDS:g}\n")
        if self._running:
            raise HttpError(409, "a profile is being taken\n")
        self._running = True
        try:
            body = await asyncio.to_thread(profiler.sample, seconds, PROFILE_FREQUENCY, self._stop)
        finally:
            self._running = False
        return Response(content_type="application/octet-stream", body=body)


def _stacks(_request: Request) -> Response:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}\n"
        for ident, frame in sys._current_frames().items()
    ]
    for task in asyncio.all_tasks():
        at = "".join(
            f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}\n"
            for frame in task.get_stack(limit=8)
        )
        parts.append(f"task {task.get_name()}\n{at}\n")
    return text("".join(parts))
