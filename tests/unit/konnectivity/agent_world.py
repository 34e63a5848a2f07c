"""A core with its line and its remotes, all played by a test."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from nodenet.konnectivity.agent_core import AgentCore
from nodenet.konnectivity.agent_tunnel import Tunnel
from nodenet.konnectivity.extensions import NONE, Extensions
from nodenet.konnectivity.packets import (
    DialRequest,
    DialResponse,
    Packet,
    pull_packet,
    push_packet,
)
from nodenet.rpc.call import Buffer


class Remote:
    """An endpoint that a test plays: what it says, how much it takes."""

    def __init__(self) -> None:
        self.readable = False
        self.says: deque[bytes | OSError] = deque()
        self.takes: int | OSError = 1 << 40
        self.got = b""
        self.left: bytes | None = None
        self.aborted = self.was_shut = False

    @property
    def over(self) -> bool:
        """The core has let go of it."""
        return self.aborted or self.left is not None

    def read(self, size: int) -> bytes | None:
        if not self.says:
            self.readable = False
            return None
        head = self.says.popleft()
        if isinstance(head, OSError):
            raise head
        if len(head) > size:
            self.says.appendleft(head[size:])
        self.readable = bool(self.says)
        return head[:size]

    def write(self, pieces: Sequence[Buffer]) -> int:
        if isinstance(self.takes, OSError):
            raise self.takes
        data = b"".join(pieces)
        size = min(self.takes, len(data))
        self.takes -= size
        self.got += data[:size]
        return size

    def shut(self) -> None:
        assert not self.was_shut
        self.was_shut = True

    def leave(self, held: Sequence[memoryview]) -> None:
        assert not self.over
        self.left = b"".join(held)

    def abort(self) -> None:
        assert not self.over
        self.aborted = True


class World:
    """A core with its line and its remotes."""

    def __init__(self, peer: Extensions = NONE) -> None:
        self.wanted = 0
        self.paused = False
        self.asked: list[tuple[Tunnel, str, str, int]] = []
        self.remotes: list[Remote] = []
        self.core = AgentCore(self, self, peer=peer)
        self.now = 100.0

    def want(self) -> None:
        self.wanted += 1

    def pause(self) -> None:
        assert not self.paused
        self.paused = True

    def resume(self) -> None:
        assert self.paused
        self.paused = False

    def dial(self, tunnel: Tunnel, network: str, host: str, port: int) -> Remote:
        self.asked.append((tunnel, network, host, port))
        self.remotes.append(Remote())
        return self.remotes[-1]

    def receives(self, packet: Packet) -> None:
        """A packet of the server."""
        self.core.receive(push_packet(packet), self.now)

    def sends(self) -> list[Packet]:
        """What leaves now."""
        out = []
        while (pieces := self.core.pull()) is not None:
            out.append(pull_packet(b"".join(pieces)))
        return out

    def tunnel(self, random: int = 7) -> tuple[Tunnel, Remote]:
        """One that is up; its DIAL_RSP is taken out."""
        self.receives(DialRequest("tcp", "10.0.0.1:80", random))
        tunnel = self.asked[-1][0]
        self.core.connected(tunnel, self.now)
        assert self.sends() == [DialResponse("", tunnel.connect_id, random)]
        return tunnel, self.remotes[-1]

    def says(self, tunnel: Tunnel, remote: Remote, *parts: bytes | OSError) -> None:
        """A remote has something to read."""
        remote.says.extend(parts)
        remote.readable = True
        self.core.readable(tunnel)
