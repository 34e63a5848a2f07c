"""Tunnels of every kind while agents come and go: a drained one loses nothing.

A killed one tells the clients at once.

Ten seconds as a test; ``NODENET_CHURN_SECONDS=600`` makes it the soak that a release gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import time
from dataclasses import dataclass, field

import pytest

from nodenet.konnectivity.client import DialFailed, Mode, Stream, TunnelLost, dial
from tests.interop.peers import AgentProcess, Process, ServerProcess, World, wait_for
from tests.interop.remotes import Remote, digest_server, echo

pytestmark = pytest.mark.timeout(1800)

SECONDS = float(os.environ.get("NODENET_CHURN_SECONDS", "10"))
TUNNELS = 500
#: What an agent gets to drain: longer than any tunnel here lives.
DRAIN_SECONDS = 30
#: A process may end with so much more than it had when it was warm: arenas, not tunnels.
MEMORY_SLACK = 24 << 20
RESTART_SECONDS = 5.0


@dataclass
class Tally:
    """What the tunnels did."""

    done: int = 0
    cut: int = 0
    """Ended by a killed agent, with an error."""
    bytes: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class Churn:
    """Everything under way."""

    server: ServerProcess
    echo: str
    digest: str
    until: float
    killing: bool
    """Agents are killed, so tunnels may be cut; else none may be."""
    rng: random.Random
    tally: Tally = field(default_factory=Tally)

    async def one(self) -> None:
        """Tunnel after tunnel."""
        while time.monotonic() < self.until:
            kind = self.rng.randrange(4)
            try:
                async with asyncio.timeout(60):
                    stream = await dial(
                        self.server.target,
                        self.digest if kind == 3 else self.echo,
                        mode=self.server.mode,
                        timeout=30,
                    )
                    try:
                        await self._use(stream, kind)
                    finally:
                        await stream.close()
                self.tally.done += 1
            except (TunnelLost, DialFailed) as error:
                self.tally.cut += 1
                if not self.killing:
                    self.tally.wrong.append(str(error))
            except TimeoutError:
                self.tally.wrong.append(f"a tunnel of kind {kind} hung")
            await asyncio.sleep(self.rng.random() * 0.5)

    async def _use(self, stream: Stream, kind: int) -> None:
        data = self.rng.randbytes(self.rng.choice((10, 1000, 70_000)))
        self.tally.bytes += len(data)
        if kind == 0:  # opened and closed
            return
        if kind == 3:
            await stream.write(data)
            await stream.end()
            got = b""
            while part := await stream.read():
                got += part
            if got != hashlib.sha256(data).hexdigest().encode():
                # an agent that is killed looks like the remote's end to an HTTP CONNECT client
                if not (self.killing and not got):
                    self.tally.wrong.append(f"digest of {len(data)} bytes is {got!r}")
            return
        await stream.write(data)
        if kind == 2:  # does not read for a while
            await asyncio.sleep(self.rng.random() * 2)
        got = b""
        while len(got) < len(data):
            part = await stream.read()
            if not part:
                if self.killing:
                    raise TunnelLost("ended early")
                break
            got += part
        if got != data:
            self.tally.wrong.append(f"{len(got)} of {len(data)} bytes came back")


@pytest.mark.parametrize("how", ["drained", "killed"])
@pytest.mark.parametrize("mode", ["grpc", "http-connect"])
def test_agents_come_and_go(world: World, mode: Mode, how: str) -> None:
    server = world.server("ours", mode=mode)
    first, second = (
        world.agent("ours", server, f"--drain-timeout={DRAIN_SECONDS}s", agent_id=name)
        for name in ("first", "second")
    )
    backends = "konnectivity_network_proxy_server_ready_backends"
    wait_for(lambda: server.metric(backends, proxy_strategy="default") == 2, "two agents")
    with Remote(echo) as one, Remote(digest_server) as other:
        warm = Churn(server, one.address, other.address, 0, False, random.Random(1))
        asyncio.run(_churn(warm, 3.0, []))
        assert not warm.tally.wrong
        before = {p.name: _resources(p) for p in (server, second)}
        churn = Churn(server, one.address, other.address, 0, how == "killed", random.Random(2))
        asyncio.run(_churn(churn, SECONDS, [first]))
        assert not churn.tally.wrong, churn.tally.wrong[:5]
        # each of them once at least, also where ten seconds are short; most of them were not cut
        assert churn.tally.done + churn.tally.cut >= TUNNELS, churn.tally
        assert churn.tally.done > TUNNELS / 2, churn.tally
        for gauge in ("pending_backend_dials", "established_connections"):
            name = f"konnectivity_network_proxy_server_{gauge}"
            wait_for(lambda name=name: server.metric(name) == 0, f"{name} is 0")  # type: ignore[misc]  # a loop
        wait_for(lambda: one.open + other.open == 0, "all remotes are closed")
    for process in (server, second):
        fds, memory = before[process.name]
        wait_for(
            lambda p=process, n=fds: _resources(p)[0] <= n + 2,  # type: ignore[misc]  # a loop
            f"{process.name} has {fds} descriptors again, not {_resources(process)[0]}",
        )
        grown = _resources(process)[1] - memory
        assert grown < MEMORY_SLACK, f"{process.name} has grown by {grown / 1024:.0f} KiB"


async def _churn(churn: Churn, seconds: float, restarted: list[AgentProcess]) -> None:
    churn.until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        for number in range(TUNNELS):
            tasks.create_task(churn.one(), name=f"tunnel {number}")
        if restarted:
            work = asyncio.to_thread(_restart, restarted[0], churn)
            tasks.create_task(work, name="restarts")


def _restart(agent: AgentProcess, churn: Churn) -> None:
    """Ends an agent and starts it again, until the time is over."""
    while time.monotonic() < churn.until:
        end = time.monotonic() + RESTART_SECONDS / 2
        while time.monotonic() < end:
            time.sleep(0.1)
        if churn.killing:
            agent.kill()
        else:
            agent.signal(signal.SIGTERM)
            agent.wait(DRAIN_SECONDS + 10)
        agent.start()
    # the tunnels that are left end with an agent that stays


def _resources(process: Process) -> tuple[int, float]:
    """Descriptors and bytes of memory."""
    fds = process.metric("process_open_fds")
    with contextlib.suppress(ValueError):
        return int(fds), process.metric("process_resident_memory_bytes")
    raise AssertionError(f"{process.name} says nothing of itself")
