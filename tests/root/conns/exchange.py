"""A client and a server that count what they send and receive, for comparing with the kernel.

Run as a script inside a namespace:  exchange.py serve PORT  |  exchange.py connect HOST PORT < plan

A plan line is ``SENT RECEIVED ENDING``: the client writes SENT bytes, the server answers RECEIVED
bytes. Endings: ``close`` (client, then server), ``half`` (client shuts its side, server answers
after it), ``reset`` (client resets when all has arrived), ``reset-by-server``, ``early`` (client
closes with the answer unread), ``hold`` (stays open until stdin ends). The client prints one JSON
line per connection: the socket's cookie and its own counts.
"""

from __future__ import annotations

import array
import fcntl
import json
import select
import socket
import struct
import sys
import termios
import threading

_HEAD = struct.Struct("<II16s")
_LINGER_RESET = struct.pack("ii", 1, 0)
_SO_COOKIE = 57


def read_exactly(sock: socket.socket, count: int) -> int:
    """Reads ``count`` bytes or to the end; how many came."""
    left = count
    while left:
        data = sock.recv(min(left, 1 << 16))
        if not data:
            break
        left -= len(data)
    return count - left


def unread(sock: socket.socket) -> int:
    """Bytes that have arrived and are not read (FIONREAD)."""
    number = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, number)
    return number[0]


def await_arrival(sock: socket.socket, count: int) -> None:
    """Returns when ``count`` bytes wait unread; low-water mark, so that poll means exactly that."""
    if not count:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.poll(10_000)
    if unread(sock) < count:
        raise TimeoutError(f"{unread(sock)} of {count} bytes arrived")


def serve_one(sock: socket.socket) -> None:
    """One connection of the server, by the head the client sends first."""
    with sock:
        head = b""
        while len(head) < _HEAD.size:
            data = sock.recv(_HEAD.size - len(head))
            if not data:
                return
            head += data
        sent, answer, raw = _HEAD.unpack(head)
        ending = raw.rstrip(b"\0").decode()
        read_exactly(sock, sent - _HEAD.size)
        if ending == "half":
            assert sock.recv(1) == b""
        try:
            sock.sendall(bytes(answer))
            if ending == "reset-by-server":
                assert sock.recv(1) == b"!"
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
                return
            sock.recv(1)
        except ConnectionError:
            return  # the client reset, as the plan says


def serve(port: int) -> None:
    """Accepts until it is killed."""
    listener = socket.create_server(
        ("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
    )
    print("ready", flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve_one, args=(sock,), daemon=True).start()


def connect_one(host: str, port: int, plan: str, held: list[socket.socket]) -> dict[str, object]:
    """One connection of the client; its counts."""
    first, second, ending = plan.split()
    sent, answer = int(first), int(second)
    sock = socket.create_connection((host, port), timeout=20)
    (cookie,) = struct.unpack("<Q", sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))
    head = _HEAD.pack(sent, answer, ending.encode())
    sock.sendall(head + bytes(sent - len(head)))
    received = answer
    if ending == "half":
        sock.shutdown(socket.SHUT_WR)
    if ending == "early":
        await_arrival(sock, min(answer, 1000))
        received = answer
    else:
        received = read_exactly(sock, answer)
    if ending == "reset-by-server":
        sock.sendall(b"!")
        sent += 1
        try:
            sock.recv(1)
        except ConnectionResetError:
            pass
    if ending == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    if ending == "hold":
        held.append(sock)
    else:
        sock.close()
    return {
        "id": f"{cookie:x}",
        "sent": sent,
        "received": received,
        "ending": ending,
        "local": sock.getsockname()[1] if ending == "hold" else None,
    }


def main() -> None:
    """See the module's docstring."""
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    held: list[socket.socket] = []
    for line in iter(sys.stdin.readline, "\n"):
        if not line:
            break
        print(json.dumps(connect_one(sys.argv[2], int(sys.argv[3]), line, held)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
