"""The agent's table, row by row (the rows of `nodenet.konnectivity.agent_core`)."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.konnectivity import agent_core
from nodenet.konnectivity.agent_tunnel import MOST_READ_BYTES, split_address
from nodenet.konnectivity.errors import MalformedPacket
from nodenet.konnectivity.extensions import NONE, OURS
from nodenet.konnectivity.packets import (
    CloseDial,
    CloseRequest,
    CloseResponse,
    Data,
    DialRequest,
    DialResponse,
    Drain,
    HalfClose,
    Packet,
    UnknownPacket,
    Window,
    push_packet,
)
from nodenet.rpc.call import Buffer
from tests.unit.konnectivity.agent_world import World

WINDOW = OURS.window
RESET = OSError(errno.ECONNRESET, "Connection reset by peer")


@pytest.fixture
def world() -> World:
    """With an upstream server."""
    return World()


@pytest.fixture
def ours() -> World:
    """With a server of ours."""
    return World(OURS)


def halves(packet: Packet) -> list[Buffer]:
    """A packet as it comes when it arrives in two reads."""
    message = push_packet(packet)
    middle = len(message) // 2
    return [memoryview(message)[:middle], message[middle:]]


# -- A1, A2, A3: dials ----------------------------------------------------------------------------


def test_a_dial_request_is_dialled_and_answered(world: World) -> None:
    world.receives(DialRequest("tcp", "[fd00::1]:443", 42))
    tunnel, network, host, port = world.asked[0]
    assert (network, host, port) == ("tcp", "fd00::1", 443)
    assert world.sends() == []
    world.core.connected(tunnel, world.now)
    assert world.sends() == [DialResponse("", 1, 42)]
    assert world.core.tunnels == {1: tunnel} and not world.core.dials


def test_a_failed_dial_is_answered_and_uses_up_an_id(world: World) -> None:
    world.receives(DialRequest("tcp", "a:1", 1))
    world.core.dial_failed(world.asked[0][0], "dial tcp a:1: i/o timeout", timeout=True)
    assert world.sends() == [DialResponse("dial tcp a:1: i/o timeout", 0, 1)]
    assert world.core.counts.dial_failures == {"timeout": 1, "unknown": 0}
    assert world.tunnel(2)[0].connect_id == 2


@pytest.mark.parametrize("network", ["udp", "unix", "", "TCP", "tcp "])
def test_only_tcp_is_dialled(world: World, network: str) -> None:
    world.receives(DialRequest(network, "10.0.0.1:80", 3))
    assert world.asked == []
    assert world.sends() == [DialResponse(f"dial {network}: unknown network {network}", 0, 3)]


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("svc.ns:8443", ("svc.ns", 8443)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("a:65536", None),
        ("a:-1", None),
        ("a:١", None),
        ("a", None),
        ("", None),
        (":80", None),
        ("[::1]", None),
        ("::1:80", None),
        ("a:", None),
    ],
)
def test_addresses(address: str, parts: tuple[str, int] | None) -> None:
    assert split_address(address) == parts


def test_an_address_without_a_port_is_refused(world: World) -> None:
    world.receives(DialRequest("tcp", "kubelet", 3))
    text = "dial tcp: address kubelet: missing port in address"
    assert world.sends() == [DialResponse(text, 0, 3)]


def test_dials_under_way_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_core, "MAX_DIALS", 2)
    for random in (1, 2, 3):
        world.receives(DialRequest("tcp", "a:1", random))
    (answer,) = world.sends()
    assert isinstance(answer, DialResponse) and "too many open files" in answer.error
    assert (answer.random, len(world.asked)) == (3, 2)


def test_the_same_dial_id_twice_is_one_dial(world: World) -> None:
    for _ in range(2):
        world.receives(DialRequest("tcp", "a:1", 5))
    assert len(world.asked) == 1


def test_a_cancelled_dial_is_given_up_without_an_answer(world: World) -> None:
    world.receives(DialRequest("tcp", "a:1", 5))
    world.receives(CloseDial(5))
    assert world.remotes[0].aborted
    world.core.connected(world.asked[0][0], world.now)
    world.core.dial_failed(world.asked[0][0], "late")
    assert world.sends() == [] and not world.core.dials and not world.core.tunnels


def test_a_cancel_that_crosses_the_answer_closes_the_tunnel(world: World) -> None:
    tunnel, remote = world.tunnel(9)
    world.receives(CloseDial(9))
    assert world.sends() == [CloseResponse("", tunnel.connect_id)]
    assert remote.left == b"" and not world.core.tunnels


# -- A4, A5, A6: data from the server -------------------------------------------------------------


def test_data_of_nobody(world: World) -> None:
    world.receives(Data(0, b"x"))
    assert world.sends() == []
    world.receives(Data(12, b"x"))
    world.receives(Data(12, b"x"))
    assert world.sends() == [CloseResponse("unrecognized connectID", 12)], "once is enough"


def test_data_before_the_dial_is_answered_is_data_of_nobody(world: World) -> None:
    world.receives(DialRequest("tcp", "a:1", 5))
    world.receives(Data(1, b"x"))
    assert world.sends() == [CloseResponse("unrecognized connectID", 1)]
    world.core.connected(world.asked[0][0], world.now)
    assert world.sends() == [DialResponse("", 1, 5)]


def test_data_on_its_way_when_a_tunnel_closes_is_not_answered(world: World) -> None:
    tunnel, _ = world.tunnel()
    world.receives(CloseRequest(tunnel.connect_id))
    world.sends()
    world.receives(Data(tunnel.connect_id, b"x"))
    assert world.sends() == []


def test_data_is_written_and_the_rest_in_order_later(world: World) -> None:
    tunnel, remote = world.tunnel()
    remote.takes = 3
    world.receives(Data(tunnel.connect_id, b"abcde"))
    world.receives(Data(tunnel.connect_id, b"fg"))
    assert (remote.got, tunnel.held_bytes, world.core.held_bytes) == (b"abc", 4, 4)
    remote.takes = 3
    world.core.writable(tunnel, world.now)
    assert (remote.got, tunnel.held_bytes) == (b"abcdef", 1)
    remote.takes = 100
    world.core.writable(tunnel, world.now)
    assert (remote.got, world.core.held_bytes) == (b"abcdefg", 0)


def test_oddly_encoded_data_is_data(world: World) -> None:
    tunnel, remote = world.tunnel()
    # the payload's fields in another order, as protobuf allows
    inner = b"\x1a\x01z" + b"\x08" + bytes((tunnel.connect_id,))
    world.core.receive(b"\x22" + bytes((len(inner),)) + inner + b"\x08\x04", world.now)
    assert remote.got == b"z"


def test_data_for_a_remote_that_is_broken_is_dropped_and_its_last_words_are_read(
    world: World,
) -> None:
    tunnel, remote = world.tunnel()
    remote.takes = OSError(errno.EPIPE, "Broken pipe")
    remote.says.extend([b"HTTP/1.1 413 Too Large", b""])
    remote.readable = True
    world.receives(Data(tunnel.connect_id, b"upload"))
    world.receives(Data(tunnel.connect_id, b"more"))
    assert world.sends() == [
        Data(tunnel.connect_id, b"HTTP/1.1 413 Too Large"),
        CloseResponse("", tunnel.connect_id),
    ]


# -- A7, A8: the server closes --------------------------------------------------------------------


def test_write_then_close_loses_nothing(world: World) -> None:
    tunnel, remote = world.tunnel()
    remote.takes = 1
    world.receives(Data(tunnel.connect_id, b"abc"))
    world.receives(CloseRequest(tunnel.connect_id))
    assert world.sends() == [CloseResponse("", tunnel.connect_id)]
    assert (remote.got, remote.left) == (b"a", b"bc")
    assert world.core.held_bytes == 0 and not world.core.tunnels


def test_closing_what_is_not_there_is_answered(world: World) -> None:
    world.receives(CloseRequest(77))
    assert world.sends() == [CloseResponse("Unknown connectID", 77)]


# -- A9, A10, A11: half-close ---------------------------------------------------------------------


def test_the_end_of_a_remote_closes_towards_upstream(world: World) -> None:
    tunnel, remote = world.tunnel()
    remote.takes = 0
    world.receives(Data(tunnel.connect_id, b"late"))
    world.says(tunnel, remote, b"bye", b"")
    assert world.sends() == [
        Data(tunnel.connect_id, b"bye"),
        CloseResponse("", tunnel.connect_id),
    ]
    assert remote.left == b"late", "what it is owed is still written"


def test_the_end_of_a_remote_is_half_a_close_towards_ours(ours: World) -> None:
    tunnel, remote = ours.tunnel()
    ours.says(tunnel, remote, b"bye", b"")
    assert ours.sends() == [Data(1, b"bye"), HalfClose(1)]
    ours.receives(Data(1, b"still heard"))
    assert remote.got == b"still heard"
    ours.receives(HalfClose(1))
    assert ours.sends() == [CloseResponse("", 1)]
    assert remote.left == b"" and not ours.core.tunnels


def test_the_end_of_the_client_is_a_fin_after_its_data(ours: World) -> None:
    tunnel, remote = ours.tunnel()
    remote.takes = 0
    ours.receives(Data(1, b"question"))
    ours.receives(HalfClose(1))
    ours.receives(HalfClose(1))
    assert not remote.was_shut
    remote.takes = 100
    ours.core.writable(tunnel, ours.now)
    assert remote.was_shut and remote.got == b"question"
    ours.says(tunnel, remote, b"answer", b"")
    assert ours.sends() == [Data(1, b"answer"), CloseResponse("", 1)]
    assert not ours.core.tunnels and remote.left == b""


# -- A12: the remote fails ------------------------------------------------------------------------


def test_a_reset_is_told_after_what_was_read(world: World) -> None:
    tunnel, remote = world.tunnel()
    world.says(tunnel, remote, b"begun", RESET)
    assert world.sends() == [
        Data(1, b"begun"),
        CloseResponse("read tcp 10.0.0.1:80: connection reset by peer", 1),
    ]


# -- A13, A14: windows ----------------------------------------------------------------------------


def test_a_remote_is_read_as_far_as_the_server_takes_it(ours: World) -> None:
    tunnel, remote = ours.tunnel()
    ours.says(tunnel, remote, b"x" * (WINDOW + 10))
    assert sum(len(p.payload) for p in ours.sends() if isinstance(p, Data)) == WINDOW
    ours.core.readable(tunnel)
    assert ours.sends() == []
    ours.receives(Window(1, 4))
    assert ours.sends() == [Data(1, b"xxxx")]
    ours.receives(Window(1, -5))
    ours.receives(Window(99, 5))
    ours.receives(Window(1, 100))
    assert ours.sends() == [Data(1, b"x" * 6)]


def test_what_a_remote_took_is_given_back(ours: World) -> None:
    tunnel, remote = ours.tunnel()
    remote.takes = WINDOW // 4 - 1
    ours.receives(Data(1, bytes(WINDOW // 2)))
    assert ours.sends() == []
    remote.takes = 1 << 30
    ours.now += 1.0
    ours.core.writable(tunnel, ours.now)
    assert ours.sends() == [Window(1, WINDOW // 2)]


def test_a_remote_that_takes_fast_gets_a_wider_window(ours: World) -> None:
    _, remote = ours.tunnel()
    remote.takes = 1 << 30
    ours.receives(Data(1, bytes(WINDOW // 2)))
    assert ours.sends() == [Window(1, WINDOW // 2 + WINDOW)]
    remote.takes = 0
    for _ in range(2):  # it may send so much now
        ours.receives(Data(1, bytes(WINDOW)))
    assert ours.sends() == []
    ours.receives(Data(1, b"x"))
    assert ours.sends() == [CloseResponse("more data than the window allows", 1)]


def test_large_data_is_written_in_its_pieces(ours: World) -> None:
    tunnel, remote = ours.tunnel()
    payload = bytes(range(256)) * 400
    ours.core.receive_pieces(halves(Data(1, payload)), ours.now)
    assert remote.got == payload and tunnel.received == len(payload)
    ours.core.receive_pieces(halves(Data(5, payload)), ours.now)
    assert ours.sends() == [CloseResponse("unrecognized connectID", 5)]


def test_the_last_bytes_of_a_large_piece_do_not_keep_it(ours: World) -> None:
    """A thousand remotes that stall before the last byte would hold a read buffer each."""
    tunnel, remote = ours.tunnel()
    for takes in (200_000 - 10, 100_000):
        remote.takes = takes
        ours.core.receive_pieces([push_packet(Data(1, bytes(200_000)))], ours.now)
        if takes == 100_000:
            remote.takes = 100_000 - 5
            ours.core.writable(tunnel, ours.now)
        (held,) = tunnel.held
        assert isinstance(held.obj, bytes) and len(held.obj) == len(held) <= 10
        remote.takes = 1 << 30
        ours.core.writable(tunnel, ours.now)
    assert len(remote.got) == 400_000 and not tunnel.held


def test_large_data_over_the_window_ends_the_tunnel_once(ours: World) -> None:
    _, remote = ours.tunnel()
    remote.takes = 0
    ours.core.receive_pieces(halves(Data(1, bytes(WINDOW - 10))), ours.now)
    ours.core.receive_pieces(halves(Data(1, bytes(100))), ours.now)
    assert ours.sends() == [CloseResponse("more data than the window allows", 1)]
    assert remote.aborted and not ours.core.tunnels


def test_more_than_the_window_ends_the_tunnel_alone(ours: World) -> None:
    tunnel, remote = ours.tunnel(1)
    _, other = ours.tunnel(2)
    remote.takes = 0
    ours.receives(Data(1, bytes(WINDOW)))
    ours.receives(Data(1, b"x"))
    assert ours.sends() == [CloseResponse("more data than the window allows", 1)]
    assert remote.aborted and not other.aborted and list(ours.core.tunnels) == [2]


def test_an_upstream_server_sees_no_windows(world: World) -> None:
    tunnel, remote = world.tunnel()
    world.says(tunnel, remote, b"x" * 2 * WINDOW)
    for _ in range(40):
        world.receives(Data(1, bytes(100_000)))
    assert all(isinstance(p, Data) for p in world.sends())


# -- memory, towards a server without windows -----------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> World:
    """With 1,000 bytes for all remotes."""
    monkeypatch.setattr(agent_core, "HELD_BYTES", 1000)
    return World()


def test_stalled_remote(small: World) -> None:
    """Upstream: the whole agent waits for it, new dials too."""
    tunnel, remote = small.tunnel(1)
    remote.takes = 0
    small.receives(Data(1, bytes(190)))
    assert not small.paused and small.core.next_timer() is None
    small.receives(Data(1, bytes(50)))
    assert small.paused and small.core.next_timer() == small.now + 1
    small.now += 0.9
    small.core.handle_timer(small.now)
    assert small.paused
    small.now += 0.1
    small.core.handle_timer(small.now)
    (closed,) = small.sends()
    assert isinstance(closed, CloseResponse) and "stalled" in closed.error
    assert remote.aborted and not small.paused and small.core.held_bytes == 0
    assert small.core.counts.resets["stalled"] == 1
    small.tunnel(2)


def test_a_slow_remote_holds_the_stream_and_is_not_reset(small: World) -> None:
    tunnel, remote = small.tunnel()
    remote.takes = 0
    small.receives(Data(1, bytes(400)))
    for _ in range(10):
        small.now += 0.8
        remote.takes = 20
        small.core.writable(tunnel, small.now)
        small.core.handle_timer(small.now)
    assert 1 in small.core.tunnels and small.paused
    remote.takes = 150
    small.core.writable(tunnel, small.now)
    assert not small.paused and small.core.next_timer() is None


def test_many_small_stalls_are_bounded_together(small: World) -> None:
    for random in range(1, 30):
        _, remote = small.tunnel(random)
        remote.takes = 0
        small.receives(Data(random, bytes(60)))
    small.now += 1
    small.core.handle_timer(small.now)
    assert small.core.held_bytes < 1000 and not small.paused


def test_answers_nobody_takes_hold_the_stream(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_core, "MAX_CONTROL", 10)
    for connect_id in range(1, 13):
        world.receives(CloseRequest(connect_id))
    assert world.paused
    assert len(world.sends()) == 12 and not world.paused


# -- A15, A16 and the rest ------------------------------------------------------------------------


def test_a_lost_stream_resets_everything(world: World) -> None:
    tunnel, remote = world.tunnel(1)
    remote.takes = 0
    world.receives(Data(1, b"x"))
    world.receives(DialRequest("tcp", "a:1", 2))
    world.core.lost()
    assert remote.aborted and world.remotes[1].aborted
    assert not world.core.tunnels and not world.core.dials and world.core.held_bytes == 0
    world.core.connected(world.asked[1][0], world.now)
    world.core.readable(tunnel)
    world.core.writable(tunnel, world.now)
    assert world.sends() == []


def test_drain_goes_out_at_once(world: World) -> None:
    world.core.drain()
    assert world.sends() == [Drain()]


@pytest.mark.parametrize(
    "packet", [DialResponse("", 1, 1), CloseResponse("", 1), Drain(), UnknownPacket(999)]
)
def test_what_a_server_does_not_send_is_ignored(world: World, packet: Packet) -> None:
    tunnel, _ = world.tunnel()
    world.receives(packet)
    assert world.sends() == [] and 1 in world.core.tunnels


def test_unknown_types_do_not_make_the_counts_grow(world: World) -> None:
    for kind in range(200, 300):
        world.receives(UnknownPacket(kind))
    assert world.core.counts.packets_in == {-1: 100}


def test_garbage_ends_the_stream(world: World) -> None:
    with pytest.raises(MalformedPacket):
        world.core.receive(b"\xff\xff\xff", world.now)


def test_readers_take_turns(world: World) -> None:
    first, one = world.tunnel(1)
    second, two = world.tunnel(2)
    world.says(first, one, b"a", b"b", b"c")
    world.says(second, two, b"d")
    assert [p.payload for p in world.sends() if isinstance(p, Data)] == [b"a", b"d", b"b", b"c"]


def test_a_fast_remote_is_read_in_large_pieces(world: World) -> None:
    tunnel, remote = world.tunnel()
    world.says(tunnel, remote, bytes(1 << 20))
    sizes = [len(p.payload) for p in world.sends() if isinstance(p, Data)]
    assert sizes[:3] == [16_384, 65_536, 262_144] and max(sizes) == MOST_READ_BYTES
    assert sum(sizes) == 1 << 20


@given(st.lists(st.binary(min_size=0, max_size=12), max_size=30))
def test_any_bytes_are_a_packet_or_an_error(messages: list[bytes]) -> None:
    world = World(OURS)
    world.tunnel(1)
    for message in messages:
        try:
            world.core.receive(message, world.now)
        except MalformedPacket:
            continue
    world.sends()


@given(st.lists(st.integers(0, 5), max_size=60), st.booleans())
def test_bytes_arrive_whole_whatever_the_remote_takes(steps: list[int], of_ours: bool) -> None:
    world = World(OURS if of_ours else NONE)
    tunnel, remote = world.tunnel()
    remote.takes, sent = 0, b""
    for number, step in enumerate(steps):
        if step < 3:
            piece = bytes([number]) * (step * 3)
            sent += piece
            world.receives(Data(1, piece))
        else:
            remote.takes = step
            world.core.writable(tunnel, world.now)
    world.receives(CloseRequest(1))
    assert bytes(remote.got) + (remote.left or b"") == sent
    assert world.core.held_bytes == 0
