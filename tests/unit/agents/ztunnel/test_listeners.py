"""Accepting in batches, and pausing."""

from __future__ import annotations

import asyncio
import socket
from _socket import socket as RawSocket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodenet.abi import Direction
from nodenet.agents.ztunnel.listeners import BATCH, Listener, ListenFailed
from nodenet.agents.ztunnel.poller import Poller

Until = Callable[[Callable[[], object]], None]


class Door:
    """A listener on loopback with switches for what its owner would answer."""

    def __init__(self, poller: Poller) -> None:
        self.accepted: list[RawSocket] = []
        self.peers: list[tuple[Any, ...]] = []
        self.pauses = 0
        self.room = True
        self.descriptors = True
        sock = RawSocket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.bind(("127.0.0.1", 0))
        sock.listen(128)
        self.name = sock.getsockname()
        self.listener = Listener(
            sock,
            Direction.IN,
            poller,
            on_accept=self._accept,
            has_room=lambda: self.room,
            on_pause=self._pause,
        )
        self._clients: list[socket.socket] = []

    def knock(self, times: int = 1) -> None:
        for _ in range(times):
            self._clients.append(socket.create_connection(self.name))

    def close(self) -> None:
        self.listener.close()
        for sock in (*self.accepted, *self._clients):
            sock.close()

    def _accept(self, sock: RawSocket, peer: tuple[Any, ...], direction: Direction) -> bool:
        assert direction is Direction.IN
        self.accepted.append(sock)
        self.peers.append(peer)
        return self.descriptors

    def _pause(self, listener: Listener) -> None:
        assert listener is self.listener
        self.pauses += 1


@pytest.fixture
def door(loop: asyncio.AbstractEventLoop) -> Iterator[Door]:
    """A door of a poller; both are closed."""
    poller = Poller(loop)
    made = Door(poller)
    yield made
    made.close()
    made.listener.close()
    assert len(poller) == 0
    poller.close()


def test_more_than_a_batch_comes_in_several_turns(door: Door, until: Until) -> None:
    door.knock(BATCH + 5)
    door.listener.event(0)
    assert len(door.accepted) == BATCH
    until(lambda: len(door.accepted) == BATCH + 5)
    assert len({peer[1] for peer in door.peers}) == BATCH + 5


def test_accepted_sockets_never_block(door: Door, until: Until) -> None:
    door.knock()
    until(lambda: door.accepted)
    with pytest.raises(BlockingIOError):
        door.accepted[0].recv_into(bytearray(1), 0, socket.MSG_DONTWAIT)


@pytest.mark.parametrize("lacking", ["room", "descriptors"])
def test_without_room_they_wait_and_get_their_turn_later(
    door: Door, until: Until, lacking: str
) -> None:
    setattr(door, lacking, False)
    door.knock(3)
    until(lambda: door.listener.paused)
    taken = 0 if lacking == "room" else 1
    assert len(door.accepted) == taken and door.pauses == 1
    setattr(door, lacking, True)
    door.listener.rearm()
    until(lambda: len(door.accepted) == 3)
    assert not door.listener.paused


def test_the_error_names_the_port_and_where_to_look() -> None:
    error = ListenFailed(15001, OSError(98, "Address already in use"))
    assert error.line() == (
        "cannot listen on port 15001: Address already in use; "
        "see who has it, inside the pod's namespace: ss -ltnp sport = :15001"
    )
