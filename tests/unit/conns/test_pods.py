"""How a user may name an enrolled pod."""

from __future__ import annotations

import os

import msgspec
import pytest

from nodenet.conns.names import Names
from nodenet.conns.pods import AmbiguousPod, UnknownPod, find_pod


@pytest.mark.parametrize(
    ("text", "cookie"),
    [
        ("shop/cart-7d9f6b", 41),
        ("cart-7d9f6b", 41),
        ("cart", 41),
        ("shop/ca", 41),
        ("db-1", 42),
        ("uid:u-db", 42),
        ("netns:41", 41),
        ("netns:7", 7),
    ],
)
def test_found(names: Names, text: str, cookie: int) -> None:
    assert find_pod(text, names) == cookie


def test_by_process_and_path(names: Names) -> None:
    inode = os.stat("/proc/self/ns/net").st_ino
    here = msgspec.structs.replace(names.records[0], netns_inode=inode)
    names.set_records((here, names.records[1]))
    assert find_pod(f"pid:{os.getpid()}", names) == 41
    assert find_pod("netns:/proc/self/ns/net", names) == 41
    with pytest.raises(UnknownPod):
        find_pod("pid:0", names)


def test_unknown_names_the_nearest(names: Names) -> None:
    with pytest.raises(UnknownPod) as raised:
        find_pod("shop/crat", names)
    assert raised.value.line() == (
        "unknown pod shop/crat: not enrolled on this node; nearest: shop/cart-7d9f6b"
    )
    assert raised.value.exit_code == 4
    names.set_records(())
    with pytest.raises(UnknownPod, match="not enrolled on this node"):
        find_pod("x", names)


def test_an_exact_name_wins_over_a_prefix(names: Names) -> None:
    longer = msgspec.structs.replace(names.records[1], name="shop/db-12", netns_cookie=43)
    names.set_records((*names.records, longer))
    assert find_pod("shop/db-1", names) == find_pod("db-1", names) == 42
    with pytest.raises(AmbiguousPod) as raised:
        find_pod("shop/d", names)
    assert raised.value.exit_code == 2
    assert "ambiguous pod shop/d: shop/db-1, shop/db-12" in raised.value.line()


def test_the_empty_name_is_nobody(names: Names) -> None:
    with pytest.raises(UnknownPod):
        find_pod("", names)
