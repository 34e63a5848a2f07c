"""Scripts of ordinary conversations: greeting, tunnels, half-closes, resets, the end."""

from __future__ import annotations

import gc
import weakref

import pytest

from nodenet.hbone import hpack_codec
from nodenet.hbone.connection import Connection
from nodenet.hbone.errors import CannotOpen, ErrorCode, NoStream
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream
from tests.unit.hbone.scripted import (
    ACK,
    PREFACE,
    Ear,
    Play,
    block,
    connect,
    data,
    frame,
    goaway,
    headers,
    literal,
    ping,
    rst,
    settings,
    window_update,
)

CONNECT = hpack_codec.connect(b"b:2")
CONNECT_BYTES = b"\x02\x07CONNECT\x01\x03b:2"


def opened(client: Play) -> Stream:
    """The client's first tunnel, answered with 200."""
    stream = client.connection.open(CONNECT)
    stream.receiver = Ear(client, stream)
    client.sends(frame(1, 4, stream.id, CONNECT_BYTES))
    client.receives(frame(1, 4, stream.id, b"\x88")).emits(f"response {stream.id} 200")
    return stream


# -- greeting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_greeting(role: Role, chunk: int) -> None:
    play = Play(role, greeted=False, chunk=chunk)
    play.sends(LocalSettings().opening(role))
    if role is Role.SERVER:
        play.receives(PREFACE).sends()
    play.receives(settings((4, 100_000), (5, 20_000))).sends(ACK).emits("writable")
    assert not play.connection.acknowledged
    play.receives(ACK).sends().emits()
    assert play.connection.acknowledged
    assert (play.connection.peer.initial_window, play.connection.peer.max_frame) == (
        100_000,
        20_000,
    )


def test_settings_may_come_again(server: Play) -> None:
    server.receives(settings((3, 7))).sends(ACK).emits("writable")
    assert server.connection.peer.max_streams == 7


# -- a server's tunnels --------------------------------------------------------------------------


def test_a_tunnel(server: Play) -> None:
    server.receives(connect(1, "baggage=a=b")).emits("request 1 CONNECT a:1").sends()
    stream = server.stream(1)
    assert stream.state.name == "OPEN"
    server.connection.respond(stream, 200, hpack_codec.fields([(b"baggage", b"c=d")]))
    server.sends(frame(1, 4, 1, b"\x88" + literal("baggage", "c=d")))
    server.receives(data(1, b"hello"), data(1, b" there")).emits("data 1 hello there")
    assert server.connection.data_header(stream, 3) == data(1, b"abc")[:9]
    server.receives(data(1, b"!", end=True)).emits("data 1 !", "ended 1")
    assert stream.state.name == "HALF_CLOSED_REMOTE"
    assert (
        server.connection.data_header(stream, 3, end_stream=True) == data(1, b"abc", end=True)[:9]
    )
    assert stream.state.name == "CLOSED"
    assert server.connection.active == 0
    assert server.connection.streams_opened == 1


def test_we_may_end_first(server: Play) -> None:
    stream = server.opens(1)
    server.connection.end(stream)
    server.connection.end(stream)
    server.sends(data(1, end=True))
    assert stream.state.name == "HALF_CLOSED_LOCAL"
    assert server.connection.sendable(stream) == 0
    server.receives(data(1, b"more")).emits("data 1 more")
    server.receives(data(1, end=True)).emits("ended 1")
    assert server.connection.stream(1) is None


def test_the_peer_may_end_with_the_request(server: Play) -> None:
    server.receives(connect(1, end=True)).emits("request 1 CONNECT a:1", "ended 1")
    stream = server.stream(1)
    server.connection.respond(stream, 200)
    server.connection.end(stream)
    server.sends(frame(1, 4, 1, b"\x88"), data(1, end=True))
    assert server.connection.active == 0


def test_the_end_of_one_stream_is_not_the_end_of_another(server: Play) -> None:
    server.opens(1)
    server.opens(3)
    server.receives(data(1, end=True)).emits("ended 1")
    server.receives(data(3, b"a" * 50), data(3, b"b" * 50, pad=3))
    server.emits("data 3 " + "a" * 50 + "b" * 50)


def test_data_may_come_before_the_answer(server: Play) -> None:
    server.receives(connect(1), data(1, b"early")).emits("request 1 CONNECT a:1", "data 1 early")
    server.receives(data(1, end=True)).emits("ended 1")


def test_a_refusal(server: Play) -> None:
    server.receives(connect(1)).emits("request 1 CONNECT a:1")
    stream = server.stream(1)
    server.connection.respond(stream, 503, end_stream=True)
    server.sends(frame(1, 5, 1, b"\x08\x03503"), rst(1, 0))
    assert stream.closed
    server.receives(data(1, b"was under way"), data(1, end=True))
    server.connection.respond(stream, 200)  # too late, and harmless


def test_a_refusal_of_a_request_that_has_ended(server: Play) -> None:
    server.receives(connect(1, end=True)).emits("request 1 CONNECT a:1", "ended 1")
    server.connection.respond(server.stream(1), 401, end_stream=True)
    server.sends(frame(1, 5, 1, b"\x08\x03401"))
    assert server.connection.active == 0


def test_other_methods_are_delivered(server: Play) -> None:
    server.receives(headers(1, ":method=GET", ":scheme=https", ":path=/", end=True))
    server.emits("request 1 GET ", "ended 1")
    server.connection.respond(server.stream(1), 400, end_stream=True)
    server.sends(frame(1, 5, 1, b"\x8c"))
    assert server.connection.active == 0


def test_reset_by_the_peer(server: Play) -> None:
    stream = server.opens(1)
    server.receives(data(1, b"x"), rst(1, 8)).emits("data 1 x", "reset 1 CANCEL")
    assert stream.closed
    assert server.connection.sendable(stream) == 0
    server.connection.end(stream)
    server.connection.reset(stream)
    server.connection.consumed(stream, 1)


def test_an_unknown_code_is_passed_on(server: Play) -> None:
    server.opens(1)
    server.receives(rst(1, 0xDEADBEEF)).emits("reset 1 0xdeadbeef")


def test_reset_by_us(server: Play) -> None:
    stream = server.opens(1)
    server.connection.reset(stream, ErrorCode.CONNECT_ERROR)
    server.sends(rst(1, 10))
    # what was under way when the peer had not read that
    server.receives(data(1, b"x" * 100), headers(1, "x=y"), window_update(1, 5), rst(1, 8))


def test_trailers_end_the_stream(server: Play) -> None:
    server.opens(1)
    server.receives(data(1, b"x"), headers(1, "x-checksum=5", end=True)).emits(
        "data 1 x", "ended 1"
    )


def test_a_block_in_pieces(server: Play) -> None:
    whole = block(":method=CONNECT", ":authority=a:1")
    server.receives(
        frame(1, 0, 1, whole[:5]),
        frame(9, 0, 1),
        frame(9, 0, 1, whole[5:9]),
        frame(9, 4, 1, whole[9:]),
    )
    server.emits("request 1 CONNECT a:1")
    # DATA is received again
    server.receives(data(1, b"x")).emits("data 1 x")


def test_headers_with_padding_and_priority(server: Play) -> None:
    whole = block(":method=CONNECT", ":authority=a:1")
    server.receives(frame(1, 0x2C, 1, b"\x03" + b"\x80\0\0\0\x05" + whole + b"\0\0\0"))
    server.emits("request 1 CONNECT a:1")


def test_padded_data(server: Play) -> None:
    stream = server.opens(1)
    server.receives(
        data(1, b"abc", pad=0), data(1, b"def", pad=255), data(1, b"g", pad=1, end=True)
    )
    server.emits("data 1 abcdefg", "ended 1")
    assert stream.unconsumed == 0
    assert server.connection.unconsumed == 0


def test_padding_alone(server: Play) -> None:
    server.opens(1)
    server.receives(data(1, pad=7), data(1, pad=0), data(1, pad=5, end=True)).emits("ended 1")
    assert server.connection.unconsumed == 0


def test_what_is_ignored(server: Play) -> None:
    server.receives(
        frame(2, 0, 1, b"\0\0\0\0\5"),  # PRIORITY of an idle stream
        frame(2, 0, 2, b"\x80\0\0\0\5"),
        frame(0xA, 0xFF, 9, b"unknown" * 1000),
        frame(0xFF, 0, 0),
    )
    server.receives(connect(3)).emits("request 3 CONNECT a:1")


def test_the_reserved_bit_is_ignored(server: Play) -> None:
    server.opens(1)
    server.receives(frame(0, 0, 1 | 1 << 31, b"x")).emits("data 1 x")


# -- a client's tunnels --------------------------------------------------------------------------


def test_a_tunnel_of_a_client(client: Play) -> None:
    stream = opened(client)
    assert client.connection.data_header(stream, 5) == data(1, b"hello")[:9]
    client.receives(data(1, b"back", end=True)).emits("data 1 back", "ended 1")
    client.connection.end(stream)
    client.sends(data(1, end=True))
    assert client.connection.active == 0


def test_a_refusal_of_a_server(client: Play) -> None:
    stream = client.connection.open(CONNECT)
    stream.receiver = Ear(client, stream)
    client.sends(frame(1, 4, 1, CONNECT_BYTES))
    client.receives(headers(1, ":status=503", end=True), rst(1, 0))
    client.emits("response 1 503", "ended 1", "reset 1 NO_ERROR")


def test_a_refusal_with_a_text(client: Play) -> None:
    stream = client.connection.open(CONNECT)
    stream.receiver = Ear(client, stream)
    client.sends(frame(1, 4, 1, CONNECT_BYTES))
    client.receives(headers(1, ":status=403", "content-length=6"), data(1, b"denied", end=True))
    client.emits("response 1 403", "data 1 denied", "ended 1")


def test_interim_responses_are_skipped(client: Play) -> None:
    stream = client.connection.open(CONNECT)
    stream.receiver = Ear(client, stream)
    client.sends(frame(1, 4, 1, CONNECT_BYTES))
    client.receives(headers(1, ":status=103", "link=x"), headers(1, ":status=200"))
    client.emits("response 1 200")


def test_a_response_to_a_reset_stream_is_ignored(client: Play) -> None:
    stream = client.connection.open(CONNECT)
    client.connection.reset(stream)
    client.sends(frame(1, 4, 1, CONNECT_BYTES), rst(1, 8))
    client.receives(headers(1, ":status=200"), data(1, b"abc"), data(1, end=True))


def test_opening_more_than_the_peer_takes(chunk: int) -> None:
    client = Play(Role.CLIENT, peer=((3, 2),), chunk=chunk)
    connection = client.connection
    first, second = connection.open(CONNECT), connection.open(CONNECT)
    assert (first.id, second.id) == (1, 3)
    assert not connection.can_open()
    with pytest.raises(CannotOpen) as raised:
        connection.open(CONNECT)
    assert raised.value.reason is NoStream.LIMIT
    connection.reset(first)
    assert connection.open(CONNECT).id == 5


def test_a_hundred_streams_before_the_peers_settings() -> None:
    connection = Play(Role.CLIENT, greeted=False).connection
    for _ in range(100):
        connection.open(CONNECT)
    assert not connection.can_open()
    connection.receive(memoryview(settings()))
    assert connection.can_open()


def test_identifiers_run_out() -> None:
    client = Play(Role.CLIENT)
    connection = client.connection
    connection._last_local = 2**31 - 3
    assert connection.open(CONNECT).id == 2**31 - 1
    with pytest.raises(CannotOpen) as raised:
        connection.open(CONNECT)
    assert raised.value.reason is NoStream.IDS


def test_a_long_block_is_sent_in_pieces(client: Play) -> None:
    rest = hpack_codec.field(b"baggage", b"x" * 40_000)
    whole = hpack_codec.connect(b"b:2", rest)
    client.connection.open(hpack_codec.HeaderBlock(whole))
    client.sends(
        frame(1, 0, 1, whole[:16384]),
        frame(9, 0, 1, whole[16384:32768]),
        frame(9, 4, 1, whole[32768:]),
    )


def test_a_peer_that_shrinks_its_table_is_told_that_we_know(chunk: int) -> None:
    client = Play(Role.CLIENT, peer=((1, 0),), chunk=chunk)
    client.connection.open(CONNECT)
    client.sends(frame(1, 4, 1, b"\x20" + CONNECT_BYTES))
    client.receives(settings((1, 4096))).sends(ACK).emits("writable")
    client.connection.open(CONNECT)
    client.sends(frame(1, 4, 3, CONNECT_BYTES))


def test_a_table_that_is_not_smaller_is_nothing_to_tell(chunk: int) -> None:
    client = Play(Role.CLIENT, peer=((1, 4096), (1, 65_536)), chunk=chunk)
    client.connection.open(CONNECT)
    client.sends(frame(1, 4, 1, CONNECT_BYTES))


# -- PING and the end ----------------------------------------------------------------------------


def test_ping(server: Play) -> None:
    server.receives(ping(b"01234567")).sends(ping(b"01234567", ack=True))
    server.connection.ping(b"abcdefgh")
    server.sends(ping(b"abcdefgh"))
    server.receives(ping(b"abcdefgh", ack=True)).emits("pong abcdefgh")


def test_a_server_shuts_down_without_losing_what_is_under_way(server: Play) -> None:
    server.opens(1)
    server.connection.shutdown()
    server.connection.shutdown()
    server.sends(goaway(2**31 - 1, 0), ping(b"nn-drain"))
    server.receives(connect(3)).emits("request 3 CONNECT a:1")
    server.receives(ping(b"nn-drain", ack=True)).emits("pong nn-drain").sends(goaway(3, 0))
    # the peer had read the first GOAWAY: this is its fault
    server.receives(connect(5), data(5, b"x")).sends(rst(5, 7))
    server.receives(data(1, b"goes on"), data(3, b"too")).emits("data 1 goes on", "data 3 too")


def test_a_client_shuts_down(client: Play) -> None:
    stream = opened(client)
    client.connection.shutdown()
    client.sends(goaway(0, 0))
    with pytest.raises(CannotOpen) as raised:
        client.connection.open(CONNECT)
    assert raised.value.reason is NoStream.GOING_AWAY
    client.receives(data(stream.id, b"goes on")).emits("data 1 goes on")


def test_goaway_from_a_server(client: Play) -> None:
    opened(client)
    late = client.connection.open(CONNECT)
    late.receiver = Ear(client, late)
    client.sends_anything()
    client.receives(goaway(1, 0, b"bye" * 1000)).emits(
        "reset 3 REFUSED_STREAM", "goaway 1 NO_ERROR"
    )
    assert client.connection.going_away
    assert not client.connection.can_open()
    client.receives(data(1, b"goes on")).emits("data 1 goes on")
    # a server that goes on with the other one too does no harm
    client.receives(headers(3, ":status=200"), data(3, b"x"), data(3, end=True))


def test_goaway_with_an_error(server: Play) -> None:
    server.opens(1)
    server.connection.goaway(ErrorCode.INTERNAL_ERROR, debug=b"why")
    server.sends(goaway(1, 2, b"why"))


def test_goaway_from_a_client(server: Play) -> None:
    server.opens(1)
    server.receives(goaway(0, 0)).emits("goaway 0 NO_ERROR")
    server.receives(data(1, b"x", end=True)).emits("data 1 x", "ended 1")


def test_a_lost_transport_resets_everything(server: Play) -> None:
    stream = server.opens(1)
    server.opens(3)
    server.connection.lost()
    server.connection.lost()
    server.emits("reset 1 INTERNAL_ERROR", "reset 3 INTERNAL_ERROR")
    server.receives(connect(5)).sends()
    server.connection.ping(b"01234567")
    server.connection.goaway()
    server.connection.shutdown()
    server.connection.consumed(stream, 5)
    server.connection.end(stream)
    server.connection.reset(stream)


class Leaver(Play):
    """Gives the connection up from inside a callback."""

    def on_request(self, stream: Stream, request: object) -> None:
        self.events.append(f"request {stream.id}")
        self.connection.lost()


def test_a_callback_may_give_the_connection_up() -> None:
    play = Leaver(Role.SERVER)
    play.receives(connect(1), connect(3), b"\xff" * 100).emits("request 1").sends()


class Refuser(Play):
    """Resets what it gets, from inside the callbacks."""

    def on_request(self, stream: Stream, request: object) -> None:
        self.connection.reset(stream, ErrorCode.REFUSED_STREAM)


def test_a_callback_may_reset_its_stream(chunk: int) -> None:
    play = Refuser(Role.SERVER, chunk=chunk)
    play.receives(connect(1), data(1, b"x" * 50), data(1, b"y", end=True)).sends(rst(1, 7)).emits()
    assert play.connection.active == 0


def test_a_handler_that_forgets_the_receiver_hears_of_it() -> None:
    class Forgetful(Play):
        def on_request(self, stream: Stream, request: object) -> None:
            pass

    play = Forgetful(Role.SERVER)
    with pytest.raises(AssertionError, match="without a receiver"):
        play.receives(connect(1))


def test_nothing_refers_back() -> None:
    """Connections and streams come and go by the thousand: none is left to the collector."""

    class Watched(Connection):
        __slots__ = ("__weakref__",)

    class WatchedEar(Ear):
        pass

    gc.disable()
    try:
        connection = Watched(Role.SERVER, LocalSettings(), Play(Role.SERVER))
        connection.receive(memoryview(PREFACE + settings()))
        watch = weakref.ref(connection)
        del connection
        assert watch() is None
        for way_out in (data(1, end=True), rst(1, 8)):
            play = Play(Role.SERVER)
            stream = play.opens(1)
            ear = stream.receiver = WatchedEar(play, stream)
            play.connection.end(stream)
            play.receives(way_out)
            heard = weakref.ref(ear)
            del ear, stream
            assert heard() is None
    finally:
        gc.enable()
