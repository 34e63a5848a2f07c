"""Bytes, ends and resets through the relay, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodenet.agents.ztunnel.poller import STREAM, Poller
from nodenet.agents.ztunnel.relay import BUFFER_BYTES, PIPE_BYTES, Relay, reset_on_close
from tests.unit.agents.ztunnel.tcp import connected

Until = Callable[[Callable[[], object]], None]


class Carried:
    """A connection through the relay: ``client`` and ``server`` are the applications."""

    def __init__(self, relay: Relay, *, buffers: int | None = None) -> None:
        self.client, near = connected(buffers=buffers)
        self.server, far = connected(buffers=buffers)
        self.ended: list[OSError | None] = []
        relay.poller.add(far.fileno(), STREAM, self)
        self.near, self.far = relay.join(near, far, self)

    def relay_ended(self, error: OSError | None) -> None:
        self.ended.append(error)

    def event(self, mask: int) -> None:
        raise AssertionError("handed over")

    def resume(self) -> None:
        raise AssertionError("handed over")

    def broken(self) -> None:
        raise AssertionError("handed over")


@pytest.fixture
def relay(loop: asyncio.AbstractEventLoop) -> Iterator[Relay]:
    """A relay on the loop; nothing of it may stay open."""
    before = len(os.listdir("/proc/self/fd"))
    poller = Poller(loop)
    made = Relay(poller)
    yield made
    assert len(poller) == 0
    poller.close()
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def aside() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    """Starts a blocking call in a thread, which must end by itself."""
    threads: list[threading.Thread] = []

    def start(call: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=call)
        thread.start()
        threads.append(thread)
        return thread

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def read_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(1 << 20), b""))


def close(carried: Carried) -> None:
    carried.client.close()
    carried.server.close()


def test_both_directions_and_the_end_of_each(relay: Relay, until: Until) -> None:
    carried = Carried(relay)
    carried.client.sendall(b"question")
    until(lambda: carried.near.received == 8)
    assert carried.server.recv(100) == b"question"
    carried.client.shutdown(socket.SHUT_WR)
    until(lambda: carried.near.ended)
    assert carried.server.recv(100) == b""
    assert not carried.ended
    carried.server.sendall(b"answer")
    until(lambda: carried.far.received == 6)
    assert carried.client.recv(100) == b"answer"
    carried.server.shutdown(socket.SHUT_WR)
    until(lambda: carried.ended)
    assert carried.client.recv(100) == b""
    assert carried.ended == [None]
    close(carried)


@pytest.mark.parametrize("first", ["client", "server"])
def test_a_reset_is_passed_on(relay: Relay, until: Until, first: str) -> None:
    carried = Carried(relay)
    one, other = carried.client, carried.server
    if first == "server":
        one, other = other, one
    one.sendall(b"last words")
    until(lambda: carried.near.received + carried.far.received == 10)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
    until(lambda: carried.ended)
    assert other.recv(100) == b"last words"
    with pytest.raises(ConnectionResetError):
        other.recv(100)
    assert isinstance(carried.ended[0], ConnectionResetError)
    close(carried)


@pytest.mark.parametrize("when", ["after its end", "while the other side does not read"])
def test_a_reset_that_no_read_would_find_is_passed_on(
    relay: Relay, until: Until, when: str
) -> None:
    carried = Carried(relay, buffers=8192)
    client, server = carried.client, carried.server
    if when == "after its end":
        client.shutdown(socket.SHUT_WR)
        until(lambda: carried.near.ended)
    else:
        until(lambda: fill(client) == 0 and carried.far.pending)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    until(lambda: carried.ended)
    # behind the end of its stream a reset shows as EPIPE (Linux: tcp_reset in CLOSE_WAIT)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        while True:
            if not server.recv(1 << 20):
                server.sendall(b"x")
    close(carried)


def test_what_a_server_said_before_its_reset_reaches_the_client(relay: Relay, until: Until) -> None:
    carried = Carried(relay)
    # the refusal of an upload: an answer, then a reset because of unread data
    carried.client.sendall(b"u" * 1000)
    until(lambda: carried.near.received == 1000)
    # the loop stands still, so the relay hears of all of this at once, the upload first
    carried.client.sendall(b"u" * 1000)
    carried.server.sendall(b"413 too large")
    carried.server.close()
    until(lambda: carried.ended)
    assert carried.client.recv(100) == b"413 too large"
    with pytest.raises(ConnectionResetError):
        while carried.client.recv(100):
            pass
    close(carried)


def fill(sock: socket.socket) -> int:
    """Sends until nothing more is taken at once; how many bytes that were."""
    sent, timeout = 0, sock.gettimeout()
    sock.setblocking(False)
    try:
        while True:
            sent += sock.send(b"f" * 65536)
    except BlockingIOError:
        return sent
    finally:
        sock.settimeout(timeout)


def test_a_receiver_that_does_not_read_stops_the_sender(relay: Relay, until: Until) -> None:
    carried = Carried(relay, buffers=64 * 1024)
    sent = 0

    def stalled() -> bool:
        nonlocal sent
        more = fill(carried.client)
        sent += more
        return not more and carried.far.pending is not None

    until(stalled)
    assert carried.far.pending is not None
    assert len(carried.far.pending) <= PIPE_BYTES
    # the kernel may double its buffers and count differently; what matters is that it ends
    assert sent < 8 * 1024 * 1024
    received = 0
    carried.server.setblocking(False)

    def drained() -> bool:
        nonlocal received
        with contextlib.suppress(BlockingIOError):
            received += len(carried.server.recv(1 << 20))
        return received == sent

    until(drained)
    assert carried.far.pending is None
    carried.client.shutdown(socket.SHUT_WR)
    carried.server.shutdown(socket.SHUT_WR)
    until(lambda: carried.ended)
    close(carried)


def test_a_bulk_transfer_is_moved_and_arrives_whole(
    relay: Relay, until: Until, aside: Callable[..., threading.Thread]
) -> None:
    carried = Carried(relay)
    blocks = [random.Random(7).randbytes(1 << 20)] * 48
    digests: list[bytes] = []
    moved: list[bool] = []

    def send() -> None:
        for block in blocks:
            carried.client.sendall(block)
        carried.client.shutdown(socket.SHUT_WR)

    def receive() -> None:
        digest = hashlib.sha256()
        while data := carried.server.recv(1 << 20):
            digest.update(data)
        digests.append(digest.digest())
        carried.server.shutdown(socket.SHUT_WR)

    aside(send)
    aside(receive)

    def over() -> bool:
        moved.append(carried.near.bulk)
        return bool(carried.ended)

    until(over)
    expected = hashlib.sha256(b"".join(blocks)).digest()
    assert digests == [expected]
    assert carried.near.received == 48 << 20
    assert any(moved), "the stream never filled the buffer"
    close(carried)


def test_ending_twice_is_once(relay: Relay) -> None:
    carried = Carried(relay)
    carried.near.cut()
    carried.far.cut()
    carried.near.broken()
    assert len(carried.ended) == 1
    for leg in (carried.near, carried.far):
        assert leg.fd == -1 and leg.sock.fileno() == -1
    close(carried)


def test_reset_on_close_resets(relay: Relay) -> None:
    app, proxy = connected()
    reset_on_close(proxy)
    proxy.close()
    with pytest.raises(ConnectionResetError):
        app.recv(1)
    app.close()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    forth=st.lists(st.integers(1, BUFFER_BYTES + 1000), max_size=6),
    back=st.lists(st.integers(1, BUFFER_BYTES + 1000), max_size=6),
    server_ends_first=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_any_sequence_arrives_whole_whoever_ends_first(
    relay: Relay,
    until: Until,
    forth: list[int],
    back: list[int],
    server_ends_first: bool,
    seed: int,
) -> None:
    carried = Carried(relay, buffers=32 * 1024)
    rng = random.Random(seed)
    outgoing = {
        carried.client: [rng.randbytes(n) for n in forth],
        carried.server: [rng.randbytes(n) for n in back],
    }
    arrived: dict[socket.socket, bytes] = {}

    def send(sock: socket.socket, wait: threading.Event, then: threading.Event) -> None:
        for block in outgoing[sock]:
            sock.sendall(block)
        wait.wait(10)
        sock.shutdown(socket.SHUT_WR)
        then.set()

    now, later, unused = threading.Event(), threading.Event(), threading.Event()
    now.set()
    first, second = carried.client, carried.server
    if server_ends_first:
        first, second = second, first
    threads = [
        threading.Thread(target=send, args=(first, now, later)),
        threading.Thread(target=send, args=(second, later, unused)),
        *(
            threading.Thread(target=lambda s=sock: arrived.update({s: read_all(s)}))
            for sock in (first, second)
        ),
    ]
    for thread in threads:
        thread.start()
    until(lambda: carried.ended)
    for thread in threads:
        thread.join(60)
    assert arrived == {
        carried.server: b"".join(outgoing[carried.client]),
        carried.client: b"".join(outgoing[carried.server]),
    }
    assert carried.ended == [None]
    close(carried)


def test_what_follows_urgent_data_is_not_left_behind(relay: Relay, until: Until) -> None:
    """A read ends at the urgent mark although more is there, and nothing is told of that again."""
    carried = Carried(relay)
    carried.client.sendall(b"abc")
    carried.client.send(b"!", socket.MSG_OOB)
    carried.client.sendall(b"efg")
    until(lambda: carried.near.received == 6)
    assert carried.server.recv(100) == b"abcefg"
    close(carried)
    until(lambda: carried.ended)
