"""Whatever server, remotes and clock do: what must hold of an agent's table in every order."""

from __future__ import annotations

import errno
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodenet.konnectivity import agent_core
from nodenet.konnectivity.agent_tunnel import Tunnel
from nodenet.konnectivity.extensions import NONE, OURS, Extensions
from nodenet.konnectivity.packets import (
    CloseDial,
    CloseRequest,
    CloseResponse,
    Data,
    DialRequest,
    DialResponse,
    HalfClose,
    Window,
)
from tests.unit.konnectivity.agent_world import Remote, World

RESET = OSError(errno.ECONNRESET, "Connection reset by peer")
PICK = st.integers(0, 1 << 30)
SIZE = st.integers(1, 40)


class Table(RuleBasedStateMachine):
    """Events at random; what is sent and written is written down and compared."""

    peer: Extensions = NONE

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(agent_core, "HELD_BYTES", 600)
        self.world = World(self.peer)
        self.random = 0
        self.to_remote: dict[int, bytes] = {}
        """Bytes the server sent on each tunnel."""
        self.from_remote: dict[int, bytes] = {}
        """Bytes each remote said, as far as it was let."""
        self.reached: dict[int, bytes] = {}
        """Bytes that came to the server."""
        self.answers: Counter[int] = Counter()
        self.closes: Counter[int] = Counter()
        self.half_closes: Counter[int] = Counter()
        self.cancelled: set[int] = set()
        self.given: dict[int, int] = {}
        """Bytes the server may still send on each tunnel."""

    def teardown(self) -> None:
        self.flush()
        self.world.core.lost()
        self.patch.undo()
        assert all(remote.over for remote in self.world.remotes)
        assert self.world.core.held_bytes == 0

    def all(self) -> list[tuple[Tunnel, Remote]]:
        return [(a[0], r) for a, r in zip(self.world.asked, self.world.remotes, strict=True)]

    def up(self, pick: int) -> tuple[Tunnel, Remote] | None:
        found = [each for each in self.all() if each[0].up]
        return found[pick % len(found)] if found else None

    def flush(self) -> None:
        """Everything that can be sent is, and is looked at."""
        for packet in self.world.sends():
            match packet:
                case DialResponse(error, connect_id, random):
                    self.answers[random] += 1
                    assert not error or not connect_id
                case Data(connect_id, payload):
                    assert connect_id not in self.closes, "DATA after CLOSE_RSP"
                    assert connect_id not in self.half_closes, "DATA after HALF_CLOSE"
                    self.reached[connect_id] = self.reached.get(connect_id, b"") + payload
                case HalfClose(connect_id):
                    self.half_closes[connect_id] += 1
                case CloseResponse(error, connect_id) if not error.lower().endswith("connectid"):
                    self.closes[connect_id] += 1
                case Window(connect_id, increment):
                    self.given[connect_id] += increment
                case _:
                    pass

    @rule()
    def dial(self) -> None:
        self.random += 1
        self.world.receives(DialRequest("tcp", "10.0.0.1:80", self.random))

    @rule()
    def dial_and_connect(self) -> None:
        self.dial()
        self.connect(self.world.asked[-1][0], self.world.remotes[-1])

    @rule(pick=PICK, fails=st.booleans())
    def dial_ends(self, pick: int, fails: bool) -> None:
        dialling = [each for each in self.all() if each[0].random in self.world.core.dials]
        if dialling:
            tunnel, remote = dialling[pick % len(dialling)]
            if fails:
                self.world.core.dial_failed(tunnel, "dial tcp 10.0.0.1:80: i/o timeout")
                remote.abort()
            else:
                self.connect(tunnel, remote)

    def connect(self, tunnel: Tunnel, remote: Remote) -> None:
        remote.takes = 50  # most will have to wait
        self.given[tunnel.connect_id] = self.world.core.window or 1 << 60
        self.world.core.connected(tunnel, self.world.now)

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        if self.random:
            random = pick % self.random + 1
            if random in self.world.core.dials:
                self.cancelled.add(random)
            self.world.receives(CloseDial(random))

    @rule(pick=PICK, size=st.integers(1, 120))
    def server_sends(self, pick: int, size: int) -> None:
        self.flush()
        found = self.up(pick)
        if found is not None and not found[0].server_ended:
            connect_id = found[0].connect_id
            size = min(size, self.given[connect_id])
            if size:
                sent = self.to_remote.get(connect_id, b"")
                payload = bytes((len(sent) + n) % 251 for n in range(size))
                self.to_remote[connect_id] = sent + payload
                self.given[connect_id] -= size
                self.world.receives(Data(connect_id, payload))

    @rule(pick=PICK)
    def server_ends(self, pick: int) -> None:
        found = self.up(pick)
        if found is not None and self.world.core.half_close:
            self.world.receives(HalfClose(found[0].connect_id))

    @rule(pick=PICK)
    def server_closes(self, pick: int) -> None:
        found = self.up(pick)
        if found is not None:
            self.world.receives(CloseRequest(found[0].connect_id))

    @rule(pick=PICK, size=st.integers(0, 60))
    def remote_takes(self, pick: int, size: int) -> None:
        found = self.up(pick)
        if found is not None and not isinstance(found[1].takes, OSError):
            found[1].takes = size
            self.world.core.writable(found[0], self.world.now)

    @rule(pick=PICK, size=SIZE)
    def remote_says(self, pick: int, size: int) -> None:
        found = self.up(pick)
        if found is not None and not found[0].remote_ended:
            tunnel, remote = found
            if not (remote.says and remote.says[-1] in (b"", RESET)):
                said = self.from_remote.get(tunnel.connect_id, b"")
                payload = bytes((len(said) + n) % 249 for n in range(size))
                self.from_remote[tunnel.connect_id] = said + payload
                self.world.says(tunnel, remote, payload)

    @rule(pick=PICK, reset=st.booleans())
    def remote_ends(self, pick: int, reset: bool) -> None:
        found = self.up(pick)
        if found is not None and not found[0].remote_ended:
            self.world.says(*found, RESET if reset else b"")

    @rule(pick=PICK)
    def remote_breaks(self, pick: int) -> None:
        found = self.up(pick)
        if found is not None:
            found[1].takes = RESET
            self.world.core.writable(found[0], self.world.now)

    @precondition(lambda self: self.world.core.window)
    @rule(pick=PICK, size=SIZE)
    def server_gives_credit(self, pick: int, size: int) -> None:
        found = self.up(pick)
        if found is not None:
            self.world.receives(Window(found[0].connect_id, size))

    @rule(seconds=st.floats(0.1, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        due = self.world.core.next_timer()
        if due is not None and due <= self.world.now:
            self.world.core.handle_timer(self.world.now)

    @rule()
    def line_takes(self) -> None:
        self.flush()

    @invariant()
    def counts_agree(self) -> None:
        core = self.world.core
        assert core.held_bytes == sum(t.held_bytes for t in core.tunnels.values()) >= 0
        for tunnel in core.tunnels.values():
            assert tunnel.held_bytes == sum(map(len, tunnel.held))
        assert not set(core.tunnels.values()) & set(core.dials.values())

    @invariant()
    def bytes_are_in_order(self) -> None:
        for tunnel, remote in self.all():
            sent = self.to_remote.get(tunnel.connect_id, b"")
            assert sent.startswith(remote.got)
            if remote.left is not None and not tunnel.broken:
                assert remote.got + remote.left == sent, (
                    "what was written before a close is written"
                )
            said = self.from_remote.get(tunnel.connect_id, b"")
            assert said.startswith(self.reached.get(tunnel.connect_id, b""))

    @invariant()
    def nobody_is_told_twice(self) -> None:
        assert all(count == 1 for count in self.answers.values())
        assert all(count == 1 for count in self.closes.values())
        assert all(count == 1 for count in self.half_closes.values())
        assert not self.cancelled & set(self.answers)

    @invariant()
    def the_line_is_held_for_a_reason(self) -> None:
        core = self.world.core
        if self.world.paused:
            assert core.next_timer() is not None


class TableOfOurs(Table):
    """With flow control a tunnel and half-close."""

    peer = OURS


_SETTINGS = settings(
    max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTable = Table.TestCase
TestTable.settings = _SETTINGS
TestTableOfOurs = TableOfOurs.TestCase
TestTableOfOurs.settings = _SETTINGS
