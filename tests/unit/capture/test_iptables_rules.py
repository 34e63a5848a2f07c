"""The rule set of a pod: ids in order, and what each choice changes."""

from __future__ import annotations

import ipaddress

import pytest

from nodenet.capture.iptables_rules import Family, Redirect, Rule, host_rules, pod_rules
from nodenet.capture.records import ExcludedPort, PodRecord


def chain(rules: tuple[Rule, ...], table: str, name: str) -> list[str]:
    return [r.id for r in rules if (r.table, r.chain) == (table, f"NODENET_{name}")]


def text_of(rules: tuple[Rule, ...], identity: str) -> list[str]:
    return [r.text for r in rules if r.id == identity]


@pytest.mark.parametrize("family", [4, 6])
def test_the_reference_set_in_its_order(family: Family) -> None:
    rules = pod_rules(family, Redirect(dns=True))
    assert chain(rules, "mangle", "PRERT") == ["m1"]
    assert chain(rules, "mangle", "OUTPUT") == ["m2"]
    assert chain(rules, "nat", "PRERT") == ["p1", "i1"]
    assert chain(rules, "nat", "OUTPUT") == ["p2", "d1", "d2", "o1", "o2", "o3"]
    assert chain(rules, "raw", "OUTPUT") == ["z1"]
    assert chain(rules, "raw", "PRERT") == ["z2"]
    without_dns = pod_rules(family, Redirect())
    assert {r.id for r in rules} - {r.id for r in without_dns} == {"d1", "d2", "z1", "z2"}


def test_the_redirects_word_by_word() -> None:
    rules = pod_rules(4, Redirect())
    assert text_of(rules, "i1") == [
        "-A NODENET_PRERT ! -d 127.0.0.1/32 -p tcp -m tcp ! --dport 15008 "
        "-m mark ! --mark 0x539/0xfff -m comment --comment nodenet:i1 -j REDIRECT --to-ports 15006"
    ]
    assert text_of(rules, "o3") == [
        "-A NODENET_OUTPUT ! -d 127.0.0.1/32 -p tcp -m mark ! --mark 0x539/0xfff "
        "-m comment --comment nodenet:o3 -j REDIRECT --to-ports 15001"
    ]
    assert (
        "-s fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128"
        in text_of(pod_rules(6, Redirect()), "p1")[0]
    )


def test_exclusions_come_before_every_redirect_and_of_their_family_only() -> None:
    redirect = Redirect(
        dns=True,
        exclude_ports=(
            ExcludedPort("out", 9093),
            ExcludedPort("in", 8081),
            ExcludedPort("out", 53),
        ),
        exclude_cidrs=(ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("::/0")),
    )
    four, six = pod_rules(4, redirect), pod_rules(6, redirect)
    assert chain(four, "nat", "PRERT") == ["p1", "x1", "i1"]
    assert chain(four, "nat", "OUTPUT") == ["p2", *["x2"] * 4, "d1", "d2", "o1", "o2", "o3"]
    assert "--dport 8081" in text_of(four, "x1")[0]
    # an excluded port 53 is excluded for both protocols, or DNS capture would take it all the same
    assert [t.split("-m comment")[0].split(maxsplit=2)[2] for t in text_of(four, "x2")] == [
        "-p tcp -m tcp --dport 53 ",
        "-p udp -m udp --dport 53 ",
        "-p tcp -m tcp --dport 9093 ",
        "-d 10.0.0.0/8 ",
    ]
    assert text_of(six, "x2")[-1] == ("-A NODENET_OUTPUT -m comment --comment nodenet:x2 -j RETURN")


@pytest.mark.parametrize(
    ("redirect", "absent", "present"),
    [
        (Redirect(direction="out", dns=True), {"p1", "i1"}, {"w1", "o3", "d1", "m1", "m2"}),
        (Redirect(mode="ingress"), {"p1", "i1"}, {"w1", "o3", "m1", "m2"}),
        (Redirect(direction="in", dns=True), {"d1", "d2", "o1", "o3", "z1", "w1"}, {"i1", "m1"}),
    ],
)
def test_what_a_direction_leaves_out(
    redirect: Redirect, absent: set[str], present: set[str]
) -> None:
    ids = {r.id for r in pod_rules(4, redirect)}
    assert not ids & absent
    assert present <= ids


def test_an_enrolment_record_is_a_redirect() -> None:
    record = PodRecord(
        name="shop/cart",
        netns="/run/netns/cart",
        netns_inode=1,
        netns_cookie=2,
        pod_id=3,
        ips=("10.0.0.1",),
        backend="iptables",
        direction="out",
        dns=True,
        exclude_cidrs=("10.0.0.0/8",),
        enrolled_at="",
    )
    assert Redirect.of(record) == Redirect(
        direction="out", dns=True, exclude_cidrs=(ipaddress.ip_network("10.0.0.0/8"),)
    )


def test_the_nodes_rules_are_one_a_pod_of_the_family() -> None:
    pods = [ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("fd00::1")]
    (four,), (six,) = host_rules(4, pods), host_rules(6, pods)
    assert four.text == (
        "-A NODENET_POSTRT -d 10.0.0.1/32 -p tcp -m owner --socket-exists "
        "-m comment --comment nodenet:h1 -j SNAT --to-source 169.254.7.127"
    )
    assert "-d fd00::1/128" in six.text
