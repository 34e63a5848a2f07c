"""Pod names from enrolment records, followed as pods come and go."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.capture.records import PodRecord, remove_record, write_record
from nodenet.conns.names import Names
from nodenet.paths import Instance


def _pod(name: str, cookie: int, ip: str) -> PodRecord:
    return PodRecord(
        name=name,
        netns=f"/run/netns/{name}",
        netns_inode=cookie,
        netns_cookie=cookie,
        pod_id=cookie & 0xFFFFFFFF,
        ips=(ip,),
        backend="ebpf",
        enrolled_at="2026-01-31T00:00:00.000000Z",
    )


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance whose run directory is a temporary one."""
    monkeypatch.setattr("nodenet.paths.RUN", tmp_path)
    return Instance("names")


def test_no_directory_is_no_pods(instance: Instance) -> None:
    names = Names(instance)
    assert names.records == () and names.refresh() is False


def test_pods_come_and_go(instance: Instance) -> None:
    names = Names(instance)
    write_record(instance, _pod("shop/cart", 41, "fd42::7"))
    assert names.refresh() is True
    assert names.by_netns[41].name == names.by_pod_id[41].name == "shop/cart"
    assert names.by_address == {abi.pack_ip(ipaddress.ip_address("fd42::7")): "shop/cart"}
    assert names.refresh() is False
    write_record(instance, _pod("shop/db", 42, "10.42.1.9"))
    assert names.refresh() is True and sorted(names.by_netns) == [41, 42]
    remove_record(instance, 41)
    assert names.refresh() is True and sorted(names.by_netns) == [42]
