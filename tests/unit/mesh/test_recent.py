"""The cache keeps what was used last, and never more than twice its limit."""

from __future__ import annotations

from nodenet.mesh.recent import Recent


def test_what_is_used_stays() -> None:
    cache: Recent[int, str] = Recent(4)
    cache.put(0, "kept")
    for key in range(1, 100):
        cache.put(key, "passing")
        assert cache.get(0) == "kept"
        assert len(cache) <= 8


def test_what_is_not_used_goes() -> None:
    cache: Recent[int, str] = Recent(4)
    for key in range(9):
        cache.put(key, "x")
    assert cache.get(0) is None
    assert cache.get(8) == "x"


def test_discard_in_both_generations() -> None:
    cache: Recent[int, str] = Recent(2)
    for key in range(4):
        cache.put(key, "x")
    for key in range(4):
        cache.discard(key)
        assert cache.get(key) is None
    cache.discard(99)


def test_the_limit_may_weigh() -> None:
    cache: Recent[int, str] = Recent(10, weigh=len)
    cache.put(0, "a" * 10)
    cache.put(1, "b" * 10)
    cache.put(2, "c" * 10)
    assert cache.get(0) is None
    assert cache.get(1) == "b" * 10
    assert cache.get(2) == "c" * 10
