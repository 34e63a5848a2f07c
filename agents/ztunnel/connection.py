"""One connection through the proxy: accepted, being dialled, relayed, ended."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from _socket import socket as RawSocket
from typing import TYPE_CHECKING, Final, Protocol

from nodenet.abi import Direction
from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.admission import PASSED_ON_FILES
from nodenet.agents.ztunnel.ends import Draining
from nodenet.agents.ztunnel.flow_facts import ResponseFlag
from nodenet.agents.ztunnel.relay import Leg, reset_on_close
from nodenet.errors import NodenetError

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.served import Flow, ServedPod
    from nodenet.agents.ztunnel.telemetry import OpenFlow

_SO_COOKIE: Final = 57
_COOKIE: Final = struct.Struct("=Q")
_FAILED: Final = select.EPOLLERR | select.EPOLLHUP
_ARRIVED: Final = select.EPOLLIN | select.EPOLLRDHUP

#: Destination, client and cause.
DIAL_FAILED: Final = "dial to %s for %s failed: %s"


def errno_name(number: int | None) -> str:
    """``ECONNREFUSED`` for 111; the number itself when it has no name."""
    return errno.errorcode.get(number or 0, str(number))


def socket_cookie(sock: RawSocket) -> str:
    """The kernel's id of a socket, in hex as `ss -e` prints it behind ``sk:``."""
    raw = sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE.size)
    return f"{_COOKIE.unpack(raw)[0]:x}"


class Judged(Protocol):
    """Whether the policies of this moment would let a connection in."""

    def rejection(self) -> NodenetError | None:
        """Why not; None when they would."""


def dialled_from(flow: Flow) -> Address | None:
    """Our own end of a dial; None where the kernel chose the address."""
    host, port, _ = flow
    return None if host is None else Address(host, port)


class Connection:
    """A captured connection. ``near`` is the side that was accepted, ``far`` the one dialled.

    It is the poller's target while it is being dialled; then its two legs are.
    """

    __slots__ = (
        "_error",
        "_far",
        "_judged",
        "_legs",
        "_log",
        "_near",
        "client",
        "client_flow",
        "dial_flow",
        "direction",
        "over",
        "served",
        "started",
    )

    def __init__(
        self,
        served: ServedPod,
        direction: Direction,
        client: Address,
        near: RawSocket,
        far: RawSocket,
        client_flow: Flow,
        dial_flow: Flow,
        log: OpenFlow,
        judged: Judged | None = None,
    ) -> None:
        self.served = served
        self.direction = direction
        self.client = client
        self.client_flow = client_flow
        self.dial_flow = dial_flow
        self.started = served.data_path.loop.time()
        """Loop time in seconds."""
        self.over = False
        self._near = near
        self._far = far
        self._log = log
        self._judged = judged
        self._error: NodenetError | None = None
        log.progress = self
        log.dialled_from = dialled_from(dial_flow)
        self._legs: tuple[Leg, Leg] | None = None

    @property
    def files(self) -> int:
        """Descriptors it needs."""
        return PASSED_ON_FILES

    @property
    def destination(self) -> Address:
        """Where ``far`` goes."""
        return self.dial_flow[2]

    @property
    def sent(self) -> int:
        """Payload bytes the pod has sent."""
        return self._received(0 if self.direction is Direction.OUT else 1)

    @property
    def received(self) -> int:
        """Payload bytes the pod has received."""
        return self._received(1 if self.direction is Direction.OUT else 0)

    def event(self, mask: int) -> None:
        """See `poller.Target`: the dial has come to something."""
        if mask & _FAILED:
            number = self._far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self.dial_failed(number or errno.ECONNRESET)
        elif mask & select.EPOLLOUT:
            data_path = self.served.data_path
            data_path.dials.discard(self)
            self._legs = data_path.relay.join(self._near, self._far, self)
            if mask & _ARRIVED:
                self._legs[1].event(mask)

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`."""
        self.cut()

    def dial_failed(self, number: int) -> None:
        """The destination cannot be reached, for this errno: the client gets a reset."""
        if self.over:
            return
        served = self.served
        served.counters.dial_failed[errno_name(number)] += 1
        served.complain(self._near, DIAL_FAILED, self.destination, self.client, os.strerror(number))
        self._give_up(OSError(number, os.strerror(number)))

    def cut(self, error: NodenetError | None = None) -> None:
        """Ends it now; both sides see a reset. ``error`` is why, None when the pod leaves."""
        if self.over:
            return
        self._error = error or Draining()
        if self._legs is None:
            self._give_up()
        else:
            self._legs[0].cut()

    def judge(self) -> None:
        """Ends it if the policies of this moment would not let it in."""
        if self._judged is not None and (error := self._judged.rejection()) is not None:
            self.cut(error)

    def relay_ended(self, error: OSError | None) -> None:
        """See `relay.Owner`."""
        if error is not None:
            self.served.counters.reset += 1
        self._over(error)

    def _give_up(self, error: OSError | None = None) -> None:
        """Ends a connection whose dial is not done."""
        poller = self.served.data_path.poller
        self._over(error)
        reset_on_close(self._near)
        for sock in (self._near, self._far):
            poller.retire(sock.fileno(), sock)

    def _over(self, error: OSError | None) -> None:
        self.over = True
        if self._error is not None:
            self._log.closed(
                self.sent, self.received, self._error.message, ResponseFlag.of(self._error)
            )
        elif error is not None:
            text = f"io error: {error.strerror or error}"
            self._log.closed(self.sent, self.received, text, ResponseFlag.CONNECT)
        else:
            self._log.closed(self.sent, self.received)
        self.served.ended(self)
        self._legs = None

    def _received(self, leg: int) -> int:
        return 0 if self._legs is None else self._legs[leg].received
