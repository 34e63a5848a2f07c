"""The lab's applications: exact sizes, and what they say of a connection."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading

import pytest

from nodenet.lab import workload

_WIDEST = "[fd77:20::1b]:65535"


@pytest.mark.parametrize("host", ["10.77.1.2:8080", "[fd77:1::2]:8080", _WIDEST])
def test_a_demo_request_always_has_the_same_size(host: str) -> None:
    request = workload.demo_request(host)
    assert len(request) == workload.REQUEST_BYTES
    assert request.startswith(b"GET /demo HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n")
    assert f"\r\nHost: {host}\r\n".encode() in request


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
        facts, sock = workload.call_one({"address": "127.0.0.1", "port": port}, timeout=5)
        cookie = workload.cookie(sock)
        sock.close()
        server.join(10)
    assert facts["error"] is None
    assert facts["peer"] == f"127.0.0.1:{port}"
    assert facts["cookie"] == cookie
    assert (facts["bytes_sent"], facts["bytes_received"]) == (83, 12_702)
    seen = facts["seen"]
    assert isinstance(seen, dict)
    assert seen["peer"] == facts["local"]
    assert seen["local"] == facts["peer"]
    assert seen["received"] == 83


def test_a_refused_target_is_tried_once_and_the_next_one_still() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    targets = [{"address": "127.0.0.1", "port": port, "count": 3}] * 2
    done = subprocess.run(
        [sys.executable, "-m", "nodenet.lab.workload", "call"],
        input=json.dumps(targets) + "\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    results = json.loads(done.stdout)
    assert [len(calls) for calls in results] == [1, 1]
    assert "refused" in results[0][0]["error"]
