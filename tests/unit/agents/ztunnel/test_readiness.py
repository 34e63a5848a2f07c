"""Bodies and statuses of the probe."""

from __future__ import annotations

import inspect

from nodenet.agents.ztunnel.readiness import PROXY, STATE_MANAGER, WORKLOAD_MANAGER, Readiness
from nodenet.httpd.messages import Request


def probe(readiness: Readiness, method: str = "GET", path: str = "/healthz/ready") -> object:
    request = Request(method=method, path=path, query={}, headers={})
    answer = readiness.routes().find(method, path)(request)
    assert not inspect.isawaitable(answer)
    return answer.status, answer.body


def test_pending_tasks_are_named_in_order() -> None:
    readiness = Readiness(STATE_MANAGER, PROXY)
    assert probe(readiness) == (500, b"not ready, pending: proxy, state manager\n")
    readiness.done(PROXY)
    readiness.done(PROXY)
    assert probe(readiness) == (500, b"not ready, pending: state manager\n")
    readiness.done(STATE_MANAGER)
    assert probe(readiness) == (200, b"ready\n")
    readiness.wait_for(WORKLOAD_MANAGER)
    assert not readiness.ready
    assert probe(readiness) == (500, b"not ready, pending: workload proxy manager\n")


def test_other_methods_and_paths() -> None:
    readiness = Readiness()
    assert probe(readiness, "POST") == (405, b"method not allowed\n")
    assert probe(readiness, "GET", "/") == (404, b"not found\n")
