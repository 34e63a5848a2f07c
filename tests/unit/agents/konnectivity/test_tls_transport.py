"""TLS on the poller: what protocols are told, when a connection is over, and what peers see."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from nodenet.agents.konnectivity import tls_transport
from nodenet.agents.konnectivity.poller_transport import in_kernel
from nodenet.agents.konnectivity.tls_transport import (
    CHUNK_BYTES,
    TlsTransport,
)
from nodenet.tls.context import Side
from nodenet.tls.engine import RECORD_BYTES, WRITE_BYTES
from tests.unit.agents.konnectivity.agent_scene import until
from tests.unit.agents.konnectivity.tls_scene import (
    MUCH,
    TLS12,
    TLS13,
    Link,
    Peer,
    Recorder,
    Run,
    Small,
    TlsScene,
    digest,
    links,
    two_links,
    versions,
)
from tests.unit.agents.konnectivity.transport_scene import echo, listens_on, over

SPARE = tls_transport._SPARE_BYTES


# -- reading and writing --------------------------------------------------------------------------


@links
def test_a_request_is_answered_either_way(run_tls: Run, link: Link) -> None:
    async def test(scene: TlsScene) -> None:
        protocol = Recorder(made=lambda me: me.transport.write(b"hello"), data=echo)
        peer = await scene.connect(protocol, link)
        assert await peer.take(5) == b"hello"
        await peer.send(b"ask")
        assert await peer.take(3) == b"ask" and protocol.got == b"ask"
        assert peer.tls.version() == link.version.name.replace("_", ".")
        assert peer.tls.selected_alpn_protocol() == "h2"
        assert protocol.transport.get_protocol() is protocol and protocol.transport.is_reading()
        await scene.sleeps()

    run_tls(test)


@links
def test_much_goes_both_ways(run_tls: Run, link: Link) -> None:
    async def test(scene: TlsScene) -> None:
        protocol = Recorder(data=echo)
        peer = await scene.connect(protocol, link)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(peer.send(MUCH * 2))
            await until(lambda: protocol.flow == ["pause"], "nobody takes it")
            got = await peer.take(2 * len(MUCH))
        assert protocol.flow[-1] == "resume"
        assert digest(got) == digest(protocol.got) == digest(MUCH * 2)
        assert not protocol.transport.get_write_buffer_size()
        await scene.sleeps()

    run_tls(test)


@versions
def test_much_goes_both_ways_under_flow_control(run_tls: Run, version: ssl.TLSVersion) -> None:
    async def test(scene: TlsScene) -> None:
        held: list[int] = []

        def data(me: Recorder, data: bytes) -> None:
            me.transport.write(data)
            held.append(me.transport.get_write_buffer_size())
            if me.flow[-1:] == ["pause"]:
                me.transport.pause_reading()

        protocol = Recorder(data=data, resumed=lambda me: me.transport.resume_reading())
        peer = await scene.connect(protocol, Link(version=version))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(peer.send(MUCH * 2))
            await until(lambda: protocol.flow == ["pause"], "nobody takes it")
            await scene.sleeps()
            got = await peer.take(2 * len(MUCH))
        assert protocol.flow[-1] == "resume"
        assert max(held) <= 2 * protocol.room
        assert digest(got) == digest(protocol.got) == digest(MUCH * 2)
        assert not protocol.transport.get_write_buffer_size()
        await scene.sleeps()

    run_tls(test)


@links
def test_much_that_is_written_at_once_arrives(run_tls: Run, link: Link) -> None:
    async def test(scene: TlsScene) -> None:
        protocol = Recorder()
        peer = await scene.connect(protocol, link)
        transport = protocol.transport
        transport.write(MUCH)
        assert 0 < transport.get_write_buffer_size() < len(MUCH) and protocol.flow == ["pause"]
        transport.write(bytearray(b"next"))
        transport.write(b"")
        transport.write(memoryview(b" last"))
        await scene.sleeps()
        assert digest(await peer.take(len(MUCH) + 9)) == digest(MUCH + b"next last")
        assert protocol.flow == ["pause", "resume"] and not transport.get_write_buffer_size()
        await scene.sleeps()

    run_tls(test)


EDGES = [
    edge + by
    for edge in (1, RECORD_BYTES, CHUNK_BYTES, CHUNK_BYTES + SPARE, 2 * CHUNK_BYTES, WRITE_BYTES)
    for by in (-1, 0, 1)
]
"""Sizes around those at which what is written is divided."""


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
def test_pieces_of_every_size_arrive_in_order(run_tls: Run, at_once: bool) -> None:
    async def test(scene: TlsScene) -> None:
        rng = random.Random(2)
        peer = await scene.connect(protocol := Recorder())
        for _ in range(12):
            sizes = rng.choices([*EDGES, 10, 600, 5_000, 100_000], k=rng.randint(1, 8))
            starts = [rng.randrange(1 << 16) for _ in sizes]
            pieces = [MUCH[at : at + size] for at, size in zip(starts, sizes, strict=True)]
            if at_once:
                protocol.transport.writelines([b"", *pieces, bytearray()])
            else:
                for piece in pieces:
                    protocol.transport.write(piece)
            whole = b"".join(pieces)
            assert digest(await peer.take(len(whole))) == digest(whole), sizes
        assert not protocol.transport.get_write_buffer_size()
        protocol.transport.writelines([])
        await scene.sleeps()

    run_tls(test)


@pytest.mark.parametrize("size", [10, 700])
@pytest.mark.parametrize("waiting", [False, True])
def test_many_small_pieces_arrive_in_order(run_tls_twice: Run, waiting: bool, size: int) -> None:
    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder())
        before = MUCH if waiting else b""
        protocol.transport.write(before)
        pieces = [MUCH[at : at + at % size] for at in range(3_000)]
        protocol.transport.writelines(pieces[:1_000])
        for piece in pieces[1_000:]:
            protocol.transport.write(piece)
        expected = before + b"".join(pieces)
        assert digest(await peer.take(len(expected))) == digest(expected)
        assert not protocol.transport.get_write_buffer_size() and protocol.lost == []

    run_tls_twice(test)


@two_links
def test_what_comes_in_pieces_of_every_size_is_read(run_tls: Run, link: Link) -> None:
    """Records, and the reads that they come in, end anywhere."""

    async def test(scene: TlsScene) -> None:
        rng = random.Random(3)
        peer = await scene.connect(protocol := Recorder(), link)
        sent, cipher = bytearray(), bytearray()
        for _ in range(150):
            size = rng.choice([1, 2, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1])
            start = rng.randrange(1 << 16)
            sent += MUCH[start : start + size]
            cipher += peer.encrypted(MUCH[start : start + size])
        at = 0
        while at < len(cipher):
            size = rng.choice([1, 5, 22, 1_000, RECORD_BYTES, 300_000])
            await scene.loop.sock_sendall(peer.sock, cipher[at : at + size])
            await asyncio.sleep(0)
            at += size
        await until(lambda: len(protocol.got) == len(sent), "all is read")
        assert digest(protocol.got) == digest(sent)

    run_tls(test)


def test_what_waits_for_one_peer_is_no_matter_of_the_others(run_tls_twice: Run) -> None:
    """All connections encrypt in the same place."""

    async def test(scene: TlsScene) -> None:
        one, other = Recorder(), Recorder()
        slow, quick = await scene.connect(one), await scene.connect(other)
        one.transport.write(MUCH)
        for _ in range(3):
            other.transport.write(MUCH[:CHUNK_BYTES])
            assert digest(await quick.take(CHUNK_BYTES)) == digest(MUCH[:CHUNK_BYTES])
        assert digest(await slow.take(len(MUCH))) == digest(MUCH)

    run_tls_twice(test)


def test_writing_is_paused_above_one_limit_and_resumed_at_the_other(run_tls: Run) -> None:
    """But for a chunk that is encrypted, and cannot be taken back."""
    chunk = CHUNK_BYTES + 2 * SPARE

    async def test(scene: TlsScene) -> None:
        left: list[int] = []
        protocol = Recorder(resumed=lambda me: left.append(me.transport.get_write_buffer_size()))
        peer = await scene.connect(protocol)
        transport = protocol.transport
        transport.set_write_buffer_limits(high=3_000_000, low=1_000)
        written = 0
        while protocol.flow == []:
            assert transport.get_write_buffer_size() <= 3_000_000 + chunk
            transport.write(MUCH[:10_000])
            written += 10_000
        assert transport.get_write_buffer_size() > 3_000_000
        transport.write(b"x")
        assert protocol.flow == ["pause"]
        await peer.take(1_000_000)
        await until(lambda: transport.get_write_buffer_size() < 2_500_000, "some is taken")
        assert protocol.flow == ["pause"]
        await peer.take(written + 1 - 1_000_000)
        await until(lambda: bool(left), "it is resumed")
        assert protocol.flow == ["pause", "resume"] and left[0] <= 1_000 + chunk

    run_tls(test)


def test_what_waits_is_counted_also_when_it_is_encrypted(run_tls: Run) -> None:
    """Who closes a connection looks at it to know whether the peer needs a limit."""

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder())
        transport, written = protocol.transport, 0
        while not (waits := transport.get_write_buffer_size()):
            transport.write(MUCH[: CHUNK_BYTES - 1])
            written += CHUNK_BYTES - 1
        transport.abort()  # drops what waits, and nothing else
        with pytest.raises(ssl.SSLEOFError):
            await peer.take()
        assert written - len(peer.got) <= waits + RECORD_BYTES, "one may be sent in part"

    run_tls(test)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_protocol_may_give_a_buffer_of_any_kind(run_tls_twice: Run, kind: type) -> None:
    """asyncio.BufferedProtocol: whatever has the buffer protocol, in any size."""

    class Other(Recorder):
        buffer = bytearray(100_000)

        def get_buffer(self, sizehint: int) -> Any:
            return self.buffer if kind is bytearray else memoryview(self.buffer)

        def buffer_updated(self, nbytes: int) -> None:
            self._got += self.buffer[:nbytes]

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Other())
        await peer.send(MUCH[:100_000])
        await until(lambda: len(protocol.got) == 100_000, "it is read")
        assert digest(protocol.got) == digest(MUCH[:100_000])

    run_tls_twice(test)


def test_a_buffer_of_one_record_is_enough(run_tls_twice: Run) -> None:
    class OneRecord(Recorder):
        room = RECORD_BYTES

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := OneRecord())
        await peer.send(MUCH)
        await until(lambda: len(protocol.got) == len(MUCH), "all is read")
        assert digest(protocol.got) == digest(MUCH)

    run_tls_twice(test)


def test_another_protocol_takes_over_while_it_reads(run_tls: Run) -> None:
    async def test(scene: TlsScene) -> None:
        second = Recorder()

        def hand_over(me: Recorder, data: bytes) -> None:
            me.transport.set_protocol(second)
            second.connection_made(me.transport)

        class First(Recorder):
            room = RECORD_BYTES

        first = First(data=hand_over)
        peer = await scene.connect(first)
        await peer.send(MUCH[:100_000])  # read at once, decrypted one record at a time
        await until(lambda: len(second.got) == 100_000 - RECORD_BYTES, "it is told the rest")
        assert first.got + second.got == MUCH[:100_000]
        await peer.finish()
        assert await over(second) is None
        assert await peer.take() == b""
        await peer.ended()
        assert second.ends == 1 and first.ends == 0 and first.lost == []

    run_tls(test)


# -- reading that is paused -----------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True])
def test_what_a_peer_says_waits_while_reading_is_paused(run_tls: Run, at_once: bool) -> None:
    async def test(scene: TlsScene) -> None:
        protocol = Recorder(made=lambda me: me.transport.pause_reading() if at_once else None)
        peer = await scene.connect(protocol)
        protocol.transport.pause_reading()
        assert not protocol.transport.is_reading()
        await peer.send(b"last")
        await peer.finish()
        await scene.sleeps()
        assert protocol.got == b"" and protocol.ends == 0 and protocol.lost == []
        protocol.transport.resume_reading()
        assert protocol.transport.is_reading()
        assert await over(protocol) is None
        assert protocol.got == b"last" and protocol.ends == 1

    run_tls(test)


@pytest.mark.parametrize(
    ("how", "version"), [("listens", TLS13), ("says it ends", TLS12), ("ends", TLS13)]
)
def test_reading_that_is_paused_in_the_middle_of_a_read_loses_nothing(
    run_tls: Run, how: str, version: ssl.TLSVersion
) -> None:
    data = MUCH[:400_000]  # more than one read(2)

    async def test(scene: TlsScene) -> None:
        protocol = Small(data=lambda me, data: me.transport.pause_reading())
        peer = await scene.connect(protocol, Link(version=version))

        async def send() -> None:
            await peer.send(data)
            if how != "listens":
                await peer.finish(notify=how == "says it ends")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            size = 0
            while size < len(data):
                await until(lambda: len(protocol.got) > size, "some is read")  # noqa: B023
                assert len(protocol.got) <= size + Small.room, "one piece at a time"
                size = len(protocol.got)
                await scene.sleeps()
                assert len(protocol.got) == size
                assert protocol.ends == 0 or size == len(data)
                protocol.transport.resume_reading()
        if how != "listens":
            assert await over(protocol) is None
        assert protocol.ends == (how != "listens")
        assert digest(protocol.got) == digest(data)

    run_tls(test)


def test_reading_may_be_paused_and_resumed_within_one_call(run_tls: Run) -> None:
    async def test(scene: TlsScene) -> None:
        def data(me: Recorder, data: bytes) -> None:
            for _ in range(3):
                me.transport.pause_reading()
                me.transport.resume_reading()
                me.transport.resume_reading()

        peer = await scene.connect(protocol := Small(data=data))
        await peer.send(MUCH)
        await peer.finish()
        assert await over(protocol) is None
        assert digest(protocol.got) == digest(MUCH) and protocol.ends == 1

    run_tls(test)


def test_reading_that_is_paused_again_at_once_brings_nothing(run_tls: Run) -> None:
    async def test(scene: TlsScene) -> None:
        protocol = Small(data=lambda me, data: me.transport.pause_reading())
        peer = await scene.connect(protocol)
        await peer.send(MUCH[:200_000])
        await until(lambda: bool(protocol.got), "some is read")
        size = len(protocol.got)
        protocol.transport.resume_reading()
        protocol.transport.pause_reading()
        await scene.sleeps()
        assert len(protocol.got) == size

    run_tls(test)


@pytest.mark.parametrize("how", [TlsTransport.close, TlsTransport.abort])
def test_who_ends_it_while_reading_is_paused_hears_no_more(
    run_tls: Run, how: Callable[[TlsTransport], None]
) -> None:
    async def test(scene: TlsScene) -> None:
        protocol = Small(data=lambda me, data: me.transport.pause_reading())
        peer = await scene.connect(protocol)
        await peer.send(MUCH[:200_000])
        await until(lambda: bool(protocol.got), "some is read")
        size = len(protocol.got)
        protocol.transport.resume_reading()
        how(protocol.transport)
        with contextlib.suppress(ConnectionError):  # after an abort
            await peer.finish()
        assert await over(protocol) is None
        assert len(protocol.got) == size and protocol.ends == 0

    run_tls(test)


async def _paused_with_something_unread(scene: TlsScene, middle: bool) -> tuple[Recorder, Peer]:
    """200,000 bytes are acknowledged; ``middle``: and some of them are read."""
    protocol = Small(data=lambda me, data: me.transport.pause_reading())
    peer = await scene.connect(protocol)
    if not middle:
        protocol.transport.pause_reading()
    await peer.send(MUCH[:200_000])
    await until(lambda: not in_kernel(peer.sock), "it is acknowledged")
    if middle:
        await until(lambda: bool(protocol.got), "some is read")
    return protocol, peer


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("middle", [False, True])
def test_what_was_said_before_a_reset_is_read_though_reading_is_paused(
    run_tls: Run, middle: bool, waiting: bool
) -> None:
    """The kernel has acknowledged it; and there is no more to hold back."""

    async def test(scene: TlsScene) -> None:
        protocol, peer = await _paused_with_something_unread(scene, middle)
        protocol.transport.write(MUCH if waiting else b"")
        await scene.sleeps()
        peer.reset()
        assert isinstance(await over(protocol), ConnectionError)
        assert digest(protocol.got) == digest(MUCH[:200_000]) and protocol.ends == 0
        protocol.transport.resume_reading()
        await scene.sleeps()

    run_tls(test)


@pytest.mark.parametrize("notify", [False, True])
@pytest.mark.parametrize("middle", [False, True])
def test_an_upload_is_read_though_its_answer_met_a_closed_socket(
    run_tls: Run, middle: bool, notify: bool
) -> None:
    """What we write to a peer that has closed is answered with a reset."""

    async def test(scene: TlsScene) -> None:
        protocol, peer = await _paused_with_something_unread(scene, middle)
        if notify:
            await scene.loop.sock_sendall(peer.sock, peer.goodbye())
            await until(lambda: not in_kernel(peer.sock), "that is acknowledged too")
        peer.sock.close()
        # the first is answered with a reset, and the second fails
        while protocol.transport.get_write_buffer_size() == 0 and not protocol.lost:
            protocol.transport.write(b"answer")
            await asyncio.sleep(0)
            if protocol.ends:
                break
        await over(protocol)
        assert digest(protocol.got) == digest(MUCH[:200_000])
        assert protocol.ends == (1 if notify else 0)

    run_tls(test)


def test_what_the_kernel_still_has_is_counted_as_not_taken(run_tls_twice: Run) -> None:
    """It gets less with what the peer takes, before the kernel has room for more."""

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder())
        transport = protocol.transport
        transport.write(b"ask")
        await until(lambda: transport.untaken_bytes() == 0, "it is acknowledged")
        transport.write(MUCH)
        await scene.sleeps()
        waiting, untaken = transport.get_write_buffer_size(), transport.untaken_bytes()
        assert 0 < waiting < untaken
        # without a turn of the loop, so nothing else can be sent
        while transport.untaken_bytes() == untaken:
            assert peer.sock.recv(16 << 10)
        assert transport.get_write_buffer_size() == waiting
        transport.abort()
        assert transport.untaken_bytes() == 0
        await over(protocol)

    run_tls_twice(test)


# -- the end, from here ---------------------------------------------------------------------------


@links
def test_a_close_comes_behind_what_is_written_and_ahead_of_what_is_not(
    run_tls: Run, link: Link
) -> None:
    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder(), link)
        transport = protocol.transport
        transport.write(MUCH)
        transport.close()
        transport.close()
        transport.write(b"dropped")
        transport.writelines([b"dropped"])
        assert transport.is_closing() and not transport.is_reading()
        await peer.send(b"unread")
        await scene.sleeps()
        assert digest(await peer.take()) == digest(MUCH), "and then close_notify"
        await peer.ended()
        await peer.send(b"unread")
        await scene.sleeps()
        assert protocol.lost == [], "the peer may still be reading what is on its way"
        await peer.finish()
        assert await over(protocol) is None
        assert protocol.got == b"" and protocol.ends == 0 and protocol.flow == ["pause"]

    run_tls(test)


def test_a_peer_that_writes_on_gets_all_that_was_written_before_a_close(run_tls: Run) -> None:
    """The kernel sends a reset for what nobody reads, and that takes what is on its way."""

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder())
        protocol.transport.write(MUCH)
        protocol.transport.close()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(peer.send(MUCH))
            assert digest(await peer.take()) == digest(MUCH)
            await peer.ended()
        await peer.finish()
        assert await over(protocol) is None
        assert protocol.got == b""

    run_tls(test)


@pytest.mark.parametrize("talking", [False, True])
def test_a_peer_that_does_not_end_as_well_is_cut(
    run_tls_twice: Run, talking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_transport, "SHUTDOWN_SECONDS", 0.3)

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder())
        began = scene.loop.time()
        protocol.transport.write(b"bye")
        protocol.transport.close()
        assert await peer.take() == b"bye"
        await peer.ended()
        if talking:
            with pytest.raises(ConnectionError):
                while True:
                    await peer.send(MUCH[:100_000])
        else:
            await scene.sleeps()
        assert await over(protocol) is None
        assert scene.loop.time() - began > 0.2

    run_tls_twice(test)


@pytest.mark.parametrize("closed", [False, True])
def test_an_abort_drops_what_waits(run_tls: Run, closed: bool) -> None:
    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder())
        protocol.transport.write(MUCH)
        if closed:
            protocol.transport.close()
        protocol.transport.abort()
        protocol.transport.abort()
        assert protocol.lost == [] and protocol.transport.get_write_buffer_size() == 0
        protocol.transport.write(b"dropped")
        assert await over(protocol) is None
        with pytest.raises(ssl.SSLEOFError):
            await peer.take()
        assert 0 < len(peer.got) < len(MUCH) and MUCH.startswith(peer.got)
        assert protocol.flow == ["pause"]

    run_tls(test)


@pytest.mark.parametrize("where", ["made", "data", "eof", "paused", "resumed"])
@pytest.mark.parametrize("how", [TlsTransport.close, TlsTransport.abort])
@pytest.mark.parametrize("ours", Side)
def test_a_protocol_may_end_it_wherever_it_is_called(
    run_tls_twice: Run, ours: Side, how: Callable[[TlsTransport], None], where: str
) -> None:
    async def test(scene: TlsScene) -> None:
        def end(me: Recorder, *_data: bytes) -> bool:
            how(me.transport)
            assert me.lost == []
            return False

        def again(me: Recorder) -> None:
            transport = me.transport
            transport.close()
            transport.abort()
            transport.write(b"dropped")
            transport.pause_reading()
            transport.resume_reading()
            assert transport.is_closing() and transport.get_write_buffer_size() == 0
            assert not transport.is_reading()

        protocol = Recorder(**{where: end}, lost=again)
        peer = await scene.connect(protocol, Link(ours))
        flows = where in ("paused", "resumed")
        if flows:
            protocol.transport.write(MUCH)
        elif where == "data":
            await peer.send(b"ask")
        elif where == "eof":
            await peer.finish()
        if how is TlsTransport.close:
            assert digest(await peer.take()) == digest(MUCH if flows else b"")
            await peer.ended()
            if where != "eof":
                await peer.finish()
        else:
            with pytest.raises(ssl.SSLEOFError):
                await peer.take()
        assert await over(protocol) is None
        assert protocol.got == (b"ask" if where == "data" else b"")
        assert protocol.ends == (where == "eof")

    run_tls_twice(test)


def test_who_is_closed_when_it_is_made_reads_nothing(run_tls: Run) -> None:
    async def test(scene: TlsScene) -> None:
        scene.serve(lambda: Recorder(made=lambda me: me.transport.close()))
        peer = scene.client()
        await peer.shake(b"ask")
        assert await peer.take() == b""
        await peer.finish()
        assert await over(scene.protocols[0]) is None and scene.protocols[0].got == b""

    run_tls(test)


def test_one_direction_alone_cannot_be_ended(run_tls_twice: Run) -> None:
    async def test(scene: TlsScene) -> None:
        await scene.connect(protocol := Recorder())
        assert not protocol.transport.can_write_eof()

    run_tls_twice(test)


# -- the end, from there --------------------------------------------------------------------------


def test_a_write_that_fails_is_told_behind_the_call_it_was_made_in(run_tls: Run) -> None:
    async def test(scene: TlsScene) -> None:
        def data(me: Recorder, data: bytes) -> None:
            for _ in range(3):
                me.transport.write(data)
            me.transport.writelines([data, data])

        peer = await scene.connect(protocol := Recorder(data=data))
        peer.sock.send(peer.encrypted(b"ask"))
        peer.reset()
        assert isinstance(await over(protocol), ConnectionError)
        assert protocol.got == b"ask" and protocol.ends == 0

    run_tls(test)


@two_links
@pytest.mark.parametrize("notify", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
def test_the_peers_end_ends_it_behind_what_is_written(
    run_tls: Run, link: Link, waiting: bool, notify: bool
) -> None:
    async def test(scene: TlsScene) -> None:
        protocol = Recorder(eof=listens_on)  # in vain: TLS ends both directions
        peer = await scene.connect(protocol, link)
        data = MUCH if waiting else b""
        protocol.transport.write(data)
        await peer.send(b"last")
        await peer.finish(notify)
        await scene.sleeps()
        assert digest(await peer.take()) == digest(data), "and then close_notify"
        await peer.ended()
        assert await over(protocol) is None
        assert protocol.got == b"last" and protocol.ends == 1

    run_tls(test)


def test_a_peer_that_closes_its_socket_and_reads_nothing_is_heard_to_its_end(run_tls: Run) -> None:
    """It has had records that it did not ask for (tickets, settings), so its close is a reset."""

    async def test(scene: TlsScene) -> None:
        protocol = Recorder(made=lambda me: me.transport.write(b"settings"))
        peer = await scene.connect(protocol)
        await scene.loop.sock_sendall(peer.sock, peer.encrypted(MUCH[:100_000]) + peer.goodbye())
        peer.sock.close()
        await over(protocol)
        assert digest(protocol.got) == digest(MUCH[:100_000]) and protocol.ends == 1

    run_tls(test)


@two_links
@pytest.mark.parametrize("waiting", [False, True], ids=["nothing waits", "much waits"])
@pytest.mark.parametrize("state", ["idle", "last words", "closing"])
def test_a_reset_ends_it_in_every_state(
    run_tls: Run, link: Link, state: str, waiting: bool
) -> None:
    """Behind what came before: the kernel keeps that, and an ordinary close may be a reset too."""

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder(), link)
        transport = protocol.transport
        if waiting:
            transport.write(MUCH)
        if state == "closing":
            transport.close()
        await scene.sleeps()
        if state == "last words":
            peer.sock.send(peer.encrypted(b"last"))  # both are told at once
        peer.reset()
        error = await over(protocol)
        if state == "closing" and not waiting:
            assert error is None, "all was said"
        else:
            assert isinstance(error, ConnectionError)
        assert protocol.got == (b"last" if state == "last words" else b"") and protocol.ends == 0
        assert transport.get_write_buffer_size() == 0
        transport.write(b"dropped")
        await scene.sleeps()

    run_tls(test)
