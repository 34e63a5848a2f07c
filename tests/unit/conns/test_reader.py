"""Reading the iterator: any file that holds records does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.abi import ConnFlag
from nodenet.conns import reader as reader_module
from nodenet.conns.reader import ConnReader, NoStatistics
from nodenet.paths import Instance

Record = Callable[..., bytes]


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance with nothing pinned, below a temporary directory."""
    monkeypatch.setattr("nodenet.paths.BPFFS", tmp_path)
    found = Instance("reading")
    found.links.mkdir(parents=True)
    found.maps.mkdir()
    return found


def test_live_connections(instance: Instance, record: Record) -> None:
    raw = record(cookie=1) + record(cookie=2, flags=ConnFlag.PROXY) + record(cookie=3, netns=42)
    (instance.links / "iter_conns").write_bytes(raw)
    reader = ConnReader(instance)
    assert [row.id for row in reader.live()] == ["1", "3"]
    assert [row.id for row in reader.live(proxy=True)] == ["1", "2", "3"]
    assert [row.id for row in reader.live(netns={42})] == ["3"]
    assert bytes(reader.live_records()) == raw


def test_no_connections(instance: Instance) -> None:
    (instance.links / "iter_conns").write_bytes(b"")
    assert ConnReader(instance).live() == []


def test_more_records_than_the_buffer_began_with(
    instance: Instance, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_READ_BYTES", 3 * abi.EVENT.size)
    monkeypatch.setattr(reader_module, "_BUFFER_BYTES", 4096)
    raw = b"".join(record(cookie=i + 1) for i in range(1000))
    (instance.links / "iter_conns").write_bytes(raw)
    reader = ConnReader(instance)
    assert bytes(reader.live_records()) == raw
    assert [row.id for row in reader.live()] == [f"{i + 1:x}" for i in range(1000)]


def test_what_is_missing_is_named(instance: Instance) -> None:
    with pytest.raises(NoStatistics) as raised:
        ConnReader(instance).live()
    assert raised.value.exit_code == 4
    assert raised.value.line() == (
        f"no statistics: {instance.maps}/conns is not there; "
        "start capture: nodenet node run, or nodenet lab up"
    )
    (instance.maps / "conns").touch()
    with pytest.raises(NoStatistics, match="links/iter_conns is not there"):
        ConnReader(instance).live()
