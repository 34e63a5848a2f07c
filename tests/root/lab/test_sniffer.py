"""Packets on a link, into a file."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.errors import NotFound
from nodenet.lab import pcap, scapy_reader, sniffer
from nodenet.lab.sniffer import CaptureFailed, Sniffer
from nodenet.lab.topology import Namespace, Topology

pytestmark = [pytest.mark.root]

LEFT, RIGHT = "10.99.0.1", "10.99.0.2"


@pytest.fixture
def pair() -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces with a link; the sniffer listens in the second."""
    with Topology() as net:
        yield net.pair()


def _send(source: Namespace, target: str, *payloads: bytes) -> None:
    with source.entered():
        sock = socket.socket(
            socket.AF_INET6 if ":" in target else socket.AF_INET, socket.SOCK_DGRAM
        )
    with sock:
        for payload in payloads:
            sock.sendto(payload, (target, 9))


def _payloads(path: Path) -> list[bytes]:
    """Of the UDP packets between the two, without their headers."""
    return [p.payload[8:] for p in pcap.read(path) if p.protocol == 17]


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_comes_in_is_written_whole_and_in_order(
    pair: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    left, right = pair
    path = tmp_path / "x.pcap"
    sent = [os.urandom(size) for size in (0, 1, 1_000, 1_400)]
    before = _files(), threading.active_count()
    with Sniffer(right.name, path) as heard:
        _send(left, RIGHT, *sent)
        _send(left, "fd99::2", b"six")
    assert _payloads(path) == [*sent, b"six"]
    assert heard.lost == 0
    assert list(scapy_reader.read(path)) == list(pcap.read(path))
    files, threads = _files(), threading.active_count()
    assert files <= before[0] and threads <= before[1]


def test_what_goes_out_is_not_heard(pair: tuple[Namespace, Namespace], tmp_path: Path) -> None:
    """A router hears each packet when it comes; when it leaves it would be a second one."""
    left, right = pair
    path = tmp_path / "x.pcap"
    with Sniffer(right.name, path):
        _send(right, LEFT, b"out")
        _send(left, RIGHT, b"in")
    assert _payloads(path) == [b"in"]


def test_a_stream_larger_than_a_packet_is_there_to_the_last_byte(
    pair: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    left, right = pair
    path = tmp_path / "x.pcap"
    data = os.urandom(3_000_000)
    with Sniffer(right.name, path) as heard:
        with right.entered():
            listener = socket.create_server((RIGHT, 0))
        with listener:
            with left.entered():
                client = socket.create_connection(listener.getsockname(), timeout=30)
            server, _ = listener.accept()
            with client, server:
                reader = threading.Thread(target=lambda: server.recv(1 << 22, socket.MSG_WAITALL))
                reader.start()
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                reader.join(60)
    assert heard.lost == 0
    segments = {p.sequence: p.payload for p in pcap.read(path) if p.payload and p.target == RIGHT}
    first = min(segments)
    assert max(segments) - first < 2**31  # did not wrap: sorted is in order
    assert b"".join(segments[key] for key in sorted(segments)) == data


def test_an_old_capture_is_replaced(pair: tuple[Namespace, Namespace], tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(b"x" * 10_000)
    with Sniffer(pair[1].name, path):
        pass
    assert _payloads(path) == []


def test_packets_that_the_file_has_no_room_for_are_counted(
    pair: tuple[Namespace, Namespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sniffer, "MAX_FILE_BYTES", 5_000)
    path = tmp_path / "x.pcap"
    with Sniffer(pair[1].name, path) as heard:
        _send(pair[0], RIGHT, *[b"x" * 1_000] * 9)
    assert 0 < len(_payloads(path)) < 5
    assert heard.lost >= 9 - len(_payloads(path))


def test_a_full_disk_is_an_error(pair: tuple[Namespace, Namespace]) -> None:
    with pytest.raises(CaptureFailed, match="/dev/full: No space left on device"):
        with Sniffer(pair[1].name, Path("/dev/full")):
            _send(pair[0], RIGHT, *[b"x" * 1_000] * 20)


def test_an_error_of_the_block_comes_first(pair: tuple[Namespace, Namespace]) -> None:
    before = _files()
    with pytest.raises(ZeroDivisionError), Sniffer(pair[1].name, Path("/dev/full")):
        _ = 1 // 0
    assert _files() == before


def test_a_namespace_that_is_not_there(tmp_path: Path) -> None:
    before = _files()
    with pytest.raises(NotFound), Sniffer("nn-none-here", tmp_path / "x.pcap"):
        pass
    assert _files() == before
