"""Reading packets: ours and scapy's way must tell the same of the same frames."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Ether
from scapy.utils import RawPcapReader

from nodenet.lab import pcap, scapy_reader
from nodenet.lab.pcap import Packet

#: With addresses, or scapy would look for them on this host's links.
ETHER: Any = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
V4: Any = IP(src="10.77.1.2", dst="10.77.2.2")
V6: Any = IPv6(src="fd77:1::2", dst="fd77:2::2")
SEGMENT: Any = TCP(sport=4000, dport=15008, seq=7, flags="PA", options=[("Timestamp", (1, 2))])
BODY = b"GET / HTTP/1.1\r\n\r\n"


def _expected(version: int, **changes: object) -> Packet:
    source, target = ("10.77.1.2", "10.77.2.2") if version == 4 else ("fd77:1::2", "fd77:2::2")
    found = Packet(source, target, pcap.TCP, 4000, 15008, 0x18, 7, BODY)
    return found._replace(**changes)  # type: ignore[arg-type]


CASES: list[tuple[Any, Packet | None]] = [
    (V4 / SEGMENT / BODY, _expected(4)),
    (V6 / SEGMENT / BODY, _expected(6)),
    (V4 / TCP(sport=4000, dport=15008, seq=6, flags="S"),
     _expected(4, flags=pcap.SYN, sequence=6, payload=b"")),
    (IP(src="10.77.1.2", dst="10.77.2.2", options=[b"\x01" * 4]) / SEGMENT / BODY, _expected(4)),
    (V6 / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / SEGMENT / BODY, _expected(6)),
    (V6 / IPv6ExtHdrFragment(offset=0, m=1) / SEGMENT / BODY, _expected(6)),
    (V4 / UDP(sport=53, dport=53) / b"x", None),
    (V4 / ICMP(), None),
    (V6 / UDP(sport=53, dport=53) / b"x", None),
    (V4 / SEGMENT / (b"x" * 40_000), _expected(4, payload=b"x" * 40_000)),
]  # fmt: skip


def _write(path: Path, *frames: bytes) -> Path:
    with path.open("wb") as file:
        file.write(pcap.file_header())
        for number, frame in enumerate(frames):
            file.write(pcap.packet_header(1_700_000_000_000_000_007 + number, len(frame)) + frame)
    return path


@pytest.mark.parametrize("packet, expected", CASES)
def test_a_packet_is_read_as_scapy_reads_it(
    packet: Any, expected: Packet | None, tmp_path: Path
) -> None:
    frame = bytes(ETHER / packet)
    path = _write(tmp_path / "x.pcap", frame)
    [ours], [theirs] = list(pcap.read(path)), list(scapy_reader.read(path))
    if expected is None:  # not TCP: the bytes above IP
        version, above = packet.version, bytes(packet.payload)
        protocol = packet.proto if version == 4 else packet.nh
        expected = _expected(version, protocol=protocol, payload=above)
        expected = expected._replace(source_port=0, target_port=0, flags=0, sequence=0)
    assert ours == expected
    assert theirs == expected


def test_a_later_fragment_has_no_ports(tmp_path: Path) -> None:
    """Its bytes are not a TCP header, whatever they look like."""
    rest = bytes(SEGMENT / BODY)
    for packet in (
        IP(src="10.77.1.2", dst="10.77.2.2", frag=100, proto=pcap.TCP) / rest,
        V6 / IPv6ExtHdrFragment(offset=100, nh=pcap.TCP) / rest,
    ):
        path = _write(tmp_path / "x.pcap", bytes(ETHER / packet))
        [found] = pcap.read(path)
        assert [found] == list(scapy_reader.read(path))
        assert (found.protocol, found.source_port, found.payload) == (pcap.TCP, 0, rest)


def test_extension_headers_of_something_else_are_not_its_bytes(tmp_path: Path) -> None:
    packet = V6 / IPv6ExtHdrHopByHop() / UDP(sport=1, dport=2) / b"x"
    path = _write(tmp_path / "x.pcap", bytes(ETHER / packet))
    [ours], [theirs] = list(pcap.read(path)), list(scapy_reader.read(path))
    assert ours == theirs
    assert (ours.protocol, ours.payload[8:]) == (17, b"x")


def test_padding_belongs_to_nobody(tmp_path: Path) -> None:
    frame = bytes(ETHER / V4 / SEGMENT / b"!") + b"\0" * 7
    path = _write(tmp_path / "x.pcap", frame)
    assert [p.payload for p in pcap.read(path)] == [b"!"]
    assert [p.payload for p in scapy_reader.read(path)] == [b"!"]


def test_other_frames_are_passed_over(tmp_path: Path) -> None:
    frames = [bytes(ETHER / ARP()), b"", b"\0" * 13, bytes(ETHER / V4)[:20]]
    path = _write(tmp_path / "x.pcap", *frames, bytes(ETHER / V6 / SEGMENT / BODY))
    assert list(pcap.read(path)) == [_expected(6)]


def test_the_file_is_what_other_tools_read(tmp_path: Path) -> None:
    frame = bytes(ETHER / V4 / SEGMENT / BODY)
    with RawPcapReader(str(_write(tmp_path / "x.pcap", frame, frame))) as reader:
        assert reader.nano
        found = list(reader)
    assert [data for data, _ in found] == [frame, frame]
    assert [(meta.sec, meta.usec) for _, meta in found] == [
        (1_700_000_000, 7), (1_700_000_000, 8),
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [0, 10, 23, 30, 39, 60])
def test_a_broken_file_is_an_error(cut: int, tmp_path: Path) -> None:
    path = _write(tmp_path / "x.pcap", bytes(ETHER / V4 / SEGMENT / BODY))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(pcap.CaptureBroken, match="x.pcap"):
        list(pcap.read(path))


@settings(deadline=None)
@given(st.binary(max_size=120), st.sampled_from([b"\x08\x00", b"\x86\xdd", b""]))
def test_no_frame_is_too_odd(rest: bytes, kind: bytes) -> None:
    found = pcap.parse_frame(b"\0" * 12 + kind + rest)
    if found is not None:
        ipaddress.ip_address(found.source)
        assert len(found.payload) <= len(rest)


@settings(deadline=None)
@given(
    st.sampled_from([V4, V6]),
    st.integers(1, 65_535),
    st.integers(1, 65_535),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=64),
)
def test_whatever_tcp_says_is_read(
    ip: Any, sport: int, dport: int, sequence: int, body: bytes
) -> None:
    frame = bytes(ETHER / ip / TCP(sport=sport, dport=dport, seq=sequence, flags="A") / body)
    found = pcap.parse_frame(frame)
    assert found is not None
    assert (found.source_port, found.target_port, found.sequence) == (sport, dport, sequence)
    assert (found.flags, found.payload) == (pcap.ACK, body)


def test_scapy_says_who_it_is() -> None:
    assert scapy_reader.available()
    assert scapy_reader.name().startswith("scapy 2.")
