"""The indexes keep the order of insertion and forget what is gone."""

from __future__ import annotations

from nodenet.mesh.index import Index, NetworkIndex


def test_one_and_many() -> None:
    index: Index[str] = Index()
    assert index.get("a") == ()
    assert index.last("a") is None
    index.add("a", "1")
    assert (index.get("a"), index.last("a")) == (("1",), "1")
    index.add("a", "2")
    index.add("a", "1")
    assert (index.get("a"), index.last("a")) == (("1", "2"), "2")
    index.discard("a", "2")
    index.discard("a", "unknown")
    index.discard("unknown", "1")
    assert index.get("a") == ("1",)
    index.discard("a", "1")
    assert len(index) == 0


def test_networks_are_apart_and_forgotten() -> None:
    index = NetworkIndex()
    index.within("one").add(b"\x0a\0\0\1", "a")
    index.within("two").add(b"\x0a\0\0\1", "b")
    assert index.get("one", b"\x0a\0\0\1") == ("a",)
    assert index.last("two", b"\x0a\0\0\1") == "b"
    assert index.get("three", b"\x0a\0\0\1") == ()
    index.discard("one", b"\x0a\0\0\1", "a")
    index.discard("one", b"\x0a\0\0\1", "a")
    assert index.last("one", b"\x0a\0\0\1") is None
    assert index.last("two", b"\x0a\0\0\1") == "b"
