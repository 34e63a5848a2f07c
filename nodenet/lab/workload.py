"""The application in a lab's pod, and the one that calls it: plain sockets, as any app has them.

``python -m nodenet.lab.workload serve`` answers HTTP on a port. ``GET /`` is for people: one line
of JSON saying which peer the server saw. ``GET /demo`` is for proofs: every answer has exactly
`RESPONSE_BYTES` bytes, and the header ``x-nodenet`` says what the server's own socket is. A mark in
the request is repeated in the answer: where it can be read, plaintext has been.

``python -m nodenet.lab.workload call`` reads a JSON list of targets from standard input, makes the
connections, prints what it saw of each, and holds all of them open until its input ends: whoever
asked can look at the kernel's records of live sockets meanwhile.

``python -m nodenet.lab.workload talk HOST PORT`` keeps one connection and asks once a second, so
that a lab at rest has something to look at; it connects again when the connection breaks.

All know nothing of the capture. Only the standard library: a lab starts one of these a pod.
"""

from __future__ import annotations

import argparse
import json
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

#: Payload bytes of a demo request and of its answer, headers included, the same for each.
REQUEST_BYTES: Final = 83
RESPONSE_BYTES: Final = 12_702
HEADER: Final = "x-nodenet"
_SO_COOKIE: Final = 57
#: Width of the JSON in the header: two IPv6 endpoints, a cookie and a count fit.
_HEADER_WIDTH: Final = 240
_MAX_REQUEST: Final = 8192
"""A request head longer than this is no request of ours; the connection is closed."""
_IDLE_SECONDS: Final = 60.0
_PACE_SECONDS: Final = 1.0
_BACKLOG: Final = 256
_MARK: Final = b"\r\nx-mark: "
#: Bytes of a mark at most: what the request has room for beside the longest ENDPOINT.
MARK_BYTES: Final = 15
#: Connections that are tried until another pod answers, times the number of pods wanted. Each is
#: as likely as the next, so one of two is missed once in 2**48.
_TRIES: Final = 24


def endpoint(address: tuple[Any, ...]) -> str:
    """``10.77.1.2:8080`` or ``[fd77:1::2]:8080``; v4-mapped is shown as IPv4."""
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cookie(sock: socket.socket) -> str:
    """The socket's cookie in hex: the id every nodenet command uses for the connection."""
    raw = sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8)
    return f"{struct.unpack('=Q', raw)[0]:x}"


def demo_request(host: str, mark: str = "") -> bytes:
    """A request of `REQUEST_BYTES` bytes; ``host`` is the endpoint, at most 28 characters.

    The mark, of at most `MARK_BYTES`, is filled up: the length does not depend on the target.
    """
    head = f"GET /demo HTTP/1.1\r\nHost: {host}\r\nx-mark: "
    return f"{head}{mark:.<{REQUEST_BYTES - len(head) - 4}}\r\n\r\n".encode()


def mark_of(head: bytes) -> str:
    """The mark of a request's head, or nothing."""
    return head.partition(_MARK)[2].partition(b"\r\n")[0].rstrip(b".").decode("latin-1")


def response(path: str, facts: dict[str, object], mark: str = "") -> bytes:
    """The whole answer: for ``/demo`` exactly `RESPONSE_BYTES` bytes."""
    text = json.dumps(facts)
    if path != "/demo":
        body = text + "\n"
        status = "200 OK" if path == "/" else "404 Not Found"
        return (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}"
        ).encode()
    head = f"HTTP/1.1 200 OK\r\n{HEADER}: {text:<{_HEADER_WIDTH}}\r\ncontent-length: "
    size = RESPONSE_BYTES - len(head) - len("12345\r\n\r\n")
    return f"{head}{size:05d}\r\n\r\n{mark:.<{size - 1}}\n".encode()


def serve(pod: str, ports: Sequence[int]) -> None:
    """Answers on every address of this namespace until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with selectors.DefaultSelector() as selector:
        for port in ports:
            listener = _listen(port)
            selector.register(listener, selectors.EVENT_READ, listener)
            print(f"{pod}: listening on {endpoint(listener.getsockname())}", flush=True)
        while True:
            for key, _ in selector.select():
                sock, peer = key.data.accept()
                threading.Thread(target=_answer, args=(pod, sock, peer), daemon=True).start()


def _listen(port: int) -> socket.socket:
    if socket.has_ipv6:
        try:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        except OSError:  # IPv6 is compiled in, but off
            pass
    return socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)


def _answer(pod: str, sock: socket.socket, peer: tuple[Any, ...]) -> None:
    facts: dict[str, object] = {
        "pod": pod,
        "peer": endpoint(peer),
        "local": endpoint(sock.getsockname()),
        "cookie": cookie(sock),
        "received": 0,
    }
    received, buffer = 0, b""
    sock.settimeout(_IDLE_SECONDS)
    try:
        while chunk := sock.recv(_MAX_REQUEST):
            received += len(chunk)
            buffer += chunk
            while b"\r\n\r\n" in buffer:
                head, buffer = buffer.split(b"\r\n\r\n", 1)
                path = (head.split(b" ", 2)[1:2] or [b"?"])[0].decode("latin-1")
                sock.sendall(response(path, facts | {"received": received}, mark_of(head)))
            if len(buffer) > _MAX_REQUEST:
                break
    except OSError as error:
        print(f"{pod}: {facts['peer']}: {error}", flush=True)
    finally:
        sock.close()


def call_one(target: dict[str, Any], timeout: float) -> tuple[dict[str, object], socket.socket]:
    """One connection with one request; returns what the app saw, and the open socket.

    Facts: ``cookie local peer bytes_sent bytes_received seen error saw``; ``seen`` is the server's
    header, ``peer`` what getpeername says, the byte counts are the app's own, ``saw`` how it ended:
    answer, close, reset, failure.
    """
    address, port = str(target["address"]), int(target["port"])
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    facts: dict[str, object] = {
        "cookie": cookie(sock),
        "local": None,
        "peer": None,
        "bytes_sent": 0,
        "bytes_received": 0,
        "seen": None,
        "error": None,
        "saw": "answer",
    }
    sock.settimeout(timeout)
    try:
        sock.connect((address, port))
        facts["local"] = endpoint(sock.getsockname())
        facts["peer"] = endpoint(sock.getpeername())
        request = demo_request(endpoint((address, port)), str(target.get("mark", "")))
        sock.sendall(request)
        facts["bytes_sent"] = len(request)
        answer = bytearray()
        while len(answer) < RESPONSE_BYTES:
            chunk = sock.recv(1 << 16)
            if not chunk:
                facts["error"] = f"closed after {len(answer)} of {RESPONSE_BYTES} bytes"
                facts["saw"] = "close"
                break
            answer += chunk
            facts["bytes_received"] = len(answer)
        facts["seen"] = _header(bytes(answer))
    except OSError as error:
        facts["error"] = str(error)
        # a reset may have come before connect() returned, and before the request was written
        was_reset = isinstance(error, ConnectionResetError | BrokenPipeError)
        facts["saw"] = "reset" if was_reset else "failure"
    return facts, sock


def _header(answer: bytes) -> object:
    for line in answer.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == HEADER.encode():
            try:
                return json.loads(value)
            except ValueError:
                return None
    return None


def call(timeout: float) -> None:
    """Connections to each target, in order; results as one JSON line; open until input ends.

    Of a target: ``address port count mark``. With ``pods`` there are more connections until so many
    different pods have answered. One that fails is not tried again, its list of results is shorter;
    a denied one (``denied``) is tried ``count`` times.
    """
    targets = json.loads(sys.stdin.readline())
    held = []
    results = []
    for target in targets:
        calls: list[dict[str, object]] = []
        while _more(target, calls):
            facts, sock = call_one(target, timeout)
            calls.append(facts)
            held.append(sock)
        results.append(calls)
    print(json.dumps(results), flush=True)
    sys.stdin.read()


def _more(target: dict[str, Any], calls: Sequence[dict[str, Any]]) -> bool:
    """Whether another connection is to be made to the target."""
    if calls and calls[-1]["error"] and not target.get("denied"):
        return False
    count = int(target["count"])
    if len(calls) < count:
        return True
    wanted = int(target.get("pods", 1))
    answered = {each["seen"]["pod"] for each in calls if each["seen"]}
    return 1 < wanted > len(answered) and len(calls) < count + _TRIES * wanted


def talk(address: str, port: int, timeout: float) -> None:
    """Asks once a second on one connection until SIGTERM; a broken one is replaced."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        try:
            with socket.create_connection((address, port), timeout=timeout) as sock:
                request = demo_request(endpoint((address, port)))
                while True:
                    sock.sendall(request)
                    left = RESPONSE_BYTES
                    while left:
                        chunk = sock.recv(min(left, 1 << 16))
                        if not chunk:
                            raise ConnectionError("closed by the server")
                        left -= len(chunk)
                    time.sleep(_PACE_SECONDS)  # the pace of this traffic
        except OSError as error:
            print(f"talk to {endpoint((address, port))}: {error}", flush=True)
            time.sleep(_PACE_SECONDS)


def main() -> None:
    """Parses and runs; see the module's text."""
    parser = argparse.ArgumentParser(prog="nodenet.lab.workload")
    verbs = parser.add_subparsers(dest="verb", required=True)
    server = verbs.add_parser("serve")
    server.add_argument("--pod", required=True)
    server.add_argument("--port", type=int, required=True, action="append")
    caller = verbs.add_parser("call")
    caller.add_argument("--timeout", type=float, default=5.0)
    talker = verbs.add_parser("talk")
    talker.add_argument("host")
    talker.add_argument("port", type=int)
    talker.add_argument("--timeout", type=float, default=5.0)
    options = parser.parse_args()
    if options.verb == "serve":
        serve(options.pod, options.port)
    elif options.verb == "talk":
        talk(options.host, options.port, options.timeout)
    else:
        call(options.timeout)


if __name__ == "__main__":
    main()
