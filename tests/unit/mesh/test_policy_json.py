"""Policies from and to their JSON form; what cannot be understood is refused, with its place."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.mesh.policy import (
    Action,
    Cidr,
    Clause,
    Match,
    Path,
    Policy,
    PolicyRefused,
    Rule,
    Scope,
    ServiceAccountMatch,
    StringKind,
    StringMatch,
)
from nodenet.mesh.policy_json import (
    policies_from_json,
    policy_from_json,
    policy_from_object,
    policy_to_json,
    policy_to_object,
)

#: Every field of every level, as ztunnel dumps it.
FULL: dict[str, Any] = {
    "name": "deny-cart",
    "namespace": "shop",
    "scope": "WorkloadSelector",
    "action": "Deny",
    "rules": [
        [
            [
                {
                    "namespaces": [{"Exact": "shop"}],
                    "notNamespaces": [{"Prefix": "test-"}],
                    "serviceAccounts": [{"namespace": "shop", "serviceAccount": "cart"}],
                    "notServiceAccounts": [{"namespace": "shop", "serviceAccount": "db"}],
                    "principals": [{"Suffix": "/sa/cart"}],
                    "notPrincipals": [{"Presence": []}],
                    "sourceIps": ["10.0.0.0/8"],
                    "notSourceIps": ["10.1.0.0/16"],
                    "destinationIps": ["fd00::/64"],
                    "notDestinationIps": ["fd00::1/128"],
                    "destinationPorts": [80, 443],
                    "notDestinationPorts": [8080],
                },
                {},
            ],
            [],
        ],
        [],
    ],
    "dryRun": True,
}


def smallest(**more: Any) -> dict[str, Any]:
    return {
        "name": "p",
        "namespace": "ns",
        "scope": "Global",
        "action": "Allow",
        "rules": [],
    } | more


def with_match(match: object) -> dict[str, Any]:
    return smallest(rules=[[[match]]])


def test_every_field_is_read() -> None:
    [rule, empty] = policy_from_object(FULL).rules
    [clause, no_matches] = rule.clauses
    assert (empty, no_matches, clause.matches[1]) == (Rule(), Clause(), Match())
    assert clause.matches[0] == Match(
        namespaces=(StringMatch(StringKind.EXACT, "shop"),),
        not_namespaces=(StringMatch(StringKind.PREFIX, "test-"),),
        service_accounts=(ServiceAccountMatch("shop", "cart"),),
        not_service_accounts=(ServiceAccountMatch("shop", "db"),),
        principals=(StringMatch(StringKind.SUFFIX, "/sa/cart"),),
        not_principals=(StringMatch(StringKind.PRESENCE),),
        source_ips=(Cidr.parse("10.0.0.0/8"),),
        not_source_ips=(Cidr.parse("10.1.0.0/16"),),
        destination_ips=(Cidr.parse("fd00::/64"),),
        not_destination_ips=(Cidr.parse("fd00::1"),),
        destination_ports=(80, 443),
        not_destination_ports=(8080,),
    )


def test_both_ways() -> None:
    policy = policy_from_object(FULL)
    assert policy_to_object(policy) == FULL
    assert policy_from_json(policy_to_json(policy)) == policy
    assert json.loads(policy_to_json(policy)) == FULL


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("action", list(Action))
def test_scopes_and_actions(scope: Scope, action: Action) -> None:
    policy = policy_from_object(smallest(scope=scope.value, action=action.value))
    assert (policy.scope, policy.action, policy.dry_run) == (scope, action, False)


@pytest.mark.parametrize("nothing", [[], {}, None])
def test_presence_holds_nothing(nothing: object) -> None:
    policy = policy_from_object(with_match({"notPrincipals": [{"Presence": nothing}]}))
    [rule] = policy.rules
    assert rule.clauses[0].matches[0].not_principals == (StringMatch(StringKind.PRESENCE),)


PLACE: Path = ("rules", 0, 0, 0)


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (None, (), "nothing where an object is needed"),
        ([], (), "a list where an object is needed"),
        ("p", (), "'p' where an object is needed"),
        ({"name": "p", "namespace": "ns"}, ("scope",), "is missing"),
        (smallest(name=""), ("name",), "is empty"),
        (smallest(name=7), ("name",), "7 where a text is needed"),
        (smallest(namespace="", scope="Namespace"), ("namespace",), "is empty, but the scope"),
        (smallest(scope="Mesh"), ("scope",), "'Mesh' is none of Global, Namespace,"),
        (smallest(scope=2), ("scope",), "2 is none of"),
        (smallest(action="Audit"), ("action",), "'Audit' is none of Allow, Deny"),
        (smallest(action=[]), ("action",), "[] is none of"),
        (smallest(dryRun="yes"), ("dryRun",), "'yes' is neither true nor false"),
        (smallest(dryRun=None), ("dryRun",), "None is neither"),
        (smallest(dry_run=True), ("dry_run",), "unknown key; did you mean dryRun"),
        (smallest(rules=None), ("rules",), "nothing where a list is needed"),
        (smallest(rules={}), ("rules",), "an object where a list is needed"),
        (smallest(rules=[{}]), ("rules", 0), "an object where a list is needed"),
        (smallest(rules=[[], [{}]]), ("rules", 1, 0), "an object where a list is needed"),
        (with_match([]), PLACE, "a list where an object is needed"),
        (with_match({"sourceIPs": []}), (*PLACE, "sourceIPs"), "did you mean sourceIps"),
        (with_match({"hosts": []}), (*PLACE, "hosts"), "unknown key"),
        (with_match({"sourceIps": None}), (*PLACE, "sourceIps"), "nothing where a list"),
        (with_match({"sourceIps": ["10.0.0.1", "x"]}), (*PLACE, "sourceIps", 1), "'x' is neither"),
        (with_match({"notSourceIps": [1]}), (*PLACE, "notSourceIps", 0), "1 where a text"),
        (with_match({"destinationIps": ["::/129"]}), (*PLACE, "destinationIps", 0), "prefix"),
        (with_match({"namespaces": [{}]}), (*PLACE, "namespaces", 0), "needs one of Exact"),
        (with_match({"namespaces": ["a"]}), (*PLACE, "namespaces", 0), "'a' where an object"),
        (
            with_match({"principals": [{"Exact": "a", "Prefix": "a"}]}),
            (*PLACE, "principals", 0),
            "it has 2",
        ),
        (with_match({"principals": [{"exact": "a"}]}), (*PLACE, "principals", 0, "exact"), "Exact"),
        (with_match({"principals": [{"Exact": 1}]}), (*PLACE, "principals", 0, "Exact"), "text"),
        (
            with_match({"principals": [{"Presence": "x"}]}),
            (*PLACE, "principals", 0, "Presence"),
            "write []",
        ),
        (
            with_match({"serviceAccounts": [{"namespace": "a"}]}),
            (*PLACE, "serviceAccounts", 0, "serviceAccount"),
            "is missing",
        ),
        (with_match({"destinationPorts": [80, 65536]}), (*PLACE, "destinationPorts", 1), "65536"),
        (with_match({"destinationPorts": ["80"]}), (*PLACE, "destinationPorts", 0), "'80' is not"),
        (with_match({"destinationPorts": [True]}), (*PLACE, "destinationPorts", 0), "True is not"),
    ],
)
def test_refused(value: object, path: Path, reason: str) -> None:
    with pytest.raises(PolicyRefused) as caught:
        policy_from_object(value)
    assert caught.value.path == path
    assert reason in caught.value.reason


@pytest.mark.parametrize("key", ["name", "namespace", "scope", "action", "rules"])
def test_needed_keys(key: str) -> None:
    value = smallest()
    del value[key]
    with pytest.raises(PolicyRefused) as caught:
        policy_from_object(value)
    assert caught.value.path == (key,)


@pytest.mark.parametrize(
    ("value", "name"),
    [(smallest(scope=0), "ns/p"), ({"name": "p"}, "p"), ({"namespace": "ns"}, None), (None, None)],
)
def test_refusal_names_the_policy(value: object, name: str | None) -> None:
    with pytest.raises(PolicyRefused) as caught:
        policy_from_object(value)
    assert caught.value.policy == name


@pytest.mark.parametrize("text", [b"{", b"", "[1,", b"\xff", '"\ud800"', b"[" * 100_000])
def test_what_is_not_json(text: bytes | str) -> None:
    with pytest.raises(PolicyRefused, match="not JSON"):
        policy_from_json(text)
    with pytest.raises(PolicyRefused, match="not JSON"):
        policies_from_json(text)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (smallest(name="a"), ["a"]),
        ([smallest(name="a"), smallest(name="b")], ["a", "b"]),
        ({"policies": [smallest(name="a")], "workloads": []}, ["a"]),
        ([], []),
        ({"policies": []}, []),
    ],
)
def test_several(value: object, names: list[str]) -> None:
    assert [policy.name for policy in policies_from_json(json.dumps(value))] == names


@pytest.mark.parametrize("value", [None, 1, [1], {"policies": None}, {"policies": {}}, {}])
def test_not_several(value: object) -> None:
    with pytest.raises(PolicyRefused):
        policies_from_json(json.dumps(value))


def _strings() -> st.SearchStrategy[StringMatch]:
    words = st.text(max_size=8)
    named = st.sampled_from([StringKind.EXACT, StringKind.PREFIX, StringKind.SUFFIX])
    return st.builds(StringMatch, named, words) | st.just(StringMatch(StringKind.PRESENCE))


def _tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=2).map(tuple)


_CIDRS = st.one_of(
    st.tuples(st.binary(min_size=4, max_size=4), st.integers(0, 32)),
    st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 128)),
).map(lambda pair: Cidr.of(*pair))
_ACCOUNTS = st.builds(ServiceAccountMatch, st.text(max_size=4), st.text(max_size=4))
_ITEMS = {"ips": _CIDRS, "ports": st.integers(0, 65535), "accounts": _ACCOUNTS}
_MATCHES = st.builds(
    Match,
    **{n: _tuples(_ITEMS.get(n.rpartition("_")[2], _strings())) for n in Match.__struct_fields__},
)
POLICIES = st.builds(
    Policy,
    name=st.text(min_size=1),
    namespace=st.text(min_size=1),
    scope=st.sampled_from(Scope),
    action=st.sampled_from(Action),
    rules=_tuples(st.builds(Rule, _tuples(st.builds(Clause, _tuples(_MATCHES))))),
    dry_run=st.booleans(),
)


@given(POLICIES)
def test_any_policy_comes_back(policy: Policy) -> None:
    assert policy_from_object(policy_to_object(policy)) == policy


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(st.data(), _VALUES)
def test_a_spoiled_policy_is_refused_or_read(data: st.DataObject, spoiler: object) -> None:
    """Whatever stands wherever in a policy: a policy comes out, or PolicyRefused."""
    value: Any = copy.deepcopy(FULL)
    place = value
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            place[key] = spoiler
            break
        place = inner
    try:
        assert isinstance(policy_from_object(value), Policy)
    except PolicyRefused as refused:
        assert refused.reason
