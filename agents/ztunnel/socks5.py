"""SOCKS5 (RFC 1928) on the pod's loopback: a way into the mesh for programs that ask for it.

Without authentication, and only CONNECT. The answer is success before anything is connected, as
ztunnel's is (src/proxy/socks5.rs): whether there is somebody shows in how the connection goes on.
Nothing is read beyond the request, so what the application sends early stays in its socket.
"""

from __future__ import annotations

import ipaddress
import select
import socket
from _socket import socket as RawSocket
from collections.abc import Callable, Sequence
from typing import Final

from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.poller import STREAM, Poller
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.endpoint import IPAddress, unmapped

PORT: Final = 15080
#: Seconds a client may take to say what it wants, the look-up of a hostname included.
REQUEST_SECONDS: Final = 10.0
_VERSION: Final = 5
_NO_AUTHENTICATION: Final = b"\x05\x00"
_NO_METHOD: Final = b"\x05\xff"
_CONNECT: Final = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_REPLY: Final = b"\x05%c\x00\x01\x00\x00\x00\x00\x00\x00"
_SUCCEEDED, _HOST_UNREACHABLE, _NO_COMMAND, _NO_TYPE = 0, 4, 7, 8


class SocksFailed(Exception):
    """The client speaks no SOCKS5, or asks for what there is not. ``reply`` is sent before."""

    def __init__(self, text: str, reply: bytes = b"") -> None:
        super().__init__(text)
        self.reply = reply


class Request:
    """Reads a request piece by piece: tells how many bytes it needs, and takes these.

    When ``target`` is set the request is complete: an address or a hostname, and the port.
    """

    def __init__(self) -> None:
        self.needs = 2
        self.answer = b""
        """To be sent now."""
        self.target: tuple[IPAddress | str, int] | None = None
        self._step: Callable[[bytes], None] = self._greeting

    def take(self, piece: bytes) -> None:
        """Takes the bytes that were needed. SocksFailed."""
        self.answer = b""
        self._step(piece)

    def _greeting(self, piece: bytes) -> None:
        if piece[0] != _VERSION or not piece[1]:
            raise SocksFailed("not SOCKS5")
        self.needs, self._step = piece[1], self._methods

    def _methods(self, piece: bytes) -> None:
        if 0 not in piece:
            raise SocksFailed("no method without authentication", _NO_METHOD)
        self.answer = _NO_AUTHENTICATION
        # up to the first byte of the address, which is its length if it is a name
        self.needs, self._step = 5, self._head

    def _head(self, piece: bytes) -> None:
        version, command, _, kind, first = piece
        if version != _VERSION:
            raise SocksFailed("not SOCKS5")
        if command != _CONNECT:
            raise SocksFailed(f"command {command} is not CONNECT", _REPLY % _NO_COMMAND)
        if kind == _NAME:
            if not first:
                raise SocksFailed("an empty hostname", _REPLY % _HOST_UNREACHABLE)
            self.needs, self._step = first + 2, self._name
        elif kind in (_IPV4, _IPV6):
            self._first = bytes((first,))
            self.needs, self._step = (3 if kind == _IPV4 else 15) + 2, self._address
        else:
            raise SocksFailed(f"address type {kind}", _REPLY % _NO_TYPE)

    def _name(self, piece: bytes) -> None:
        try:
            name = piece[:-2].decode("ascii")
        except UnicodeDecodeError:
            raise SocksFailed("a hostname that is not ASCII", _REPLY % _HOST_UNREACHABLE) from None
        try:
            self.target = unmapped(ipaddress.ip_address(name)), int.from_bytes(piece[-2:], "big")
        except ValueError:
            self.target = name.lower(), int.from_bytes(piece[-2:], "big")

    def _address(self, piece: bytes) -> None:
        packed = self._first + piece[:-2]
        self.target = unmapped(ipaddress.ip_address(packed)), int.from_bytes(piece[-2:], "big")


#: Told what the client wants; the socket is the callee's from then on, and not watched.
OnTarget = Callable[[RawSocket, Address, Address], None]
#: Looks a hostname up: see `mesh_pod.MeshPod.addresses_of`.
LookUp = Callable[[str, Callable[[Sequence[IPAddress] | None], None]], None]


class Client:
    """A client that says what it wants. The poller's target."""

    def __init__(
        self,
        poller: Poller,
        sock: RawSocket,
        peer: Address,
        on_target: OnTarget,
        look_up: LookUp,
        over: Callable[[Client, str | None], None],
    ) -> None:
        """``over`` is told once, with what was wrong or None."""
        self._poller = poller
        self._sock = sock
        self._peer = peer
        self._on_target = on_target
        self._look_up = look_up
        self._over = over
        self._request = Request()
        self._piece = b""
        self._watched = True
        self.done = False

    def start(self) -> None:
        """Begins to listen to it. OSError."""
        self._poller.add(self._sock.fileno(), STREAM, self)

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        if (
            self.done
            or not self._watched
            or not mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR)
        ):
            return
        request = self._request
        try:
            while request.target is None:
                got = self._sock.recv(request.needs - len(self._piece), socket.MSG_DONTWAIT)
                if not got:
                    self._fail("the client left")
                    return
                self._piece += got
                if len(self._piece) == request.needs:
                    piece, self._piece = self._piece, b""
                    request.take(piece)
                    if request.answer:
                        self._sock.send(request.answer, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except SocksFailed as error:
            self._fail(str(error), error.reply)
            return
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        # whoever carries it watches it again
        self._poller.remove(self._sock.fileno())
        self._watched = False
        target, _ = request.target
        if isinstance(target, str):
            self._look_up(target, self._found)
        else:
            self._found((target,))

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`."""
        self._fail("internal error")

    def expire(self) -> None:
        """It has not said what it wants in time, or nobody knows what that is."""
        if self._request.target is None:
            self._fail(f"no request within {REQUEST_SECONDS:g} s")
        else:
            self._fail("the look-up takes too long", _REPLY % _HOST_UNREACHABLE)

    def cut(self) -> None:
        """The pod leaves."""
        self._fail(None)

    def _found(self, addresses: Sequence[IPAddress] | None) -> None:
        if self.done:  # it was cut meanwhile
            return
        self.done = True
        assert self._request.target is not None
        name, port = self._request.target
        sock = self._sock
        if not addresses:
            self._reset(_REPLY % _HOST_UNREACHABLE)
            sock.close()
            self._over(self, f"{name!r} is not known")
            return
        try:
            sock.send(_REPLY % _SUCCEEDED, socket.MSG_DONTWAIT)
        except OSError as error:
            sock.close()
            self._over(self, error.strerror or str(error))
            return
        self._over(self, None)
        self._on_target(sock, self._peer, Address(str(unmapped(addresses[0])), port))

    def _fail(self, why: str | None, reply: bytes = b"") -> None:
        if self.done:
            return
        self.done = True
        self._reset(reply)
        if self._watched:
            self._watched = False
            self._poller.retire(self._sock.fileno(), self._sock)
        else:
            self._sock.close()
        self._over(self, why)

    def _reset(self, reply: bytes) -> None:
        """Ends it: with an answer if there is one, else by a reset."""
        if not reply:
            reset_on_close(self._sock)
            return
        try:
            self._sock.send(reply, socket.MSG_DONTWAIT)
        except OSError:
            reset_on_close(self._sock)
