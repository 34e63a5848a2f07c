"""Which network namespace the data path's thread is in during a turn.

A socket belongs to the namespace its thread is in while it is made, so the thread enters a pod's
for a dial. It stays there until it needs another one or the turn ends: a batch of connections
costs two moves (2 µs each) instead of two for every connection. Between turns it is always at
home, so that nothing else on this thread ever runs inside a pod.
"""

from __future__ import annotations

from nodenet.agents.ztunnel.poller import Poller
from nodenet.kernel import libc
from nodenet.kernel.netns import NetNs


class Whereabouts:
    """Moves the calling thread; belongs to the thread of its poller."""

    def __init__(self, home: NetNs, poller: Poller) -> None:
        self._home = home
        self._poller = poller
        self._inside: NetNs | None = None

    def enter(self, namespace: NetNs) -> None:
        """Moves into the namespace until the end of the poller's turn. OSError."""
        if self._inside is namespace:
            return
        libc.setns(namespace.fd)
        if self._inside is None:
            self._poller.at_end(self._leave)
        self._inside = namespace

    def _leave(self) -> None:
        self._inside = None
        libc.setns(self._home.fd)
