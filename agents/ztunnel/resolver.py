"""Addresses of workloads that are known by hostname only (ztunnel: on-demand DNS).

Asks the C library, so whatever /etc/nsswitch.conf and /etc/resolv.conf of the proxy say holds. It
blocks, so it runs in a few threads. They are started with the resolver and never later: a thread
is born in the network namespace of its maker, which during a turn may be a pod's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from nodenet.endpoint import IPAddress, unmapped

#: Look-ups at the same time; more wait for their turn.
THREADS: Final = 4
#: Look-ups under way or waiting, at most: behind it stands a resolver that does not answer.
MAX_PENDING: Final = 1024
#: Answers remembered (ztunnel: src/state.rs, cache of the resolver).
MAX_ANSWERS: Final = 4096
#: Seconds an answer, or that there is none, is taken for true: the C library tells no TTL.
ANSWER_SECONDS: Final = 10.0
#: Seconds a connection waits for its look-up.
WAIT_SECONDS: Final = 5.0

#: Called with the addresses, none if there are none, or with None when the look-up failed.
Callback = Callable[[Sequence[IPAddress] | None], None]

logger = logging.getLogger(__name__)


class Resolver:
    """Looks hostnames up, each once at a time. Of the loop's thread; closed at the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """To be made while the thread is in its own namespace."""
        self._loop = loop
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="resolver")
        started = threading.Barrier(THREADS + 1)
        for _ in range(THREADS):
            self._executor.submit(started.wait)
        started.wait()
        self._answers: OrderedDict[str, tuple[float, Sequence[IPAddress] | None]] = OrderedDict()
        self._pending: dict[str, list[Callback]] = {}

    def close(self) -> None:
        """Answers nobody any more. A look-up that is under way ends by itself."""
        self._pending.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def resolve(self, hostname: str, done: Callback) -> None:
        """Calls back at once when the answer is remembered, else later."""
        known = self._answers.get(hostname)
        now = self._loop.time()
        if known is not None and known[0] > now:
            done(known[1])
            return
        waiting = self._pending.get(hostname)
        if waiting is not None:
            waiting.append(done)
            return
        if len(self._pending) >= MAX_PENDING:
            logger.warning("%d look-ups are under way; %r is not looked up", MAX_PENDING, hostname)
            done(None)
            return
        self._pending[hostname] = [done]
        future = self._loop.run_in_executor(self._executor, _look_up, hostname)
        future.add_done_callback(lambda answered: self._answered(hostname, answered))

    def _answered(self, hostname: str, future: asyncio.Future[Sequence[IPAddress] | None]) -> None:
        answer = None if future.cancelled() else future.result()
        answers = self._answers
        answers.pop(hostname, None)
        answers[hostname] = (self._loop.time() + ANSWER_SECONDS, answer)
        if len(answers) > MAX_ANSWERS:
            answers.popitem(last=False)
        for done in self._pending.pop(hostname, ()):
            done(answer)


def _look_up(hostname: str) -> Sequence[IPAddress] | None:
    try:
        found = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        logger.debug("look-up of %r: %s", hostname, error)
        # the name exists without addresses, or it does not exist or nobody knows
        return () if error.errno == socket.EAI_NODATA else None
    except (UnicodeError, OSError) as error:
        logger.debug("look-up of %r: %s", hostname, error)
        return None
    return tuple(
        dict.fromkeys(
            unmapped(ipaddress.ip_address(str(each[4][0]).partition("%")[0])) for each in found
        )
    )
