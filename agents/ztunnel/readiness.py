"""Whether the proxy is ready, and what it waits for (15021, ``/healthz/ready``).

Source: ztunnel: src/readiness.rs, src/readiness/server.rs.
"""

from __future__ import annotations

import logging
from typing import Final

from nodenet.httpd.messages import Request, Response, text
from nodenet.httpd.routes import Routes

#: Names of tasks, as ztunnel has them.
STATE_MANAGER: Final = "state manager"
PROXY: Final = "proxy"
DNS_PROXY: Final = "dns proxy"
WORKLOAD_MANAGER: Final = "workload proxy manager"

logger = logging.getLogger(__name__)


class Readiness:
    """Names of what must be done before the proxy is ready; a task may become pending again."""

    def __init__(self, *pending: str) -> None:
        self._pending = set(pending)

    @property
    def ready(self) -> bool:
        """Whether nothing is pending."""
        return not self._pending

    @property
    def pending(self) -> list[str]:
        """What is waited for, sorted."""
        return sorted(self._pending)

    def wait_for(self, task: str) -> None:
        """Not ready until that is done."""
        if task not in self._pending:
            self._pending.add(task)
            logger.info("not ready, pending: %s", ", ".join(self.pending))

    def done(self, task: str) -> None:
        """One thing less to wait for; nothing happens when it was not waited for."""
        if task in self._pending:
            self._pending.discard(task)
            if self._pending:
                logger.info("%s is done, pending: %s", task, ", ".join(self.pending))
            else:
                logger.info("%s is done, ready", task)

    def routes(self) -> Routes:
        """What the readiness port answers."""
        return Routes({("GET", "/healthz/ready"): self._answer})

    def _answer(self, _request: Request) -> Response:
        if self.ready:
            return text("ready\n")
        return text(f"not ready, pending: {', '.join(self.pending)}\n", 500)
