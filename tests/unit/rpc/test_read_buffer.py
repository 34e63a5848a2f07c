"""What sockets are read into: large reads are kept without a copy, and nothing overwrites them."""

from __future__ import annotations

import importlib.util
import sys
import threading

import pytest

from nodenet.rpc import read_buffer
from nodenet.rpc.read_buffer import READ_BYTES, ReadBuffer, shared


def _read(buffer: ReadBuffer, content: bytes) -> bytes | memoryview:
    view = buffer.get()
    assert len(view) == READ_BYTES and not view.readonly
    view[: len(content)] = content
    return buffer.filled(len(content))


def test_a_small_read_is_copied_and_the_buffer_is_used_again() -> None:
    buffer = ReadBuffer()
    first = buffer.get()
    found = _read(buffer, b"little")
    assert found == b"little" and isinstance(found, bytes)
    assert buffer.get().obj is first.obj


def test_a_large_read_is_kept_whatever_is_read_behind_it() -> None:
    buffer = ReadBuffer()
    kept = [_read(buffer, bytes([n]) * READ_BYTES) for n in range(20)]
    assert all(isinstance(piece, memoryview) for piece in kept)
    assert [piece == bytes([n]) * READ_BYTES for n, piece in enumerate(kept)] == [True] * 20


def test_a_part_of_a_large_read_keeps_it_too() -> None:
    buffer = ReadBuffer()
    part = _read(buffer, b"a" * READ_BYTES)[100:110]
    for _ in range(20):
        _read(buffer, b"b" * READ_BYTES)
    assert part == b"a" * 10


def test_a_buffer_nobody_has_a_view_of_is_used_again() -> None:
    buffer = ReadBuffer()
    used = set()
    for _ in range(20):
        _read(buffer, b"a" * READ_BYTES)
        used.add(id(buffer.get().obj))
    assert len(used) == 1


def test_buffers_that_stay_in_use_are_not_looked_at_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Peers that stall keep what they hold; the others still use theirs again."""
    buffer = ReadBuffer()
    kept = [_read(buffer, b"a" * READ_BYTES) for _ in range(20)]
    made: list[int] = []

    def make(size: int) -> bytearray:
        made.append(size)
        return bytearray(size)

    monkeypatch.setattr(read_buffer, "bytearray", make, raising=False)
    for _ in range(20):
        _read(buffer, b"b" * READ_BYTES)
    assert made == [READ_BYTES]
    assert all(piece == b"a" * READ_BYTES for piece in kept)


def test_what_is_kept_is_not_overwritten_where_locals_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CPython 3.14 borrows references of local variables: a buffer nobody uses has one less."""
    count = sys.getrefcount
    # one for the lambda, one for what is borrowed
    monkeypatch.setattr(sys, "getrefcount", lambda thing: count(thing) - 2)
    spec = importlib.util.spec_from_file_location("borrowing", read_buffer.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    buffer: ReadBuffer = module.ReadBuffer()
    kept = [_read(buffer, bytes([n]) * READ_BYTES) for n in range(20)]
    assert [piece == bytes([n]) * READ_BYTES for n, piece in enumerate(kept)] == [True] * 20
    kept.clear()
    used = set()
    for _ in range(20):
        _read(buffer, b"a" * READ_BYTES)
        used.add(id(buffer.get().obj))
    assert len(used) == 1


def test_every_thread_has_its_own() -> None:
    found: list[ReadBuffer] = []
    thread = threading.Thread(target=lambda: found.append(shared()))
    thread.start()
    thread.join()
    assert shared() is shared() and found[0] is not shared()
