"""Events from the kernel: every kind, one reader, nothing lost in silence."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodenet import abi
from nodenet.capture.records import PodRecord
from nodenet.capture.session import Capture
from nodenet.conns.events import WANTED_SECONDS, Event, EventReader, Lost, ReaderBusy
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NODENET = str(Path(sys.executable).with_name("nodenet"))
_READ_ONE_FOR_EVER = (
    "import sys; from nodenet.paths import Instance; from nodenet.conns.events import EventReader\n"
    "with EventReader(Instance(sys.argv[1])) as reader:\n"
    "    print('reading', flush=True)\n"
    "    for batch in reader: pass\n"
)


def _read_until(reader: EventReader, enough: Callable[[list[Event | Lost]], bool]) -> list[Event]:
    """Events until a condition holds, for at most 30 seconds."""
    found: list[Event | Lost] = []
    end = time.monotonic() + 30
    while not enough(found):
        assert time.monotonic() < end, found
        found += reader.read(0.2)
    assert not [item for item in found if isinstance(item, Lost)]
    return [item for item in found if isinstance(item, Event)]


@pytest.mark.parametrize("host", ["10.99.0.2", "fd99::2"])
def test_the_life_of_a_connection(
    scene: Any, enrol: Callable[..., PodRecord], instance: Instance, host: str
) -> None:
    enrol()
    with EventReader(instance) as reader:
        client, server = scene.pair(host)
        (cookie,) = struct.unpack("<Q", client.getsockopt(socket.SOL_SOCKET, 57, 8))
        client.sendall(b"x" * 1000)
        assert len(server.recv(1000, socket.MSG_WAITALL)) == 1000
        server.close()
        assert client.recv(1) == b""
        client.close()
        events = _read_until(reader, lambda found: len(found) >= 3)
    assert [e.event for e in events] == ["open", "established", "closed"]
    assert {e.id for e in events} == {f"{cookie:x}"}
    assert {e.pid for e in events} == {os.getpid()}
    opened, established, closed = events
    assert opened.time == opened.start
    assert opened.time <= established.time <= closed.time == closed.end
    assert (closed.bytes_sent, closed.bytes_received) == (1000, 0)
    assert (closed.end_reason, closed.end_by, closed.pod) == ("fin", "peer", "t/pod")
    assert opened.end is None and opened.state == "syn-sent"


def test_refused_by_the_capture_and_by_the_peer(
    scene: Any, enrol: Callable[..., PodRecord], instance: Instance
) -> None:
    enrol(on_proxy_down="closed")
    with EventReader(instance, ["refused", "closed"]) as reader:
        with pytest.raises(ConnectionRefusedError):
            scene.connect()
        enrol(on_proxy_down="open")
        with pytest.raises(ConnectionRefusedError):
            scene.connect(port=9)
        ours, theirs = _read_until(reader, lambda found: len(found) >= 2)
    assert (ours.event, ours.reason, ours.rule) == ("refused", "proxy-down", "O7")
    assert (ours.errno, ours.end_reason, ours.end_by) == ("ECONNREFUSED", "refused", "local")
    assert ours.local == "10.99.0.1:0" and ours.remote == "10.99.0.2:8080"
    assert (theirs.event, theirs.end_reason, theirs.end_by) == ("closed", "refused", "peer")
    assert (theirs.errno, theirs.remote) == ("ECONNREFUSED", "10.99.0.2:9")


def test_only_the_kinds_asked_for_are_written(
    scene: Any, enrol: Callable[..., PodRecord], instance: Instance, capture: Capture
) -> None:
    enrol()
    with EventReader(instance, ["closed"]) as reader:
        client, server = scene.pair()
        client.close()
        server.close()
        events = _read_until(reader, bool)
    assert [e.event for e in events] == ["closed"]
    wanted = capture.maps["watch"]
    kinds = {abi.INDEX_KEY.unpack(k)["index"]: v for k, v in wanted.items()}
    assert all(not int.from_bytes(value, "little") for value in kinds.values())


def test_what_was_there_before_is_not_seen(
    scene: Any, enrol: Callable[..., PodRecord], instance: Instance
) -> None:
    enrol()
    with EventReader(instance):
        client, _server = scene.pair()
        # left unread by this reader
    with EventReader(instance) as reader:
        client.close()
        _server.close()
        events = _read_until(reader, bool)
    assert [e.event for e in events] == ["closed"]


def test_one_reader_at_a_time(capture: Capture, instance: Instance) -> None:
    with EventReader(instance, who="conn watch"):
        with pytest.raises(ReaderBusy) as raised, EventReader(instance):
            pass
        assert raised.value.line() == (
            f"events are being read by pid {os.getpid()} (conn watch); one reader at a time"
        )
        assert raised.value.exit_code == 1
        second = subprocess.run(
            [NODENET, "--id", instance.id or "", "conn", "watch", "--timeout", "1s"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (second.returncode, second.stderr.strip()) == (
            1, f"nodenet: {raised.value.line()}"
        )  # fmt: skip
    with EventReader(instance):
        pass


def test_a_killed_reader_frees_the_lock_and_the_kernel_stops(
    scene: Any, enrol: Callable[..., PodRecord], instance: Instance, capture: Capture
) -> None:
    enrol()
    child = subprocess.Popen(
        [sys.executable, "-c", _READ_ONE_FOR_EVER, instance.id or ""], stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"reading\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    deadline = int.from_bytes(
        capture.maps["watch"].lookup(abi.INDEX_KEY.pack(index=4)) or b"", "little"
    )
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert now < deadline <= now + WANTED_SECONDS * 1e9
    with EventReader(instance) as reader:
        client, server = scene.pair()
        client.close()
        server.close()
        assert _read_until(reader, lambda found: len(found) >= 3)


def test_lost_events_are_an_event(
    scene: Any, enrol: Callable[..., PodRecord], instance: Instance, capture: Capture
) -> None:
    """Nobody drains while more is written than the ring holds."""
    enrol()
    host, port = "10.99.0.2", 8080
    with EventReader(instance) as reader:
        # so that the deadline does not end the writing before the ring is full
        reader._want(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 60 * 10**9)
        room = abi.EVENTS_BYTES // (abi.EVENT.size + 8)
        lost = 0
        connections = 0
        with scene.pod.entered():
            while not lost:
                assert connections < room
                for _ in range(200):
                    with socket.create_connection((host, port)) as client:
                        scene.listener.accept()[0].close()
                        client.recv(1)
                    connections += 1
                lost = _lost(capture)
        found = reader.poll()
        assert 0.9 * room < sum(isinstance(item, Event) for item in found) <= room
        # the last of them may be about to close still
        end = time.monotonic() + 30
        while (told := _told(found)) != 3 * connections:
            assert time.monotonic() < end, f"{told} events of {connections} connections"
            found += reader.read(0.2)
    gone = [item.count for item in found if isinstance(item, Lost)]
    assert None not in gone
    assert gone[0] and gone[0] >= lost


def _told(found: list[Event | Lost]) -> int:
    """How many events are there or counted as lost."""
    return sum((item.count or 0) if isinstance(item, Lost) else 1 for item in found)


def _lost(capture: Capture) -> int:
    values = capture.maps["stat"].lookup_percpu(abi.INDEX_KEY.pack(index=abi.Stat.EVENTS_LOST))
    return sum(int.from_bytes(value, "little") for value in values or [])


def test_a_reader_that_was_held_up_says_so(capture: Capture, instance: Instance) -> None:
    with EventReader(instance) as reader:
        reader._wanted_until = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 1
        (gone,) = reader.poll()
    assert isinstance(gone, Lost) and gone.count is None


def test_watch_prints_json_lines(
    scene: Any, enrol: Callable[..., PodRecord], instance: Instance
) -> None:
    enrol()
    words = ["conn", "watch", "-j", "--events", "open,closed", "--until-count", "2"]
    child = subprocess.Popen(
        [NODENET, "--id", instance.id or "", *words, "--timeout", "30s"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _await_lock(instance, kinds=2)
        client, server = scene.pair()
        client.close()
        server.close()
        out, _ = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    first, second = [json.loads(line) for line in out.splitlines()]
    assert (first["event"], second["event"]) == ("open", "closed")
    assert first["id"] == second["id"] and child.returncode == 0


def _await_lock(instance: Instance, kinds: int) -> None:
    """Until a reader has set its deadlines: the watch map holds one for each kind."""
    end = time.monotonic() + 30
    with Capture.open(instance) as capture:
        while sum(any(value) for _, value in capture.maps["watch"].items()) < kinds:
            assert time.monotonic() < end
            time.sleep(0.01)
