"""One connection without I/O: two engines back to back, or one and the standard library's ssl."""

from __future__ import annotations

import gc
import random
import ssl
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL

from nodenet.errors import NotSupported
from nodenet.tls import engine as module
from nodenet.tls.context import Context, Side
from nodenet.tls.engine import (
    RECORD_BYTES,
    TAKE_BYTES,
    WRITE_BYTES,
    Engine,
)
from nodenet.tls.errors import HandshakeFailed, PeerUntrusted, RecordsBroken, TlsError
from tests.interop.certificates import Certificates
from tests.unit.tls.wire import (
    ROOM,
    TLS12,
    TLS13,
    Ours,
    Stuck,
    Theirs,
    carry,
    connect,
    our_client,
    our_server,
    outcome,
    their_client,
    their_server,
)

MUCH = random.Random(1).randbytes(3 * WRITE_BYTES)

#: What says nothing: the first three of nothing that is known, the last of everything.
USELESS = ("", "[]", "no reason given", "record layer failure")

versions = pytest.mark.parametrize("version", [TLS12, TLS13], ids=lambda version: version.name)


def with_theirs(certs: Certificates, version: ssl.TLSVersion = TLS13) -> tuple[Theirs, Ours]:
    """A client of ssl and a server of ours."""
    context = their_client(certs.ca)
    context.minimum_version = context.maximum_version = version
    peer, engine = Theirs(context, "localhost"), Ours(Engine(our_server(certs.server)))
    connect(peer, engine)
    return peer, engine


# -- two of ours ----------------------------------------------------------------------------------


def test_two_engines_that_are_fed_one_byte_at_a_time(certs: Certificates) -> None:
    one = Ours(Engine(our_client(certs.ca, certs.client, alpn=["h2"]), "localhost"))
    other = Ours(Engine(our_server(certs.server, certs.ca, alpn=["h2"])))
    connect(one, other, piece=1)
    for me, peer in ((one, other), (other, one)):
        got = b""
        me.write(MUCH[:40_000])
        for byte in me.take():
            peer.feed(bytes([byte]))
            got += peer.read()
        assert got == MUCH[:40_000] and peer.engine.drained
        assert me.engine.alpn == "h2" and me.engine.version == "TLSv1.3"
        assert me.engine.cipher == "TLS_AES_256_GCM_SHA384"
    one.engine.close()
    carry(one, other, piece=1)
    assert other.read() == b"" and other.engine.ended and not one.engine.ended


@versions
def test_much_goes_either_way(certs: Certificates, version: ssl.TLSVersion) -> None:
    peer, engine = with_theirs(certs, version)
    peer.write(MUCH)
    carry(peer, engine, piece=100_000)
    assert engine.read() == MUCH
    for at in range(0, len(MUCH), WRITE_BYTES):
        engine.write(MUCH[at : at + WRITE_BYTES])
    carry(engine, peer, piece=100_000)
    assert peer.read() == MUCH


def test_what_is_fed_with_the_room_to_read_into_is_read(certs: Certificates) -> None:
    peer, ours = with_theirs(certs)
    peer.write(MUCH[:100_000])
    cipher = memoryview(peer.take())
    size = ours.engine.read_into(ROOM, cipher[:60_000])
    assert 0 < size < 60_000 and ours.engine.drained
    size += ours.engine.read_into(ROOM[size:], cipher[60_000:])
    assert ROOM[:size] == MUCH[:100_000] and ours.engine.drained


def test_what_comes_with_the_end_of_the_handshake_can_be_read(certs: Certificates) -> None:
    peer = Theirs(their_client(certs.ca), "localhost")
    ours = Ours(Engine(our_server(certs.server)))
    for _ in range(2):
        done = peer.shake()
        if done:
            peer.write(b"first")
        carry(peer, ours)
        assert ours.shake() is done
        carry(ours, peer)
    assert not ours.engine.drained and ours.read() == b"first" and ours.engine.drained


@pytest.mark.parametrize("room", [RECORD_BYTES, RECORD_BYTES + 1, 3 * RECORD_BYTES - 1, 100_000])
def test_the_room_to_read_into_bounds_what_is_read(certs: Certificates, room: int) -> None:
    peer, ours = with_theirs(certs)
    peer.write(MUCH[:200_000])
    ours.feed(peer.take())
    # what is behind the room must stay as it is
    buffer = memoryview(bytearray(b"\xaa" * (room + 100)))
    got = b""
    while not ours.engine.drained:
        size = ours.engine.read_into(buffer[:room])
        assert size or ours.engine.drained, "it goes on"
        got += bytes(buffer[:size])
        assert bytes(buffer[room:]) == b"\xaa" * 100
    assert got == MUCH[:200_000]


@pytest.mark.parametrize("size", [1, RECORD_BYTES, RECORD_BYTES + 1, WRITE_BYTES])
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_one_take_is_enough_for_one_write(
    certs: Certificates, size: int, form: Callable[[bytes], bytes]
) -> None:
    peer, ours = with_theirs(certs)
    assert len(ours.engine.take()) == 0
    ours.engine.write(form(MUCH[:size]))
    first = bytes(ours.engine.take())
    assert size < len(first) <= TAKE_BYTES and len(ours.engine.take()) == 0
    ours.engine.write(form(MUCH[:size]))
    second = bytes(ours.engine.take())
    assert len(second) == len(first) and len(ours.engine.take()) == 0
    peer.feed(first + second)
    assert peer.read() == MUCH[:size] * 2


def test_what_several_writes_made_is_taken_in_order(certs: Certificates) -> None:
    peer, ours = with_theirs(certs)
    for at in range(0, len(MUCH), WRITE_BYTES):
        ours.engine.write(memoryview(MUCH)[at : at + WRITE_BYTES])
    taken = [bytes(data) for data in iter(lambda: bytes(ours.engine.take()), b"")]
    assert len(taken) > 2 and all(len(data) <= TAKE_BYTES for data in taken)
    peer.feed(b"".join(taken))
    assert peer.read() == MUCH


def test_what_is_taken_is_good_until_the_next_is(certs: Certificates) -> None:
    """All connections share the place."""
    peers, ours = zip(*(with_theirs(certs) for _ in range(2)), strict=True)
    for number, engine in enumerate(ours):
        engine.engine.write(MUCH[number : number + 10])
    for number, (peer, engine) in enumerate(zip(peers, ours, strict=True)):
        peer.feed(bytes(engine.engine.take()))
        assert peer.read() == MUCH[number : number + 10]


class Seen:
    """A connection, and what each of its ends has written; both hear the same of the other."""

    def __init__(self, certs: Certificates, version: ssl.TLSVersion) -> None:
        self.peer, self.ours = with_theirs(certs, version)
        self.wrote = {"peer": b"", "ours": b""}
        self.read = {"peer": b"", "ours": b""}
        self.waiting = b""

    def peer_writes(self, size: int) -> None:
        start = len(self.wrote["peer"])
        self.peer.write(MUCH[start : start + size])
        self.wrote["peer"] = MUCH[: start + size]
        self.waiting += self.peer.take()

    def feed(self, size: int) -> None:
        part, self.waiting = self.waiting[:size], self.waiting[size:]
        self.ours.engine.feed(part)
        assert not self.ours.engine.drained

    def read_into(self, size: int) -> None:
        room = ROOM[: max(size, RECORD_BYTES)]
        self.read["ours"] += bytes(room[: self.ours.engine.read_into(room)])

    def write(self, size: int) -> None:
        start = len(self.wrote["ours"])
        self.ours.engine.write(MUCH[start : start + size])
        self.wrote["ours"] = MUCH[: start + size]

    def take(self, _size: int) -> None:
        self.peer.feed(bytes(self.ours.engine.take()))
        self.read["peer"] += self.peer.read()


sizes = st.sampled_from([1, 5, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 40_000])
steps = st.sampled_from([Seen.peer_writes, Seen.feed, Seen.read_into, Seen.write, Seen.take])


@given(
    script=st.lists(st.tuples(steps, sizes), max_size=18), version=st.sampled_from([TLS12, TLS13])
)
def test_in_whatever_order_it_is_used_either_end_reads_what_the_other_wrote(
    certs: Certificates,
    script: list[tuple[Callable[[Seen, int], None], int]],
    version: ssl.TLSVersion,
) -> None:
    seen = Seen(certs, version)
    for step, size in script:
        step(seen, size)
        assert seen.wrote["peer"].startswith(seen.read["ours"])
        assert seen.wrote["ours"].startswith(seen.read["peer"])
    seen.feed(len(seen.waiting))
    while not seen.ours.engine.drained:
        seen.read_into(RECORD_BYTES)
    while seen.read["peer"] != seen.wrote["ours"]:
        seen.take(0)
    assert seen.read["ours"] == seen.wrote["peer"]


# -- what it stands on ----------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [*module._FUNCTIONS, "_ffi"])
def test_a_function_that_pyopenssl_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    real: Any = SSL
    functions = {name: None for name in module._FUNCTIONS if name != missing}
    parts = {"_lib": SimpleNamespace(**functions), "_ffi": None if missing == "_ffi" else real._ffi}
    names = {name: getattr(real, name) for name in ("Connection", "Context", "TLS_CLIENT_METHOD")}
    monkeypatch.setattr(module, "SSL", SimpleNamespace(**parts, **names))
    with pytest.raises(NotSupported, match=f"{missing}$"):
        module._openssl()


@pytest.mark.parametrize("missing", module._PARTS)
def test_a_part_of_its_connections_that_pyopenssl_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    real: Any = SSL

    class Connection:
        def __init__(self, _context: object) -> None:
            for name in module._PARTS:
                if name != missing:
                    setattr(self, name, None)

    parts = {name: getattr(real, name) for name in ("_lib", "_ffi", "Context", "TLS_CLIENT_METHOD")}
    monkeypatch.setattr(module, "SSL", SimpleNamespace(**parts, Connection=Connection))
    with pytest.raises(NotSupported, match=f"{missing}$"):
        module._openssl()


def test_a_client_must_know_whom_it_talks_to(certs: Certificates) -> None:
    with pytest.raises(AssertionError, match="whom it talks to"):
        Engine(our_client(certs.ca))


# -- the end --------------------------------------------------------------------------------------


@versions
def test_an_end_is_told_behind_what_came_before_and_writing_goes_on(
    certs: Certificates, version: ssl.TLSVersion
) -> None:
    peer, ours = with_theirs(certs, version)
    peer.write(b"last")
    peer.close()
    ours.feed(peer.take())
    assert not ours.engine.ended
    assert ours.read() == b"last" and ours.engine.ended
    ours.write(b"answer")
    ours.engine.close()
    peer.feed(ours.take())
    assert peer.read() == b"answer" and peer.ended


def test_an_end_may_be_said_twice_and_before_there_is_a_connection(certs: Certificates) -> None:
    engine = Engine(our_server(certs.server))
    engine.close()
    assert len(engine.take()) == 0
    assert not engine.shake(), "it is none yet"
    peer, ours = with_theirs(certs)
    ours.engine.close()
    once = ours.take()
    ours.engine.close()
    assert ours.take() == b""
    peer.feed(once)
    assert peer.read() == b"" and peer.ended


# -- what is broken -------------------------------------------------------------------------------


def flipped(data: bytes, at: int = -1) -> bytes:
    """With one bit another."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


@versions
@pytest.mark.parametrize("before", [b"", b"good", MUCH[:100_000]], ids=len)
def test_a_broken_record_is_told_behind_what_came_before(
    certs: Certificates, version: ssl.TLSVersion, before: bytes
) -> None:
    peer, ours = with_theirs(certs, version)
    if before:
        peer.write(before)
    good = peer.take()
    peer.write(b"bad")
    ours.feed(good + flipped(peer.take()))
    if before:
        assert ROOM[: ours.engine.read_into(ROOM)] == before
        assert not ours.engine.drained, "there is something to come"
    for _ in range(2):  # the second time is nobody's need
        with pytest.raises(RecordsBroken):
            ours.engine.read_into(ROOM)
    peer.feed(ours.take())
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        peer.read()


@versions
def test_what_is_broken_is_said_in_words(certs: Certificates, version: ssl.TLSVersion) -> None:
    """Also of a write that comes before it was read."""
    peer, ours = with_theirs(certs, version)
    peer.write(b"good")
    first = peer.take()
    peer.write(b"bad")
    ours.feed(first + flipped(peer.take()))
    assert ours.engine.read_into(ROOM) == 4
    acts: list[Callable[[], object]] = [
        lambda: ours.engine.write(b"answer"),
        lambda: ours.engine.read_into(ROOM),
    ]
    said = []
    for act in acts:
        with pytest.raises(RecordsBroken) as caught:
            act()
        said.append(caught.value.reason)
    for reason in said:
        assert reason == reason.lower() and reason not in USELESS


@pytest.mark.parametrize(
    "junk", [b"\x17\x03\x03\xff\xff" + bytes(20_000), b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=len
)
def test_junk_in_the_place_of_a_record(certs: Certificates, junk: bytes) -> None:
    _, ours = with_theirs(certs)
    ours.feed(junk)
    with pytest.raises(RecordsBroken) as caught:
        ours.read()
    assert caught.value.reason not in USELESS


@given(data=st.binary(min_size=1, max_size=300))
def test_whatever_comes_first_is_an_error_of_ours_or_none(certs: Certificates, data: bytes) -> None:
    engine = Engine(our_server(certs.server, certs.ca))
    engine.feed(memoryview(data))
    try:
        assert engine.shake() is False
    except HandshakeFailed as error:
        assert error.reason == error.reason.lower() and error.reason not in USELESS


@given(at=st.integers(min_value=0), bit=st.integers(min_value=0, max_value=7), first=st.booleans())
def test_whatever_is_changed_on_the_way_nobody_reads_something_else(
    certs: Certificates, at: int, bit: int, first: bool
) -> None:
    """In the handshake, or in the records behind it."""
    client = Theirs(their_client(certs.ca, certs.client), "localhost")
    server = Ours(Engine(our_server(certs.server, certs.ca)))

    class Bent(Ours):
        def __init__(self) -> None:
            super().__init__(server.engine)
            self.passed = 0

        def feed(self, data: bytes) -> None:
            target = at % 1_500 - self.passed
            self.passed += len(data)
            if 0 <= target < len(data):
                changed = bytearray(data)
                changed[target] ^= 1 << bit
                data = bytes(changed)
            super().feed(data)

    bent = Bent() if first else server
    try:
        if outcome(client, bent) != (None, None):
            return
    except Stuck:  # it waits for the rest of a record
        return
    client.write(b"question")
    data = client.take()
    server.feed(data if first else flipped(data, at % len(data)))
    try:
        assert server.read() in ((b"question", b"") if first else (b"",))
    except TlsError:
        pass


# -- what is left ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["unused", "connected", "refused", "broken", "ended"])
def test_an_engine_is_freed_without_the_garbage_collector(certs: Certificates, how: str) -> None:
    client = our_client(certs.foreign_ca if how == "refused" else certs.ca)
    gc.disable()
    try:
        engine = Engine(client, "localhost")
        left = weakref.ref(engine)
        if how == "refused":
            with pytest.raises(PeerUntrusted):
                refused(engine, certs)
        elif how != "unused":
            peer, ours = Theirs(their_server(certs.server)), Ours(engine)
            connect(ours, peer)
            peer.write(b"good")
            ours.feed(peer.take())
            if how == "broken":
                peer.write(b"bad")
                ours.feed(flipped(peer.take()))
                assert engine.read_into(ROOM) == 4
                broken(engine)
            elif how == "ended":
                peer.close()
                ours.feed(peer.take())
                assert ours.read() == b"good"
            del ours, peer
        del engine
        assert left() is None
    finally:
        gc.enable()


def refused(engine: Engine, certs: Certificates) -> None:
    client, server = Ours(engine), Theirs(their_server(certs.server))
    while True:
        client.shake()
        carry(client, server)
        server.shake()
        carry(server, client)


def broken(engine: Engine) -> None:
    try:
        engine.read_into(ROOM)
    except RecordsBroken:
        return
    raise AssertionError("it is broken")


@pytest.mark.parametrize("how", ["refused", "no TLS", "closed early", "broken"])
def test_one_that_fails_takes_no_other_with_it(certs: Certificates, how: str) -> None:
    """OpenSSL keeps errors for whoever asks next (SSL_get_error(3))."""
    peer, other = with_theirs(certs)
    server = our_server(certs.server, certs.ca)
    if how == "refused":
        failing = Theirs(their_client(certs.ca, certs.foreign_client), "localhost")
        _, error = outcome(failing, Ours(Engine(server)))
        assert error is not None
    elif how == "no TLS":
        engine = Engine(server)
        engine.feed(memoryview(b"GET / HTTP/1.1\r\n\r\n"))
        with pytest.raises(HandshakeFailed):
            engine.shake()
        engine.close()
    elif how == "closed early":
        engine = Engine(our_client(certs.ca), "localhost")
        engine.shake()
        engine.close()
    else:
        failing, ours = with_theirs(certs)
        failing.write(b"bad")
        ours.feed(flipped(failing.take()))
        with pytest.raises(RecordsBroken):
            ours.read()
        ours.engine.close()
    assert other.engine.read_into(ROOM) == 0 and other.engine.drained
    peer.write(b"still")
    other.feed(peer.take())
    assert other.read() == b"still"
    other.write(b"there")
    peer.feed(other.take())
    assert peer.read() == b"there"


@pytest.mark.parametrize("name", ["x" * 300, "a" * 64 + ".example.com"])
def test_a_name_that_is_too_long_takes_no_connection_with_it(
    certs: Certificates, name: str
) -> None:
    peer, other = with_theirs(certs)
    try:
        engine = Engine(our_client(certs.ca), name)
    except TlsError:
        engine = None
    assert other.engine.read_into(ROOM) == 0 and other.engine.drained
    peer.write(b"still")
    other.feed(peer.take())
    assert other.read() == b"still"
    if engine is not None:
        error, _ = outcome(Ours(engine), Theirs(their_server(certs.server)))
        assert isinstance(error, HandshakeFailed)


def test_a_context_for_clients_that_nobody_uses_is_no_servers(certs: Certificates) -> None:
    """A server that is talked to by a server hears an error, and does not wait."""
    client, server = Context(Side.CLIENT), our_server(certs.server)
    one, other = Engine(client, "localhost"), Engine(client, "localhost")
    assert not one.shake()
    other.feed(memoryview(bytes(one.take())))
    with pytest.raises(HandshakeFailed):
        other.shake()
    assert not Engine(server).shake()
