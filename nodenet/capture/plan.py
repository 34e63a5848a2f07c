"""What enrolling would write, for --dry-run: the map entries in their order, and whom it meets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from nodenet import abi
from nodenet.capture import pod_maps
from nodenet.capture.enrolment import connections_with_others
from nodenet.capture.options import EnrolOptions
from nodenet.capture.targets import ResolvedTarget, refuse_host
from nodenet.endpoint import format_endpoint
from nodenet.kernel.netns import NetNs

#: Connections that the text names; JSON has all.
_SHOWN: Final = 20


def planned_writes(targets: Iterable[ResolvedTarget], options: EnrolOptions) -> dict[str, Any]:
    """``{"ok": true, "writes": [{map, key, value}], "existing": […], "text": …}``; touches nothing.

    ``existing`` are the connections that are older than the enrolment, of pods that have none yet.
    """
    writes: list[dict[str, Any]] = []
    existing: list[dict[str, str]] = []
    for target in targets:
        name, path = target.name, target.netns_path
        with NetNs.open(path) as ns:
            refuse_host(ns, name)
            cookie = ns.cookie()
            addresses = pod_maps.PodAddresses.choose(i.interface.ip for i in ns.addresses())
            inode = ns.inode
            if target.record is None:
                existing += [
                    {
                        "pod": name,
                        "local": format_endpoint(s.local, s.local_port),
                        "remote": format_endpoint(s.remote, s.remote_port),
                    }
                    for s in connections_with_others(ns, addresses)
                ]
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
    lines = [f"{w['map']:<6} {w['key']:<40} {w['value']}" for w in writes]
    if existing:
        fate = "reset" if options.existing == "reset" else "kept uncaptured"
        lines.append(f"{len(existing)} existing connections would be {fate}:")
        lines += [f"  {e['pod']}  {e['local']} -> {e['remote']}" for e in existing[:_SHOWN]]
        if len(existing) > _SHOWN:
            lines.append(f"  and {len(existing) - _SHOWN} more")
    return {"ok": True, "writes": writes, "existing": existing, "text": "\n".join(lines)}


def _write(table: str, key: str, value: str) -> dict[str, str]:
    return {"map": table, "key": key, "value": value}
