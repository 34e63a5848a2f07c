"""Connected TCP sockets on loopback, as an application and as the proxy hold them."""

from __future__ import annotations

import socket
from _socket import socket as RawSocket
from typing import NamedTuple

_KIND = socket.SOCK_STREAM | socket.SOCK_NONBLOCK


class Pair(NamedTuple):
    """The two ends of one connection."""

    app: socket.socket
    proxy: RawSocket


def connected(*, buffers: int | None = None) -> Pair:
    """An application's end (with a timeout) and the proxy's (non-blocking as it makes them).

    ``buffers``: bytes of the receive and send buffers, for tests that fill them.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if buffers:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
        app = socket.socket()
        if buffers:
            app.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
            app.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
        app.settimeout(10)
        app.connect(listener.getsockname())
        accepted, _ = listener.accept()
    proxy = RawSocket(socket.AF_INET, _KIND, 0, accepted.detach())
    return Pair(app, proxy)
