"""Remotes of an agent: non-blocking sockets, their dials, and what they are owed at the end.

Sockets are told of readiness by one epoll (`Poller`) and read when the stream to the server asks
for a message, so there is neither a transport nor a task nor a buffer for an idle tunnel.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
from _socket import socket as RawSocket
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from nodenet.agents.konnectivity.agent_resolver import Address, Lookup, Resolver, literal
from nodenet.agents.konnectivity.poller_transport import in_kernel
from nodenet.agents.ztunnel.deadlines import Deadlines
from nodenet.agents.ztunnel.poller import STREAM, Poller
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.konnectivity import dial_errors
from nodenet.konnectivity.agent_core import AgentCore
from nodenet.konnectivity.agent_tunnel import Tunnel
from nodenet.konnectivity.payload_queue import MOST_PIECES
from nodenet.rpc.call import Buffer

#: For a connection, its name's look-up included (apiserver-network-proxy: pkg/agent/client.go).
DIAL_SECONDS: Final = 5.0
#: Before the next address of a name is tried beside the one that does not answer (RFC 8305).
NEXT_ADDRESS_SECONDS: Final = 0.3
#: Silence after which a remote is asked for a sign of life, and between two such questions
#: (Go's dialler: net.Dialer.KeepAlive).
KEEPALIVE_SECONDS: Final = 15
#: For a remote to take some of what a closed tunnel still owes it; until it has all of it.
LEAVE_SECONDS: Final = 30.0
#: For it to end itself after our FIN, and what it may say until then.
GOODBYE_SECONDS: Final = 5.0
GOODBYE_BYTES: Final = 256 * 1024
#: What all closed tunnels together may owe; above it the oldest is cut.
LEAVE_BYTES: Final = 64 * 1024 * 1024

_FAMILIES: Final = {
    "tcp": socket.AF_UNSPEC,
    "tcp4": socket.AF_INET,
    "tcp6": socket.AF_INET6,
}
_READABLE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
#: With one of these a short read does not mean that nothing is left: the end is still to be read,
#: or what follows urgent data, where each read stops (tcp(7)).
_DOUBTFUL: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR | select.EPOLLPRI
_DISCARD_BYTES: Final = 64 * 1024

logger = logging.getLogger(__name__)


class Sockets:
    """What the remotes of all streams of an agent share. Belongs to one loop and its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.poller = Poller(loop)
        self.resolver = Resolver(loop)
        self.dialling = Deadlines[Remote](loop, DIAL_SECONDS, _dial_expired)
        self.slow_addresses = Deadlines[Remote](loop, NEXT_ADDRESS_SECONDS, _address_slow)
        self.leaving = Deadlines[Remote](loop, LEAVE_SECONDS, _leave_expired)
        self.ending = Deadlines[Remote](loop, GOODBYE_SECONDS, _leave_expired)
        self.leaving_bytes = 0
        self.owing: dict[Remote, None] = {}
        """Closed tunnels that still owe bytes, oldest first."""
        self.open = 0
        """Connected remotes, those that are being left included."""

    @property
    def unfinished(self) -> int:
        """Closed tunnels whose remotes are still owed bytes, or have not ended yet."""
        return len(self.leaving) + len(self.ending)

    def close(self) -> None:
        """Ends delivery and timers. The streams must have given up their remotes."""
        for remote in list(self.owing):
            remote.abort()
        for deadlines in (self.dialling, self.slow_addresses, self.leaving, self.ending):
            deadlines.close()
        self.resolver.close()
        self.poller.close()


class StreamRemotes:
    """Makes the remotes of one stream, see `agent_tunnel.Remotes`."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self.core: AgentCore | None = None
        """Set by whoever makes the core, which needs this first."""

    def dial(self, tunnel: Tunnel, network: str, host: str, port: int) -> Remote:
        """Begins a dial."""
        assert self.core is not None
        return Remote(self._sockets, self.core, tunnel, network, host, port)


class Remote:
    """One remote: the dial, then the socket (`agent_tunnel.Endpoint`), told by the poller."""

    __slots__ = (
        "_addresses",
        "_attempts",
        "_core",
        "_doubtful",
        "_error",
        "_fin_sent",
        "_heard",
        "_lookup",
        "_network",
        "_owed",
        "_owed_bytes",
        "_said_goodbye",
        "_since",
        "_sockets",
        "_state",
        "_tunnel",
        "_untaken",
        "fd",
        "readable",
        "sock",
    )

    def __init__(
        self,
        sockets: Sockets,
        core: AgentCore,
        tunnel: Tunnel,
        network: str,
        host: str,
        port: int,
    ) -> None:
        self._sockets = sockets
        self._core = core
        self._tunnel = tunnel
        self._network = network
        self.readable = False
        self.fd = -1
        self.sock: RawSocket | None = None
        self._state = _DIALLING
        self._doubtful = self._fin_sent = self._said_goodbye = False
        self._heard = 0
        """Bytes the remote sent after our FIN."""
        self._error: OSError | None = None
        """Of the first address that failed: that is the one users know."""
        self._addresses: deque[Address] = deque()
        self._attempts: list[_Attempt] = []
        self._owed: deque[memoryview] = deque()
        self._owed_bytes = 0
        self._since = 0.0
        """When it last took some of what it is owed, or was owed the first."""
        self._untaken = 0
        """Bytes the remote had still to take when last looked at, the kernel's included."""
        self._lookup: Lookup | None = None
        sockets.dialling.add(self)
        family = _FAMILIES[network]
        address = literal(host, port)
        if address is not None and family in (socket.AF_UNSPEC, address[0]):
            self._addresses.append(address)
            self._try_next()
        else:
            self._lookup = sockets.resolver.resolve(host, port, family, self._resolved)

    # -- dialling ---------------------------------------------------------------------------------

    def _resolved(self, found: list[Address] | OSError) -> None:
        self._lookup = None
        if self._state is not _DIALLING:
            return
        if isinstance(found, OSError):
            host = self._tunnel.address.rpartition(":")[0]
            self._dial_failed(dial_errors.unresolved(self._network, host, found))
            return
        self._addresses.extend(found)
        self._try_next()

    def _try_next(self) -> None:
        """Begins with the next address; tells the failure when there is none and none is tried."""
        while self._addresses:
            family, address = self._addresses.popleft()
            attempt = _Attempt(self, family)
            try:
                attempt.begin(address)
            except OSError as error:
                self._error = self._error or error
                continue
            self._attempts.append(attempt)
            if self._addresses:
                self._sockets.slow_addresses.discard(self)
                self._sockets.slow_addresses.add(self)
            return
        if not self._attempts:
            # never from within the core's own call of `dial`
            self._sockets.loop.call_soon(self._no_address_left)

    def _no_address_left(self) -> None:
        if self._state is _DIALLING:
            error = self._error or OSError(errno.EADDRNOTAVAIL, "no address")
            address = self._tunnel.address
            timeout = error.errno == errno.ETIMEDOUT
            text = dial_errors.refused(self._network, address, error)
            self._dial_failed(text, timeout=timeout)

    def address_slow(self) -> None:
        """The address that is tried does not answer: the next one is tried beside it."""
        if self._state is _DIALLING:
            self._try_next()

    def attempt_failed(self, attempt: _Attempt, error: OSError) -> None:
        """An address refused."""
        self._attempts.remove(attempt)
        attempt.close()
        self._error = self._error or error
        self._try_next()

    def attempt_connected(self, attempt: _Attempt, mask: int) -> None:
        """An address took the connection; the others are given up."""
        self._attempts.remove(attempt)
        self._give_up_attempts()
        sockets = self._sockets
        sockets.dialling.discard(self)
        self._state = _UP
        assert attempt.sock is not None
        self.sock, self.fd = attempt.sock, attempt.fd
        sockets.poller.hand_over(self.fd, self)
        sockets.open += 1
        self._note(mask)
        self._core.connected(self._tunnel, monotonic())

    def dial_expired(self) -> None:
        """`DIAL_SECONDS` are over."""
        if self._state is _DIALLING:
            text = dial_errors.timed_out(self._network, self._tunnel.address)
            self._dial_failed(text, timeout=True)

    def _dial_failed(self, text: str, *, timeout: bool = False) -> None:
        tunnel = self._tunnel
        logger.debug("error dialing backend dialID=%d: %s", tunnel.random, text)
        self._give_up()
        self._core.dial_failed(tunnel, text, timeout=timeout)

    def _give_up(self) -> None:
        self._state = _CLOSED
        del self._tunnel  # which has this object: no cycle is left for the garbage collector
        self._sockets.dialling.discard(self)
        lookup, self._lookup = self._lookup, None
        if lookup is not None:
            self._sockets.resolver.forget(lookup)
        self._addresses.clear()
        self._give_up_attempts()

    def _give_up_attempts(self) -> None:
        self._sockets.slow_addresses.discard(self)
        attempts, self._attempts = self._attempts, []
        for attempt in attempts:
            attempt.close()

    # -- poller.Target ----------------------------------------------------------------------------

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        if self._state is _LEAVING:
            self._note(mask)
            self._leave_on()
            return
        if self._state is not _UP:
            return
        tunnel, core = self._tunnel, self._core
        self._note(mask)
        if mask & select.EPOLLOUT and tunnel.held:
            core.writable(tunnel, monotonic())
        # which may have been the end of it
        if mask & _READABLE and self._state is _UP:
            if mask & select.EPOLLERR and tunnel.remote_ended:
                core.failed(tunnel, self._socket_error())
            else:
                core.readable(tunnel)

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`: the tunnel is cut."""
        if self._state is _UP:
            self._core.failed(self._tunnel, OSError(errno.EIO, "internal error"))
        self.abort()

    def _note(self, mask: int) -> None:
        if mask & _DOUBTFUL:
            self._doubtful = True
        if mask & _READABLE:
            self.readable = True

    # -- agent_tunnel.Endpoint --------------------------------------------------------------------

    def read(self, size: int) -> bytes | None:
        """See `agent_tunnel.Endpoint`."""
        assert self.sock is not None
        try:
            data = self.sock.recv(size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.readable = False
            return None
        if len(data) < size and not self._doubtful:
            # the socket is empty
            self.readable = False
        return data

    def write(self, pieces: Sequence[Buffer]) -> int:
        """See `agent_tunnel.Endpoint`."""
        assert self.sock is not None
        try:
            if len(pieces) == 1:
                return self.sock.send(pieces[0], socket.MSG_DONTWAIT)
            if len(pieces) > MOST_PIECES:
                # the rest would wait for room, and there is some: nobody would tell
                pieces = (b"".join(pieces),)
            return self.sock.sendmsg(pieces, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def shut(self) -> None:
        """See `agent_tunnel.Endpoint`."""
        assert self.sock is not None
        self._fin_sent = True
        self.sock.shutdown(socket.SHUT_WR)

    def leave(self, held: Sequence[memoryview]) -> None:
        """See `agent_tunnel.Endpoint`."""
        if self._state is not _UP:
            return
        self._state = _LEAVING
        self._owed.extend(held)
        self._owed_bytes = sum(len(piece) for piece in held)
        sockets = self._sockets
        if self._owed:
            sockets.leaving_bytes += self._owed_bytes
            sockets.owing[self] = None
        if not self._leave_on() and not self._said_goodbye:
            self._begin_to_wait(sockets.leaving)
        while sockets.leaving_bytes > LEAVE_BYTES:
            next(iter(sockets.owing)).abort()

    def abort(self) -> None:
        """See `agent_tunnel.Endpoint`."""
        if self._state is _DIALLING:
            self._give_up()
        elif self.sock is not None:
            reset_on_close(self.sock)
            self._close()

    # -- the end ----------------------------------------------------------------------------------

    def _leave_on(self) -> bool:
        """Writes what is owed, then waits for the remote's end; whether the socket is closed now.

        close() while the remote still sends becomes a reset, and a reset makes a remote lose what
        it has not read yet. So it gets a FIN and some time to end by itself. One that was never
        sent anything, and sends nothing now, has nothing to lose.
        """
        sock = self.sock
        if sock is None:
            return True
        try:
            while self._owed:
                sent = self.write((self._owed[0],))
                if sent < len(self._owed[0]):
                    self._owed[0] = self._owed[0][sent:]
                    self._paid(sent)
                    return False
                self._owed.popleft()
                self._paid(sent)
            if self._tunnel.remote_ended or not (self._tunnel.received or self.readable):
                self._close()
                return True
            if not self._fin_sent:
                self.shut()
            if not self._said_goodbye:
                self._said_goodbye = True
                self._sockets.leaving.discard(self)
                self._begin_to_wait(self._sockets.ending)
            if not self.readable:
                return False
            while self._heard < GOODBYE_BYTES:
                count = len(sock.recv(_DISCARD_BYTES, socket.MSG_DONTWAIT))
                if not count:
                    break
                self._heard += count
            self._close()
            return True
        except BlockingIOError:
            self.readable = False
            return False
        except OSError as error:
            logger.debug("%s ended while it was left: %s", self._tunnel.address, error)
            self._close()
            return True

    def _paid(self, size: int) -> None:
        self._owed_bytes -= size
        self._sockets.leaving_bytes -= size
        if not self._owed_bytes:
            self._sockets.owing.pop(self, None)

    def _begin_to_wait(self, waiting: Deadlines[Remote]) -> None:
        self._untaken, self._since = self._left(), self._sockets.loop.time()
        waiting.add(self)

    def leave_expired(self) -> None:
        """`LEAVE_SECONDS`, or `GOODBYE_SECONDS`, are over."""
        if self.sock is None:
            return
        left, now = self._left(), self._sockets.loop.time()
        if left < self._untaken:
            self._untaken, self._since = left, now
        if now - self._since < (LEAVE_SECONDS if left else GOODBYE_SECONDS):
            (self._sockets.leaving if self._owed else self._sockets.ending).add(self)
        elif self._owed:
            logger.info("%s: %d bytes were never taken", self._tunnel.address, self._owed_bytes)
            self.abort()
        else:
            self._close()  # what the kernel still has, it goes on sending

    def _left(self) -> int:
        return self._owed_bytes + (in_kernel(self.sock) if self.sock is not None else 0)

    def _close(self) -> None:
        sock, self.sock = self.sock, None
        if sock is None:
            return
        self._state = _CLOSED
        sockets = self._sockets
        sockets.leaving.discard(self)
        sockets.ending.discard(self)
        sockets.owing.pop(self, None)
        sockets.leaving_bytes -= self._owed_bytes
        self._owed.clear()
        self._owed_bytes = 0
        sockets.open -= 1
        fd, self.fd = self.fd, -1
        sockets.poller.retire(fd, sock)
        del self._tunnel  # see `_give_up`

    def _socket_error(self) -> OSError:
        assert self.sock is not None
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or errno.ECONNRESET
        return OSError(number, os.strerror(number))


class _Attempt:
    """A connection to one address that is being made."""

    __slots__ = ("_family", "_remote", "fd", "sock")

    def __init__(self, remote: Remote, family: int) -> None:
        self._remote = remote
        self._family = family
        self.sock: RawSocket | None = None
        self.fd = -1

    def begin(self, address: tuple[Any, ...]) -> None:
        """Sends the SYN. OSError."""
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        sock = RawSocket(self._family, kind, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
            number = sock.connect_ex(address)
            if number not in (0, errno.EINPROGRESS):
                raise OSError(number, os.strerror(number))
        except BaseException:
            sock.close()
            raise
        self.sock = sock
        self.fd = sock.fileno()
        self._remote._sockets.poller.add(self.fd, STREAM, self)

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        sock = self.sock
        if sock is None:
            return
        if mask & select.EPOLLOUT and not mask & (select.EPOLLERR | select.EPOLLHUP):
            self._remote.attempt_connected(self, mask)
            return
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._remote.attempt_failed(self, OSError(number, os.strerror(number)))
        elif mask & select.EPOLLOUT:
            # connected, and ended already
            self._remote.attempt_connected(self, mask)

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`: the address counts as failed."""
        if self in self._remote._attempts:
            self._remote.attempt_failed(self, OSError(errno.EIO, "internal error"))

    def close(self) -> None:
        """Gives it up."""
        sock, self.sock = self.sock, None
        if sock is not None:
            self._remote._sockets.poller.retire(self.fd, sock)


_DIALLING: Final = "dialling"
_UP: Final = "up"
_LEAVING: Final = "leaving"
_CLOSED: Final = "closed"


def _dial_expired(remote: Remote) -> None:
    remote.dial_expired()


def _address_slow(remote: Remote) -> None:
    remote.address_slow()


def _leave_expired(remote: Remote) -> None:
    remote.leave_expired()
