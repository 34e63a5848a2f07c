"""A profile is the profile of pprof, and the busy function is in it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator

from nodenet.agents.ztunnel.pprof import Frame, encode
from nodenet.agents.ztunnel.profiler import sample


def fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protobuf message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(raw):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            length = varint()
            at += length
            yield key >> 3, raw[at - length : at]


def one(raw: bytes, number: int) -> int | bytes:
    (found,) = [value for field, value in fields(raw) if field == number]
    return found


def many(raw: bytes, number: int) -> list[bytes]:
    return [v for field, v in fields(raw) if field == number and isinstance(v, bytes)]


def test_the_message_is_read_back() -> None:
    inner, outer = Frame("inner", "a.py", 10, 12), Frame("outer", "b.py", 1, 300)
    raw = encode({(inner, outer): 3, (outer,): 1}, began_ns=7, lasted_ns=8, period_ns=10_000_000)
    strings = [text.decode() for text in many(raw, 6)]
    assert strings[0] == ""
    assert [strings[int(one(kind, 1))] for kind in many(raw, 1)] == ["samples", "wall"]
    assert [list(s) for s in (many(raw, 2)[0], many(raw, 2)[1])]
    stacks = [(list(many(s, 1)[0]), one(s, 2)) for s in many(raw, 2)]
    # 3 looks and 30,000,000 ns
    assert stacks[0] == ([1, 2], b"\x03\x80\x87\xa7\x0e")
    assert stacks[1][0] == [2]
    lines = {one(each, 1): one(many(each, 4)[0], 2) for each in many(raw, 4)}
    assert lines == {1: 12, 2: 300}
    functions = [strings[int(one(each, 2))] for each in many(raw, 5)]
    files = [strings[int(one(each, 4))] for each in many(raw, 5)]
    assert (functions, files) == (["inner", "outer"], ["a.py", "b.py"])
    assert (one(raw, 9), one(raw, 10), one(raw, 12)) == (7, 8, 10_000_000)


def test_a_busy_thread_is_seen() -> None:
    stop = threading.Event()

    def busy_in_the_test() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=busy_in_the_test)
    thread.start()
    raw = gzip.decompress(sample(0.2, 200, threading.Event()))
    stop.set()
    thread.join()
    strings = [text.decode() for text in many(raw, 6)]
    assert any("busy_in_the_test" in text for text in strings)
    assert not any(text.endswith("profiler.sample") for text in strings)


def test_it_ends_when_it_is_told_to() -> None:
    stop = threading.Event()
    stop.set()
    raw = gzip.decompress(sample(300, 1, stop))
    assert int(one(raw, 10)) < 5_000_000_000
    assert many(raw, 2) == []
