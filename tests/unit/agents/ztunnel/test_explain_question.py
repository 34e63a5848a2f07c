"""What a person may type for the two ends, and what is said when it means nothing."""

from __future__ import annotations

import json
from random import Random

import pytest

from nodenet.agents.ztunnel.explain import Mesh
from nodenet.agents.ztunnel.explain_question import answer, question
from nodenet.errors import NodenetError, NotFound, UsageError
from nodenet.mesh import dump, static_file
from nodenet.mesh.policy import PolicyRefused
from nodenet.mesh.policy_json import policy_to_json
from nodenet.mesh.state import MeshState
from tests.unit.agents.ztunnel.mesh_scene import DENY_CART, RESOURCES, key, mesh, pod, service


@pytest.mark.parametrize(
    ("src", "name"),
    [
        ("shop/cart", "cart"),
        ("cart", "cart"),
        ("ca", "cart"),
        ("shop/ca", "cart"),
        ("uid:c//Pod/shop/cart", "cart"),
        ("10.1.0.1", "cart"),
        ("[fd00::1]", "cart"),
        ("fd00::1", "cart"),
        ("::ffff:10.1.0.1", "cart"),
        ("db-0", "db-0"),
    ],
)
def test_source(src: str, name: str) -> None:
    assert question(mesh(), src, "203.0.113.1:80").source.name == name


def test_a_whole_name_comes_before_its_prefixes() -> None:
    of = mesh(pod("cart-2", "10.1.0.99"))
    assert question(of, "cart", "203.0.113.1:80").source.name == "cart"


@pytest.mark.parametrize(
    ("dst", "address"),
    [
        ("10.1.0.2:80", "10.1.0.2:80"),
        ("[fd00::1]:80", "[fd00::1]:80"),
        ("[::ffff:10.1.0.2]:80", "10.1.0.2:80"),
        ("db.shop.svc.cluster.local:5432", "10.96.0.20:5432"),
        ("db.shop:5432", "10.96.0.20:5432"),
        ("db.shop.svc:5432", "10.96.0.20:5432"),
        ("db:5432", "10.96.0.20:5432"),
        ("shop/db:5432", "10.96.0.20:5432"),
        ("shop/db-1:80", "10.1.0.3:80"),
        ("shop/web:80", "10.1.0.9:80"),
        ("shop/nat:80", "10.1.0.8:80"),
        ("nat:80", "10.1.0.8:80"),
        ("db-1:80", "10.1.0.3:80"),
    ],
)
def test_destination(dst: str, address: str) -> None:
    assert str(question(mesh(), "cart", dst).destination) == address


def test_a_headless_service_gives_an_endpoint() -> None:
    of = mesh(pod("h", "10.1.0.77", services=(key("headless"),)))
    assert str(question(of, "cart", "headless.shop:80").destination) == "10.1.0.77:80"


def test_addresses_of_the_client_s_family() -> None:
    of = mesh(service("dual", "fd00::99", "10.96.0.99"))
    assert str(question(of, "cart", "dual:80").destination) == "10.96.0.99:80"
    found = question(of, "cart", "[fd00::99]:80")
    assert str(found.client) == "fd00::1"
    assert str(question(of, "web", "[fd00::99]:80").client) == "10.1.0.9"


@pytest.mark.parametrize(
    ("src", "dst", "kind", "text"),
    [
        ("crat", "db:80", NotFound, "no workload crat in 11 known"),
        ("shop/crat", "db:80", NotFound, "nearest: shop/cart"),
        ("other/cart", "db:80", NotFound, "no workload other/cart"),
        ("uid:x", "db:80", NotFound, "no workload uid:x among 11 known"),
        ("203.0.113.1", "db:80", NotFound, "no workload has 203.0.113.1 in network 'net'"),
        ("db", "db:80", UsageError, "db may be 2 workloads: uid:c//Pod/shop/db-0 uid:"),
        ("cart", "10.96.0.20", UsageError, "10.96.0.20 needs a port; write 10.96.0.20:5432"),
        ("cart", "shop/db", UsageError, "needs a port"),
        (
            "cart",
            "nope.shop:80",
            NotFound,
            "nope.shop: no such service or pod among 11 workloads, 6 services; give an address",
        ),
        ("cart", "shop/nope:80", NotFound, "shop/nope: no such service or pod"),
        ("cart", "db.other:80", NotFound, "db.other: no such service"),
        ("cart", "shop/db-:80", UsageError, "may be 2 workloads"),
        ("cart", "shop/remote:80", None, ""),
        ("cart", "headless:80", NotFound, "has no address in network 'net'"),
        ("remote", "10.1.0.1:80", NotFound, "shop/remote has no address, so nothing can come"),
    ],
)
def test_errors(src: str, dst: str, kind: type[NodenetError] | None, text: str) -> None:
    if kind is None:
        # a service of that name comes before the pod
        assert str(question(mesh(), src, dst).destination) == "10.96.0.23:80"
        return
    with pytest.raises(kind) as caught:
        question(mesh(), src, dst)
    assert text in caught.value.line()
    assert caught.value.exit_code == (2 if kind is UsageError else 4)


def test_another_node() -> None:
    with pytest.raises(NotFound) as caught:
        question(mesh(), "web", "db:80", node="n1")
    assert caught.value.line() == (
        "cannot explain: shop/web is on node n2, this is n1; run it there, "
        "or give a dump: -f n2.json"
    )
    assert question(mesh(), "web", "db:80").source.name == "web"
    assert question(mesh(), "cart", "db:80", node="n1").source.name == "cart"


def test_question_and_answer_in_one() -> None:
    found = answer(mesh(), "shop/cart", "shop/db-1:80", rng=Random(0))
    assert (found.result, found.what_if) == ("mtls", None)
    found = answer(
        mesh(), "shop/cart", "shop/db-1:80", rng=Random(0), policies=policy_to_json(DENY_CART)
    )
    assert (found.result, found.policy) == ("denied", "shop/deny-cart")
    with pytest.raises(PolicyRefused):
        answer(mesh(), "shop/cart", "shop/db-1:80", rng=Random(0), policies=b"{}")


def test_the_scene_is_as_counted() -> None:
    assert len(RESOURCES) == 17


@pytest.mark.parametrize("dst", ["shop/db:5432", "shop/guarded:80", "203.0.113.1:80"])
def test_a_dump_gives_the_same_answer(dst: str) -> None:
    live = mesh(DENY_CART)
    dumped = static_file.from_dump(json.dumps(dump.mesh(live.state)))
    state = MeshState()
    state.replace((*dumped.workloads, *dumped.services, *dumped.policies))
    offline = Mesh(state=state, network=live.network)
    expected = answer(live, "shop/cart", dst, rng=Random(3))
    assert answer(offline, "shop/cart", dst, rng=Random(3)) == expected
