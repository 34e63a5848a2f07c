"""What enrolling would write, for --dry-run: the map entries as text, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nodenet import abi
from nodenet.capture import pod_maps
from nodenet.capture.options import EnrolOptions
from nodenet.capture.targets import refuse_host
from nodenet.kernel.netns import NetNs


def planned_writes(
    targets: Iterable[tuple[str, str | Path]], options: EnrolOptions
) -> dict[str, Any]:
    """``{"ok": true, "writes": [{map, key, value}], "text": …}``; touches nothing."""
    writes: list[dict[str, Any]] = []
    for name, path in targets:
        with NetNs.open(path) as ns:
            refuse_host(ns, name)
            cookie = ns.cookie()
            addresses = pod_maps.PodAddresses.choose(i.interface.ip for i in ns.addresses())
            inode = ns.inode
        record = options.record(
            name=name,
            netns=str(path),
            netns_inode=inode,
            netns_cookie=cookie,
            ips=tuple(str(a) for a in addresses.owned),
            backend="iptables" if options.backend == "iptables" else "ebpf",
            enrolled_at="",
        )
        for address in addresses.owned:
            writes.append(_write("lips", str(address), f"netns {cookie}, pod {record.pod_id}"))
        for port in record.exclude_ports:
            writes.append(_write("ports", f"netns {cookie}, {port.dir}:{port.port}", "excluded"))
        for cidr in record.exclude_cidrs:
            writes.append(_write("cidrs", f"netns {cookie}, {cidr}", "excluded"))
        writes.append(_write("pods", str(cookie), "flags -, listeners register"))
        flags = "|".join(
            flag.name or str(int(flag)) for flag in abi.PodFlag if flag in pod_maps.flags_of(record)
        )
        writes.append(_write("pods", str(cookie), f"flags {flags}"))
    text = "\n".join(f"{w['map']:<6} {w['key']:<40} {w['value']}" for w in writes)
    return {"ok": True, "writes": writes, "text": text}


def _write(table: str, key: str, value: str) -> dict[str, str]:
    return {"map": table, "key": key, "value": value}
