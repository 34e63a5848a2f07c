"""The load generator's modes with many connections in one process, over loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from bench._load import Load, LoadFailed, Mode, Side

HERE = Side(cpu=min(os.sched_getaffinity(0)))


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    with Load() as compiled:
        yield compiled


@pytest.fixture
def address() -> str:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("connections", [1, 20])
@pytest.mark.parametrize("mode", ["open", "trips"])
def test_messages_there_and_back(load: Load, address: str, mode: Mode, connections: int) -> None:
    sample = load.run(
        mode, client=HERE, dial=address, server=HERE, listen=address,
        milliseconds=20, size=1024, connections=connections,
    )  # fmt: skip
    assert sample.count > 0
    assert sample.total >= sample.count + 200
    assert sample.elapsed_ns == 20_000_000
    assert 0 < sample.p50_ns <= sample.p99_ns <= sample.max_ns
    assert (sample.reply_p50_ns > sample.p50_ns) == (mode == "open")


@pytest.mark.parametrize("connections", [1, 20])
@pytest.mark.parametrize("mode", ["up", "down"])
def test_bytes_are_counted_at_both_ends(
    load: Load, address: str, mode: Mode, connections: int
) -> None:
    sample = load.run(
        mode, client=HERE, dial=address, server=HERE, listen=address,
        milliseconds=20, size=65536, connections=connections,
    )  # fmt: skip
    assert sample.count == connections
    assert sample.bytes > 0
    assert sample.elapsed_ns >= 20_000_000


def test_idle_connections_all_answer(load: Load, address: str) -> None:
    with load.idling(100, client=HERE, dial=address, server=HERE, listen=address) as idle:
        assert idle.verify() == 100


def test_idle_connections_that_nobody_asks_end_with_the_block(load: Load, address: str) -> None:
    with load.idling(3, client=HERE, dial=address, server=HERE, listen=address):
        pass
    with pytest.raises(LoadFailed, match="connect: Connection refused"):
        load.run("trips", client=HERE, dial=address, milliseconds=10)


def test_a_server_that_is_not_there_is_an_error(load: Load, address: str) -> None:
    with (
        pytest.raises(LoadFailed, match="connect: Connection refused"),
        load.idling(3, client=HERE, dial=address, server=HERE, listen="127.0.0.2:1"),
    ):
        pytest.fail("none of them can be open")
