"""What an application does with a socket, and what it sees of it."""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, TypeVar

from nodenet.abi import IPAddress
from nodenet.lab.topology import Namespace
from tests.root.recording import Address, Greeting

#: Long enough for a busy machine; what should happen happens in microseconds.
TIMEOUT_SECONDS: Final = 15.0
_LINE_BYTES: Final = 4096

Prepare = Callable[[socket.socket], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """One connect as its application saw it."""

    error: int = 0
    """errno of the connect; ETIMEDOUT when it did not end in time."""
    local: Address | None = None
    """getsockname(); None when the connect failed."""
    peer: Address | None = None
    """getpeername()."""
    greeting: Greeting | None = None
    """What the accepting side said; None when it hung up without a word."""

    @property
    def by(self) -> str | None:
        """The recorder that accepted."""
        return self.greeting.by if self.greeting else None


def unmapped(sockaddr: Any) -> Address:
    """A socket address; v4-mapped as IPv4, without scope."""
    address = ip_address(str(sockaddr[0]).partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address, int(sockaddr[1])


def sockaddr(host: IPAddress, port: int, *, mapped: bool = False) -> tuple[str, int]:
    """What connect() takes; ``mapped`` writes IPv4 as ::ffff:a.b.c.d."""
    return (f"::ffff:{host}" if mapped else str(host)), port


def open_socket(
    namespace: Namespace, host: IPAddress, *, mapped: bool = False, udp: bool = False
) -> socket.socket:
    """A socket of that namespace, of the family that reaches ``host``."""
    ipv4 = isinstance(host, IPv4Address) and not mapped
    family = socket.AF_INET if ipv4 else socket.AF_INET6
    with namespace.entered():
        return socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)


@contextlib.contextmanager
def connected(
    namespace: Namespace,
    host: IPAddress,
    port: int,
    *,
    mapped: bool = False,
    prepare: Prepare | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Iterator[tuple[socket.socket, Greeting]]:
    """A connection that stays open for the block, greeting read; OSError when it fails."""
    with open_socket(namespace, host, mapped=mapped) as sock:
        sock.settimeout(timeout)
        if prepare is not None:
            prepare(sock)
        sock.connect(sockaddr(host, port, mapped=mapped))
        greeting = read_greeting(sock)
        assert greeting is not None, f"{host} port {port} hung up"
        yield sock, greeting


def dial(
    namespace: Namespace,
    host: IPAddress,
    port: int,
    *,
    mapped: bool = False,
    prepare: Prepare | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Dialled:
    """Connects, reads the greeting, hangs up."""
    with open_socket(namespace, host, mapped=mapped) as sock:
        sock.settimeout(timeout)
        if prepare is not None:
            prepare(sock)
        try:
            sock.connect(sockaddr(host, port, mapped=mapped))
        except OSError as error:
            return Dialled(error=error.errno or errno.ETIMEDOUT)
        return look(sock)


def look(sock: socket.socket) -> Dialled:
    """What a connected socket shows; reads the greeting."""
    local, peer = unmapped(sock.getsockname()), unmapped(sock.getpeername())
    return Dialled(local=local, peer=peer, greeting=read_greeting(sock))


def read_greeting(sock: socket.socket) -> Greeting | None:
    """The one line the other side says first; None when it hangs up instead.

    What follows in the same segment, the echo of early data, is dropped.
    """
    data = b""
    while b"\n" not in data:
        try:
            more = sock.recv(_LINE_BYTES)
        except ConnectionResetError:
            return None
        if not more:
            return None
        data += more
    return Greeting.read(json.loads(data.partition(b"\n")[0]))


def is_alive(sock: socket.socket, word: bytes = b"still there?") -> bool:
    """Whether the other side still echoes on this connection."""
    try:
        sock.sendall(word)
        got = b""
        while len(got) < len(word):
            data = sock.recv(len(word) - len(got))
            if not data:
                return False
            got += data
    except OSError:
        return False
    return got == word


def ask(
    namespace: Namespace,
    host: IPAddress,
    port: int,
    *,
    connect: bool = False,
    mapped: bool = False,
    prepare: Prepare | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Dialled:
    """One datagram and its answer; ``peer`` is where the answer seems to come from."""
    with open_socket(namespace, host, mapped=mapped, udp=True) as sock:
        sock.settimeout(timeout)
        if prepare is not None:
            prepare(sock)
        target = sockaddr(host, port, mapped=mapped)
        try:
            if connect:
                sock.connect(target)
                sock.send(b"query")
            else:
                sock.sendto(b"query", target)
            data, sender = sock.recvfrom(_LINE_BYTES)
        except OSError as error:
            return Dialled(error=error.errno or errno.ETIMEDOUT)
        greeting = Greeting.read(json.loads(data))
        return Dialled(local=unmapped(sock.getsockname()), peer=unmapped(sender), greeting=greeting)


def wait_for(get: Callable[[], T], what: str, timeout: float = TIMEOUT_SECONDS) -> T:
    """The first true answer of something the kernel gives no event for."""
    end = time.monotonic() + timeout
    while not (found := get()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout:.0f} s: {what}")
        time.sleep(0.001)
    return found


def is_ended(sock: socket.socket, timeout: float = TIMEOUT_SECONDS) -> bool:
    """Whether the connection was reset or closed by the kernel or the other side, waited for."""
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLRDHUP)
    if not poll.poll(timeout * 1000):
        return False
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
