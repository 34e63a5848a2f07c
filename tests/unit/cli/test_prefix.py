"""Which object or verb a word means."""

from __future__ import annotations

import pytest

from nodenet.cli.prefix import AmbiguousName, UnknownName, match, nearest, singular

OBJECTS = ("doctor", "capture", "conn", "cni", "map", "completion", "version")
PLAIN = ("doctor", "completion", "version")


def find(token: str) -> str:
    return match(token, OBJECTS, what="object", yielding=PLAIN)


@pytest.mark.parametrize(
    ("token", "name"),
    [
        ("conn", "conn"),
        ("conns", "conn"),
        ("maps", "map"),
        ("captures", "capture"),
        ("ca", "capture"),
        ("co", "conn"),
        ("com", "completion"),
        ("d", "doctor"),
        ("v", "version"),
        ("doctor", "doctor"),
    ],
)
def test_a_word_that_means_one(token: str, name: str) -> None:
    assert find(token) == name


def test_several_are_named_in_their_order() -> None:
    with pytest.raises(AmbiguousName) as caught:
        find("c")
    assert caught.value.line() == "ambiguous object c: capture, conn, cni; write one"
    assert caught.value.candidates == ("capture", "conn", "cni")
    assert caught.value.exit_code == 2


def test_an_unknown_word_gets_the_nearest_or_all() -> None:
    with pytest.raises(UnknownName, match="unknown object cnon") as caught:
        find("cnon")
    assert caught.value.hint == "did you mean conn"
    with pytest.raises(UnknownName) as caught:
        find("zzz")
    assert caught.value.hint == "one of: " + " ".join(OBJECTS)
    assert caught.value.nearest is None


def test_the_empty_word_means_nothing() -> None:
    with pytest.raises(UnknownName):
        find("")


def test_an_alias_and_its_verb_are_one_candidate() -> None:
    names, aliases = ("show", "dump"), {"list": "show", "shw": "show"}
    assert match("list", names, what="verb", aliases=aliases) == "show"
    assert match("l", names, what="verb", aliases=aliases) == "show"
    assert match("sh", names, what="verb", aliases=aliases) == "show"


def test_an_exact_name_wins_over_longer_ones() -> None:
    assert match("log", ("log", "log-level"), what="verb") == "log"


def test_plurals_either_way() -> None:
    verbs = ("workloads", "services", "policies", "certificates")
    assert match("policy", verbs, what="verb") == "policies"
    assert match("service", verbs, what="verb") == "services"
    assert match("pol", verbs, what="verb") == "policies"
    assert singular("policies") == "policy"
    assert singular("ss") == "ss"


def test_nearest() -> None:
    assert nearest("lsit", ("list", "show")) == "list"
    assert nearest("qqqq", ("list", "show")) is None
