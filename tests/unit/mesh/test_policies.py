"""Which policies apply to a workload; cases of ztunnel: src/state/policy.rs."""

from __future__ import annotations

import pytest

from nodenet.mesh.policies import Policies
from nodenet.mesh.policy import Action, Policy, Scope
from tests.unit.mesh.building import pod


def policy(name: str, scope: Scope, namespace: str = "ns") -> Policy:
    return Policy(name=name, namespace=namespace, scope=scope, action=Action.DENY)


def stored(*policies: Policy) -> Policies:
    table = Policies()
    for each in policies:
        table.insert(each)
    return table


def applying(table: Policies, *named: str, namespace: str = "ns") -> list[str]:
    workload = pod("a", namespace=namespace, authorization_policies=named)
    return [each.key for each in table.applying_to(workload)]


def test_namespace_then_mesh_then_named() -> None:
    table = stored(
        policy("named", Scope.WORKLOAD_SELECTOR),
        policy("mesh", Scope.GLOBAL, "root"),
        policy("own", Scope.NAMESPACE),
        policy("other", Scope.NAMESPACE, "other"),
    )
    assert applying(table, "ns/named") == ["ns/own", "root/mesh", "ns/named"]
    assert applying(table) == ["ns/own", "root/mesh"]
    assert applying(table, namespace="other") == ["other/other", "root/mesh"]
    assert len(table) == 4
    assert table.get("ns/own") in list(table)


def test_a_policy_found_twice_applies_once() -> None:
    table = stored(policy("own", Scope.NAMESPACE), policy("mesh", Scope.GLOBAL, "root"))
    assert applying(table, "root/mesh", "ns/own") == ["ns/own", "root/mesh"]


def test_an_unknown_one_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert applying(Policies(), "ns/gone") == []
    assert "skipping unknown policy ns/gone" in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "own", "far"),
    [
        (Scope.NAMESPACE, Scope.GLOBAL, True, True),
        (Scope.GLOBAL, Scope.NAMESPACE, True, False),
        (Scope.GLOBAL, Scope.WORKLOAD_SELECTOR, False, False),
        (Scope.WORKLOAD_SELECTOR, Scope.NAMESPACE, True, False),
    ],
)
def test_the_scope_may_change(before: Scope, after: Scope, own: bool, far: bool) -> None:
    table = stored(policy("p", before), policy("p", after))
    assert bool(applying(table)) is own
    assert bool(applying(table, namespace="far")) is far
    assert applying(table, "ns/p") == ["ns/p"]
    assert len(table) == 1


def test_removed() -> None:
    table = stored(policy("own", Scope.NAMESPACE), policy("own2", Scope.NAMESPACE))
    assert table.remove("ns/own") is not None
    assert table.remove("ns/own") is None
    assert applying(table) == ["ns/own2"]
    table.remove("ns/own2")
    assert applying(table) == []
