"""Names, order and values of the labels."""

from __future__ import annotations

from nodenet.agents.ztunnel.flow_facts import FlowFacts
from nodenet.agents.ztunnel.labels import HEAD, LabelValues, label_values, party, rendered
from nodenet.hbone.baggage import Baggage
from nodenet.mesh.model import Workload
from tests.unit.agents.ztunnel.flows import CART_ID, DB, DB_ID, inbound, outbound, plain

BAGGAGE = Baggage(
    cluster="c2", namespace="far", workload_name="web", service_name="web-svc", revision="v9",
    region="r9", zone="z9",
)  # fmt: skip


def values(facts: FlowFacts) -> LabelValues:
    return label_values(
        facts,
        party(facts.src_workload, facts.src_baggage),
        party(facts.dst_workload, facts.dst_baggage),
    )


def by_name(facts: FlowFacts) -> dict[str, str]:
    found = values(facts)
    return dict(zip(HEAD, found.head, strict=True)) | dict(found.tail)


def test_a_tunnelled_connection_in_full_and_in_order() -> None:
    head, tail = rendered(values(outbound()))
    assert f"{head}-{tail}" == (
        'reporter="source",'
        'source_workload="cart",source_canonical_service="cart-app",'
        'source_canonical_revision="v2",source_workload_namespace="shop",'
        f'source_principal="{CART_ID}",source_app="cart-app",source_version="v2",'
        'source_cluster="Kubernetes",'
        'destination_service="db.shop.svc.cluster.local",destination_service_namespace="shop",'
        'destination_service_name="db",'
        'destination_workload="db",destination_canonical_service="db",'
        'destination_canonical_revision="latest",destination_workload_namespace="shop",'
        f'destination_principal="{DB_ID}",destination_app="db",destination_version="latest",'
        'destination_cluster="Kubernetes",'
        'request_protocol="tcp",response_flags="-",connection_security_policy="mutual_tls",'
        'source_region="r1",source_zone="z1",'
        'destination_region="unknown",destination_zone="unknown"'
    )


def test_the_other_side_reports_the_same_ends() -> None:
    there, here = by_name(outbound()), by_name(inbound())
    assert there.pop("reporter") == "source"
    assert here.pop("reporter") == "destination"
    assert there == here


def test_what_is_not_known_is_unknown_and_has_no_locality() -> None:
    labels = by_name(plain(src_workload=None))
    assert set(labels) == {*HEAD, "connection_security_policy"}
    known = {"reporter": "source", "request_protocol": "tcp"}
    assert all(value == known.get(name, "unknown") for name, value in labels.items())


def test_principals_of_a_connection_without_mtls() -> None:
    # the source proves nothing, the destination is who it would have to be
    labels = by_name(plain(src_identity=CART_ID, dst_workload=DB))
    assert labels["source_principal"] == "unknown"
    assert labels["destination_principal"] == DB_ID


def test_of_baggage_the_app_is_the_workloads_name() -> None:
    labels = by_name(inbound(src_workload=None, src_baggage=BAGGAGE))
    found = {name: value for name, value in labels.items() if name.startswith("source_")}
    assert found == {
        "source_workload": "web",
        "source_canonical_service": "web-svc",
        "source_canonical_revision": "v9",
        "source_workload_namespace": "far",
        "source_principal": CART_ID,
        "source_app": "web",
        "source_version": "v9",
        "source_cluster": "c2",
        "source_region": "r9",
        "source_zone": "z9",
    }


def test_the_workload_comes_before_its_baggage_field_by_field() -> None:
    half = Workload(uid="u", namespace="shop", workload_name="cart", cluster_id="c1")
    labels = by_name(inbound(src_workload=half, src_baggage=BAGGAGE))
    assert labels["source_workload"] == "cart"
    assert labels["source_cluster"] == "c1"
    assert labels["source_canonical_service"] == "web-svc"
    assert labels["source_region"] == "r9"


def test_values_are_escaped() -> None:
    odd = Workload(uid="u", workload_name='a"b\\c\nd')
    head, _ = rendered(values(plain(src_workload=odd)))
    assert 'source_workload="a\\"b\\\\c\\nd",' in head
