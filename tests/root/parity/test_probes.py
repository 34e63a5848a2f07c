"""Probes: the node's own processes reach the app, everybody else is captured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodenet.abi import Direction
from nodenet.capture import iptables
from nodenet.capture.pod_maps import netns_key
from nodenet.errors import NotFound, UsageError
from nodenet.kernel.netns import NetNs
from nodenet.lab.topology import Namespace, remove_namespace
from tests.root.dialling import dial, wait_for
from tests.root.parity.cases import Case, only_ebpf
from tests.root.parity.rows import parity
from tests.root.world import ADDRESSES, APP_PORT, NODE_ID, VERSIONS, World

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@parity("P12", rules=("I8", "I7"))
def test_a_process_of_the_node_reaches_the_app(any_case: Case) -> None:
    case, a = any_case, any_case.a
    before = case.counted(Direction.IN)
    seen = dial(case.world.node, a.pod, APP_PORT, mapped=case.mapped)
    assert seen.by == "app"
    assert seen.greeting is not None and seen.local is not None
    assert case.foretold_inbound(case.world.node, a.pod, APP_PORT) == "bypassed I8"
    if case.ebpf:
        assert case.fired(Direction.IN, before) == "I8"
        assert seen.greeting.peer == seen.local
        assert seen.local[0] == a.node
    else:
        # translated by the node, told by that address in the pod
        assert seen.greeting.peer[0] == a.probe


@parity("P12", rules=("I8",))
@only_ebpf
def test_a_probe_leaves_no_exemption_behind(case: Case) -> None:
    assert dial(case.world.node, case.a.pod, APP_PORT).by == "app"
    byp = case.world.capture.maps["byp"]
    wait_for(lambda: byp.count() == 0, "the exemption is gone")


@parity("P12", rules=("I7",))
def test_the_probe_address_reaches_the_app(any_case: Case) -> None:
    # also for nodes where another agent translates; known by the source address alone
    case = any_case
    seen = case.arrive(APP_PORT, source=case.world.node, address=case.a.probe)
    assert seen.verdict == "bypassed I7"
    assert seen.greeting.by == "app"
    assert seen.greeting.peer == seen.dialled.local


@parity("P13", rules=("I10",))
def test_what_the_node_forwards_is_captured(any_case: Case) -> None:
    seen = any_case.arrive(APP_PORT)
    assert seen.verdict == "captured I10"
    assert seen.greeting.peer[0] == any_case.a.outside


@pytest.fixture
def masquerading(world: World) -> Iterator[None]:
    """The node hides the outside behind its own address, as kube-proxy does for services."""
    rule = ["POSTROUTING", "-o", "pod"]
    for program in ("iptables", "ip6tables"):
        world.node.run(program, "-w", "-t", "nat", "-A", *rule, "-j", "MASQUERADE")
    yield
    for program in ("iptables", "ip6tables"):
        world.node.run(program, "-w", "-t", "nat", "-D", *rule, "-j", "MASQUERADE")


@parity("P13", rules=("I10",))
@pytest.mark.usefixtures("masquerading")
def test_what_the_node_forwards_under_its_own_address_is_captured(case: Case) -> None:
    before = case.counted(Direction.IN)
    _local, greeting = case.world.server.dial(case.a.pod, APP_PORT)
    assert greeting.by == "proxy"
    assert greeting.destination == (case.a.pod, APP_PORT)
    assert greeting.peer[0] == case.a.node
    assert case.fired(Direction.IN, before) == ("I10" if case.ebpf else None)


@parity("P13", rules=("I10",))
@only_ebpf
def test_another_nodes_processes_are_captured(case: Case) -> None:
    capture = case.world.capture
    capture.add_host(case.world.outside.path, NODE_ID + 1)
    try:
        assert case.arrive(APP_PORT).verdict == "captured I10"
        foretold = case.foretold_inbound(case.world.outside, case.a.pod, APP_PORT)
        assert foretold == "captured I10"
    finally:
        with NetNs.open(case.world.outside.path) as ns:
            capture.maps["pods"].delete(netns_key(ns.cookie()))


@parity("P34", rules=("I8",))
def test_the_exemption_survives_a_flush_of_the_nodes_firewall(case: Case) -> None:
    node = case.world.node
    node.run("nft", "flush", "ruleset")
    try:
        seen = dial(node, case.a.pod, APP_PORT)
        assert seen.by == ("app" if case.ebpf else "proxy")
    finally:
        if not case.ebpf:
            with NetNs.open(node.path) as ns:
                iptables.apply_host_probe_rules(ns, [ADDRESSES[v].pod for v in VERSIONS])


@pytest.fixture
def heir(world: World) -> Iterator[Namespace]:
    """Another namespace with the pod's addresses."""
    made = world.topology.namespace("heir")
    with made.netlink() as link:
        link.veth("eth0", world.node, "heir")
        for version in VERSIONS:
            prefix = 24 if version == 4 else 64
            link.address("eth0", f"{ADDRESSES[version].pod}/{prefix}")
        link.up("eth0")
    yield made
    remove_namespace(world.topology.namespaces.pop("heir").name)


@parity("P14", rules=("I8",))
@only_ebpf
def test_pods_with_one_address_are_judged_apart(case: Case, heir: Namespace) -> None:
    capture = case.world.capture
    # both at once: the first pod's connections stay its own
    capture.enroll(heir.path, name="t/heir")
    assert dial(case.world.outside, case.a.pod, APP_PORT).by == "proxy"
    with pytest.raises(UsageError, match="is an address of t/heir and t/pod"):
        case.foretold_inbound(case.a.outside, case.a.pod, APP_PORT)
    # the first taken out: the heir keeps the address, and a late second removal takes nothing away
    old = case.world.netns_cookie
    case.world.unenroll()
    new = next(r for r in capture.records() if r.name == "t/heir")
    with pytest.raises(NotFound):
        capture.unenroll(old)
    explained = case.foretold_inbound(case.a.outside, case.a.pod, APP_PORT)
    assert explained == "refused I9"  # captured, by an heir whose proxy does not listen yet
    capture.unenroll(new.netns_cookie)
    case.world.enroll()
    assert case.arrive(APP_PORT).verdict == "captured I10"
    assert dial(case.world.node, case.a.pod, APP_PORT).by == "app"


@parity("P14", rules=("I8", "I10"))
@only_ebpf
def test_the_address_of_a_pod_that_has_gone_is_free(case: Case, heir: Namespace) -> None:
    # the pod's namespace goes without anybody telling; the next one gets its address
    capture = case.world.capture
    case.world.unenroll()
    gone = capture.enroll(heir.path, name="t/gone").record
    name = case.world.topology.namespaces["heir"].name
    remove_namespace(name)
    assert case.world.enroll().outcome == "enrolled"
    assert [r.netns_cookie for r in capture.reap()] == [gone.netns_cookie]
    assert case.arrive(APP_PORT).verdict == "captured I10"
    assert dial(case.world.node, case.a.pod, APP_PORT).by == "app"
