"""SOCKS5 requests: whom they are for, and that every one of them ends."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from _socket import socket as RawSocket
from collections.abc import Callable, Iterator, Sequence

import pytest

from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.poller import Poller
from nodenet.agents.ztunnel.socks5 import Client
from nodenet.endpoint import IPAddress
from tests.unit.agents.ztunnel.tcp import connected

Until = Callable[[Callable[[], object]], None]
Answer = Callable[[Sequence[IPAddress] | None], None]


class Asking:
    """A client, and what came of it."""

    def __init__(self, poller: Poller, request: bytes) -> None:
        self.pair = connected()
        self.pair.app.sendall(b"\x05\x01\x00\x05\x01\x00" + request)
        self.targets: list[Address] = []
        self.over: list[str | None] = []
        self.look_ups: list[tuple[str, Answer]] = []
        self.client = Client(
            poller,
            self.pair.proxy,
            Address("127.0.0.1", 1),
            self._target,
            lambda name, done: self.look_ups.append((name, done)),
            lambda client, why: self.over.append(why),
        )
        self.client.start()

    def _target(self, sock: RawSocket, peer: Address, target: Address) -> None:
        self.targets.append(target)
        sock.close()

    def heard(self) -> bytes:
        """What the application was told, up to the end."""
        try:
            return b"".join(iter(lambda: self.pair.app.recv(100), b""))
        except ConnectionResetError:
            return b"reset"
        finally:
            self.pair.app.close()


@pytest.fixture
def poller(loop: asyncio.AbstractEventLoop) -> Iterator[Poller]:
    made = Poller(loop)
    yield made
    assert len(made) == 0
    made.close()


MAPPED = "::ffff:10.0.0.5"


@pytest.mark.parametrize(
    "request_",
    [
        b"\x04" + socket.inet_pton(socket.AF_INET6, MAPPED) + b"\x00\x50",
        b"\x03" + bytes([len(MAPPED)]) + MAPPED.encode() + b"\x00\x50",
    ],
    ids=["address", "name"],
)
def test_a_mapped_address_is_the_address_it_stands_for(
    poller: Poller, until: Until, request_: bytes
) -> None:
    """Or the mesh would not know it, and it would be reached past the mesh, in plaintext."""
    asking = Asking(poller, request_)
    until(lambda: asking.targets)
    assert asking.targets == [Address("10.0.0.5", 80)]
    asking.heard()


NAME = b"\x03\x04name\x00\x50"


@pytest.mark.parametrize("how", ["expire", "cut"])
def test_a_look_up_does_not_hold_a_client(poller: Poller, until: Until, how: str) -> None:
    asking = Asking(poller, NAME)
    until(lambda: asking.look_ups)
    getattr(asking.client, how)()
    assert len(asking.over) == 1
    assert asking.pair.proxy.fileno() == -1
    [(_, answer)] = asking.look_ups
    answer((ipaddress.ip_address("10.0.0.5"),))  # much later
    assert not asking.targets
    assert len(asking.over) == 1
    asking.heard()


def test_a_name_is_looked_up(poller: Poller, until: Until) -> None:
    asking = Asking(poller, NAME)
    until(lambda: asking.look_ups)
    [(name, answer)] = asking.look_ups
    assert name == "name"
    answer((ipaddress.ip_address(MAPPED),))
    assert asking.targets == [Address("10.0.0.5", 80)]
    assert asking.over == [None]
    assert asking.heard() == b"\x05\x00" + b"\x05\x00\x00\x01" + bytes(6)
