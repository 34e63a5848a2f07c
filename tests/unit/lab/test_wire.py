"""What a capture between the nodes proves, and what spoils the proof."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodenet.lab.pcap import ACK, SYN, TCP, Packet
from nodenet.lab.wire import Wire, tls_records

A1, B1, A2, B2 = "10.77.1.2", "10.77.1.3", "10.77.2.2", "10.77.2.3"
VIP = "10.77.255.1"
TOKEN = "nn00112233"
MARK = f"{TOKEN}0007"


def record(size: int, kind: int = 23) -> bytes:
    """A TLS record; its content is no text."""
    return bytes((kind, 3, 3)) + size.to_bytes(2, "big") + b"\xfe" * size


HELLO = record(300, 22) + record(40, 20) + record(500)


class Talk:
    """Packets of one TCP connection."""

    def __init__(self, client: str, server: str, port: int, *, sport: int = 40_000) -> None:
        self.ends = (client, sport), (server, port)
        self.next = [1_000, 2**32 - 20]
        """The server's numbers wrap around."""
        self.packets: list[Packet] = []

    def open(self) -> Talk:
        """The handshake."""
        for back, flags in ((0, SYN), (1, SYN | ACK)):
            self._packet(back, flags, b"")
            self.next[back] = (self.next[back] + 1) % 2**32
        return self

    def say(self, data: bytes, *, back: bool = False, size: int = 100) -> Talk:
        """Data from the client, or ``back`` from the server, in segments of some size."""
        for start in range(0, len(data), size):
            self._packet(int(back), ACK, data[start : start + size])
            self.next[back] = (self.next[back] + len(data[start : start + size])) % 2**32
        return self

    def _packet(self, back: int, flags: int, payload: bytes) -> None:
        (source, sport), (target, dport) = self.ends[::-1] if back else self.ends
        self.packets.append(
            Packet(source, target, TCP, sport, dport, flags, self.next[back], payload)
        )


def tunnel(client: str = A1, server: str = A2, port: int = 15008) -> Talk:
    """A connection that speaks TLS."""
    return Talk(client, server, port).open().say(HELLO).say(HELLO, back=True)


def plain(client: str, server: str, port: int = 8080) -> Talk:
    """A request with a mark, and its answer."""
    request = b"GET /demo HTTP/1.1\r\nx-mark: " + MARK.encode() + b"...\r\n\r\n"
    talk = Talk(client, server, port).open().say(request, size=40)
    return talk.say(b"HTTP/1.1 200 OK\r\n\r\n" + MARK.encode() + b"." * 900, back=True)


def look(*talks: Talk, more: Iterable[Packet] = (), members: tuple[str, ...] = (A1, A2)) -> Wire:
    """What a capture of these shows."""
    packets = [*(p for talk in talks for p in talk.packets), *more]
    return Wire(packets, {*members, VIP}, TOKEN)


def test_tls_to_15008_is_all_there_may_be() -> None:
    wire = look(tunnel(), tunnel(A2, A1), plain(B1, B2))
    report = wire.report(lost=0, read_by="x", pcap="y")
    assert report.ok
    assert (report.ports, report.tls_records, report.not_tls) == ((15008,), 12, ())
    assert (report.plaintext_in_mesh, report.plaintext_elsewhere) == (0, 2)
    assert report.packets == len(tunnel().packets) * 2 + len(plain(B1, B2).packets)
    assert wire.marks[MARK] == 2
    assert (wire.ports(A1, A2), wire.ports(B1, B2), wire.ports(B2, B1)) == ((15008,), (8080,), ())
    assert wire.fault_between(A1, A2) is None


def test_a_lost_packet_means_that_nothing_is_proved() -> None:
    assert not look(tunnel()).report(lost=1, read_by="x", pcap="y").ok


def test_a_mark_between_pods_of_the_mesh_spoils_it_wherever_it_is() -> None:
    for port in (15008, 8080):
        wire = look(tunnel(), plain(A2, A1, port))
        report = wire.report(lost=0, read_by="x", pcap="y")
        assert not report.ok
        assert report.plaintext_in_mesh == 2
        assert wire.fault_between(A1, A2) == wire.fault_between(A2, A1)
        why = "not TLS" if port == 15008 else "port 8080"
        assert report.not_tls == (f"{A2} -> {A1}: {why}",)


def test_a_mark_is_found_across_packets_out_of_order_and_counted_once() -> None:
    talk = plain(B1, A2)
    again = [p for p in talk.packets if p.payload]
    for seed in range(20):
        packets = [*talk.packets[2:], *again]
        random.Random(seed).shuffle(packets)
        wire = look(more=[*talk.packets[:2], *packets])
        assert wire.marks[MARK] == 2, seed


def test_a_mark_in_something_else_than_tcp_is_found() -> None:
    datagram = Packet(A1, A2, 17, 0, 0, 0, 0, MARK.encode())
    wire = look(more=[datagram])
    assert (wire.marks_in_mesh, wire.marks[MARK]) == (1, 1)
    assert wire.fault_between(A2, A1) == f"{A1} -> {A2}: IP protocol 17"


@pytest.mark.parametrize(
    "talk, fault",
    [
        (tunnel(port=15006), "port 15006"),
        (Talk(A1, A2, 15008).open().say(b"SSH-2.0-x\r\n"), "not TLS"),
        (Talk(A1, A2, 15008).open().say(HELLO + b"more"), "not TLS"),
        (Talk(A1, A2, 15008).open().say(HELLO).say(b"HTTP/1.1 400\r\n", back=True), "not TLS"),
        (Talk(A1, VIP, 80).open(), "port 80"),
    ],
)
def test_what_is_not_tls_to_15008_is_named(talk: Talk, fault: str) -> None:
    wire = look(talk)
    assert list(wire.not_tls.values()) == [f"{A1} -> {talk.ends[1][0]}: {fault}"]
    assert not wire.report(lost=0, read_by="x", pcap="y").ok


def test_bytes_that_were_not_captured_are_a_fault() -> None:
    talk = tunnel()
    del talk.packets[4]
    assert "packets are missing" in str(look(talk).fault_between(A1, A2)) or "not TLS" in str(
        look(talk).fault_between(A1, A2)
    )
    cut = Talk(A1, A2, 15008).open().say(record(95) + record(95), size=100)
    del cut.packets[2]
    assert look(cut).fault_between(A1, A2) == f"{A1} -> {A2}: packets are missing"


def test_a_connection_from_before_the_capture_is_recognised() -> None:
    """Its first packet may begin inside a record, and nobody saw who opened it."""
    for skip in range(3, 9):
        talk = Talk(A1, A2, 15008, sport=13_000).open().say(HELLO, size=90)
        talk.say(record(700), size=90)
        wire = look(more=talk.packets[skip:])
        assert wire.fault_between(A1, A2) is None, skip
        assert wire.ports(A1, A2) == (15008,)
        assert wire.ports(A2, A1) == ()


def test_who_listens_is_seen_also_when_the_answer_comes_first() -> None:
    wire = look(more=tunnel(A2, A1).packets[:0:-1])
    assert (wire.ports(A2, A1), wire.ports(A1, A2)) == ((15008,), ())


def test_a_port_that_is_used_again_is_another_connection() -> None:
    first, second = plain(B1, B2), plain(B1, B2)
    second.packets = [p._replace(sequence=(p.sequence + 7_777_777) % 2**32) for p in second.packets]
    assert look(first, second).marks[MARK] == 4


def test_an_empty_connection_says_nothing() -> None:
    wire = look(Talk(A1, A2, 15008).open())
    assert wire.report(lost=0, read_by="x", pcap="y").ok
    assert wire.tls_records == 0


@pytest.mark.parametrize(
    "data, from_start, expected",
    [
        (b"", True, (0, None)),
        (HELLO, True, (3, None)),
        (HELLO[:-1], True, (3, None)),
        (HELLO[:303], True, (1, None)),
        (HELLO + HELLO[:2], True, (3, None)),
        (HELLO[1:], True, (0, "not TLS")),
        (HELLO[1:], False, (2, None)),
        (record(16_641), True, (0, "not TLS")),
        (record(16_640), True, (1, None)),
        (b"GET / HTTP/1.1\r\n", True, (0, "not TLS")),
        (b"GET / HTTP/1.1\r\n" * 2_000, False, (0, "not TLS")),
    ],
)
def test_records(data: bytes, from_start: bool, expected: tuple[int, str | None]) -> None:
    assert tls_records(data, from_start=from_start) == expected


@settings(deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_have_an_answer(data: bytes, from_start: bool) -> None:
    records, fault = tls_records(data, from_start=from_start)
    assert (records > 0) is (fault is None) or not data or from_start


@settings(deadline=None)
@given(st.text("abcdefghijklmnopqrstuvwxyz <>/\r\n.:", min_size=1, max_size=300))
def test_text_is_never_taken_for_tls(text: str) -> None:
    for from_start in (True, False):
        assert tls_records(text.encode(), from_start=from_start) == (0, "not TLS")
