"""Kernel records made by hand and the enrolments they belong to."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.abi import ConnFlag, Direction, EventKind, Reason, Via
from nodenet.capture.records import PodRecord
from nodenet.conns.connection import Connection
from nodenet.conns.decode import Decoder
from nodenet.conns.names import Names
from nodenet.paths import Instance

#: Unix time of boot in these tests: 2026-01-31T00:00:00Z.
BOOT_NS = 1_769_817_600 * 1_000_000_000
CART, DB = 41, 42

Record = Callable[..., bytes]
Rows = Callable[..., list[Connection]]


def pod(name: str, cookie: int, *ips: str, **more: object) -> PodRecord:
    """An enrolment record of a pod that is not there."""
    return PodRecord(
        name=name,
        netns=f"/run/netns/nn-none-{cookie}",
        netns_inode=4_026_530_000 + cookie,
        netns_cookie=cookie,
        pod_id=cookie,
        ips=ips,
        backend="ebpf",
        enrolled_at="2026-01-31T00:00:00.000000Z",
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def names(tmp_path: Path) -> Names:
    """shop/cart-7d9f6b in netns 41, shop/db-1 in netns 42."""
    made = Names(Instance("none"))
    made.set_records(
        (
            pod("shop/cart-7d9f6b", CART, "10.42.1.7", "fd42:1::7", uid="u-cart"),
            pod("shop/db-1", DB, "10.42.1.9", uid="u-db"),
        )
    )
    return made


@pytest.fixture
def record() -> Record:
    """Packs one ``nn_event``; addresses as text, an open captured connection by default."""

    def pack(**changes: object) -> bytes:
        values: dict[str, object] = {
            "cookie": 0x3A01,
            "netns": CART,
            "cgroup": 7,
            "start_ns": 1_000_000_000,
            "end_ns": 3_500_000_000,
            "local": "10.42.1.7",
            "local_port": 51034,
            "remote": "10.42.1.7",
            "remote_port": 15001,
            "orig": "10.42.1.9",
            "orig_port": 5432,
            "family": 2,
            "dir": Direction.OUT,
            "pid": 4711,
            "state": 1,
            "flags": ConnFlag.CAPTURED,
            "reason": Reason.CAPTURED,
            "via": Via.EBPF,
            "comm": b"python3",
            "bytes_sent": 12_702,
            "bytes_acked": 12_000,
            "bytes_received": 3_100_000,
            "srtt_us": 340,
            "rtt_min_us": 290,
            "retransmits": 2,
            "lost": 1,
            "segs_out": 30,
            "segs_in": 40,
            "cwnd": 10,
            "kind": EventKind.LIVE,
            "old_state": 1,
        }
        values |= changes
        for key in ("local", "remote", "orig"):
            if isinstance(text := values[key], str):
                values[key] = abi.pack_ip(ipaddress.ip_address(text))
        return abi.EVENT.pack(**values)  # type: ignore[arg-type]

    return pack


@pytest.fixture
def rows(names: Names) -> Rows:
    """Decodes records with `BOOT_NS` and cgroup texts ``/cg7``."""
    decoder = Decoder(names, lambda number: f"/cg{number}", BOOT_NS)

    def decode(*raw: bytes, **options: object) -> list[Connection]:
        return decoder.rows(b"".join(raw), **options)  # type: ignore[arg-type]

    return decode
