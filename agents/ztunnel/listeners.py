"""The proxy's listening sockets inside a pod, and accepting from them in batches."""

from __future__ import annotations

import errno
import logging
import socket
from _socket import socket as RawSocket
from collections.abc import Callable
from typing import Any, Final

from nodenet.abi import MARK, Direction
from nodenet.agents.ztunnel.poller import LISTENER, Poller
from nodenet.errors import NodenetError

#: Connections the kernel keeps for us while the loop is busy (capped by net.core.somaxconn).
BACKLOG: Final = 4096
#: Connections taken in one go: about 2 ms of work, which established connections wait for.
BATCH: Final = 32

#: Silence after which a peer is asked whether it is still there, and between two such questions,
#: of which the ninth without an answer ends the connection (ztunnel: KEEPALIVE_TIME, _INTERVAL).
KEEPALIVE_SECONDS: Final = 180

_IP_TRANSPARENT: Final = 19
_IPV6_TRANSPARENT: Final = 75
#: The process or the host has no descriptor, buffer or memory left: the connection stays queued.
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: This namespace has no IPv6.
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})

logger = logging.getLogger(__name__)

#: Called with an accepted socket and the peer's socket address; False: descriptors ran out.
OnAccept = Callable[[RawSocket, tuple[Any, ...], Direction], bool]


class ListenFailed(NodenetError):
    """A port of the pod cannot be listened on."""

    def __init__(self, port: int, error: OSError) -> None:
        hint = None
        if error.errno == errno.EADDRINUSE:
            hint = f"see who has it, inside the pod's namespace: ss -ltnp sport = :{port}"
        super().__init__(f"cannot listen on port {port}: {error.strerror}", hint=hint)
        self.port = port
        self.errno = error.errno


def open_listener(port: int, *, loopback: bool = False) -> RawSocket:
    """A listener for both address families in the calling thread's namespace.

    For IPv4 alone where the namespace has no IPv6, and on ``loopback``, which is 127.0.0.1.
    ListenFailed when the port is taken.
    """
    try:
        if not loopback:
            return _listen(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise ListenFailed(port, error) from error
    try:
        return _listen(socket.AF_INET, "127.0.0.1" if loopback else "0.0.0.0", port)
    except OSError as error:
        raise ListenFailed(port, error) from error


def _listen(family: int, host: str, port: int) -> RawSocket:
    listener = RawSocket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.IPPROTO_TCP)
    try:
        option = listener.setsockopt
        # Everything here is inherited by the accepted sockets. The mark must be there before
        # listen(): the capture knows the listener by it, and a SYN may come at once.
        option(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        option(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        option(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
        option(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        option(socket.SOL_IP, _IP_TRANSPARENT, 1)
        if family == socket.AF_INET6:
            option(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            option(socket.IPPROTO_IPV6, _IPV6_TRANSPARENT, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class Listener:
    """One open listener: takes waiting connections when told by the poller.

    ``on_accept`` gets each one, as long as ``has_room``. When there is no room or no descriptor
    for the next, ``on_pause`` is called and the listener is silent until `rearm`.
    """

    __slots__ = (
        "_direction",
        "_fd",
        "_has_room",
        "_on_accept",
        "_on_pause",
        "_poller",
        "_sock",
        "paused",
    )

    def __init__(
        self,
        sock: RawSocket,
        direction: Direction,
        poller: Poller,
        on_accept: OnAccept,
        has_room: Callable[[], bool],
        on_pause: Callable[[Listener], None],
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._direction = direction
        self._poller = poller
        self._on_accept = on_accept
        self._has_room = has_room
        self._on_pause = on_pause
        self.paused = False
        poller.add(self._fd, LISTENER, self)

    def close(self) -> None:
        """Closes it; connections the kernel still holds for it are reset."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._poller.retire(fd, self._sock)

    def event(self, mask: int) -> None:
        """See `poller.Target`: accepts at most `BATCH` connections."""
        # the C method that socket.accept() is made of: a descriptor, no second Python object
        accept = self._sock._accept  # type: ignore[attr-defined]  # not in typeshed
        direction, family = self._direction, self._sock.family
        # The kernel's flag is not set, only Python's idea of it: every later call passes
        # MSG_DONTWAIT instead, which saves a system call a connection.
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        for _ in range(BATCH):
            if not self._has_room():
                self._pause()
                return
            try:
                fd, peer = accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause()
                    return
                # The client went away (ECONNABORTED, EPROTO), or one of the network errors that
                # accept(2) hands on: it concerns that one connection.
                logger.debug("accept failed: %s", error)
                continue
            if not self._on_accept(RawSocket(family, kind, 0, fd), peer, direction):
                self._pause()
                return

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`: the batch is lost, the listener goes on."""

    def rearm(self) -> None:
        """Accepts again."""
        if self.paused and self._fd >= 0:
            self.paused = False
            self._poller.modify(self._fd, LISTENER)

    def _pause(self) -> None:
        if not self.paused and self._fd >= 0:
            self.paused = True
            self._poller.modify(self._fd, 0)
            self._on_pause(self)
