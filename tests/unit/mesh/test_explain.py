"""explain says what the decision did, with all that chance could have made of it."""

from __future__ import annotations

from typing import Any

import pytest

from nodenet.mesh.explain import Explanation, explain
from nodenet.mesh.model import LoadBalancing, Mode, WeightedWaypoint
from tests.unit.mesh.building import TCP, at, mesh, pod, ref, rng, service

SOURCE = pod("cart", "10.0.0.1")
S = "ns/s.ns"


def explained(destination: str, *resources: Any, network: str = "") -> Explanation:
    source = pod("cart", "10.0.0.1", network=network)
    state = mesh(source, *resources)
    return explain(state, source, source.ips[0], at(destination), network=network, rng=rng())


def lines(found: Explanation) -> list[str]:
    return [
        f"{'>' if step.fired else ' '} {step.row} {step.answer}: {step.why}" for step in found.steps
    ]


def test_a_service_in_hbone() -> None:
    found = explained(
        "10.96.0.1:80",
        service("s", "10.96.0.1"),
        pod("a", "10.0.0.2", services=[S], uid="a", capacity=3, service_account="db"),
        pod("b", "10.0.0.3", services=[S], uid="b", service_account="db"),
    )
    assert lines(found) == [
        "  Z0 yes: 10.0.0.1 to 10.96.0.1:80",
        "  Z1 no: 10.96.0.1:80 is no listener of the proxy",
        "  Z2 yes: c1//Pod/ns/cart, as spiffe://cluster.local/ns/ns/sa/cart",
        "  Z3 service: service ns/s.ns by VIP",
        "  Z4 none: the service has no waypoint",
        "  Z5 workload: a of ns/s.ns, port 80 -> 8080",
        "  Z6 no: a is in the source's network ''",
        "  Z7 no: the destination has no waypoint",
        "  Z8 none: a service was addressed: its workloads' waypoints do not count",
        "> Z9 hbone: 10.0.0.2:15008, as spiffe://cluster.local/ns/ns/sa/db",
    ]
    upstream = next(step for step in found.steps if step.row == "Z5")
    assert [(c.name, c.probability, c.chosen) for c in upstream.candidates] == [
        ("a", 0.75, True), ("b", 0.25, False),
    ]  # fmt: skip
    assert (found.result, found.unasked) == ("mtls", ("Z10",))


def test_a_waypoint_by_weight() -> None:
    found = explained(
        "10.96.0.1:80",
        service(
            "s",
            "10.96.0.1",
            weighted_waypoints=(
                WeightedWaypoint(ref("/10.0.0.8"), 1),
                WeightedWaypoint(ref("/10.0.0.9"), 3),
            ),
        ),
        pod("w8", "10.0.0.8", uid="w8"),
        pod("w9", "10.0.0.9", uid="w9"),
    )
    steps = [step for step in found.steps if step.row.startswith("Z4")]
    assert [(c.name, c.probability) for c in steps[0].candidates] == [
        ("/10.0.0.8", 0.25), ("/10.0.0.9", 0.75),
    ]  # fmt: skip
    assert [c.chosen for c in steps[0].candidates].count(True) == 1
    assert steps[-1].fired
    assert steps[-1].why.endswith(", for 10.96.0.1:80")
    assert found.unasked == ("Z5", "Z6", "Z7", "Z8", "Z9", "Z10")


@pytest.mark.parametrize(
    ("destination", "resources", "result", "last"),
    [
        ("127.0.0.1:15001", (), "refused", "> Z1 refused: attempted recursive call to ourselves"),
        ("192.0.2.1:80", (), "plain", "> Z5c tcp: 192.0.2.1:80 as it is: nobody known"),
        (
            "10.96.0.1:80",
            (service("s", "10.96.0.1"),),
            "refused",
            "> Z5b refused: no healthy upstream: 10.96.0.1:80",
        ),
        (
            "10.96.0.1:80",
            (service("s", "10.96.0.1", load_balancing=LoadBalancing(mode=Mode.PASSTHROUGH)),),
            "plain",
            "> Z5a tcp: 10.96.0.1:80 as it is: the service is PASSTHROUGH",
        ),
        ("10.0.0.2:80", (pod("a", "10.0.0.2", protocol=TCP),), "plain", "> Z10 tcp: 10.0.0.2:80"),
        (
            "10.0.0.2:80",
            (pod("a", "10.0.0.2", waypoint=ref("/10.0.0.9")), pod("w", "10.0.0.9")),
            "mtls",
            "> Z8 hbone: 10.0.0.9:15008, as spiffe://cluster.local/ns/ns/sa/w, for 10.0.0.2:80",
        ),
        (
            "10.96.0.1:80",
            (service("s", "10.96.0.1"), pod("a", services=[S], hostname="a.example")),
            "mtls",
            "> Z9 hbone: a.example:15008, by DNS, as spiffe://cluster.local/ns/ns/sa/a",
        ),
        (
            "10.96.0.1:80",
            (
                service("s", "10.96.0.1"),
                pod("a", services=[S], network="far", network_gateway=ref("far/192.0.2.1")),
                pod("gw", "192.0.2.1", network="far"),
            ),
            "mtls",
            "> Z6 double-hbone: 192.0.2.1:15008, as spiffe://cluster.local/ns/ns/sa/gw, "
            "for s.ns:80, inside as nobody, so it fails",
        ),
    ],
)
def test_last_step(destination: str, resources: tuple[Any, ...], result: str, last: str) -> None:
    found = explained(destination, *resources)
    assert lines(found)[-1] == last
    assert found.result == result
    assert (found.route is None) is (found.refused is not None)
    assert [step.fired for step in found.steps].count(True) == 1
