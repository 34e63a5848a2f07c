"""Options of an enrolment: what is accepted, and what an error says."""

from __future__ import annotations

import ipaddress

import pytest

from nodenet.capture.options import EnrolOptions, parse_cidrs, parse_excluded_ports
from nodenet.capture.records import ExcludedPort, PodRecord
from nodenet.errors import UsageError


def test_ports_of_both_directions_and_repeats_are_joined() -> None:
    found = parse_excluded_ports(["out:9093,in:8081", "out:9093"])
    assert found == (ExcludedPort("in", 8081), ExcludedPort("out", 9093))


def test_a_bare_port_means_both_directions() -> None:
    assert parse_excluded_ports(["22"]) == (ExcludedPort("in", 22), ExcludedPort("out", 22))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("in:65536", "port 65536 out of range 1-65535 in --exclude-port in:65536"),
        ("out:0", "port 0 out of range 1-65535 in --exclude-port out:0"),
        ("up:80", "direction 'up' unknown in --exclude-port up:80; one of: out in both"),
        ("out:http", "port 'http' is not a number in --exclude-port out:http"),
    ],
)
def test_bad_ports_name_the_option_and_the_value(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_excluded_ports([text])
    assert caught.value.line().startswith(message)


def test_cidrs_are_sorted_and_deduplicated() -> None:
    found = parse_cidrs(["10.0.0.0/8,fd00::/8", "10.0.0.0/8", "192.0.2.1"])
    assert found == (
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_network("192.0.2.1/32"),
        ipaddress.ip_network("fd00::/8"),
    )


@pytest.mark.parametrize("text", ["10.0.0.0/33", "10.0.0.1/8", "ten", ""])
def test_bad_cidrs_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="in --exclude-cidr: .*write e.g. 10.0.0.0/8"):
        parse_cidrs([text])


def _record(**changes: object) -> PodRecord:
    values: dict[str, object] = {
        "name": "shop/cart",
        "netns": "/run/netns/x",
        "netns_inode": 1,
        "netns_cookie": 2,
        "pod_id": 2,
        "ips": ("10.0.0.1",),
        "backend": "ebpf",
        "enrolled_at": "2026-01-01T00:00:00.000000Z",
    }
    return PodRecord(**(values | changes))  # type: ignore[arg-type]


def test_the_defaults_match_a_default_record() -> None:
    assert EnrolOptions().matches(_record(), "ebpf")


@pytest.mark.parametrize(
    "options",
    [
        EnrolOptions(direction="out"),
        EnrolOptions(dns=True),
        EnrolOptions(on_proxy_down="open"),
        EnrolOptions(mode="ingress"),
        EnrolOptions(exclude_ports=(ExcludedPort("out", 1),)),
        EnrolOptions(exclude_cidrs=(ipaddress.ip_network("10.0.0.0/8"),)),
    ],
)
def test_every_option_counts_as_a_change(options: EnrolOptions) -> None:
    assert not options.matches(_record(), "ebpf")


def test_another_backend_is_a_change() -> None:
    assert not EnrolOptions().matches(_record(), "iptables")


def test_the_order_of_exclusions_does_not_matter() -> None:
    ports = (ExcludedPort("out", 2), ExcludedPort("in", 1))
    options = EnrolOptions(exclude_ports=ports)
    assert options.matches(_record(exclude_ports=tuple(reversed(ports))), "ebpf")
