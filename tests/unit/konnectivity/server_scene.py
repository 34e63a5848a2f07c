"""A server's core with agents and clients that write down what they are told."""

from __future__ import annotations

import random
from collections.abc import Sequence

from nodenet.konnectivity.backend import Backend
from nodenet.konnectivity.extensions import NONE, OURS, Extensions
from nodenet.konnectivity.grpc_frontend import ProxyStream
from nodenet.konnectivity.identifiers import NO_IDENTIFIERS, Identifiers
from nodenet.konnectivity.packets import (
    Data,
    DialRequest,
    DialResponse,
    Packet,
    pull_packet,
    push_packet,
)
from nodenet.konnectivity.server_core import ServerCore
from nodenet.konnectivity.server_tunnel import Refusal, Tunnel
from nodenet.konnectivity.strategies import Strategy
from nodenet.rpc.call import Buffer


def halves(packet: Packet) -> list[Buffer]:
    """A packet as it comes when it arrives in two reads."""
    message = push_packet(packet)
    middle = len(message) // 2
    return [memoryview(message)[:middle], message[middle:]]


class Agent:
    """An agent's stream: what it is sent is read by `take`, what it sends by `send`."""

    def __init__(
        self,
        scene: Scene,
        agent_id: str = "a1",
        *,
        peer: Extensions = OURS,
        identifiers: Identifiers = NO_IDENTIFIERS,
    ) -> None:
        self.scene = scene
        self.wanted = 0
        self.paused = False
        self.retired: str | None = None
        self.backend: Backend = scene.core.add_backend(
            self,
            agent_id=agent_id,
            identifiers=identifiers,
            peer=peer,
            address="10.0.0.9:4000",
            now=scene.now,
        )

    def want(self) -> None:
        self.wanted += 1

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def end(self, text: str) -> None:
        self.retired = text

    def take(self, most: int = 1000) -> list[Packet]:
        """Every message there is for the agent."""
        found: list[Packet] = []
        while len(found) < most and (pieces := self.backend.pull()) is not None:
            found.append(pull_packet(b"".join(pieces)))
        return found

    def send(self, *packets: Packet) -> None:
        for packet in packets:
            self.backend.receive(push_packet(packet), self.scene.now)

    def accept_dial(self, connect_id: int = 1) -> DialRequest:
        """Answers the one dial that was asked for; what else there was is gone."""
        (asked,) = (p for p in self.take() if isinstance(p, DialRequest))
        self.send(DialResponse("", connect_id, asked.random))
        return asked

    def lose(self, text: str = "connection lost") -> None:
        self.scene.core.remove_backend(self.backend, text, self.scene.now)


class Client:
    """A frontend that is neither gRPC nor CONNECT."""

    def __init__(self, scene: Scene, *, half_close: bool = True) -> None:
        self.scene = scene
        self.half_close = half_close
        self.congested = False
        self.waiting = 0
        self.held = False
        self.told: list[object] = []
        self.tunnel: Tunnel | None = None

    def dial(self, address: str = "10.0.0.1:80", dial_id: int | None = None) -> Tunnel:
        found = self.scene.core.dial(self, address, self.scene.now, dial_id=dial_id)
        assert isinstance(found, Tunnel)
        self.tunnel = found
        return found

    def write(self, data: bytes) -> None:
        assert self.tunnel is not None
        self.tunnel.send(data, 0, len(data))

    def close(self) -> None:
        assert self.tunnel is not None
        self.tunnel.close(self.scene.now)

    def stall(self) -> None:
        """Takes nothing from now on."""
        self.congested = True

    def drain(self) -> None:
        """Takes everything."""
        assert self.tunnel is not None
        self.congested, self.waiting = False, 0
        self.tunnel.drained(self.scene.now)

    @property
    def received(self) -> bytes:
        return b"".join(t for t in self.told if isinstance(t, bytes))

    def connected(self, tunnel: Tunnel) -> None:
        self.told.append("connected")

    def refused(self, tunnel: Tunnel, refusal: Refusal) -> None:
        self.told.append(refusal)

    def data(self, tunnel: Tunnel, message: Buffer, start: int, end: int) -> None:
        self.told.append(bytes(message[start:end]))
        if self.congested:
            self.waiting += end - start

    def data_pieces(self, tunnel: Tunnel, pieces: Sequence[Buffer]) -> None:
        for piece in pieces:
            self.data(tunnel, piece, 0, len(piece))

    def remote_ended(self, tunnel: Tunnel) -> None:
        self.told.append("remote ended")

    def closed(self, tunnel: Tunnel, error: str, *, lost: bool) -> None:
        self.told.append(("closed", error, lost))

    def backlog(self) -> int:
        return self.waiting

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False


class GrpcClient:
    """A Proxy stream: `send` packets, `take` answers."""

    def __init__(self, scene: Scene, peer: Extensions = NONE) -> None:
        self.scene = scene
        self.paused = False
        self.stream = ProxyStream(scene.core, self, peer)

    def want(self) -> None:
        pass

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def send(self, *packets: Packet) -> None:
        for packet in packets:
            self.stream.receive(push_packet(packet), self.scene.now)

    def take(self) -> list[Packet]:
        found = []
        while (pieces := self.stream.pull()) is not None:
            found.append(pull_packet(b"".join(pieces)))
        return found

    def end(self) -> None:
        self.stream.ended(self.scene.now)


class Scene:
    """The core, and the clock."""

    def __init__(
        self, *strategies: Strategy, dial_timeout: float = 0.0, rng: random.Random | None = None
    ) -> None:
        self.now = 100.0
        self.core = ServerCore(
            strategies or (Strategy.DEFAULT,),
            rng=rng or random.Random(5),
            dial_timeout=dial_timeout,
            now=self.now,
        )

    def wait(self, seconds: float) -> None:
        """Time passes, a quarter of a second at a time."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.core.tick(self.now)

    def connect(self, agent: Agent, connect_id: int = 1, *, half_close: bool = True) -> Client:
        """A client with an open tunnel."""
        client = Client(self, half_close=half_close)
        client.dial()
        agent.accept_dial(connect_id)
        assert client.told == ["connected"]
        client.told.clear()
        return client

    def empty(self) -> bool:
        """Whether nothing is left of any tunnel."""
        return not self.core.established and not self.core.pending and not list(self.core.tunnels())


def payload(packets: list[Packet]) -> bytes:
    """What the DATA among them carries."""
    return b"".join(p.payload for p in packets if isinstance(p, Data))
