"""``/config_dump``: everything the proxy knows, as `istioctl ztunnel-config` reads it.

Written piece by piece, so that a mesh of 100,000 workloads neither stops the connections for a
second nor is in memory as text. Keys: ztunnel: src/admin.rs.
"""

from __future__ import annotations

import asyncio
import base64
import platform
import ssl
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any, Final

import msgspec

from nodenet import __version__
from nodenet.agents.ztunnel.live_connections import dumped
from nodenet.agents.ztunnel.telemetry import Telemetry
from nodenet.agents.ztunnel.views import AdminSource, CertificateDump, CertificateParts
from nodenet.times import rfc3339_ns

#: Objects of one piece; a millisecond of the event loop.
AT_ONCE: Final = 100
#: Top-level keys in order.
KEYS: Final = (
    "workloads",
    "services",
    "policies",
    "stagedServices",
    "staticConfig",
    "version",
    "config",
    "certificates",
    "workloadState",
)


async def config_dump(
    source: AdminSource,
    telemetry: Telemetry,
    *,
    istio_version: str = "unknown",
    only: Collection[str] = KEYS,
) -> AsyncIterator[bytes]:
    """Pretty JSON. ``only`` leaves out the other top-level keys (nodenet's own addition)."""
    separator = b"{\n"
    for key in KEYS:
        if key not in only:
            continue
        yield separator + b'  "%s": ' % key.encode()
        separator = b",\n"
        match key:
            case "workloads":
                pieces = _list(source.workloads())
            case "services":
                pieces = _list(source.services())
            case "policies":
                pieces = _list(source.policies())
            case "certificates":
                pieces = _list(map(_certificate, sorted(source.certificates(), key=_identity)))
            case "stagedServices":
                pieces = _one(source.staged_services())
            case "staticConfig":
                pieces = _one(source.static_config())
            case "version":
                pieces = _one(_version(istio_version))
            case "config":
                pieces = _one(source.config())
            case _:
                pieces = _one(_workload_state(source, telemetry))
        async for piece in pieces:
            yield piece
    yield (b"{" if separator == b"{\n" else b"") + b"\n}\n"


async def _list(items: Iterable[object]) -> AsyncIterator[bytes]:
    """An array at the second level."""
    encode, pretty = msgspec.json.encode, msgspec.json.format
    lines: list[bytes] = []
    first = True
    for item in items:
        text = pretty(encode(item), indent=2).replace(b"\n", b"\n    ")
        lines.append((b"[\n    " if first else b",\n    ") + text)
        first = False
        if len(lines) == AT_ONCE:
            yield b"".join(lines)
            lines.clear()
            await asyncio.sleep(0)
    yield b"".join(lines) + (b"[]" if first else b"\n  ]")


async def _one(value: object) -> AsyncIterator[bytes]:
    """An object at the second level."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    yield text.replace(b"\n", b"\n  ")
    await asyncio.sleep(0)


def _version(istio_version: str) -> dict[str, str]:
    return {
        "version": __version__,
        "gitRevision": "unknown",
        "rustVersion": f"none (Python {platform.python_version()})",
        "buildProfile": "release",
        "buildStatus": "Clean",
        "istioVersion": istio_version,
        "cryptoProvider": ssl.OPENSSL_VERSION,
    }


def _identity(entry: CertificateDump) -> str:
    return entry.identity


def _certificate(entry: CertificateDump) -> dict[str, Any]:
    return {
        "identity": entry.identity,
        "state": entry.state,
        "certChain": [_parts(c) for c in entry.chain],
        "rootCerts": [_parts(c) for c in entry.roots],
    }


def _parts(certificate: CertificateParts) -> dict[str, str]:
    return {
        "pem": base64.b64encode(certificate.pem.encode()).decode(),
        "serialNumber": str(certificate.serial),
        "validFrom": whole_second(certificate.not_before),
        "expirationTime": whole_second(certificate.not_after),
    }


def whole_second(moment: float) -> str:
    """RFC 3339 of Unix time, without a fraction: certificates have none."""
    return rfc3339_ns(int(moment) * 1_000_000_000)[:19] + "Z"


def _workload_state(source: AdminSource, telemetry: Telemetry) -> dict[str, Any]:
    by_pod = dumped(telemetry.open_flows())
    found = {}
    for pod in source.pods():
        namespace, _, name = pod.name.rpartition("/")
        found[pod.uid] = {
            "state": "Up" if pod.up else "Pending",
            "connections": by_pod.get(pod.name, {"inbound": [], "outbound": []}),
            "info": {
                "name": name,
                "namespace": namespace,
                "serviceAccount": pod.service_account,
            },
        }
    return found
