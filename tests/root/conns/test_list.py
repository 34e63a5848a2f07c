"""conn list and show: every socket once, whatever its age and its namespace."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodenet.capture.records import PodRecord
from nodenet.capture.session import Capture
from nodenet.cli.conn_detail import ConnectionDetail
from nodenet.conns.connection import Connection
from nodenet.conns.filters import Filter
from nodenet.conns.query import flat, open_connections
from nodenet.conns.reader import ConnReader
from nodenet.kernel.netns import NetNs
from nodenet.kernel.sock_diag import ALL_STATES, SockDiag
from nodenet.paths import Instance
from tests.root.dialling import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NODENET = str(Path(sys.executable).with_name("nodenet"))
Enrol = Callable[..., PodRecord]
Answer = Callable[..., Any]
_SERVE = (
    "import socket, sys, time\n"
    "listener = socket.create_server(('0.0.0.0', int(sys.argv[1])))\n"
    "print('ready', flush=True)\n"
    "held = []\n"
    "while True: held.append(listener.accept()[0])\n"
)


def cookie(sock: socket.socket) -> str:
    """The id a socket has everywhere."""
    return f"{struct.unpack('<Q', sock.getsockopt(socket.SOL_SOCKET, 57, 8))[0]:x}"


def seen_by_ss(namespace: Any, *words: str) -> set[str]:
    """Ids of TCP sockets as ss prints them."""
    text = namespace.run("ss", "-tneOH", *words).stdout
    return set(re.findall(r"\bsk:([0-9a-f]+)", text))


def test_both_families_ids_and_process(scene: Any, enrol: Enrol, answer: Answer) -> None:
    enrol()
    four, _ = scene.pair()
    six, _ = scene.pair("fd99::2")
    rows = answer(list[Connection], "conn", "list")
    assert [row.id for row in rows] == [cookie(four), cookie(six)]
    assert {row.id for row in rows} == seen_by_ss(scene.pod)
    assert [row.family for row in rows] == [4, 6]
    assert {row.process for row in rows} == {f"{rows[0].comm}[{os.getpid()}]"}
    assert rows[1].local.startswith("[fd99::1]:") and rows[1].remote == "[fd99::2]:8080"


def test_watching_shows_only_what_changes(scene: Any, enrol: Enrol, instance: Instance) -> None:
    enrol()
    quiet, _ = scene.pair()
    busy, server = scene.pair()
    still, moving = cookie(quiet), cookie(busy)
    child = subprocess.Popen(
        [NODENET, "--id", instance.id or "", "conn", "list", "-j", "-w", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        lines = [json.loads(child.stdout.readline()) for _ in range(2)]
        busy.sendall(b"x")
        assert server.recv(1) == b"x"
        lines.append(json.loads(child.stdout.readline()))
        quiet.close()
        # the acknowledgement may come a round after the byte
        while lines[-1]["change"] != "gone":
            lines.append(json.loads(child.stdout.readline()))
    finally:
        child.send_signal(2)
        assert child.wait(60) == 0
        child.stdout.close()
    changes = {(line["change"], line["id"]) for line in lines}
    # its close may be seen half-way, as a change of state
    assert changes - {("changed", still)} == {
        ("added", still), ("added", moving), ("changed", moving), ("gone", still),
    }  # fmt: skip
    half = [line["state"] for line in lines if (line["change"], line["id"]) == ("changed", still)]
    assert "established" not in half


def test_filters_work_on_what_is_there(scene: Any, enrol: Enrol, answer: Answer) -> None:
    enrol()
    four, _ = scene.pair()
    six, _ = scene.pair("fd99::2")

    def ids(*words: str) -> list[str]:
        return [row.id for row in answer(list[Connection], "conn", "list", *words)]

    assert ids("-4") == ids("--peer", "10.99.0.0/16") == ids("--peer", "!fd99::/64")
    assert ids("-6") == [cookie(six)]
    assert ids("-4", "-6") == ids("--port", "8080") == ids("--pod", "t/p") == ids()
    assert ids("--process", str(os.getpid()), "--state", "established", "--dir", "out") == ids()
    assert ids("--via", "ebpf") == ids("--dir", "in") == ids("--since", "0s") == []
    assert ids("--since", "10m", "--reason", "proxy-down", "-4") == [cookie(four)]


def test_older_than_the_enrolment(scene: Any, enrol: Enrol, answer: Answer) -> None:
    """Counters from a socket dump, corrected as the kernel programs correct theirs."""
    old, far = scene.pair()
    inbound_listener = scene.stack.enter_context(_listening_in(scene.pod, 9000))
    with scene.outside.entered():
        caller = scene.stack.enter_context(socket.create_connection(("10.99.0.1", 9000)))
    accepted = scene.stack.enter_context(inbound_listener.accept()[0])
    record = enrol()
    new, _ = scene.pair()
    old.sendall(b"x" * 5000)
    far.sendall(b"y" * 70)
    assert len(old.recv(70, socket.MSG_WAITALL)) == 70
    assert len(far.recv(5000, socket.MSG_WAITALL)) == 5000
    caller.sendall(b"z" * 30)
    assert len(accepted.recv(30, socket.MSG_WAITALL)) == 30
    rows = {row.id: row for row in answer(list[Connection], "conn", "list")}
    assert set(rows) == {cookie(old), cookie(new), cookie(accepted)}
    out, into = rows[cookie(old)], rows[cookie(accepted)]
    assert (out.reason, out.captured_by, out.rule) == ("pre-enrolment", "none", None)
    assert (out.start, out.duration_us, out.pod) == (None, None, "t/pod")
    assert (out.dir, out.bytes_sent, out.bytes_received) == ("out", 5000, 70)
    assert (into.dir, into.bytes_sent, into.bytes_received) == ("in", 0, 30)
    assert out.pid == into.pid == os.getpid() and out.netns_cookie == str(record.netns_cookie)
    assert rows[cookie(new)].reason != "pre-enrolment"
    found = answer(list[Connection], "conn", "list", "--reason", "pre-enrolment")
    assert {row.id for row in found} == {cookie(old), cookie(accepted)}
    # without a start they stand first, and a sort by start does not fail
    assert answer(list[Connection], "conn", "list")[-1].id == cookie(new)
    assert answer(list[Connection], "conn", "list", "--sort", "start")[0].id == cookie(new)


def _listening_in(namespace: Any, port: int) -> socket.socket:
    with namespace.entered():
        return socket.create_server(("0.0.0.0", port))


def test_no_dump_where_every_socket_has_a_record(
    scene: Any, enrol: Enrol, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dump of a namespace costs as much as the rest of the list."""
    dumps: list[set[int]] = []
    dump = SockDiag.dump_tcp

    def counting(self: SockDiag, states: Any = ALL_STATES, *rest: Any) -> Any:
        dumps.append(set(states))
        return dump(self, states, *rest)

    scene.stack.enter_context(_listening_in(scene.pod, 9000))
    enrol()
    scene.pair()
    monkeypatch.setattr(SockDiag, "dump_tcp", counting)
    rows = flat(open_connections(ConnReader(instance), Filter()))
    assert len(rows) == 1 and dumps == []
    # TIME_WAIT is no connection of anybody and no reason to look
    client, server = scene.pair()
    client.close()
    server.close()
    wait_for(lambda: ConnReader(instance).counters().live == 1, "the other one is closed")
    assert len(flat(open_connections(ConnReader(instance), Filter()))) == 1
    assert dumps == []


def test_a_listener_older_than_the_enrolment_is_named(
    scene: Any, capture: Capture, enrol: Enrol, answer: Answer
) -> None:
    child = scene.pod.popen([sys.executable, "-c", _SERVE, "9001"], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"ready\n"
        enrol()
        with scene.outside.entered():
            scene.stack.enter_context(socket.create_connection(("10.99.0.1", 9001)))
        (row,) = answer(list[Connection], "conn", "list", "--dir", "in")
        assert row.pid == child.pid
        assert answer(ConnectionDetail, "conn", "show", row.id).pid == child.pid
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_all_is_every_tcp_socket_of_every_namespace(
    scene: Any, enrol: Enrol, answer: Answer
) -> None:
    enrol()
    client, server = scene.pair()
    gone, gone_server = scene.pair()
    gone_server.close()
    gone.close()
    rows = answer(list[Connection], "conn", "list", "--all")
    assert len(rows) == len({row.id for row in rows})
    for namespace in (scene.pod, scene.outside):
        with NetNs.open(namespace.path) as ns:
            here = {row.id for row in rows if row.netns_cookie == str(ns.cookie())}
        assert here == seen_by_ss(namespace, "-a")
    by_id = {row.id: row for row in rows}
    assert by_id[cookie(client)].reason == "proxy-down"
    other = by_id[cookie(server)]
    assert (other.pod, other.reason, other.rule, other.dir) == (None, "not-enrolled", "I3", "in")
    assert other.peer_name == "t/pod" and other.pid == os.getpid()
    listener = by_id[cookie(scene.listener)]
    assert (listener.state, listener.dir, listener.reason) == ("listen", None, None)


def test_show_open_and_closed(
    scene: Any, enrol: Enrol, answer: Answer, nodenet: Callable[..., Any]
) -> None:
    enrol()
    client, server = scene.pair()
    ident = cookie(client)
    assert answer(ConnectionDetail, "conn", "show", ident).state == "established"
    assert answer(ConnectionDetail, "conn", "show", f"sk:{ident}").id == ident
    client.close()
    server.close()
    ended = answer(ConnectionDetail, "conn", "show", ident)
    assert (ended.state, ended.end_reason, ended.end_by) == ("closed", "fin", "local")
    (listed,) = answer(list[Connection], "conn", "list", "--closed")
    assert msgspec.structs.asdict(listed) | {"ztunnel": None} == msgspec.structs.asdict(ended)
    text = nodenet("conn", "show", ident).stdout
    assert re.search(rf"^  id: +{ident}$", text, re.M) and "kernel\n  state:" in text
    refused = nodenet("conn", "show", "ffffffffffff", check=False)
    assert refused.returncode == 4
    assert refused.stderr == (
        "nodenet: no connection ffffffffffff: closed or never seen (kept: the last 16384); "
        "try: nodenet conn watch\n"
    )


def test_more_closed_ones_than_are_kept(
    scene: Any, enrol: Enrol, answer: Answer, instance: Instance
) -> None:
    """16 384 are kept; how many are not is known exactly."""
    enrol()
    count = 16_384 + 100
    with scene.pod.entered():
        for _ in range(count):
            with socket.create_connection(("10.99.0.2", 8080)) as client:
                scene.listener.accept()[0].close()
                client.recv(1)
    # the last one may be about to close still
    wait_for(lambda: ConnReader(instance).counters().closed >= count, "all are closed")
    counters = ConnReader(instance).counters()
    assert (counters.closed, counters.closed_kept, counters.evicted) == (count, 16_384, 100)
    assert counters.live == 0
    rows = answer(list[Connection], "conn", "list", "--closed")
    assert len({row.id for row in rows}) == 16_384
    starts = [row.start for row in rows]
    assert starts == sorted(starts)
    by_peer = answer(dict[str, Any], "conn", "summary", "--by", "peer")
    assert by_peer["evicted"] == 100 and by_peer["totals"]["closed"] == 16_384
    by_pod = answer(dict[str, Any], "conn", "summary")
    assert by_pod["evicted"] == 0 and by_pod["totals"]["closed"] == count


def test_summary_adds_up(scene: Any, enrol: Enrol, answer: Answer) -> None:
    enrol(on_proxy_down="closed")
    with pytest.raises(ConnectionRefusedError):
        scene.connect()
    enrol(on_proxy_down="open")
    held, far = scene.pair()
    held.sendall(b"x" * 1000)
    assert len(far.recv(1000, socket.MSG_WAITALL)) == 1000
    done, other = scene.pair("fd99::2")
    done.sendall(b"y" * 500)
    assert len(other.recv(500, socket.MSG_WAITALL)) == 500
    done.close()
    other.close()
    with pytest.raises(ConnectionRefusedError):
        scene.connect(port=9)
    report = answer(dict[str, Any], "conn", "summary")
    (row,) = report["rows"]
    assert report["ok"] is True and report["since"] is not None
    assert (row["pod"], row["open"], row["new"], row["closed"], row["failed"]) == (
        "t/pod", 1, 3, 2, 2,
    )  # fmt: skip
    assert (row["bytes_sent"], row["bytes_received"], row["plain_percent"]) == (1500, 0, 100.0)
    edges = answer(dict[str, Any], "conn", "summary", "--by", "edge")["rows"]
    assert {(r["pod"], r["peer"], r["open"], r["failed"]) for r in edges} == {
        ("t/pod", "10.99.0.2:8080", 1, 0),
        ("t/pod", "[fd99::2]:8080", 0, 0),
        ("t/pod", "10.99.0.2:9", 0, 1),
    }
    recent = answer(dict[str, Any], "conn", "summary", "--since", "10m")["rows"]
    assert [(r["new"], r["closed"]) for r in recent] == [(3, 2)]


def test_a_pod_that_left_keeps_its_closed_connections(
    scene: Any, capture: Capture, enrol: Enrol, answer: Answer
) -> None:
    record = enrol()
    client, server = scene.pair()
    client.close()
    server.close()
    capture.unenroll(record.netns_cookie)
    (row,) = answer(list[Connection], "conn", "list", "--closed")
    assert (row.pod, row.netns_cookie) == (None, str(record.netns_cookie))
    words = ("conn", "list", "--closed", "--pod", f"netns:{record.netns_cookie}")
    assert answer(list[Connection], *words) == [row]


def test_json_survives_a_name_of_any_bytes(scene: Any, enrol: Enrol, nodenet: Any) -> None:
    enrol()
    renamed = (
        "import socket; open('/proc/self/comm', 'wb').write(b'\\xff\"\\x1b\\n');"
        "s = socket.create_connection(('10.99.0.2', 8080)); print(s.getpeername()[1], flush=True);"
        "input()"
    )
    child = scene.pod.popen(
        [sys.executable, "-c", renamed], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        assert child.stdout.readline() == b"8080\n"
        (row,) = json.loads(nodenet("conn", "list", "-j").stdout)
        assert row["comm"] == '�"\x1b\n'
        table = nodenet("conn", "list").stdout
        assert "\x1b" not in table and table.count("\n") == 2
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stdin.close()
