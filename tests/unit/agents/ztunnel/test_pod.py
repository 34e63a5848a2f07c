"""A pod from its enrolment record."""

from __future__ import annotations

import msgspec
import pytest

from nodenet.agents.ztunnel.pod import PodRefused, pod_of_record
from nodenet.capture.records import PodRecord

RECORD = PodRecord(
    name="shop/cart",
    netns="/run/netns/x",
    netns_inode=1,
    netns_cookie=42,
    pod_id=1,
    ips=("10.0.0.1", "FD00:0:0::1"),
    backend="iptables",
    enrolled_at="2026-01-01T00:00:00.000000Z",
)


def test_addresses_are_as_the_kernel_prints_them() -> None:
    pod = pod_of_record(RECORD)
    assert pod.hosts == {"10.0.0.1", "fd00::1"}
    assert (pod.cookie, pod.name, pod.backend) == (42, "shop/cart", "iptables")


def test_what_is_no_address_is_refused_with_the_pods_name() -> None:
    with pytest.raises(PodRefused, match=r"shop/cart.*'10\.0\.0'.*enroll it again"):
        pod_of_record(msgspec.structs.replace(RECORD, ips=("10.0.0",)))
