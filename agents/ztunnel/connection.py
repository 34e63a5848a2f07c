"""One connection through the proxy: accepted, being dialled, relayed, ended."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import struct
from _socket import socket as RawSocket
from typing import TYPE_CHECKING, Final

from nodenet.abi import Direction
from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.relay import Leg, reset_on_close

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.served import Flow, ServedPod

_SO_COOKIE: Final = 57
_COOKIE: Final = struct.Struct("=Q")
_FAILED: Final = select.EPOLLERR | select.EPOLLHUP
_ARRIVED: Final = select.EPOLLIN | select.EPOLLRDHUP

#: Destination, client and cause.
DIAL_FAILED: Final = "dial to %s for %s failed: %s"

#: One INFO line a connection; off unless asked for, because it costs as much as the connection.
access_log = logging.getLogger("access")


def errno_name(number: int | None) -> str:
    """``ECONNREFUSED`` for 111; the number itself when it has no name."""
    return errno.errorcode.get(number or 0, str(number))


def socket_cookie(sock: RawSocket) -> str:
    """The kernel's id of a socket, in hex as `ss -e` prints it behind ``sk:``."""
    raw = sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE.size)
    return f"{_COOKIE.unpack(raw)[0]:x}"


class Connection:
    """A captured connection. ``near`` is the side that was accepted, ``far`` the one dialled.

    It is the poller's target while it is being dialled; then its two legs are.
    """

    __slots__ = (
        "_far",
        "_legs",
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
        self._legs: tuple[Leg, Leg] | None = None

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
        self._give_up()

    def cut(self) -> None:
        """Ends it now; both sides see a reset."""
        if self.over:
            return
        if self._legs is None:
            self._give_up()
        else:
            self._legs[0].cut()

    def relay_ended(self, error: OSError | None) -> None:
        """See `relay.Owner`."""
        if error is not None:
            self.served.counters.reset += 1
        self._over(error)

    def _give_up(self) -> None:
        """Ends a connection whose dial is not done."""
        poller = self.served.data_path.poller
        self._over(None)
        reset_on_close(self._near)
        for sock in (self._near, self._far):
            poller.retire(sock.fileno(), sock)

    def _over(self, error: OSError | None) -> None:
        self.over = True
        if access_log.isEnabledFor(logging.INFO) and self._legs is not None:
            self._log(error)
        self.served.ended(self)
        self._legs = None

    def _received(self, leg: int) -> int:
        return 0 if self._legs is None else self._legs[leg].received

    def _log(self, error: OSError | None) -> None:
        milliseconds = (self.served.data_path.loop.time() - self.started) * 1000
        access_log.info(
            'conn.id=%s src.addr=%s dst.addr=%s direction="%s" pod="%s" '
            'bytes_sent=%d bytes_recv=%d duration="%dms"%s',
            socket_cookie(self._near),
            self.client,
            self.destination,
            "outbound" if self.direction is Direction.OUT else "inbound",
            self.served.pod.name,
            self.sent,
            self.received,
            milliseconds,
            f' error="{error.strerror or error}"' if error is not None else "",
        )
