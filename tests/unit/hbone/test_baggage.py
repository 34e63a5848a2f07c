"""The baggage header: exact order, what is left out, and parsing of anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.hbone.baggage import (
    MAX_PARTS,
    MAX_VALUE,
    NO_BAGGAGE,
    Baggage,
    format_baggage,
    parse_baggage,
)

FULL = Baggage(
    cluster="c1",
    namespace="shop",
    workload_name="cart",
    service_name="cart-svc",
    revision="v1",
    region="r1",
    zone="z1",
)


def test_order_and_form() -> None:
    assert format_baggage(FULL) == (
        b"k8s.cluster.name=c1,k8s.namespace.name=shop,k8s.deployment.name=cart,"
        b"service.name=cart-svc,service.version=v1,cloud.region=r1,cloud.availability_zone=z1"
    )


@pytest.mark.parametrize("kind", ["deployment", "cronjob", "pod", "job"])
def test_kind_of_workload(kind: str) -> None:
    header = format_baggage(Baggage(workload_name="w"), kind)
    assert header == f"k8s.{kind}.name=w".encode()
    assert parse_baggage([header]) == Baggage(workload_name="w")


def test_unknown_kind_is_a_deployment() -> None:
    assert format_baggage(Baggage(workload_name="w"), "a=b,") == b"k8s.deployment.name=w"


def test_unset_parts_are_left_out() -> None:
    assert format_baggage(NO_BAGGAGE) == b""
    assert format_baggage(Baggage(namespace="a", zone="b")) == (
        b"k8s.namespace.name=a,cloud.availability_zone=b"
    )


@pytest.mark.parametrize(
    "value",
    ["a,k8s.namespace.name=kube-system", "a=b", "a\r\nb", "é", " a", "a ", "\t", "x" * 513],
)
def test_what_the_peer_would_misread_is_not_said(value: str) -> None:
    assert format_baggage(Baggage(cluster="c", region=value)) == b"k8s.cluster.name=c"


def test_blanks_within_a_value() -> None:
    header = format_baggage(Baggage(region="us east"))
    assert parse_baggage([header]) == Baggage(region="us east")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], NO_BAGGAGE),
        ([b""], NO_BAGGAGE),
        ([b"service.name=a"], Baggage(service_name="a")),
        ([b"service.name=a,service.version=b"], Baggage(service_name="a", revision="b")),
        # no trimming, no percent-decoding
        ([b"service.name=a, service.version=b"], Baggage(service_name="a")),
        ([b"service.name= a%20b "], Baggage(service_name=" a%20b ")),
        # only what stands between the first and the second equals sign
        ([b"service.name=a=b"], Baggage(service_name="a")),
        ([b"service.name"], NO_BAGGAGE),
        ([b"service.name=a,service.name"], Baggage(service_name="a")),
        # the last one holds, an empty value unsets
        ([b"service.name=a,service.name=b"], Baggage(service_name="b")),
        ([b"service.name=a", b"service.name=b"], Baggage(service_name="b")),
        ([b"service.name=a,service.name="], NO_BAGGAGE),
        ([b"k8s.pod.name=a,k8s.job.name=b"], Baggage(workload_name="b")),
        ([b"service.name=a", b"cloud.region=r"], Baggage(service_name="a", region="r")),
        # unknown keys, empty parts
        ([b"x=y,,service.name=a,=,=z"], Baggage(service_name="a")),
        ([b"SERVICE.NAME=a"], NO_BAGGAGE),
        # a header that is no text makes all void
        ([b"service.name=a", b"\xff"], NO_BAGGAGE),
        ([b"service.name=\xc3\xa9"], NO_BAGGAGE),
        ([b"service.name=a\x7f"], NO_BAGGAGE),
        ([b"service.name=" + b"x" * (MAX_VALUE + 1)], NO_BAGGAGE),
        ([b"service.name=" + b"x" * MAX_VALUE], Baggage(service_name="x" * MAX_VALUE)),
    ],
)
def test_parse(headers: list[bytes], expected: Baggage) -> None:
    assert parse_baggage(headers) == expected


def test_parts_after_the_limit_are_not_read() -> None:
    filler = b",".join([b"x=y"] * (MAX_PARTS - 1))
    last = parse_baggage([filler + b",service.name=a,cloud.region=r"])
    assert last == Baggage(service_name="a")
    assert parse_baggage([filler, b"service.name=a", b"cloud.region=r"]) == last


_SAYABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=",="))


@given(st.builds(Baggage, **{name: _SAYABLE for name in Baggage.__struct_fields__}))
def test_what_is_said_is_read(baggage: Baggage) -> None:
    assert parse_baggage([format_baggage(baggage)]) == baggage


@given(st.builds(Baggage, **{name: st.text() for name in Baggage.__struct_fields__}))
def test_any_text_can_be_given(baggage: Baggage) -> None:
    """What cannot be said is missing, and nothing else is said in its place."""
    read = parse_baggage([format_baggage(baggage)])
    for name in Baggage.__struct_fields__:
        assert getattr(read, name) in ("", getattr(baggage, name))


_KEYS = [b"service.name", b"k8s.pod.name", b"cloud.region", b"=", b",", b"a", b" "]


@given(st.lists(st.binary() | st.lists(st.sampled_from(_KEYS)).map(b"".join)))
def test_parsing_never_fails(headers: list[bytes]) -> None:
    read = parse_baggage(headers)
    assert all(len(getattr(read, name)) <= MAX_VALUE for name in Baggage.__struct_fields__)
