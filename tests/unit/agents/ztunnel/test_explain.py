"""What explain says is what the deciding functions do, with the reason of every step."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import msgspec
import pytest

from nodenet.agents.ztunnel.explain import Mesh, explain
from nodenet.agents.ztunnel.explanation import Explanation, Step
from nodenet.mesh import outbound
from nodenet.mesh.policy import Action, Policy, Scope
from nodenet.mesh.refused import Refused
from tests.unit.agents.ztunnel.mesh_scene import (
    CART,
    DENY_CART,
    NETWORK,
    ask,
    mesh,
    pod,
    policy,
)


def answer(of: Mesh, destination: str, *policies: Policy, seed: int = 0) -> Explanation:
    return explain(of, ask(of, destination), rng=Random(seed), policies=policies)


def fired(found: Explanation) -> list[tuple[str, str, str]]:
    return [(step.layer, step.rule, step.answer) for step in found.steps if step.fired]


ALLOWED = ("far-side", "RBAC", "allow")
DENIED = ("far-side", "RBAC", "deny")


@pytest.mark.parametrize(
    ("destination", "result", "security", "app_sees", "steps"),
    [
        ("10.1.0.2:80", "mtls", "mtls", "proxied", [("proxy", "Z9", "hbone"), ALLOWED]),
        ("10.96.0.20:5432", "mtls", "mtls", "proxied", [("proxy", "Z9", "hbone"), ALLOWED]),
        ("10.1.0.4:80", "plain", "plain", "proxied", [("proxy", "Z10", "tcp")]),
        ("203.0.113.1:443", "plain", "plain", "proxied", [("proxy", "Z5c", "tcp")]),
        ("10.1.0.5:80", "mtls", "mtls", "proxied", [("proxy", "Z8", "hbone"), ALLOWED]),
        ("10.1.0.8:80", "mtls", "mtls", "proxied", [("proxy", "Z9", "hbone")]),
        (
            "10.96.0.23:5432",
            "mtls",
            "mtls",
            "proxied",
            [("proxy", "Z6", "double-hbone")],
        ),
        (
            "10.96.0.24:5432",
            "refused",
            None,
            "connect-ok-then-reset",
            [("proxy", "Z6", "double-hbone"), ("far-side", "TLS", "refused")],
        ),
        (
            "10.1.0.7:80",
            "refused",
            None,
            "connect-ok-then-reset",
            [("proxy", "Z9", "hbone"), ("far-side", "TLS", "refused")],
        ),
        (
            "10.1.0.2:15006",
            "refused",
            "mtls",
            "connect-ok-then-reset",
            [("proxy", "Z9", "hbone"), ("far-side", "CONNECT", "refused")],
        ),
        (
            "10.96.0.22:5432",
            "refused",
            None,
            "connect-ok-then-reset",
            [("proxy", "Z5b", "refused")],
        ),
        (
            "127.0.0.1:15008",
            "refused",
            None,
            "connect-ok-then-reset",
            [("proxy", "Z1", "refused")],
        ),
    ],
)
def test_results(
    destination: str,
    result: str,
    security: str | None,
    app_sees: str,
    steps: list[tuple[str, str, str]],
) -> None:
    found = answer(mesh(), destination)
    assert (found.result, found.security, found.app_sees) == (result, security, app_sees)
    assert fired(found) == steps
    # the rule is that of the step that settled it
    assert found.rule in (step.rule for step in found.steps if step.fired)
    assert (found.error is None) == (result != "refused")


@pytest.mark.parametrize(
    "destination",
    [
        "10.1.0.2:80",
        "10.96.0.20:5432",
        "10.1.0.4:80",
        "203.0.113.1:443",
        "10.1.0.5:80",
        "10.96.0.22:5432",
        "10.96.0.23:5432",
        "10.96.0.23:1",
        "127.0.0.1:15008",
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_the_decision(destination: str, seed: int) -> None:
    of = mesh()
    question = ask(of, destination)
    found = explain(of, question, rng=Random(seed))
    try:
        route = outbound.decide(
            of.state,
            question.source,
            question.client,
            question.destination,
            network=NETWORK,
            rng=Random(seed),
        )
    except Refused as refused:
        assert (found.result, found.error) == ("refused", str(refused))
    else:
        assert found.next_hop == str(route.next_hop)
        assert found.authority == (route.authority or None)
        assert route.row in [step.rule for step in found.steps if step.fired]


def test_ends() -> None:
    found = answer(mesh(), "10.96.0.20:5432")
    assert (found.src.name, found.src.address, found.src.identity) == (
        "shop/cart",
        "10.1.0.1",
        CART,
    )
    assert (found.dst.name, found.dst.address, found.dst.port) == (
        "shop/db.shop.svc.cluster.local",
        "10.96.0.20",
        5432,
    )
    assert answer(mesh(), "10.1.0.2:80").dst.identity == "spiffe://cluster.local/ns/shop/sa/db-0"
    assert answer(mesh(), "203.0.113.1:443").dst.name is None


def test_candidates_have_probabilities() -> None:
    found = answer(mesh(), "10.96.0.20:5432")
    [choice] = [step for step in found.steps if step.candidates]
    shares = {each.name: each.probability for each in choice.candidates}
    assert shares == {"c//Pod/shop/db-0": 0.25, "c//Pod/shop/db-1": 0.75}
    [chosen] = [each.name for each in choice.candidates if each.chosen]
    assert (
        found.next_hop
        == {
            "c//Pod/shop/db-0": "10.1.0.2:15008",
            "c//Pod/shop/db-1": "10.1.0.3:15008",
        }[chosen]
    )


# policies of the far side


def test_denied() -> None:
    found = answer(mesh(DENY_CART), "10.1.0.2:80")
    assert (found.result, found.security, found.rule) == ("denied", "mtls", "RBAC")
    assert found.app_sees == "connect-ok-then-reset"
    assert found.policy == "shop/deny-cart"
    assert found.error == (
        "connection closed due to policy rejection: explicitly denied by: shop/deny-cart"
    )
    assert found.hint == "nodenet ztunnel policies shop/deny-cart -p"
    last = found.steps[-1]
    assert last.why == "shop/deny-cart: explicitly denied, rule 1 (principals)"


def test_not_allowed() -> None:
    other = policy("allow-web", Action.ALLOW, "cluster.local/ns/shop/sa/web")
    found = answer(mesh(other), "10.1.0.3:80")
    assert (found.result, found.policy) == ("denied", None)
    assert found.error == (
        "connection closed due to policy rejection: allow policies exist, but none allowed"
    )
    assert found.hint == "nodenet ztunnel policies -n shop"
    assert [(step.answer, step.why) for step in found.steps if step.rule == "RBAC"] == [
        (
            "no match",
            "cluster.local/ns/shop/sa/cart is not in principals cluster.local/ns/shop/sa/web",
        ),
        ("deny", "allow policies exist, but none allowed"),
    ]


def test_policies_stand_in_the_order_of_the_decision() -> None:
    found = answer(
        mesh(
            policy("z-allow", Action.ALLOW),
            policy("other", Action.DENY, "nobody"),
            policy("dry-allow", Action.ALLOW, dry_run=True),
            policy("dry-deny", Action.DENY, dry_run=True),
            policy("never-asked", Action.ALLOW),
        ),
        "10.1.0.3:80",
    )
    assert [(step.question, step.answer) for step in found.steps if step.rule == "RBAC"] == [
        ("dry-run deny shop/dry-deny", "match"),
        ("deny shop/other", "no match"),
        ("dry-run allow shop/dry-allow", "match"),
        ("allow shop/z-allow", "allow"),
    ]
    assert found.policy == "shop/z-allow"


def test_many_policies_are_counted() -> None:
    others = [policy(f"p{n}", Action.DENY, "nobody") for n in range(100)]
    found = answer(mesh(*others), "10.1.0.3:80")
    asked = [step for step in found.steps if step.rule == "RBAC"]
    assert len(asked) == 18
    assert asked[-2].why == "84 more do not match"


def test_a_policy_that_nobody_knows(caplog: pytest.LogCaptureFixture) -> None:
    found = answer(mesh(), "10.1.0.2:80", policy("other", Action.DENY, "nobody"))
    skipped = [step for step in found.steps if step.answer == "skipped"]
    assert [step.question for step in skipped] == ["policy shop/selected"]
    # a question is no reason for a warning
    assert not caplog.records


def test_plaintext_tells_what_policies_would_say() -> None:
    found = answer(mesh(policy("strict", Action.DENY)), "10.1.0.4:80")
    assert (found.result, found.policy) == ("plain", None)
    assert "would deny this (shop/strict)" in found.steps[-1].why


def test_the_waypoint_decides_the_rest() -> None:
    found = answer(mesh(), "10.1.0.5:80")
    assert found.next_hop == "10.1.0.6:15008"
    assert found.authority == "10.1.0.5:80"
    [connect] = [step for step in found.steps if step.rule == "CONNECT"]
    assert connect.why == "leads to 127.0.0.1:15088, with a PROXY header for 10.1.0.5:80"
    assert found.hint == "the waypoint decides about the rest of the way"


# certificates


@pytest.mark.parametrize(
    ("certificates", "result", "rule"),
    [
        (None, "mtls", "RBAC"),
        ({CART: "available"}, "mtls", "RBAC"),
        ({CART: "unavailable"}, "refused", "ID"),
        ({}, "refused", "ID"),
    ],
)
def test_certificates(certificates: dict[str, str] | None, result: str, rule: str) -> None:
    of = mesh()
    of = Mesh(state=of.state, network=NETWORK, certificates=certificates)
    found = answer(of, "10.1.0.2:80")
    assert (found.result, found.rule) == (result, rule)
    # plaintext needs none
    assert answer(of, "10.1.0.4:80").result == "plain"


# outcomes by endpoint


def test_outcomes_differ_by_endpoint() -> None:
    selected = policy("selected", Action.DENY, scope=Scope.WORKLOAD_SELECTOR)
    for seed in range(6):
        found = answer(mesh(selected), "10.96.0.20:5432", seed=seed)
        outcomes = {each.endpoint: (each.probability, each.result) for each in found.outcomes}
        assert outcomes == {
            "c//Pod/shop/db-0": (0.25, "denied"),
            "c//Pod/shop/db-1": (0.75, "mtls"),
        }
        if found.result == "mtls":
            assert found.hint == "1 of 2 endpoints would answer otherwise: see outcomes"


def test_outcomes_are_bounded() -> None:
    many = [
        pod(f"x{n}", f"10.2.0.{n}", services=("shop/db.shop.svc.cluster.local",))
        for n in range(1, 41)
    ]
    found = answer(mesh(*many), "10.96.0.20:5432")
    assert len(found.outcomes) == 32
    assert found.outcomes_left_out == 10


def test_no_outcomes_without_a_choice() -> None:
    assert answer(mesh(), "10.1.0.2:80").outcomes == ()
    assert answer(mesh(), "10.96.0.21:5432").outcomes == ()


# other policies


def test_what_if_a_policy_is_added() -> None:
    found = answer(mesh(), "10.1.0.2:80", DENY_CART)
    assert found.result == "denied"
    assert found.what_if is not None
    assert found.what_if.policies == ("shop/deny-cart",)
    assert (found.what_if.result_now, found.what_if.policy_now) == ("mtls", None)


def test_what_if_a_policy_is_replaced() -> None:
    of = mesh(DENY_CART)
    harmless = policy("deny-cart", Action.DENY, "nobody")
    found = answer(of, "10.1.0.2:80", harmless)
    assert found.result == "mtls"
    assert found.what_if is not None
    assert (found.what_if.result_now, found.what_if.policy_now) == ("denied", "shop/deny-cart")
    # nothing of it stays
    assert answer(of, "10.1.0.2:80").result == "denied"
    assert len(of.state.policies) == 1


def test_what_if_makes_the_same_choice() -> None:
    of = mesh()
    for seed in range(6):
        now = answer(of, "10.96.0.20:5432", seed=seed)
        then = answer(of, "10.96.0.20:5432", DENY_CART, seed=seed)
        assert now.next_hop == then.next_hop
        assert {each.result for each in then.outcomes} == {"denied"}


def test_what_if_names_policies_that_nobody_has() -> None:
    new = policy("new", Action.DENY, scope=Scope.WORKLOAD_SELECTOR)
    selected = policy("selected", Action.DENY, scope=Scope.WORKLOAD_SELECTOR)
    found = answer(mesh(), "10.1.0.2:80", new, selected)
    assert found.what_if is not None
    assert found.what_if.unbound == ("shop/new",)
    assert (found.result, found.policy) == ("denied", "shop/selected")


# JSON


def test_json_has_every_key_and_comes_back() -> None:
    found = answer(mesh(DENY_CART), "10.96.0.20:5432", policy("other", Action.ALLOW))
    text = msgspec.json.encode(found)
    assert msgspec.json.decode(text, type=Explanation) == found
    value = json.loads(text)
    assert set(value) == set(Explanation.__struct_fields__)
    assert all(set(step) == set(Step.__struct_fields__) for step in value["steps"])


def test_a_pod_that_the_proxy_does_not_serve() -> None:
    of = mesh()
    for served, told in (
        (None, False),
        (frozenset({"c//Pod/shop/cart"}), False),
        (frozenset(), True),
    ):
        found = answer(replace(of, served=served), "10.1.0.2:80")
        assert found.result == "mtls"
        assert (found.hint is not None and "does not serve it" in found.hint) is told
    unserved = replace(of, served=frozenset(), certificates={})
    assert answer(unserved, "10.1.0.2:80").result == "mtls"
    known = replace(unserved, served=frozenset({"c//Pod/shop/cart"}))
    assert answer(known, "10.1.0.2:80").rule == "ID"
