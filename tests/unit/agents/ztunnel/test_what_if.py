"""Which live connections other policies would close."""

from __future__ import annotations

import ipaddress

import msgspec
import pytest

from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND, FlowFacts
from nodenet.agents.ztunnel.what_if import (
    LiveInbound,
    OtherPolicies,
    live_inbound,
    unbound,
    would_be_cut,
)
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.policy import Action, Policy, Scope
from nodenet.mesh.rbac import RbacContext
from tests.unit.agents.ztunnel.mesh_scene import CART, DENY_CART, mesh, pod, policy

DB = pod("db-1", "10.1.0.3")
FACTS = FlowFacts(
    direction=INBOUND,
    conn_id="3b10",
    pod="shop/db-1",
    src=Address("10.1.0.1", 41000),
    dst=Address("10.1.0.3", 15008),
    original_dst=Address("10.1.0.3", 5432),
    hbone_addr="10.1.0.3:5432",
    src_identity=CART,
    dst_workload=DB,
)


def facts(**changes: object) -> FlowFacts:
    return msgspec.structs.replace(FACTS, **changes)


def live(of: FlowFacts = FACTS) -> LiveInbound:
    found = live_inbound(of)
    assert found is not None
    return found


def test_a_live_connection_as_policies_see_it() -> None:
    assert live() == LiveInbound(
        id="3b10",
        pod="shop/db-1",
        peer="10.1.0.1:41000",
        workload=DB,
        context=RbacContext(
            ipaddress.ip_address("10.1.0.1"),
            CART,
            Endpoint(ipaddress.ip_address("10.1.0.3"), 5432),
        ),
    )


@pytest.mark.parametrize(
    "changes", [{"direction": OUTBOUND}, {"dst_workload": None}, {"original_dst": None}]
)
def test_connections_without_policies(changes: dict[str, object]) -> None:
    assert live_inbound(facts(**changes)) is None


def cut(policies: list[Policy], *connections: LiveInbound) -> list[tuple[str, str | None]]:
    others = OtherPolicies(mesh().state, policies)
    return [(each.id, each.policy) for each in would_be_cut(connections, others)]


def test_only_those_that_are_denied_are_cut() -> None:
    web = live(facts(conn_id="1", src_identity="spiffe://cluster.local/ns/shop/sa/web"))
    plain = live(facts(conn_id="2", src_identity=None))
    assert cut([DENY_CART], live(), web, plain) == [("3b10", "shop/deny-cart")]
    allow_web = policy("allow-web", Action.ALLOW, "cluster.local/ns/shop/sa/web")
    assert cut([allow_web], live(), web, plain) == [("3b10", None), ("2", None)]
    assert cut([policy("p", Action.DENY, dry_run=True)], live(), web, plain) == []


def test_what_a_cut_says() -> None:
    [found] = would_be_cut([live()], OtherPolicies(mesh().state, [DENY_CART]))
    assert (found.pod, found.peer, found.identity) == ("shop/db-1", "10.1.0.1:41000", CART)
    assert found.error == "connection closed due to policy change"


def test_the_workload_of_the_beginning_counts() -> None:
    selected = policy("selected", Action.DENY, scope=Scope.WORKLOAD_SELECTOR)
    then: Workload = pod("db-1", "10.1.0.3", policies=("shop/selected",))
    assert cut([selected], live(), live(facts(dst_workload=then, conn_id="4"))) == [
        ("4", "shop/selected")
    ]


def test_unbound() -> None:
    state = mesh().state
    selector = Scope.WORKLOAD_SELECTOR
    policies = [
        policy("selected", Action.DENY, scope=selector),
        policy("new", Action.DENY, scope=selector),
        policy("all", Action.DENY),
    ]
    assert unbound(state, policies) == ["shop/new"]
    assert unbound(state, policies[2:]) == []
