"""What the caller may not do, and what is harmless."""

from __future__ import annotations

import pytest

from nodenet.hbone import hpack_codec, outgoing
from nodenet.hbone.errors import Misuse
from nodenet.hbone.settings import Role
from tests.unit.hbone.scripted import Play, connect, data, rst


def test_a_server_opens_nothing(server: Play) -> None:
    with pytest.raises(Misuse):
        server.connection.open(hpack_codec.connect(b"a:1"))


def test_one_answer_a_stream(server: Play) -> None:
    stream = server.opens(1)
    with pytest.raises(Misuse, match="stream 1 was answered"):
        server.connection.respond(stream, 200)


def test_a_ping_has_eight_bytes(server: Play) -> None:
    with pytest.raises(Misuse):
        server.connection.ping(b"1234567")


def test_forgotten_resets_cost_an_answer_each() -> None:
    """Only so many reset streams are remembered; the oldest goes first."""
    server = Play(Role.SERVER)
    for number in range(outgoing.MAX_GRACE + 1):
        server.receives(connect(2 * number + 1))
        server.connection.reset(server.stream(2 * number + 1))
    server.sends_anything()
    assert len(server.connection._grace) == outgoing.MAX_GRACE
    server.receives(data(1, b"x")).sends(rst(1, 5))
    server.receives(data(3, b"x")).sends()
