"""Names and addresses of a lab."""

from __future__ import annotations

import pytest

from nodenet.errors import UsageError
from nodenet.lab import plan
from nodenet.lab.plan import Family, make_plan


def test_the_documented_lab() -> None:
    lab = make_plan()
    assert lab.lab == "default"
    assert lab.instance_id == "lab"
    assert [n.name for n in lab.nodes] == ["n1", "n2"]
    assert [(p.name, p.node, str(p.ip4), str(p.ip6), p.enrolled) for p in lab.pods] == [
        ("a1", "n1", "10.77.1.2", "fd77:1::2", True),
        ("b1", "n1", "10.77.1.3", "fd77:1::3", False),
        ("a2", "n2", "10.77.2.2", "fd77:2::2", True),
        ("b2", "n2", "10.77.2.3", "fd77:2::3", False),
    ]
    assert lab.pods[0].full_name == "lab/a1"
    assert lab.pods[0].netns == "nn-default-a1"


@pytest.mark.parametrize("nodes, pods", [(1, 1), (3, 5), (plan.MAX_NODES, plan.MAX_PODS_PER_NODE)])
def test_names_and_addresses_are_unique_and_in_range(nodes: int, pods: int) -> None:
    lab = make_plan(nodes=nodes, pods=pods)
    assert len(lab.pods) == nodes * pods
    hosts = lab.hosts
    assert len({h.name for h in hosts}) == len(hosts)
    assert len({h.netns for h in hosts}) == len(hosts)
    assert len({a for h in hosts for a in h.addresses}) == 2 * len(hosts)
    assert all(h.ip4 in lab.net4 and h.ip6 in lab.net6 for h in hosts)
    for node in lab.nodes:
        assert node.net4 is not None and node.net6 is not None
        assert all(p.ip4 in node.net4 and p.ip6 in node.net6 for p in lab.pods_of(node))


@pytest.mark.parametrize("family, count", [(Family.V4, 1), (Family.V6, 1), (Family.BOTH, 2)])
def test_family_decides_the_addresses(family: Family, count: int) -> None:
    lab = make_plan(family=family)
    assert all(len(h.addresses) == count for h in lab.hosts)
    assert len(family.numbers) == count
    missing = {4: Family.V6, 6: Family.V4}
    for number in (4, 6):
        if family is missing[number]:
            with pytest.raises(ValueError, match=f"no IPv{number}"):
                lab.pods[0].address(number)
        else:
            assert lab.pods[0].address(number).version == number


def test_only_the_first_pod_of_each_node_is_enrolled() -> None:
    assert [p.name for p in make_plan(nodes=3, pods=3).pods if p.enrolled] == ["a1", "a2", "a3"]
    assert not any(p.enrolled for p in make_plan(enroll=False).pods)


def test_another_range_moves_both_families() -> None:
    lab = make_plan(net="172.20.0.0/16")
    assert str(lab.pods[0].ip4) == "172.20.1.2"
    assert str(lab.pods[0].ip6) == "fd20:1::2"
    assert str(make_plan(net="10.178.0.0/16").net6) == "fd78::/16"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"nodes": 0}, "--nodes 0: out of range 1-32"),
        ({"nodes": 33}, "--nodes 33: out of range 1-32"),
        ({"pods": 26}, "--pods 26: out of range 1-25"),
        ({"net": "10.77.0.0/24"}, "--net 10.77.0.0/24: not a /16"),
        ({"net": "10.77.1.0/16"}, "host bits set"),
        ({"net": "fd77::/16"}, "--net fd77::/16"),
        ({"instance_id": "default"}, "means the lab without --id"),
        ({"instance_id": "No"}, "instance id 'No'"),
    ],
)
def test_what_cannot_be_is_a_usage_error(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _ = make_plan(**arguments).instance  # type: ignore[arg-type]


def test_a_lab_with_an_id_has_names_of_its_own() -> None:
    lab = make_plan(instance_id="mine")
    assert (lab.lab, lab.instance.name) == ("mine", "nodenet-mine")
    assert all(h.netns.startswith("nn-mine-") for h in lab.hosts)


@pytest.mark.parametrize(
    "name, owned",
    [
        ("nn-x-a1", True),
        ("nn-x-n12", True),
        ("nn-x-net", True),
        ("nn-x-y-a1", False),
        ("nn-x-a1x", False),
        ("nn-xy-a1", False),
        ("x-a1", False),
    ],
)
def test_ownership_by_name(name: str, owned: bool) -> None:
    assert plan.owns_namespace("x", name) is owned


def test_every_planned_namespace_is_owned() -> None:
    lab = make_plan(instance_id="x", nodes=12, pods=25)
    assert all(plan.owns_namespace("x", h.netns) for h in lab.hosts)


def test_hosts_file_names_pods_and_nodes() -> None:
    lines = make_plan().hosts_file().splitlines()
    assert "10.77.2.2 a2 a2.lab" in lines
    assert "fd77:2::2 a2 a2.lab" in lines
    assert "10.77.1.1 n1 n1.lab" in lines


def test_a_mesh_of_the_enrolled_pods_with_a_service_on_two_nodes() -> None:
    lab = make_plan(nodes=3, pods=2)
    assert [p.name for p in lab.members] == ["a1", "a2", "a3"]
    assert lab.privileged is not None and lab.privileged.name == "a1"
    service = lab.service
    assert service is not None
    assert (service.full_name, str(service.ip4), str(service.ip6)) == (
        "lab/web.lab", "10.77.255.1", "fd77:ff::1",
    )  # fmt: skip
    assert [p.name for p in service.endpoints] == ["a1", "a2"]
    assert "10.77.255.1 web.lab" in lab.hosts_file().splitlines()
    assert "fd77:ff::1 web.lab" in lab.hosts_file().splitlines()


@pytest.mark.parametrize("nodes, pods", [(1, 1), (plan.MAX_NODES, plan.MAX_PODS_PER_NODE)])
def test_virtual_addresses_are_in_the_range_and_on_no_node(nodes: int, pods: int) -> None:
    lab = make_plan(nodes=nodes, pods=pods)
    assert lab.service is not None
    assert lab.service.ip4 in lab.net4 and lab.service.ip6 in lab.net6
    for node in lab.nodes:
        assert node.net4 is not None and lab.service.ip4 not in node.net4
        assert node.net6 is not None and lab.service.ip6 not in node.net6


@pytest.mark.parametrize("options", [{"mesh": False}, {"enroll": False}])
def test_without_a_mesh_there_is_no_member_service_or_policy(options: dict[str, bool]) -> None:
    lab = make_plan(**options)  # type: ignore[arg-type]
    assert (lab.mesh, lab.members, lab.service, lab.privileged) == (False, (), None, None)
    assert "web" not in lab.hosts_file()
    assert lab != make_plan()


def test_pods_are_found_by_both_names() -> None:
    lab = make_plan()
    assert lab.pod("a2") is lab.pod("lab/a2") is lab.pods[2]
    assert lab.pod("n1") is None
