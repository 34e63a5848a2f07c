"""Opens the socket that dials a route, inside the pod's namespace.

Towards the application the dial comes from the client's own address (IP_TRANSPARENT), from
another port: the client's port to the same destination is the connection being carried. The port
is chosen here and not by the kernel, for three reasons. The kernel does not know the remote
clients' ports, and a dial from one in use would land in that connection. A port bound by hand may
reuse a 4-tuple in TIME_WAIT, while the automatic choice may not and runs dry after a port range
of connections a minute. And knowing it tells a connection of our own from a client's.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from _socket import socket as RawSocket
from collections.abc import Iterable, Iterator
from typing import Final

from nodenet.agents.ztunnel.address import Address, from_sockaddr
from nodenet.agents.ztunnel.decision import Route

#: Ports dials to applications come from first: outside of Linux' default for clients (32768 to
#: 60999), so that a client seldom picks one of them after us.
SOURCE_PORTS: Final = range(10240, 32768)
#: Tries in that range, then as many in all unprivileged ports.
TRIES: Final = 32

_ANY_PORTS: Final = range(1024, 65536)
#: Coprime to the size of `SOURCE_PORTS`: walking by it visits every port before the first again.
_STEP: Final = 7919
_IP_TRANSPARENT: Final = 19
_IPV6_TRANSPARENT: Final = 75
_STREAM: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK


class SourcePorts:
    """Proposes source ports; one a pod, starting anywhere."""

    __slots__ = ("_next", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next = rng.randrange(len(SOURCE_PORTS))

    def propose(self) -> Iterator[int]:
        """`TRIES` ports of `SOURCE_PORTS`, then as many of all others."""
        for _ in range(TRIES):
            self._next = (self._next + _STEP) % len(SOURCE_PORTS)
            yield SOURCE_PORTS[self._next]
        for _ in range(TRIES):
            yield self._rng.choice(_ANY_PORTS)


def dial(route: Route, ports: Iterable[int]) -> tuple[RawSocket, Address]:
    """A non-blocking socket on its way to the destination, and the address it comes from.

    ``ports`` are tried one after the other when the route names a source. The calling thread must
    be in the pod's namespace. OSError when the kernel says no at once; EADDRNOTAVAIL when none of
    the ports is free. Whether it connects is told by the poller.
    """
    if route.source is None:
        return _dial_plainly(route)
    for port in ports:
        sock = _open(route)
        try:
            _imitate(sock, route.source, port, ipv6=route.destination.is_ipv6)
            _connect(sock, route.destination)
            return sock, Address(route.source, port)
        except OSError as error:
            sock.close()
            # bind(): an application listens there; connect(): that 4-tuple is in use
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
    raise OSError(errno.EADDRNOTAVAIL, "no free source port for this client")


def _dial_plainly(route: Route) -> tuple[RawSocket, Address]:
    sock = _open(route)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _connect(sock, route.destination)
        return sock, from_sockaddr(sock.getsockname())
    except OSError:
        sock.close()
        raise


def _open(route: Route) -> RawSocket:
    family = socket.AF_INET6 if route.destination.is_ipv6 else socket.AF_INET
    sock = RawSocket(family, _STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, route.mark)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _imitate(sock: RawSocket, host: str, port: int, *, ipv6: bool) -> None:
    if ipv6:
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_TRANSPARENT, 1)
    else:
        sock.setsockopt(socket.SOL_IP, _IP_TRANSPARENT, 1)
    # An application may still listen on the same port number, and TIME_WAIT does not block it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))


def _connect(sock: RawSocket, destination: Address) -> None:
    result = sock.connect_ex(destination.sockaddr)
    if result not in (0, errno.EINPROGRESS):
        raise OSError(result, os.strerror(result))
