"""A process that accepts connections and says what it sees: the tests' proxy, apps and servers.

Run by path with the standard library alone (`tests.root.recording` starts and talks to it). Each
TCP connection is greeted with one JSON line and then echoed; each UDP datagram is answered with
one JSON object. Commands are JSON lines on standard input, one reply line each; the end of the
input ends the process, so a killed test run leaves none behind.

As the proxy it behaves like an unmodified ztunnel: marks its sockets, listens transparently, and
asks SO_ORIGINAL_DST of both levels before it falls back to the socket's own address
(ztunnel: src/socket.rs:orig_dst_addr_or_default).
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import sys
from typing import Any

SO_ORIGINAL_DST = 80
IP_TRANSPARENT = 19
IPV6_TRANSPARENT = 75
_BUFFER = 65536

Endpoint = list[Any]
"""Address as text, v4-mapped ones as IPv4, and port."""


def endpoint(address: Any) -> Endpoint:
    """A socket address as it is written in greetings."""
    host = str(address[0]).partition("%")[0].removeprefix("::ffff:")
    return [host, address[1]]


def original_destination(sock: socket.socket) -> tuple[Endpoint, int] | tuple[None, None]:
    """The address and the level that answered; (None, None) when neither did."""
    try:
        raw = sock.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
        return [socket.inet_ntop(socket.AF_INET, raw[4:8]), struct.unpack(">H", raw[2:4])[0]], 0
    except OSError:
        pass
    try:
        raw = sock.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28)
    except OSError:
        return None, None
    host = socket.inet_ntop(socket.AF_INET6, raw[8:24])
    return endpoint((host, struct.unpack(">H", raw[2:4])[0])), socket.IPPROTO_IPV6


class Recorder:
    """The event loop; one method a command."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.selector = selectors.DefaultSelector()
        self.listeners: dict[tuple[bool, str, int], socket.socket] = {}
        self.accepted: set[socket.socket] = set()
        self.greetings: list[dict[str, Any]] = []
        self.held: list[socket.socket] = []

    # -- commands

    def listen(
        self,
        port: int,
        host: str = "::",
        udp: bool = False,
        mark: int = 0,
        transparent: bool = False,
    ) -> dict[str, Any]:
        """Opens a listener, for both families when ``host`` is ``::``; port 0 is any."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if mark:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
            if transparent:
                _make_transparent(sock)
            sock.bind((host, port))
            if not udp:
                sock.listen(128)
        except OSError:
            sock.close()
            raise
        bound = int(sock.getsockname()[1])
        self.listeners[udp, host, bound] = sock
        self.selector.register(sock, selectors.EVENT_READ, self._answer if udp else self._accept)
        return {"port": bound}

    def unlisten(self, port: int, host: str = "::", udp: bool = False) -> dict[str, Any]:
        """Closes a listener; accepted connections stay."""
        sock = self.listeners.pop((udp, host, port))
        self.selector.unregister(sock)
        sock.close()
        return {}

    def dial(
        self,
        host: str,
        port: int,
        source: str | None = None,
        source_port: int = 0,
        mark: int = 0,
        udp: bool = False,
        hold: bool = False,
        timeout: float = 15.0,
    ) -> dict[str, Any]:
        """Connects (``source`` may be somebody else's address) and reads the greeting.

        ``hold`` keeps the connection for `speak`.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            if mark:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
            if source is not None:
                _make_transparent(sock)
                sock.bind((source, source_port))
            sock.connect((host, port))
            local = endpoint(sock.getsockname())
            if udp:
                sock.send(b"dial")
            line = sock.recv(_BUFFER)
            while line and not udp and not line.endswith(b"\n"):
                line += sock.recv(_BUFFER)
        except OSError:
            sock.close()
            raise
        if hold:
            self.held.append(sock)
        else:
            sock.close()
        return {"local": local, "greeting": json.loads(line) if line else None}

    def speak(self, word: str, let_go: bool) -> dict[str, Any]:
        """How many of the held connections still echo."""
        echoing = 0
        for sock in self.held:
            try:
                sock.sendall(word.encode())
                echoing += sock.recv(_BUFFER) == word.encode()
            except OSError:
                pass
            if let_go:
                sock.close()
        if let_go:
            self.held.clear()
        return {"echoing": echoing}

    def accepted_since(self) -> dict[str, Any]:
        """The greetings of every connection accepted since the last time this was asked."""
        found, self.greetings = self.greetings, []
        return {"greetings": found}

    def hang_up(self) -> dict[str, Any]:
        """Resets every accepted connection, so that nothing of it lingers."""
        for sock in list(self.accepted):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
            self._close(sock)
        return {}

    # -- events

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, peer = listener.accept()
        except OSError:
            return  # the client has gone meanwhile
        original, level = original_destination(sock)
        greeting = {
            "by": self.name,
            "listener": listener.getsockname()[1],
            "peer": endpoint(peer),
            "local": endpoint(sock.getsockname()),
            "original": original,
            "level": level,
            "mark": sock.getsockopt(socket.SOL_SOCKET, socket.SO_MARK),
        }
        self.greetings.append(greeting)
        self.accepted.add(sock)
        self.selector.register(sock, selectors.EVENT_READ, self._echo)
        try:
            sock.sendall(json.dumps(greeting).encode() + b"\n")
        except OSError:
            self._close(sock)

    def _echo(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(_BUFFER)
            # an HTTP client takes the greeting for a body (HTTP/0.9) that ends with the connection
            if data and not data.startswith(b"GET "):
                sock.sendall(data)
                return
        except OSError:
            pass
        self._close(sock)

    def _answer(self, sock: socket.socket) -> None:
        try:
            data, peer = sock.recvfrom(_BUFFER)
        except OSError:
            return
        greeting = {
            "by": self.name,
            "listener": sock.getsockname()[1],
            "peer": endpoint(peer),
            "query": data.decode(),
        }
        self.greetings.append(greeting)
        try:
            sock.sendto(json.dumps(greeting).encode(), peer)
        except OSError:
            pass  # the client's namespace or address has gone

    def _close(self, sock: socket.socket) -> None:
        self.selector.unregister(sock)
        self.accepted.discard(sock)
        sock.close()

    # -- control

    def run(self, commands: Any, replies: Any) -> None:
        """Serves until the commands end."""
        self.selector.register(commands, selectors.EVENT_READ, None)
        while True:
            for key, _events in self.selector.select():
                if key.data is not None:
                    if key.fileobj in self.selector.get_map():  # not closed earlier in this turn
                        key.data(key.fileobj)
                    continue
                line = commands.readline()
                if not line:
                    return
                command = json.loads(line)
                try:
                    reply = getattr(self, command.pop("do"))(**command)
                except OSError as error:
                    reply = {"errno": error.errno, "timed_out": isinstance(error, TimeoutError)}
                replies.write(json.dumps(reply).encode() + b"\n")
                replies.flush()


def _make_transparent(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)


def main() -> None:
    """``recorder.py NAME [CGROUP]``: joins the cgroup before the first socket."""
    if len(sys.argv) > 2:
        with open(os.path.join(sys.argv[2], "cgroup.procs"), "w") as procs:
            procs.write(str(os.getpid()))
    # unbuffered: select() must not miss a line that is in a buffer already
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as commands:
        Recorder(sys.argv[1]).run(commands, sys.stdout.buffer)


if __name__ == "__main__":
    main()
