"""The parts of a policy: ranges, texts, names of places."""

from __future__ import annotations

import ipaddress

import msgspec
import pytest

from nodenet.mesh.policy import (
    Action,
    Cidr,
    Clause,
    InvalidPart,
    Match,
    Policy,
    PolicyRefused,
    Rule,
    Scope,
    ServiceAccountMatch,
    StringKind,
    StringMatch,
    check_naming,
    checked_port,
    format_path,
)

EXACT, PREFIX = StringKind.EXACT, StringKind.PREFIX
SUFFIX, PRESENCE = StringKind.SUFFIX, StringKind.PRESENCE


@pytest.mark.parametrize(
    ("kind", "value", "text", "holds"),
    [
        (EXACT, "abc", "abc", True),
        (EXACT, "abc", "abcd", False),
        (EXACT, "abc", "Abc", False),
        (EXACT, "", "", True),
        (PREFIX, "abc", "abcd", True),
        (PREFIX, "abc", "abc", True),
        (PREFIX, "abc", "xabc", False),
        (PREFIX, "", "", True),
        (SUFFIX, "abc", "xabc", True),
        (SUFFIX, "abc", "abc", True),
        (SUFFIX, "abc", "abcx", False),
        (PRESENCE, "", "anything", True),
        (PRESENCE, "", "", False),
    ],
)
def test_string_match(kind: StringKind, value: str, text: str, holds: bool) -> None:
    assert StringMatch(kind, value).matches(text) is holds


@pytest.mark.parametrize(
    ("match", "written"),
    [
        (StringMatch(EXACT, "a"), "a"),
        (StringMatch(PREFIX, "a"), "a*"),
        (StringMatch(SUFFIX, "a"), "*a"),
        (StringMatch(PRESENCE), "*"),
    ],
)
def test_string_match_is_written_as_users_do(match: StringMatch, written: str) -> None:
    assert str(match) == written


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
        ("10.1.2.3/8", "10.9.9.9", "9.9.9.9"),
        ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
        ("0.0.0.0/0", "203.0.113.9", "fd00::1"),
        ("fd00::/64", "fd00::9", "fd00:0:0:1::9"),
        ("::/0", "fd00::9", "10.0.0.1"),
        ("::ffff:10.0.0.0/104", "10.7.0.1", "11.0.0.1"),
    ],
)
def test_cidr_contains(text: str, inside: str, outside: str) -> None:
    cidr = Cidr.parse(text)
    assert cidr.contains(ipaddress.ip_address(inside))
    assert not cidr.contains(ipaddress.ip_address(outside))
    assert Cidr.parse(str(cidr)) == cidr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.300",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/-1",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/8/8",
        "10.0.0.0/08888",
        "fd00::/129",
        "fe80::1%eth0",
        "010.0.0.1",
        "localhost",
    ],
)
def test_cidr_refuses(text: str) -> None:
    with pytest.raises(InvalidPart):
        Cidr.parse(text)


@pytest.mark.parametrize(("address", "length"), [(b"", 0), (b"12345", 8), (b"1234", 33), (b"1", 1)])
def test_cidr_of_bytes_refuses(address: bytes, length: int) -> None:
    with pytest.raises(InvalidPart):
        Cidr.of(address, length)


@pytest.mark.parametrize("number", [-1, 65536, 4294967295])
def test_port_out_of_range(number: int) -> None:
    with pytest.raises(InvalidPart):
        checked_port(number)


@pytest.mark.parametrize("number", [0, 1, 65535])
def test_port_in_range(number: int) -> None:
    assert checked_port(number) == number


def test_a_policy_for_one_namespace_names_it() -> None:
    with pytest.raises(InvalidPart) as caught:
        check_naming("a", "", Scope.NAMESPACE)
    assert caught.value.path == ("namespace",)
    check_naming("a", "", Scope.GLOBAL)


def test_a_policy_has_a_name() -> None:
    with pytest.raises(InvalidPart) as caught:
        check_naming("", "ns", Scope.GLOBAL)
    assert caught.value.path == ("name",)


def test_a_policy_survives_msgspec() -> None:
    match = Match(
        principals=(StringMatch(PRESENCE),),
        not_source_ips=(Cidr.parse("fd00::/8"),),
        service_accounts=(ServiceAccountMatch("shop", "cart"),),
        destination_ports=(80,),
    )
    policy = Policy(
        name="deny",
        namespace="shop",
        scope=Scope.WORKLOAD_SELECTOR,
        action=Action.DENY,
        rules=(Rule((Clause((match,)),)), Rule()),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=Policy) == policy
    assert policy.key == "shop/deny"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("name",), "name"),
        (("rules", 0, 1, 2, "sourceIps", 3), "rules[0][1][2].sourceIps[3]"),
        (("rules", 0, "clauses", 1), "rules[0].clauses[1]"),
    ],
)
def test_format_path(path: tuple[str | int, ...], text: str) -> None:
    assert format_path(path) == text


def test_refusal_is_one_line_that_says_where() -> None:
    error = PolicyRefused("shop/deny", ("rules", 0, 0, 0, "sourceIps", 1), "'x' is no address")
    assert error.line() == (
        "policy shop/deny refused: rules[0][0][0].sourceIps[1]: 'x' is no address; "
        "nothing of it is applied"
    )
    assert PolicyRefused(None, (), "not JSON").line() == (
        "a policy without a name refused: not JSON; nothing of it is applied"
    )
