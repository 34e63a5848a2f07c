"""The lab's applications: exact sizes, and what they say of a connection."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodenet.lab import workload
from tests.interop.peers import free_ports

_WIDEST = "[fd77:20::1b]:65535"


@pytest.mark.parametrize("host", ["10.77.1.2:8080", "[fd77:1::2]:8080", _WIDEST])
def test_a_demo_request_always_has_the_same_size(host: str) -> None:
    request = workload.demo_request(host)
    assert len(request) == workload.REQUEST_BYTES
    assert request.startswith(b"GET /demo HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n")
    assert f"\r\nHost: {host}\r\n".encode() in request


@pytest.mark.parametrize("mark", ["", "nn00112233000a", "m" * workload.MARK_BYTES])
def test_a_mark_changes_no_size_and_comes_back(mark: str) -> None:
    for host in ("10.77.1.2:8080", _WIDEST, "h" * 28):
        request = workload.demo_request(host, mark)
        assert len(request) == workload.REQUEST_BYTES
        assert workload.mark_of(request.removesuffix(b"\r\n\r\n")) == mark
    answer = workload.response("/demo", {"pod": "lab/a1"}, mark)
    assert len(answer) == workload.RESPONSE_BYTES
    assert answer.partition(b"\r\n\r\n")[2].startswith(mark.encode())


def test_a_request_without_a_mark_has_none() -> None:
    assert workload.mark_of(b"GET / HTTP/1.1\r\nHost: x") == ""


def test_a_demo_answer_always_has_the_same_size() -> None:
    widest = {
        "pod": "lab/z32",
        "peer": _WIDEST,
        "local": _WIDEST,
        "cookie": "f" * 16,
        "received": 10**9,
    }
    for facts in ({}, {"pod": "lab/a1"}, widest):
        answer = workload.response("/demo", dict(facts))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert len(answer) == workload.RESPONSE_BYTES
        assert int(head.rpartition(b": ")[2]) == len(body)
        assert workload._header(answer) == facts


def test_other_paths_are_for_people() -> None:
    assert workload.response("/", {"pod": "lab/a1"}).endswith(b'\r\n\r\n{"pod": "lab/a1"}\n')
    assert workload.response("/x", {}).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    "address, text",
    [
        (("10.0.0.1", 80), "10.0.0.1:80"),
        (("::ffff:10.0.0.1", 80, 0, 0), "10.0.0.1:80"),
        (("fd77::1", 80, 0, 0), "[fd77::1]:80"),
    ],
)
def test_endpoints(address: tuple[object, ...], text: str) -> None:
    assert workload.endpoint(address) == text


def test_a_call_is_seen_alike_from_both_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer_one() -> None:
            sock, peer = listener.accept()
            workload._answer("lab/x", sock, peer)

        server = threading.Thread(target=answer_one)
        server.start()
        facts, sock = workload.call_one({"address": "127.0.0.1", "port": port}, timeout=30)
        cookie = workload.cookie(sock)
        sock.close()
        server.join(60)
    assert facts["error"] is None
    assert facts["peer"] == f"127.0.0.1:{port}"
    assert facts["cookie"] == cookie
    assert (facts["bytes_sent"], facts["bytes_received"]) == (83, 12_702)
    seen = facts["seen"]
    assert isinstance(seen, dict)
    assert seen["peer"] == facts["local"]
    assert seen["local"] == facts["peer"]
    assert seen["received"] == 83


def _call(*targets: dict[str, object]) -> list[list[dict[str, Any]]]:
    """What ``workload call`` says of these targets."""
    done = subprocess.run(
        [sys.executable, "-m", "nodenet.lab.workload", "call"],
        input=json.dumps(targets) + "\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def test_a_refused_target_is_tried_once_and_the_next_one_still() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    target: dict[str, object] = {"address": "127.0.0.1", "port": port, "count": 3}
    results = _call(target, target, target | {"denied": True})
    assert [len(calls) for calls in results] == [1, 1, 3]
    assert "refused" in results[0][0]["error"]
    assert results[0][0]["saw"] == "failure"


@contextlib.contextmanager
def _serving(answer: Callable[[socket.socket], None]) -> Iterator[dict[str, object]]:
    """A server that lets ``answer`` have each connection in turn; yields it as a target."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):  # the listener is shut down
                while True:
                    sock, _ = listener.accept()
                    with sock:
                        answer(sock)

        server = threading.Thread(target=accept)
        server.start()
        yield {"address": "127.0.0.1", "port": listener.getsockname()[1], "count": 2}
        listener.shutdown(socket.SHUT_RDWR)
        server.join(60)


@pytest.mark.parametrize("how", ["reset", "close"])
def test_how_a_connection_ended_is_told(how: str) -> None:
    def end(sock: socket.socket) -> None:
        sock.recv(workload.REQUEST_BYTES)
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with _serving(end) as target:
        [calls] = _call(target | {"denied": True})
    assert [call["saw"] for call in calls] == [how, how]
    assert [call["bytes_received"] for call in calls] == [0, 0]
    assert all(call["seen"] is None and call["error"] for call in calls)


def test_a_service_is_asked_until_so_many_pods_have_answered() -> None:
    pods = iter(["lab/a1"] * 5 + ["lab/a2"] * 5)

    def answer(sock: socket.socket) -> None:
        sock.recv(workload.REQUEST_BYTES)
        sock.sendall(workload.response("/demo", {"pod": next(pods)}))

    with _serving(answer) as target:
        [calls] = _call(target | {"pods": 2})
    assert [call["seen"]["pod"] for call in calls] == ["lab/a1"] * 5 + ["lab/a2"]


def test_it_is_not_asked_for_ever() -> None:
    def answer(sock: socket.socket) -> None:
        sock.recv(workload.REQUEST_BYTES)
        sock.sendall(workload.response("/demo", {"pod": "lab/a1"}))

    with _serving(answer) as target:
        [calls] = _call(target | {"pods": 2})
    assert len(calls) == 2 + 24 * 2


def test_one_process_answers_on_every_port() -> None:
    with contextlib.ExitStack() as stack:
        ports = free_ports(2)
        argv = [sys.executable, "-m", "nodenet.lab.workload", "serve", "--pod", "lab/x"]
        server = stack.enter_context(
            subprocess.Popen([*argv, *(f"--port={p}" for p in ports)], stdout=subprocess.PIPE)
        )
        stack.callback(server.kill)
        assert server.stdout is not None
        for _ in ports:
            assert b"listening" in server.stdout.readline()
        for port in ports:
            facts, sock = workload.call_one({"address": "127.0.0.1", "port": port}, timeout=30)
            sock.close()
            assert (facts["error"], facts["saw"]) == (None, "answer")
