"""Opens the socket that dials a route, inside the pod's namespace."""

from __future__ import annotations

import errno
import os
import socket
from _socket import socket as RawSocket
from collections.abc import Iterable
from typing import Final

from nodenet.agents.ztunnel.decision import Route
from nodenet.agents.ztunnel.listeners import KEEPALIVE_SECONDS

_IP_TRANSPARENT: Final = 19
_IPV6_TRANSPARENT: Final = 75
_STREAM: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
#: bind(): an application has the port; connect(): the 4-tuple is in use. Another port will do.
_PORT_TAKEN: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})


def dial(route: Route, ports: Iterable[int]) -> tuple[RawSocket, int]:
    """A non-blocking socket on its way to the destination, and the port it comes from.

    ``ports`` are tried one after the other. The calling thread must be in the pod's namespace.
    OSError when the kernel says no at once; EADDRNOTAVAIL when none of the ports is free. Whether
    it connects is told by the poller.
    """
    ipv6 = route.destination.is_ipv6
    for port in ports:
        sock = RawSocket(socket.AF_INET6 if ipv6 else socket.AF_INET, _STREAM, socket.IPPROTO_TCP)
        try:
            _prepare(sock, route, port, ipv6=ipv6)
            result = sock.connect_ex(route.destination.sockaddr)
            if result in (0, errno.EINPROGRESS):
                return sock, port
            raise OSError(result, os.strerror(result))
        except OSError as error:
            sock.close()
            if error.errno not in _PORT_TAKEN:
                raise
    raise OSError(errno.EADDRNOTAVAIL, "no free source port")


def _prepare(sock: RawSocket, route: Route, port: int, *, ipv6: bool) -> None:
    option = sock.setsockopt
    option(socket.SOL_SOCKET, socket.SO_MARK, route.mark)
    option(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # lets the port be shared with listeners of the pod that allow it, and with TIME_WAIT
    option(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if route.source is not None:
        if ipv6:
            option(socket.IPPROTO_IPV6, _IPV6_TRANSPARENT, 1)
        else:
            option(socket.SOL_IP, _IP_TRANSPARENT, 1)
        sock.bind((route.source, port))
    else:
        # the other end is another machine, which may vanish without a word
        option(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
        sock.bind(("::" if ipv6 else "0.0.0.0", port))
