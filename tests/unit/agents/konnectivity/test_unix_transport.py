"""Unix sockets on the poller: what protocols are told, and when a connection is over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from _socket import socket as RawSocket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from nodenet.agents.konnectivity.unix_transport import UnixTransport
from nodenet.konnectivity import payload_queue
from tests.unit.agents.konnectivity import transport_scene
from tests.unit.agents.konnectivity.agent_scene import until
from tests.unit.agents.konnectivity.transport_scene import (
    LOOPS,
    MUCH,
    UnixScene,
    echo,
    fail,
    fill,
    freed,
    listens_on,
    on_loop,
    over,
    take,
)

Run = Callable[[Callable[[UnixScene], Coroutine[Any, Any, None]]], None]


class Recorder(transport_scene.Recorder):
    transport: UnixTransport


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a test on a loop of either kind."""
    return on_loop(request.param, lambda: UnixScene(tmp_path))


# -- reading and writing --------------------------------------------------------------------------


def test_a_request_that_is_there_is_read_at_once_and_answered(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder(data=echo)
        peer = scene.connect(protocol, b"ask")
        assert protocol.got == b"ask" and peer.recv(10) == b"ask"
        peer.send(b"more")
        assert await take(peer, 4) == b"more"
        assert protocol.transport.get_protocol() is protocol

    run(test)


def test_much_goes_both_ways_under_flow_control(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        def data(me: Recorder, data: bytes) -> None:
            me.transport.write(data)
            if me.flow[-1:] == ["pause"]:
                me.transport.pause_reading()

        protocol = Recorder(data=data, resumed=lambda me: me.transport.resume_reading())
        peer = scene.connect(protocol)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scene.loop.sock_sendall(peer, MUCH * 4))
            assert await take(peer, len(MUCH) * 4) == MUCH * 4
        assert protocol.got == MUCH * 4 and not protocol.transport.get_write_buffer_size()

    run(test)


def test_a_write_that_does_not_fit_waits_in_order(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder()
        peer = scene.connect(protocol)
        transport = protocol.transport
        transport.write(MUCH)
        assert 0 < transport.get_write_buffer_size() < len(MUCH) and protocol.flow == ["pause"]
        transport.write(bytearray(b"next"))
        transport.write(b"")
        transport.write(memoryview(b" last"))
        assert await take(peer, len(MUCH) + 9) == MUCH + b"next last"
        assert protocol.flow == ["pause", "resume"] and not transport.get_write_buffer_size()
        await scene.sleeps()

    run(test)


def test_writing_is_paused_above_one_limit_and_resumed_at_the_other(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        left: list[int] = []
        protocol = Recorder(resumed=lambda me: left.append(me.transport.get_write_buffer_size()))
        peer = scene.connect(protocol)
        transport = protocol.transport
        transport.set_write_buffer_limits(high=300_000, low=1_000)
        size = len(fill(transport))
        rest = 300_000 - transport.get_write_buffer_size()
        transport.write(bytes(rest))
        assert protocol.flow == [] and transport.get_write_buffer_size() == 300_000
        transport.write(b"x")
        transport.write(b"x")
        assert protocol.flow == ["pause"]
        await take(peer, 200_000)
        await until(lambda: transport.get_write_buffer_size() < 300_000, "some is taken")
        assert protocol.flow == ["pause"]
        await take(peer, size + rest + 2 - 200_000)
        await until(lambda: bool(left), "it is resumed")
        assert protocol.flow == ["pause", "resume"] and left[0] <= 1_000

    run(test)


@pytest.mark.parametrize("size", [10, 3_000])
@pytest.mark.parametrize("waiting", [False, True])
def test_many_pieces_are_written_in_order(run: Run, waiting: bool, size: int) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder()
        peer = scene.connect(protocol)
        before = fill(protocol.transport) if waiting else b""
        count = 3 * payload_queue.MOST_PIECES + 7
        pieces = [MUCH[at : at + at % size] for at in range(count)]
        protocol.transport.writelines([b"", *pieces, bytearray(), memoryview(b"end")])
        assert bool(protocol.transport.get_write_buffer_size()) is (waiting or size > 1_000)
        expected = before + b"".join(pieces) + b"end"
        assert await take(peer, len(expected)) == expected
        protocol.transport.writelines([])
        assert not protocol.transport.get_write_buffer_size()
        await scene.sleeps()

    run(test)


def test_another_protocol_takes_over_while_it_reads(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        second = Recorder()

        def hand_over(me: Recorder, data: bytes) -> None:
            me.transport.set_protocol(second)
            second.connection_made(me.transport)

        first = Recorder(data=hand_over)
        peer = scene.connect(first, b"one")
        peer.send(b"two")
        await until(lambda: second.got == b"two", "it is told")
        peer.close()
        assert await over(second) is None
        assert first.got == b"one" and first.ends == 0 and first.lost == []

    run(test)


# -- reading that is paused -----------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True])
def test_what_a_peer_says_waits_while_reading_is_paused(run: Run, at_once: bool) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder(made=lambda me: me.transport.pause_reading() if at_once else None)
        peer = scene.connect(protocol, b"first" if at_once else b"")
        protocol.transport.pause_reading()
        assert not protocol.transport.is_reading()
        peer.send(b"last")
        await scene.sleeps()
        assert protocol.got == b"" and protocol.ends == 0 and protocol.lost == []
        protocol.transport.resume_reading()
        await until(lambda: protocol.got.endswith(b"last"), "it is read")
        peer.close()
        assert protocol.transport.is_reading()
        assert await over(protocol) is None
        assert protocol.got == (b"firstlast" if at_once else b"last") and protocol.ends == 1

    run(test)


@pytest.mark.parametrize("backlog", [b"", MUCH], ids=["nothing waits", "much waits"])
def test_a_peer_that_closes_is_read_to_its_end_though_reading_is_paused(
    run: Run, backlog: bytes
) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder()
        peer = scene.connect(protocol)
        protocol.transport.pause_reading()
        protocol.transport.write(backlog)
        peer.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += peer.send(MUCH)
        await scene.sleeps()
        assert protocol.got == b""
        peer.close()
        error = await over(protocol)
        assert isinstance(error, ConnectionError) if backlog else error is None
        assert len(protocol.got) == sent

    run(test)


# -- the end, from here ---------------------------------------------------------------------------


def test_a_close_comes_behind_what_is_written_and_ahead_of_what_is_not(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder()
        peer = scene.connect(protocol)
        transport = protocol.transport
        transport.write(MUCH)
        transport.close()
        transport.close()
        transport.write(b"dropped")
        transport.writelines([b"dropped"])
        transport.write_eof()
        assert transport.is_closing() and not transport.is_reading()
        peer.send(b"unread")
        await scene.sleeps()
        assert protocol.lost == []
        assert await take(peer, len(MUCH)) == MUCH
        assert await over(protocol) is None
        assert protocol.got == b""

    run(test)


@pytest.mark.parametrize("closed", [False, True])
def test_an_abort_drops_what_waits(run: Run, closed: bool) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder()
        peer = scene.connect(protocol)
        protocol.transport.write(MUCH)
        if closed:
            protocol.transport.close()
        protocol.transport.abort()
        protocol.transport.abort()
        assert protocol.lost == [] and protocol.transport.get_write_buffer_size() == 0
        protocol.transport.write(b"dropped")
        assert await over(protocol) is None
        got = await take(peer)
        assert 0 < len(got) < len(MUCH) and MUCH.startswith(got) and protocol.flow == ["pause"]

    run(test)


@pytest.mark.parametrize("waiting", [False, True])
def test_our_half_is_ended_behind_what_is_written(run: Run, waiting: bool) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder()
        peer = scene.connect(protocol)
        data = MUCH if waiting else b"little"
        assert protocol.transport.can_write_eof()
        protocol.transport.write(data)
        protocol.transport.write_eof()
        protocol.transport.write_eof()
        assert await take(peer) == data
        await scene.sleeps()
        peer.send(b"still")
        await until(lambda: protocol.got == b"still", "it is read")
        assert not protocol.transport.is_closing()
        peer.close()
        assert await over(protocol) is None

    run(test)


@pytest.mark.parametrize("where", ["made", "data", "eof", "eof, and it listens on"])
@pytest.mark.parametrize("how", [UnixTransport.close, UnixTransport.abort])
def test_a_protocol_may_end_it_wherever_it_is_called(
    run: Run, how: Callable[[UnixTransport], None], where: str
) -> None:
    async def test(scene: UnixScene) -> None:
        def end(me: Recorder, *_data: bytes) -> bool:
            me.transport.write(b"bye")
            how(me.transport)
            return "listens" in where

        def again(me: Recorder) -> None:
            transport = me.transport
            for act in (transport.close, transport.abort, transport.write_eof):
                act()
            transport.write(b"dropped")
            transport.pause_reading()
            transport.resume_reading()
            assert transport.is_closing() and transport.get_write_buffer_size() == 0

        protocol = Recorder(**{where.split(",")[0]: end}, lost=again)
        peer = scene.connect(protocol, b"" if where == "made" else b"ask")
        peer.shutdown(socket.SHUT_WR)
        assert await take(peer) == b"bye"
        assert await over(protocol) is None
        assert protocol.got == (b"" if where == "made" else b"ask")
        assert protocol.ends == where.startswith("eof")

    run(test)


def test_who_is_closed_when_it_is_made_reads_nothing(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder(made=lambda me: me.transport.close())
        scene.connect(protocol, b"ask")
        assert await over(protocol) is None and protocol.got == b""

    run(test)


# -- the end, from there --------------------------------------------------------------------------


@pytest.mark.parametrize("waiting", [False, True])
def test_the_peers_end_ends_it_behind_what_is_written(run: Run, waiting: bool) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder()
        peer = scene.connect(protocol)
        data = MUCH if waiting else b""
        protocol.transport.write(data)
        peer.send(b"last")
        peer.shutdown(socket.SHUT_WR)
        assert await take(peer) == data
        assert await over(protocol) is None
        assert protocol.got == b"last" and protocol.ends == 1 and not protocol.transport.hung_up

    run(test)


@pytest.mark.parametrize("waiting", [False, True])
def test_who_listens_on_is_written_to_until_the_peer_is_gone(run: Run, waiting: bool) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder(eof=listens_on)
        peer = scene.connect(protocol)
        peer.shutdown(socket.SHUT_WR)
        await until(lambda: protocol.ends == 1, "it is told")
        await scene.sleeps()
        assert not protocol.transport.hung_up and not protocol.transport.is_closing()
        data = MUCH if waiting else b"little"
        protocol.transport.write(data)
        assert await take(peer, len(data)) == data
        await scene.sleeps()
        peer.close()
        assert await over(protocol) is None
        assert protocol.transport.hung_up and protocol.ends == 1

    run(test)


def test_a_peer_that_is_gone_altogether_is_seen_at_its_end(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        seen: list[bool] = []

        def eof(me: Recorder) -> bool:
            seen.append(me.transport.hung_up)
            return True

        protocol = Recorder(eof=eof)
        scene.connect(protocol, b"last").close()
        assert await over(protocol) is None
        assert seen == [True] and protocol.got == b"last"

    run(test)


def test_a_peer_that_leaves_something_unread_is_a_reset(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        protocol = Recorder(data=echo)
        peer = scene.connect(protocol, b"ask")
        protocol.transport.pause_reading()
        peer.send(b"last")
        peer.close()
        protocol.transport.set_protocol(reader := Recorder())
        protocol.transport.resume_reading()
        assert isinstance(await over(reader), ConnectionResetError)
        assert reader.got == b"last" and reader.ends == 0

    run(test)


@pytest.mark.parametrize("state", ["reading", "paused", "closing", "listening on"])
@pytest.mark.parametrize("how", ["close", "shutdown"])
def test_a_peer_that_is_gone_ends_what_waits_for_it(run: Run, state: str, how: str) -> None:
    """With the error, once, and after its last words."""

    async def test(scene: UnixScene) -> None:
        protocol = Recorder(eof=listens_on)
        peer = scene.connect(protocol)
        transport = protocol.transport
        transport.write(MUCH)
        if state == "paused":
            transport.pause_reading()
        elif state == "closing":
            transport.close()
        elif state == "listening on":
            peer.shutdown(socket.SHUT_WR)
            await until(lambda: protocol.ends == 1, "it is told")
        else:
            peer.send(b"last")
        await asyncio.sleep(0)
        if how == "close":
            peer.close()
        else:
            peer.shutdown(socket.SHUT_RDWR)
        assert isinstance(await over(protocol), ConnectionError)
        assert protocol.got == (b"last" if state == "reading" else b"")
        assert transport.hung_up and transport.get_write_buffer_size() == 0
        transport.write(b"dropped")
        await scene.sleeps()

    run(test)


class Plain(asyncio.BufferedProtocol):
    """Answers twice, and keeps nothing, also not why it ended."""

    over = False
    buffer = memoryview(bytearray(1_000))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(UnixTransport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        for _ in range(2):
            self.transport.write(self.buffer[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        del self.transport


@pytest.mark.parametrize("how", ["ends", "closes", "is gone before it is answered"])
def test_what_has_ended_is_freed_without_the_garbage_collector(run: Run, how: str) -> None:
    async def once(scene: UnixScene) -> None:
        near, far = socket.socketpair()
        far.send(b"ask")
        if how == "is gone before it is answered":
            far.close()
        sock = RawSocket(near.family, near.type | socket.SOCK_NONBLOCK, 0, near.detach())
        UnixTransport(scene.loop, scene.poller, sock).start(protocol := Plain())
        if how == "ends":
            far.shutdown(socket.SHUT_WR)
        far.close()
        await until(lambda: protocol.over, "it is over")
        await asyncio.sleep(0)

    async def test(scene: UnixScene) -> None:
        with freed(UnixTransport, Plain):
            await once(scene)

    run(test)


def test_a_write_to_a_peer_that_is_gone_loses_nothing_of_what_it_said(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        one, other = Recorder(), Recorder()
        for protocol in (one, other):
            peer = scene.connect(protocol)
            peer.send(b"last")
            peer.close()
        one.transport.write(b"x")
        other.transport.writelines([b"x", b"y"])
        assert one.lost == other.lost == [] and one.got == other.got == b""
        one.transport.write(b"dropped")
        for protocol in (one, other):
            assert isinstance(await over(protocol), BrokenPipeError)
            assert protocol.got == b"last" and protocol.ends == 1

    run(test)


# -- a protocol that fails ------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["made", "first", "data", "eof", "resumed", "lost"])
def test_a_protocol_that_fails_ends_alone(
    run: Run, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(scene: UnixScene) -> None:
        def data(me: Recorder, data: bytes) -> None:
            if where == "first" or data == b"fail":
                fail()
            me.transport.write(MUCH if where == "resumed" else data)

        hook = {} if where in ("first", "data") else {where: fail}
        makes = iter([Recorder(data=echo), Recorder(data=data, **hook), Recorder(data=echo)])
        scene.serve(lambda: next(makes))
        good, bad = scene.dial(b"one"), scene.dial(b"" if where == "made" else b"two")
        assert await take(good, 3) == b"one"
        if where == "data":
            bad.send(b"fail")
        elif where in ("eof", "lost"):
            bad.shutdown(socket.SHUT_WR)
        expected = {"made": b"", "first": b"", "resumed": MUCH}.get(where, b"two")
        assert await take(bad) == expected
        assert await over(scene.protocols[1]) is None
        assert "a bug" in caplog.text
        good.send(b"still")
        assert await take(good, 5) == b"still"
        assert await take(scene.dial(b"three"), 5) == b"three"

    run(test)


def test_a_connection_without_a_protocol_is_closed(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(scene: UnixScene) -> None:
        makes: list[Callable[[], Recorder]] = [lambda: Recorder(data=echo), fail]
        scene.serve(lambda: makes.pop()())
        bad, good = scene.dial(b""), scene.dial(b"two")
        assert await take(bad) == b"" and await take(good, 3) == b"two"
        assert "a bug" in caplog.text and "NoneType" not in caplog.text

    run(test)
