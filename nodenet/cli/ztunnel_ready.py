"""Why a proxy knows nothing, or how fresh what it knows is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from nodenet.agents.ztunnel.views import StatusView, Upstream
from nodenet.cli.ztunnel_ask import Asked
from nodenet.cli.ztunnel_names import choose
from nodenet.errors import NodenetError, NotFound
from nodenet.times import parse_rfc3339

T = TypeVar("T")


class NotReady(NodenetError):
    """A proxy waits for its control plane; an empty list would be a lie."""


def known(asked: Asked) -> str:
    """``known (file loaded 12 s ago)``, for errors about what is not there.

    NotReady when a proxy has not got its state yet: then nothing can be said about what is there.
    """
    for _, status in asked.told("/v1/status", StatusView):
        if status is None:
            continue
        if not status.ready:
            raise NotReady(f"ztunnel not ready: {_why(status)}; showing nothing")
        for upstream in status.upstreams:
            if upstream.name in ("xds", "file") and upstream.since is not None:
                return f"known ({_fresh(upstream)})"
    return "known"


def _why(status: StatusView) -> str:
    for upstream in status.upstreams:
        if upstream.error is not None:
            return f"{upstream.name} {upstream.address}: {upstream.error}"
    return f"pending: {', '.join(status.pending)}"


def _fresh(upstream: Upstream) -> str:
    assert upstream.since is not None
    seconds = (datetime.now(UTC) - parse_rfc3339(upstream.since)).total_seconds()
    name = "xDS" if upstream.name == "xds" else upstream.name
    return f"{name} {upstream.state} {max(seconds, 0):.0f} s ago"


def select(
    asked: Asked,
    items: Iterable[T],
    name_of: Callable[[T], str],
    *,
    what: str,
    given: str | None,
    namespace: str | None,
) -> list[T]:
    """Those of the items, by ``NS/NAME``, that were asked for: one by name, all of a namespace.

    NotFound, UsageError as `choose`; NotReady instead of an empty list that says nothing.
    """
    every = [(name_of(item), item) for item in items]
    if given is not None:
        names = {name for name, _ in every}
        try:
            wanted = choose(given, names, what=what)
        except NotFound:
            wanted = choose(given, names, what=what, known=known(asked))
        every = [(name, item) for name, item in every if name == wanted]
    elif not every:
        known(asked)
    if namespace is None:
        return [item for _, item in every]
    found = [item for name, item in every if name.rpartition("/")[0] == namespace]
    if not found:
        check_namespace(asked, namespace)
    return found


def check_namespace(asked: Asked, namespace: str) -> None:
    """NotFound when nothing that the proxies know is in that namespace: a slip of the pen."""
    there = set[str]()
    for _, dump in asked.dumps("workloads", "services", "policies"):
        there.update(workload.namespace for workload in dump.workloads)
        there.update(service.namespace for service in dump.services)
        there.update(policy.namespace for policy in dump.policies)
    if namespace not in there:
        raise NotFound(
            f"no namespace {namespace} in the mesh",
            hint=f"there are: {' '.join(sorted(there - {''}))}" if there else None,
        )
