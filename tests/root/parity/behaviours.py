"""Ways an application uses a socket, each with everything it can notice.

A behaviour is tried where nothing is captured and where all is; what it returns must be equal.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nodenet.abi import IPAddress
from nodenet.lab.topology import Namespace
from tests.root.dialling import (
    TIMEOUT_SECONDS,
    ask,
    look,
    open_socket,
    read_greeting,
    sockaddr,
    unmapped,
)
from tests.root.recording import Greeting

TCP_FASTOPEN_CONNECT: Final = 30
IP_BIND_ADDRESS_NO_PORT: Final = 24
IPPROTO_MPTCP: Final = 262
#: For what is expected to hang.
SHORT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Who connects to whom."""

    namespace: Namespace
    own: IPAddress
    second: IPAddress
    """Another address of the namespace."""
    host: IPAddress
    other: IPAddress
    """Another address of the same server."""
    port: int
    udp_port: int
    loopback: IPAddress
    mapped: bool
    free_port: int
    """Free in the namespace, for binding."""

    @property
    def target(self) -> tuple[str, int]:
        """What connect() takes."""
        return sockaddr(self.host, self.port, mapped=self.mapped)

    def name(self, address: IPAddress, port: int = 0) -> tuple[str, int]:
        """What bind() takes."""
        return sockaddr(address, port, mapped=self.mapped)

    def socket(self, *, udp: bool = False) -> socket.socket:
        """A socket with a deadline."""
        sock = open_socket(self.namespace, self.host, mapped=self.mapped, udp=udp)
        sock.settimeout(TIMEOUT_SECONDS)
        return sock


#: Errnos and addresses in the order they were met.
View = tuple[Any, ...]
Behaviour = Callable[[Where], tuple[View, Greeting | None]]


def _view(w: Where, sock: socket.socket, *before: object) -> tuple[View, Greeting | None]:
    """What came before, the addresses of the socket, and whether it carries data."""
    seen = look(sock)
    assert seen.local is not None
    bound = seen.local[1] if seen.local[1] == w.free_port else None
    return (*before, seen.local[0], bound, seen.peer, seen.greeting is not None), seen.greeting


def _block(sock: socket.socket) -> None:
    """Blocking system calls (Python's deadlines make the socket non-blocking), with an end."""
    deadline = struct.pack("@ll", int(TIMEOUT_SECONDS), 0)
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, deadline)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, deadline)


def blocking(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        _block(sock)
        return _view(w, sock, sock.connect_ex(w.target))


def non_blocking(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        sock.setblocking(False)
        first = sock.connect_ex(w.target)
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        ready = poll.poll(TIMEOUT_SECONDS * 1000)
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        again = sock.connect_ex(w.target)
        sock.settimeout(TIMEOUT_SECONDS)
        events = ready[0][1] if ready else 0
        return _view(w, sock, first, events, error, again, sock.connect_ex(w.target))


def fastopen_message(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        _block(sock)
        sent = sock.sendto(b"early", socket.MSG_FASTOPEN, w.target)
        return _view(w, sock, sent)


def fastopen_message_non_blocking(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        sock.setblocking(False)
        try:
            first: object = sock.sendto(b"early", socket.MSG_FASTOPEN, w.target)
        except BlockingIOError as error:
            first = error.errno
        sock.settimeout(TIMEOUT_SECONDS)
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        poll.poll(TIMEOUT_SECONDS * 1000)
        return _view(w, sock, first)


def fastopen_connect(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
        result = sock.connect_ex(w.target)
        sock.sendall(b"early")
        return _view(w, sock, result)


def bound_port(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("::" if sock.family == socket.AF_INET6 else "0.0.0.0", w.free_port))
        return _view(w, sock, sock.connect_ex(w.target))


def bound_address(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        sock.bind(w.name(w.second))
        return _view(w, sock, sock.connect_ex(w.target))


def bound_address_and_port(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(w.name(w.own, w.free_port))
        return _view(w, sock, sock.connect_ex(w.target))


def bound_address_without_port(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        sock.setsockopt(socket.SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        sock.bind(w.name(w.second))
        return _view(w, sock, sock.connect_ex(w.target))


def bound_device(w: Where) -> tuple[View, Greeting | None]:
    """Hangs where the redirect leads to another device, so it waits less long."""
    with w.socket() as sock:
        sock.settimeout(SHORT_SECONDS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
        error = sock.connect_ex(w.target)
        return ((error,), None) if error else _view(w, sock, error)


def bound_loopback(w: Where) -> tuple[View, Greeting | None]:
    """Cannot work without capture: refused in IPv4, unanswered in IPv6."""
    with w.socket() as sock:
        sock.settimeout(SHORT_SECONDS)
        sock.bind(w.name(w.loopback))
        error = sock.connect_ex(w.target)
        return ((error,), None) if error else _view(w, sock, error)


def disconnected_and_connected_again(w: Where) -> tuple[View, Greeting | None]:
    with w.socket() as sock:
        first = sock.connect_ex(w.target)
        read_greeting(sock)
        _disconnect(sock)
        try:
            peer: object = unmapped(sock.getpeername())
        except OSError as error:
            peer = error.errno
        return _view(w, sock, first, peer, sock.connect_ex(w.name(w.other, w.port)))


def multipath(w: Where) -> tuple[View, Greeting | None]:
    with w.namespace.entered():
        ipv4 = w.host.version == 4 and not w.mapped
        family = socket.AF_INET if ipv4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP)
    with sock:
        sock.settimeout(TIMEOUT_SECONDS)
        return _view(w, sock, sock.connect_ex(w.target))


def connected_udp(w: Where) -> tuple[View, Greeting | None]:
    seen = ask(w.namespace, w.host, w.udp_port, connect=True, mapped=w.mapped)
    assert seen.local is not None
    return (seen.error, seen.local[0], seen.peer), seen.greeting


def unconnected_udp(w: Where) -> tuple[View, Greeting | None]:
    seen = ask(w.namespace, w.host, w.udp_port, mapped=w.mapped)
    return (seen.error, seen.peer), seen.greeting


def address_of_the_wrong_family(w: Where) -> tuple[View, Greeting | None]:
    """sockaddr_in on an IPv6 socket and the reverse: refused before any capture."""
    with w.socket() as sock:
        other = socket.AF_INET if sock.family == socket.AF_INET6 else socket.AF_INET6
        with open_raw(other, sock) as alias:
            host = "192.0.2.1" if other == socket.AF_INET else "2001:db8::1"
            return (alias.connect_ex((host, w.port)),), None


def open_raw(family: socket.AddressFamily, sock: socket.socket) -> socket.socket:
    """The same kernel socket under another family in Python's eyes."""
    return socket.socket(family, socket.SOCK_STREAM, fileno=sock.dup().detach())


def _disconnect(sock: socket.socket) -> None:
    import ctypes

    # struct sockaddr with sa_family AF_UNSPEC; Python has no way to write one
    name = ctypes.create_string_buffer(16)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(sock.fileno(), name, len(name)):
        number = ctypes.get_errno()
        raise OSError(number, errno.errorcode[number])


ALL: Final[tuple[Behaviour, ...]] = (
    blocking,
    non_blocking,
    fastopen_message,
    fastopen_message_non_blocking,
    fastopen_connect,
    bound_port,
    bound_address,
    bound_address_and_port,
    bound_address_without_port,
    bound_device,
    bound_loopback,
    disconnected_and_connected_again,
    multipath,
    connected_udp,
    unconnected_udp,
    address_of_the_wrong_family,
)
