"""Windows of both directions: credit in batches, stalled tunnels, a bounded backlog."""

from __future__ import annotations

import pytest

from nodenet.hbone.errors import ErrorCode, Misuse
from nodenet.hbone.flow import NARROW_WINDOW, SCARCE_CREDIT
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream
from tests.unit.hbone.scripted import ACK, Play, connect, data, rst, settings, window_update

MIB = 1 << 20


def payload(size: int) -> bytes:
    return bytes(size)


# -- receiving -----------------------------------------------------------------------------------


def test_credit_of_a_stream_comes_back_when_bytes_are_consumed() -> None:
    server = Play(Role.SERVER)
    server.consumes = server.listens = False
    stream = server.opens(1)
    for _ in range(4):
        server.receives(data(1, payload(MIB)))
    server.sends_anything()  # the connection's
    assert (stream.recv_window, stream.unconsumed) == (0, 4 * MIB)
    server.connection.consumed(stream, MIB - 1)
    server.sends()
    server.connection.consumed(stream, 1)
    server.sends(window_update(1, MIB))
    assert (stream.recv_window, stream.unconsumed) == (MIB, 3 * MIB)
    server.connection.consumed(stream, 3 * MIB)
    server.sends(window_update(1, 3 * MIB))
    assert (stream.recv_window, stream.unconsumed) == (4 * MIB, 0)


def test_credit_of_the_connection_comes_back_on_receipt() -> None:
    server = Play(Role.SERVER)
    server.consumes = server.listens = False
    server.opens(1)
    for _ in range(4):
        server.receives(data(1, payload(MIB))).sends()
    server.opens(3)
    server.receives(data(3, b"x")).sends(window_update(0, 4 * MIB + 1))
    assert server.connection.recv_window == 16 * MIB


def test_a_frame_under_way_is_no_credit() -> None:
    """A frame is charged when it begins; the part that has not arrived cannot be given back."""
    server = Play(Role.SERVER)
    server.listens = False
    stream = server.opens(1)
    server.receives(data(1, payload(MIB))).sends(window_update(1, MIB))
    server.receives(data(1, payload(MIB))[: 9 + 1000]).sends()
    assert stream.recv_window == 3 * MIB
    assert stream.unconsumed == MIB - 1000
    server.connection.reset(stream)
    server.sends(rst(1, 8))
    server.receives(payload(MIB - 1000), data(1, b"more")).emits().sends()
    assert server.connection.unconsumed == 0


def test_nothing_is_granted_to_a_stream_that_has_ended() -> None:
    server = Play(Role.SERVER)
    server.consumes = server.listens = False
    stream = server.opens(1)
    server.receives(data(1, payload(MIB)), data(1, payload(MIB), end=True))
    server.connection.consumed(stream, MIB)
    server.sends()
    assert stream.recv_window == 0
    server.connection.end(stream)
    server.sends(data(1, end=True))
    assert server.connection.unconsumed == MIB
    server.connection.consumed(stream, MIB)
    server.connection.consumed(stream, MIB)  # more than there is does no harm
    server.sends()
    assert server.connection.unconsumed == 0


def test_what_a_reset_stream_held_is_given_back() -> None:
    server = Play(Role.SERVER)
    server.consumes = server.listens = False
    stream = server.opens(1)
    server.receives(data(1, payload(MIB)), rst(1, 8))
    assert server.connection.unconsumed == 0
    server.connection.consumed(stream, MIB)
    assert server.connection.unconsumed == 0
    server.sends()


def test_twenty_stalled_tunnels_do_not_stop_another() -> None:
    server = Play(Role.SERVER)
    server.consumes = server.listens = False
    for number in range(1, 41, 2):
        server.opens(number)
        for _ in range(4):
            server.receives(data(number, payload(MIB)))
            server.sends_anything()
    connection = server.connection
    assert connection.unconsumed == 80 * MIB
    assert connection.recv_window >= 12 * MIB
    stream = server.opens(41)
    for _ in range(100):
        server.receives(data(41, payload(MIB)))
        connection.consumed(stream, MIB)
        server.sends_anything()
        assert connection.recv_window >= 12 * MIB


def test_the_backlog_is_bounded_and_recovers() -> None:
    local = LocalSettings(window=MIB, connection_window=2 * MIB, backlog=4 * MIB, max_frame=MIB)
    server = Play(Role.SERVER, local)
    server.consumes = server.listens = False
    connection = server.connection
    streams = []
    for number in range(1, 11, 2):
        streams.append(server.opens(number))
        while streams[-1].recv_window and connection.recv_window:
            size = min(streams[-1].recv_window, connection.recv_window, 100_000)
            server.receives(data(number, payload(size)))
            server.sends_anything()
            assert connection.unconsumed + connection.recv_window <= 4 * MIB
    assert connection.unconsumed == 4 * MIB
    assert connection.recv_window == 0
    # one tunnel takes a little: that much comes back at once, nobody waits for a batch
    connection.consumed(streams[0], 10)
    server.sends(window_update(0, 10))
    server.receives(data(9, payload(10))).sends()
    connection.consumed(streams[0], 100_000)
    server.sends(window_update(0, 100_000))
    for stream in streams:
        connection.consumed(stream, stream.unconsumed)
    server.sends_anything()
    assert connection.unconsumed == 0
    assert connection.recv_window > 2 * MIB - SCARCE_CREDIT


def test_near_the_limit_small_credit_waits_for_more() -> None:
    local = LocalSettings(window=MIB, connection_window=MIB, backlog=MIB)
    server = Play(Role.SERVER, local)
    server.consumes = server.listens = False
    stream = server.opens(1)
    server.receives(data(1, payload(MIB - 100)))
    server.sends_anything()
    server.connection.consumed(stream, 1000)
    server.sends()
    server.connection.consumed(stream, 16 * 1024 - 1000)
    server.sends(window_update(0, 16 * 1024))
    # but not when the window is used up and nobody may consume for long
    server.connection.consumed(stream, 1000)
    server.sends()
    stream = server.opens(3)
    server.receives(data(3, payload(16 * 1024 + 100))).sends(window_update(0, 1000))


def test_a_reset_brings_held_credit_back() -> None:
    local = LocalSettings(window=MIB, connection_window=MIB, backlog=MIB)
    server = Play(Role.SERVER, local)
    server.consumes = server.listens = False
    stream = server.opens(1)
    server.receives(data(1, payload(MIB))).sends(settings((4, NARROW_WINDOW)))
    server.connection.reset(stream)
    server.sends(rst(1, 8), window_update(0, MIB))


class Sender:
    """A client that sends as much as it may on every stream, and obeys."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.initial = 4 * MIB
        self.window = 16 * MIB
        self.windows: dict[int, int] = {}
        self.announced: list[int] = []

    def open(self, number: int) -> Stream:
        self.obey()
        self.windows[number] = self.initial
        return self.play.opens(number)

    def obey(self) -> None:
        """Reads what the server has to say, and acknowledges it."""
        raw = bytes(self.play.connection.outbox)
        self.play.sends_anything()
        while raw:
            length, kind, flags = int.from_bytes(raw[:3], "big"), raw[3], raw[4]
            number = int.from_bytes(raw[5:9], "big")
            body, raw = raw[9 : 9 + length], raw[9 + length :]
            if kind == 8 and not number:
                self.window += int.from_bytes(body, "big")
            elif kind == 8:
                self.windows[number] += int.from_bytes(body, "big")
            elif kind == 4 and not flags:
                assert body[:2] == b"\0\4" and length == 6
                initial = int.from_bytes(body[2:], "big")
                for each in self.windows:
                    self.windows[each] += initial - self.initial
                self.initial = initial
                self.announced.append(initial)
                self.play.receives(ACK)

    def send(self, number: int, most: int) -> int:
        """So many bytes, as far as the windows allow; how many it were."""
        sent = 0
        while size := max(0, min(self.windows[number], self.window, most - sent, MIB)):
            self.windows[number] -= size
            self.window -= size
            sent += size
            self.play.receives(data(number, payload(size)))
            self.obey()
        return sent


@pytest.mark.parametrize("together", [False, True])
def test_all_streams_but_one_may_stall(together: bool) -> None:
    """One after the other, or all at once, a quarter of a window each in turn."""
    server = Play(Role.SERVER)
    server.consumes = server.listens = False
    sender = Sender(server)
    connection = server.connection
    stalled = {number: sender.open(number) for number in range(1, 399, 2)}
    for _ in range(4 if together else 1):
        for number in stalled:
            sender.send(number, MIB if together else 4 * MIB)
    assert len(stalled) == 199 and sender.announced == [NARROW_WINDOW]
    assert all(sender.windows[number] <= 0 for number in stalled)
    assert connection.unconsumed < 100 * MIB
    stream = sender.open(399)
    for _ in range(100):
        assert sender.send(399, NARROW_WINDOW) == NARROW_WINDOW
        assert sender.window >= 12 * MIB
        connection.consumed(stream, NARROW_WINDOW)
        sender.obey()
    # they read again: everybody gets the full window back
    for each in stalled.values():
        connection.consumed(each, each.unconsumed)
        sender.obey()
    assert sender.announced == [NARROW_WINDOW, 4 * MIB]
    for number, each in {**stalled, 399: stream}.items():
        assert sender.windows[number] == each.recv_window > 3 * MIB
    assert sender.send(1, 3 * MIB) == 3 * MIB


def test_a_narrow_window_holds_once_it_is_acknowledged() -> None:
    local = LocalSettings(window=MIB, connection_window=MIB, backlog=2 * MIB)
    server = Play(Role.SERVER, local)
    server.consumes = server.listens = False
    stream = server.opens(1)
    less = MIB - NARROW_WINDOW
    narrow = settings((4, NARROW_WINDOW))
    server.receives(data(1, payload(MIB // 2 + 1))).sends(window_update(0, MIB // 2 + 1), narrow)
    assert stream.recv_window == MIB // 2 - 1
    late = server.opens(3)
    server.receives(data(1, b"x"))  # it may not have read that yet
    assert late.recv_window == MIB
    server.receives(ACK)
    assert stream.recv_window == MIB // 2 - 2 - less < 0
    assert late.recv_window == NARROW_WINDOW == server.opens(5).recv_window
    server.sends()


def narrowed() -> tuple[Play, Stream]:
    """A server that has narrowed its windows, and a stream that had more than fits into one."""
    local = LocalSettings(window=MIB, connection_window=2 * MIB, backlog=5 * MIB)
    server = Play(Role.SERVER, local)
    server.consumes = server.listens = False
    stream, other = server.opens(1), server.opens(3)
    server.receives(data(1, payload(MIB - 1000)), data(3, payload(MIB * 3 // 4)))
    assert bytes(server.connection.outbox).endswith(settings((4, NARROW_WINDOW)))
    server.receives(ACK).sends_anything()
    assert stream.recv_window == 1000 - (MIB - NARROW_WINDOW) < 0 < other.unconsumed
    return server, stream


def test_a_stream_ends_without_a_window() -> None:
    """An empty DATA frame needs none (RFC 9113 section 6.9.1)."""
    server, stream = narrowed()
    server.receives(data(1, end=True)).emits("ended 1").sends()
    assert stream.unconsumed == MIB - 1000
    # and so may one that was reset in the meantime
    server, stream = narrowed()
    server.connection.reset(stream)
    server.sends(rst(1, 8))
    server.receives(data(1), data(1, end=True)).sends()
    assert not server.connection.closed


def test_data_that_was_counted_before_the_acknowledgement_may_come_behind_it() -> None:
    """Writers that are not the reader, as in Go's net/http2, take from a window and then queue."""
    server, stream = narrowed()
    server.receives(data(1, payload(1000))).sends()
    assert stream.unconsumed == MIB
    # a window of before is all there ever was
    server.receives(data(1, b"x")).sends(rst(1, ErrorCode.FLOW_CONTROL_ERROR))
    server, stream = narrowed()
    server.connection.reset(stream)
    server.sends(rst(1, 8))
    server.receives(data(1, payload(1000))).sends()
    server.dies(ErrorCode.FLOW_CONTROL_ERROR, data(1, b"x"))


def test_who_ignores_narrow_windows_is_held_to_the_others() -> None:
    server, _ = narrowed()
    stream = server.opens(5)
    assert stream.recv_window == NARROW_WINDOW
    server.receives(data(5, payload(MIB)))
    server.sends_anything()
    server.receives(data(5, b"x")).sends(rst(5, ErrorCode.FLOW_CONTROL_ERROR))


def test_who_has_taken_everything_before_is_not_left_without_a_window() -> None:
    local = LocalSettings(window=MIB, connection_window=4 * MIB, backlog=8 * MIB)
    server = Play(Role.SERVER, local)
    server.consumes = server.listens = False
    quick, *slow = (server.opens(number) for number in (1, 3, 5, 7))
    server.receives(data(1, payload(MIB // 8)))
    server.connection.consumed(quick, MIB // 8)  # too little to be given back
    for stream in slow:
        server.receives(data(stream.id, payload(MIB)))
    assert bytes(server.connection.outbox).endswith(settings((4, NARROW_WINDOW)))
    server.sends_anything()
    server.receives(ACK).sends(window_update(1, MIB // 8))
    assert quick.recv_window == NARROW_WINDOW
    assert [stream.recv_window for stream in slow] == [NARROW_WINDOW - MIB] * 3


def test_a_full_window_may_be_used_at_once() -> None:
    local = LocalSettings(window=MIB, connection_window=MIB, backlog=2 * MIB)
    server = Play(Role.SERVER, local)
    server.consumes = server.listens = False
    stream = server.opens(1)
    server.receives(data(1, payload(MIB - 10)), ACK)
    server.sends_anything()
    server.connection.consumed(stream, MIB - 10)
    assert bytes(server.connection.outbox).endswith(settings((4, MIB)))
    assert stream.recv_window == MIB
    # nothing is announced before the last word is acknowledged
    server.sends_anything()
    server.receives(data(1, payload(MIB)))
    assert settings((4, NARROW_WINDOW)) not in bytes(server.connection.outbox)
    server.receives(ACK)
    server.dies(ErrorCode.PROTOCOL_ERROR, ACK)


def test_narrow_windows_stay_as_they_are() -> None:
    server = Play(Role.SERVER, LocalSettings(window=NARROW_WINDOW, backlog=16 * MIB))
    server.consumes = server.listens = False
    for number in range(1, 101, 2):
        server.opens(number)
        server.receives(data(number, payload(NARROW_WINDOW)))
        assert settings((4, NARROW_WINDOW)) not in bytes(server.connection.outbox)
        server.sends_anything()
    assert server.connection.unconsumed > 12 * MIB


def test_a_window_smaller_than_the_default_counts_once_it_is_acknowledged() -> None:
    local = LocalSettings(window=1000)
    server = Play(Role.SERVER, local, greeted=False)
    server.receives(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", settings(), connect(1))
    server.consumes = server.listens = False
    server.sends_anything()
    stream = server.stream(1)
    server.receives(data(1, payload(5000))).sends()
    assert stream.recv_window == 60_535
    server.receives(ACK)
    assert stream.recv_window == 1000 - 5000
    server.connection.consumed(stream, 4000)
    server.sends(window_update(1, 4000))
    server.connection.consumed(stream, 1000)
    server.sends(window_update(1, 1000))
    assert stream.recv_window == 1000
    server.receives(connect(3))
    assert server.stream(3).recv_window == 1000


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 7])
def test_tiny_windows_go_on(window: int) -> None:
    server = Play(Role.SERVER, LocalSettings(window=window))
    stream = server.opens(1)
    for _ in range(20):
        server.receives(data(1, b"x"))
        assert stream.recv_window > 0
        server.sends_anything()
        server.connection.consumed(stream, 0)
        server.sends()


# -- sending -------------------------------------------------------------------------------------


def test_what_may_be_sent_is_the_smallest_of_three() -> None:
    server = Play(Role.SERVER, peer=((4, 30_000),))
    connection = server.connection
    stream = server.opens(1)
    assert connection.sendable(stream) == 16_384
    server.receives(settings((5, 1 << 20))).sends(ACK).emits("writable")
    assert connection.sendable(stream) == 30_000
    server.receives(window_update(1, 100_000))
    assert connection.sendable(stream) == 65_535
    connection.data_header(stream, 65_535)
    assert connection.sendable(stream) == 0
    server.receives(window_update(0, 5)).emits("writable")
    assert connection.sendable(stream) == 5
    server.receives(window_update(0, 5)).emits()  # nobody was waiting


def test_a_blocked_stream_hears_of_its_window(server: Play) -> None:
    connection = server.connection
    server.receives(window_update(0, 1 << 20))
    stream = server.opens(1)
    other = server.opens(3)
    while count := connection.sendable(stream):
        connection.data_header(stream, count)
    server.receives(window_update(1, 7)).emits("writable 1")
    assert connection.sendable(stream) == 7
    server.receives(window_update(3, 7)).emits()
    assert connection.sendable(other) == 16_384


def test_a_smaller_initial_window_makes_windows_negative(server: Play) -> None:
    connection = server.connection
    stream = server.opens(1)
    connection.data_header(stream, 16_000)
    server.receives(settings((4, 10_000))).sends(ACK).emits("writable")
    assert stream.send_window == -6000
    assert connection.sendable(stream) == 0
    server.receives(window_update(1, 6000)).emits()
    assert connection.sendable(stream) == 0
    server.receives(window_update(1, 1)).emits("writable 1")
    assert connection.sendable(stream) == 1
    connection.data_header(stream, 1)
    assert connection.sendable(stream) == 0
    server.receives(settings((4, 10_005))).sends(ACK).emits("writable 1", "writable")
    assert connection.sendable(stream) == 5


def test_headers_are_the_same_in_both_ways(server: Play) -> None:
    stream = server.opens(1)
    buffer = bytearray(20)
    server.connection.write_data_header_into(buffer, 3, stream, 1234)
    assert buffer == bytes(3) + data(1, payload(1234))[:9] + bytes(8)
    server.connection.write_data_header_into(buffer, 0, stream, 5, end_stream=True)
    assert buffer[:9] == data(1, b"abcde", end=True)[:9]
    assert stream.local_ended
    assert stream.send_window == 0


def test_more_than_the_window_is_a_fault_of_the_caller(server: Play) -> None:
    connection = server.connection
    stream = server.opens(1)
    with pytest.raises(Misuse, match="65536 bytes cannot be sent on stream 1"):
        connection.data_header(stream, 65_536)
    with pytest.raises(Misuse):
        connection.write_data_header_into(bytearray(9), 0, stream, 65_536)
    connection.data_header(stream, 65_535)
    other = server.opens(3)
    with pytest.raises(Misuse):
        connection.data_header(other, 1)
    connection.end(other)
    server.sends(data(3, end=True))
    with pytest.raises(Misuse):
        connection.data_header(other, 0, end_stream=True)


def test_a_stream_that_has_ended_takes_nothing(server: Play) -> None:
    stream = server.opens(1)
    server.connection.data_header(stream, 0, end_stream=True)
    server.receives(window_update(1, 100), settings((4, 1 << 20)))
    server.sends(ACK).emits("writable")
    assert server.connection.sendable(stream) == 0
