"""The far side alone: what depends on the route rather than on the whole walk."""

from __future__ import annotations

import ipaddress
from random import Random

import pytest

from nodenet.agents.ztunnel.explain import Mesh
from nodenet.agents.ztunnel.far_side import FarSide, far_side, judge
from nodenet.mesh import outbound
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.policy import Action, Policy
from nodenet.mesh.rbac import RbacContext, evaluate
from tests.unit.agents.ztunnel.mesh_scene import (
    CART,
    DENY_CART,
    NETWORK,
    RESOURCES,
    ask,
    mesh,
    pod,
    policy,
)


def at_the_end(of: Mesh, destination: str) -> FarSide:
    question = ask(of, destination)
    route = outbound.decide(
        of.state,
        question.source,
        question.client,
        question.destination,
        network=NETWORK,
        rng=Random(0),
    )
    return far_side(of.state, of.state.policies, question.source, question.client, route)


def test_the_tunnel_is_accepted_before_policies_are_asked() -> None:
    found = at_the_end(mesh(DENY_CART), "10.1.0.2:80")
    assert [step.rule for step in found.steps][:1] == ["CONNECT"]
    assert found.steps[0].why == "leads to 10.1.0.2:80"
    assert found.steps[-1].fired


def test_policies_see_the_port_of_the_tunnel() -> None:
    """The waypoint's policies are asked about the port that its application listens on."""
    found = at_the_end(mesh(DENY_CART), "10.1.0.5:80")
    assert (found.result, found.policy) == ("denied", "shop/deny-cart")


def test_a_hostname_is_not_known_before_it_is_resolved() -> None:
    external = pod(
        "external", hostname="db.example.com", services=("shop/empty.shop.svc.cluster.local",)
    )
    found = at_the_end(mesh(external), "10.96.0.22:5432")
    assert (found.result, found.rule) == ("mtls", "Z9")
    assert "resolved" in found.steps[0].why


def test_a_mesh_of_its_own_ends() -> None:
    found = at_the_end(mesh(), "10.1.0.8:80")
    assert found.steps[0].answer == "not asked"
    assert "c//Pod/shop/native ends the tunnel itself" in found.steps[0].why


def test_error_texts() -> None:
    assert at_the_end(mesh(), "10.1.0.2:15008").error == "attempted recursive call to ourselves"
    foreign = at_the_end(mesh(), "10.1.0.7:80")
    assert foreign.error == (
        "tls error: trust domain cluster.local of the client is not its own, elsewhere"
    )


@pytest.mark.parametrize("identity", [CART, "spiffe://cluster.local/ns/shop/sa/web", None])
@pytest.mark.parametrize(
    "policies",
    [
        [],
        [DENY_CART],
        [policy("a", Action.ALLOW, "cluster.local/ns/shop/sa/web")],
        [DENY_CART, policy("a", Action.ALLOW)],
        [policy("d", Action.DENY, dry_run=True), policy("a", Action.ALLOW, "nobody")],
    ],
)
def test_the_last_step_is_the_verdict(policies: list[Policy], identity: str | None) -> None:
    of = mesh(*policies)
    workload = next(
        each for each in RESOURCES if isinstance(each, Workload) and each.name == "db-1"
    )
    address = ipaddress.ip_address
    context = RbacContext(address("10.1.0.1"), identity, Endpoint(address("10.1.0.3"), 80))
    found = judge(of.state.policies, workload, context)
    verdict = evaluate(of.state.policies_of(workload), context)
    assert (found.result == "mtls") is verdict.allowed
    assert (found.error, found.policy) == (verdict.text, verdict.policy)
    [decided] = [step for step in found.steps if step.fired]
    assert decided is found.steps[-1]
    assert decided.answer == ("allow" if verdict.allowed else "deny")
