"""Which handler answers a method and a path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from nodenet.httpd.messages import Request, Response, text

#: May be a plain function when it never waits.
Handler = Callable[[Request], Response | Awaitable[Response]]


class Routes:
    """Handlers by exact path and method. HEAD is answered by GET's handler, without its body."""

    def __init__(self, routes: Mapping[tuple[str, str], Handler] | None = None) -> None:
        """``routes`` maps ``("GET", "/path")`` to handlers."""
        self._by_path: dict[str, dict[str, Handler]] = {}
        for (method, path), handler in (routes or {}).items():
            self.add(method, path, handler)

    def add(self, method: str, path: str, handler: Handler) -> None:
        """One more; ValueError when the place is taken."""
        methods = self._by_path.setdefault(path, {})
        if method in methods:
            raise ValueError(f"{method} {path} has a handler already")
        methods[method] = handler

    def find(self, method: str, path: str) -> Handler:
        """The handler; for what is not there one that answers 404, or 405 with ``Allow``."""
        methods = self._by_path.get(path)
        if methods is None:
            return _not_found
        found = methods.get("GET" if method == "HEAD" else method)
        return found or _not_allowed(methods)

    def paths(self) -> list[tuple[str, tuple[str, ...]]]:
        """Every path with its methods, in the order they were added: for an index page."""
        return [(path, tuple(methods)) for path, methods in self._by_path.items()]


def _not_found(_request: Request) -> Response:
    return text("not found\n", 404)


def _not_allowed(methods: Mapping[str, Handler]) -> Handler:
    allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]

    def refuse(_request: Request) -> Response:
        answer = text("method not allowed\n", 405)
        return Response(status=405, body=answer.body, headers={"Allow": ", ".join(allowed)})

    return refuse
