"""The part of the proxy that carries connections, behind the interface the supervisor uses.

A pod belongs to one worker, which owns its listeners. There is one worker so far, in the
supervisor's own process and loop; a worker process would take the same calls over a socket, with
the namespace's descriptor by SCM_RIGHTS.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import random
from collections.abc import Iterator
from typing import Protocol

from nodenet.agents.ztunnel.admission import Admission
from nodenet.agents.ztunnel.connection import Connection
from nodenet.agents.ztunnel.counters import PodCounters, PodSnapshot
from nodenet.agents.ztunnel.deadlines import Deadlines
from nodenet.agents.ztunnel.logs import LineBudget
from nodenet.agents.ztunnel.mesh_context import Mesh, MeshContext
from nodenet.agents.ztunnel.pod import Pod, PodRefused
from nodenet.agents.ztunnel.poller import Poller
from nodenet.agents.ztunnel.relay import Relay
from nodenet.agents.ztunnel.served import DataPath, ServedPod
from nodenet.agents.ztunnel.telemetry import Telemetry, silent
from nodenet.agents.ztunnel.whereabouts import Whereabouts
from nodenet.kernel.netns import NetNs

logger = logging.getLogger(__name__)


class Worker(Protocol):
    """Carries the connections of the pods it is given. Pods are named by their netns cookie."""

    def add_pod(self, pod: Pod, netns: NetNs) -> None:
        """Serves a pod from now on. Owns ``netns`` unless it raises (ListenFailed, PodRefused)."""

    def change_pod(self, pod: Pod) -> None:
        """Takes new facts about a pod that is served, without touching its listeners."""

    def remove_pod(self, cookie: int) -> None:
        """No new connections; those that are open go on. Nothing happens for an unknown pod."""

    def cut_pod(self, cookie: int) -> None:
        """The pod's namespace has gone: ends its connections too."""

    async def drain(self, seconds: float) -> int:
        """Ends all pods: no new connections, what is still open after ``seconds`` is cut.

        Returns how many connections had to be cut.
        """

    def snapshot(self) -> list[PodSnapshot]:
        """The counters of every pod, by name."""


class LocalWorker:
    """The worker inside this process. A context manager; leaving it ends everything at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        connect_seconds: float,
        max_connections: int,
        max_files: int,
        rng: random.Random | None = None,
        telemetry: Telemetry | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        """Without ``telemetry`` nothing is logged; without ``mesh`` all is passed through."""
        lines = LineBudget(loop)
        poller = Poller(loop)
        rng = rng or random.Random()
        # an idle one has a length of 0
        telemetry = silent() if telemetry is None else telemetry
        self._home = NetNs.current()
        self._pods: dict[int, ServedPod] = {}
        self._leaving: set[ServedPod] = set()
        self._all_left = asyncio.Event()
        self._all_left.set()
        self.started = 0
        """Pods that began to be served."""
        self.gone = PodCounters()
        """Counts of the pods that have gone."""
        self._data_path = DataPath(
            loop=loop,
            poller=poller,
            relay=Relay(poller),
            dials=Deadlines[Connection](loop, connect_seconds, _expired),
            whereabouts=Whereabouts(self._home, poller),
            rng=rng,
            admission=Admission(loop, max_files, lines),
            lines=lines,
            max_connections=max_connections,
            telemetry=telemetry,
            mesh=None
            if mesh is None
            else MeshContext.made(
                mesh,
                loop,
                poller,
                telemetry=telemetry,
                rng=rng,
                connect_seconds=connect_seconds,
            ),
        )

    def __enter__(self) -> LocalWorker:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end_all()
        data_path = self._data_path
        data_path.admission.close()
        data_path.dials.close()
        if data_path.mesh is not None:
            data_path.mesh.close()
        data_path.poller.close()
        data_path.relay.close()
        self._home.close()

    @property
    def active(self) -> int:
        """Connections open now."""
        return self._data_path.admission.active

    def add_pod(self, pod: Pod, netns: NetNs) -> None:
        """See `Worker.add_pod`."""
        if other := self._pods.get(pod.cookie):
            raise PodRefused(f"pod {pod.name}: its namespace is served as {other.pod.name} already")
        self._pods[pod.cookie] = ServedPod(pod, netns, self._data_path)
        self.started += 1
        logger.info("serving pod %s: netns %d, %s backend", pod.name, netns.inode, pod.backend)

    def change_pod(self, pod: Pod) -> None:
        """See `Worker.change_pod`."""
        self._pods[pod.cookie].change(pod)
        logger.info("pod %s has changed", pod.name)

    def remove_pod(self, cookie: int) -> None:
        """See `Worker.remove_pod`."""
        if served := self._pods.get(cookie):
            logger.info("pod %s removed, %d connections left", served.pod.name, served.active)
            self._leave(served)

    def cut_pod(self, cookie: int) -> None:
        """See `Worker.cut_pod`."""
        for served in [s for s in self._all() if s.pod.cookie == cookie]:
            logger.info("namespace of pod %s is gone, %d cut", served.pod.name, served.active)
            self._leave(served)
            served.cut()

    async def drain(self, seconds: float) -> int:
        """See `Worker.drain`."""
        for served in list(self._pods.values()):
            self._leave(served)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._data_path.admission.nobody()
                # connections to other proxies may still have something to send
                await self._all_left.wait()
        cut = self.active
        self._end_all()
        return cut

    def snapshot(self) -> list[PodSnapshot]:
        """See `Worker.snapshot`."""
        return sorted((s.snapshot() for s in self._all()), key=lambda s: (s.name, s.cookie))

    def served(self) -> list[ServedPod]:
        """Every pod, also those whose last connections are carried on."""
        return list(self._all())

    def _all(self) -> Iterator[ServedPod]:
        yield from self._pods.values()
        yield from self._leaving

    def _leave(self, served: ServedPod) -> None:
        """Takes no new connections for it; nothing happens the second time."""
        if self._pods.get(served.pod.cookie) is served:
            del self._pods[served.pod.cookie]
            self._leaving.add(served)
            self._all_left.clear()
            served.leave(self._left)

    def _left(self, served: ServedPod) -> None:
        self._leaving.discard(served)
        self.gone.add(served.counters)
        if not self._leaving:
            self._all_left.set()

    def _end_all(self) -> None:
        for served in list(self._all()):
            self._leave(served)
            served.cut()


def _expired(connection: Connection) -> None:
    connection.dial_failed(errno.ETIMEDOUT)
