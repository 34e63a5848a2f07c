"""TARGET, as far as it needs no other process: names, own namespace, errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodenet.capture.errors import HostNamespace
from nodenet.capture.records import PodRecord
from nodenet.capture.targets import container_ids, refuse_host, resolve_target
from nodenet.errors import NotFound, UsageError
from nodenet.kernel.netns import NetNs


def record(
    name: str, *, netns: str = "/run/netns/x", uid: str | None = None, inode: int = 1
) -> PodRecord:
    return PodRecord(
        name=name,
        uid=uid,
        netns=netns,
        netns_inode=inode,
        netns_cookie=2**60,
        pod_id=1,
        ips=(),
        backend="ebpf",
        enrolled_at="",
    )


RECORDS = [
    record("shop/cart-7d9f6b", uid="6f1c"),
    record("shop/db-0"),
    record("shop/db-1"),
    record("mail/relay-2"),
    record("mail/db"),
    record("a1"),
    record("netns:/run/netns/gone", netns="/run/netns/nn-gone"),
]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("shop/cart-7d9f6b", "shop/cart-7d9f6b"),
        ("shop/cart", "shop/cart-7d9f6b"),
        ("cart", "shop/cart-7d9f6b"),
        ("relay-2", "mail/relay-2"),
        ("shop/db-0", "shop/db-0"),
        ("db", "mail/db"),
        ("a1", "a1"),
        ("uid:6f1c", "shop/cart-7d9f6b"),
        ("netns:/run/netns/gone", "netns:/run/netns/gone"),
        ("netns:/run/netns/nn-gone", "netns:/run/netns/gone"),
    ],
)
def test_names_of_enrolled_pods(text: str, name: str) -> None:
    found = resolve_target(text, RECORDS)
    assert found.name == name
    assert found.record is not None
    assert found.netns_path == Path(found.record.netns)


def test_the_candidates_of_an_ambiguous_name_are_listed() -> None:
    with pytest.raises(UsageError) as raised:
        resolve_target("shop/db", RECORDS)
    assert raised.value.line() == "pod shop/db is ambiguous; one of: shop/db-0 shop/db-1"
    with pytest.raises(UsageError, match="one of: shop/db-0 shop/db-1"):
        resolve_target("db-", RECORDS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("shop/crat", "unknown pod shop/crat: not on this node; nearest: shop/cart-7d9f6b"),
        ("relya-2", "unknown pod relya-2: not on this node; nearest: mail/relay-2"),
        ("mail/db-0", "unknown pod mail/db-0: not on this node; nearest: mail/db"),
        (
            "zzz",
            "unknown pod zzz: not on this node; those known: nodenet capture show; any other by "
            "pid:N, netns:PATH, cgroup:PATH, unit:U, container:ID",
        ),
        ("uid:77", "no pod with uid 77 on this node; see: nodenet capture show"),
    ],
)
def test_unknown_names_get_the_nearest(text: str, line: str) -> None:
    with pytest.raises(NotFound) as raised:
        resolve_target(text, RECORDS)
    assert raised.value.line() == line


def test_no_pod_at_all() -> None:
    with pytest.raises(NotFound, match="not on this node; none is enrolled here"):
        resolve_target("shop/cart", [])


def test_places_are_names_that_need_no_enrolment() -> None:
    places = {"lab/a1": Path("/run/netns/lab-a1"), "shop/db-0": Path("/run/netns/other")}
    found = resolve_target("lab/a1", RECORDS, places)
    assert (found.netns_path, found.record) == (Path("/run/netns/lab-a1"), None)
    assert resolve_target("shop/db-0", RECORDS, places).record is RECORDS[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pod:web", "unknown kind pod; one of: NAME NS/NAME uid: pid: netns:"),
        ("pid:", "nothing behind pid:; e.g. pid:4711"),
        ("pid:web", "not a process id"),
        ("pid:0", "not a process id"),
        ("netns:web", "not an absolute path"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve_target(text, RECORDS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pid:4194305", "process 4194305: not there"),
        ("netns:/run/netns/nn-no-such", "network namespace /run/netns/nn-no-such: not there"),
        ("container:ffff0000ffff", "container ffff0000ffff: no process of it on this node"),
    ],
)
def test_what_is_not_there(text: str, words: str) -> None:
    with pytest.raises(NotFound, match=words):
        resolve_target(text, RECORDS)


def test_a_process_leads_to_its_namespace() -> None:
    text = f"pid:{os.getpid()}"
    found = resolve_target(text, RECORDS)
    assert (found.name, found.record) == (text, None)
    assert os.stat(found.netns_path).st_ino == os.stat("/proc/self/ns/net").st_ino


def test_process_1_is_refused_as_the_host() -> None:
    found = resolve_target("pid:1", RECORDS)
    with NetNs.open(found.netns_path) as ns, pytest.raises(HostNamespace) as raised:
        refuse_host(ns, "pid:1")
    assert raised.value.exit_code == 1
    assert raised.value.line() == (
        f"cannot enroll pid:1: its network namespace is the host's (inode {ns.inode}); "
        "host-network pods are never captured"
    )


A, B = "3f2a" * 16, "9c" * 32


@pytest.mark.parametrize(
    ("cgroups", "found"),
    [
        (f"0::/system.slice/docker-{A}.scope\n", {A}),
        (f"12:memory:/docker/{A}\n0::/\n", {A}),
        (f"0::/kubepods.slice/kubepods-pod6f1c_2a90.slice/cri-containerd-{A}.scope\n", {A}),
        (f"0::/kubepods/burstable/pod1/crio-{A}.scope/inner\n", {A}),
        (f"0::/machine.slice/libpod-{A}.scope/container\n", {A}),
        (f"0::/machine.slice/libpod-conmon-{A}.scope\n", set()),
        (f"0::/a/{A}/{B}\n", {A, B}),
        ("0::/user.slice/user-1000.slice\n", set()),
    ],
)
def test_ids_in_the_cgroups_of_container_runtimes(cgroups: str, found: set[str]) -> None:
    assert container_ids(cgroups) == found
