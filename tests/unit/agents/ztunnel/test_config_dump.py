"""The dump: keys, their order, and the same text whatever the size."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Collection
from typing import Any

import pytest

from nodenet.agents.ztunnel.config_dump import AT_ONCE, KEYS, config_dump
from tests.unit.agents.ztunnel.admin_world import LEAF, World
from tests.unit.agents.ztunnel.flows import CART_ID, DB_ID


def dump(loop: asyncio.AbstractEventLoop, world: World, only: Collection[str] = KEYS) -> str:
    async def main() -> bytes:
        pieces = config_dump(world.source, world.telemetry, istio_version="1.31", only=only)
        return b"".join([piece async for piece in pieces])

    return loop.run_until_complete(main()).decode()


def test_it_is_pretty_json_with_its_keys_in_order(loop: asyncio.AbstractEventLoop) -> None:
    text = dump(loop, World())
    found = json.loads(text)
    assert tuple(found) == KEYS
    assert text == json.dumps(found, indent=2) + "\n"


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, 2 * AT_ONCE + 1])
def test_any_number_of_objects(loop: asyncio.AbstractEventLoop, count: int) -> None:
    world = World()
    world.source.workload = [{"uid": str(n), "odd": 'a\n"b'} for n in range(count)]
    text = dump(loop, world)
    found = json.loads(text)
    assert found["workloads"] == world.source.workload
    assert text == json.dumps(found, indent=2) + "\n"


def test_a_part_of_it(loop: asyncio.AbstractEventLoop) -> None:
    assert list(json.loads(dump(loop, World(), ["config", "services"]))) == ["services", "config"]
    assert json.loads(dump(loop, World(), ["nothing"])) == {}


def test_certificates_are_sorted_and_shown_as_istioctl_reads_them(
    loop: asyncio.AbstractEventLoop,
) -> None:
    first, second = json.loads(dump(loop, World()))["certificates"]
    assert (first["identity"], first["state"]) == (CART_ID, "Available")
    (leaf,) = first["certChain"]
    assert leaf == {
        "pem": base64.b64encode(LEAF.pem.encode()).decode(),
        "serialNumber": str(0x51C0A9E2),
        "validFrom": "2001-09-09T01:46:40Z",
        "expirationTime": "2001-09-10T01:46:40Z",
    }
    assert len(first["rootCerts"]) == 1
    assert second == {
        "identity": DB_ID,
        "state": "Unavailable: ca 10.96.0.5:15012: UNAUTHENTICATED",
        "certChain": [],
        "rootCerts": [],
    }


def test_pods_with_their_connections(loop: asyncio.AbstractEventLoop) -> None:
    found: dict[str, Any] = json.loads(dump(loop, World()))["workloadState"]
    assert found["p1"] == {
        "state": "Up",
        "connections": {
            "inbound": [],
            "outbound": [
                {
                    "src": "10.42.1.7:51034",
                    "originalDst": "10.96.0.20:5432",
                    "actualDst": "10.42.2.9:15008",
                    "protocol": "HBONE",
                }
            ],
        },
        "info": {"name": "cart-7d9f6b", "namespace": "shop", "serviceAccount": "cart"},
    }
    assert found["p2"]["state"] == "Pending"
    (arrived,) = found["p2"]["connections"]["inbound"]
    # inbound it is what the client's proxy said was asked for
    assert arrived["originalDst"] == "db.shop.svc.cluster.local"


def test_the_version_has_ztunnels_keys(loop: asyncio.AbstractEventLoop) -> None:
    version = json.loads(dump(loop, World()))["version"]
    assert list(version) == [
        "version", "gitRevision", "rustVersion", "buildProfile", "buildStatus", "istioVersion",
        "cryptoProvider",
    ]  # fmt: skip
    assert version["istioVersion"] == "1.31"
