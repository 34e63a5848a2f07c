"""The state of every enrolled pod as rows, read from maps and records.

Works with every daemon dead. Counters are `agg` sums since the enrolment, over all CPUs.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from nodenet import abi
from nodenet.abi import Direction, PodFlag, Reason, Via
from nodenet.capture import iptables, pod_maps
from nodenet.capture.records import ExcludedPort, PodRecord
from nodenet.errors import NodenetError
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """One of the proxy's ports in the pod."""

    port: int
    alive: bool
    owner_pid: int | None = None


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Connections since the enrolment; None: this backend cannot count."""

    captured_out: int | None
    captured_in: int | None
    bypassed: int | None
    refused: int | None
    rows: dict[str, int] = {}
    """By decision row and reason, ``O8 captured``."""


class PodState(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ``nodenet capture show``."""

    pod: str
    uid: str | None
    node: str | None
    backend: str
    direction: str
    dns: bool
    on_proxy_down: str
    mode: str
    exclude_ports: tuple[ExcludedPort, ...]
    exclude_cidrs: tuple[str, ...]
    ips: tuple[str, ...]
    netns: str
    netns_inode: int
    netns_cookie: str
    listeners: tuple[Listener, ...]
    counters: Counters
    enrolled_at: str
    existing: str
    ok: bool
    """Live in the kernel, namespace there, listeners alive."""


def wanted_ports(record: PodRecord) -> tuple[int, ...]:
    """The proxy's ports that this enrolment needs somebody to listen on."""
    ports = []
    if record.direction != "in":
        ports.append(abi.OUTBOUND_PORT)
    if record.direction != "out" and record.mode == "pod":
        ports.append(abi.INBOUND_PORT)
    if record.dns:
        ports.append(abi.DNS_PORT)
    return tuple(ports)


Totals = Mapping[int, Mapping[tuple[int, int, int], tuple[int, int]]]


def read_totals(maps: Mapping[str, Map]) -> Totals:
    """Per pod id and (direction, reason, via): opened and failed, summed over the CPUs."""
    found: dict[int, dict[tuple[int, int, int], tuple[int, int]]] = defaultdict(dict)
    key_of = struct.Struct("<IBBBx")
    for key, values in maps["agg"].items_percpu():
        pod, direction, reason, via = key_of.unpack(key)
        opened = failed = 0
        for raw in values:
            value = abi.AGG.unpack(raw[: abi.AGG.size])
            opened += int(value["opened"])
            failed += int(value["failed"])
        found[pod][direction, reason, via] = (opened, failed)
    return found


def _counters(record: PodRecord, totals: Totals | None) -> Counters:
    if totals is None:
        return Counters(captured_out=None, captured_in=None, bypassed=None, refused=None)
    captured = {Direction.OUT: 0, Direction.IN: 0}
    bypassed = refused = 0
    by_row: dict[str, int] = {}
    for (direction, reason, via), (opened, failed) in totals.get(record.pod_id, {}).items():
        way, why = Direction(direction), Reason(reason)
        if why is Reason.PROXY or (way is Direction.IN and why is Reason.HBONE):
            continue  # the proxy's own sockets are nobody's connections
        row = abi.rule(way, why) or "-"
        by_row[f"{row} {why.text}"] = by_row.get(f"{row} {why.text}", 0) + opened
        if via != Via.NONE:
            captured[way] += opened
        elif why is Reason.PROXY_DOWN:
            refused += failed if record.on_proxy_down == "closed" else 0
            bypassed += opened
        else:
            bypassed += opened
    return Counters(
        captured_out=captured[Direction.OUT],
        captured_in=captured[Direction.IN],
        bypassed=bypassed,
        refused=refused if record.backend == "ebpf" else None,
        rows=dict(sorted(by_row.items())),
    )


def pod_states(maps: Mapping[str, Map] | None, records: Iterable[PodRecord]) -> list[PodState]:
    """The rows, in the order of the records (by name)."""
    totals = read_totals(maps) if maps is not None else None
    return [_state(maps, record, totals) for record in records]


def _state(maps: Mapping[str, Map] | None, record: PodRecord, totals: Totals | None) -> PodState:
    live = True
    alive: tuple[int, ...] = ()
    if maps is not None:
        alive = pod_maps.listening(maps, record.netns_cookie, wanted_ports(record))
        raw = maps["pods"].lookup(pod_maps.netns_key(record.netns_cookie))
        live = raw is not None and bool(PodFlag(int(abi.POD.unpack(raw)["flags"])) & PodFlag.LIVE)
    there = False
    try:
        with NetNs.open(record.netns) as ns:
            there = ns.inode == record.netns_inode
            if record.backend == "iptables" and there and maps is None:
                live = iptables.state(ns, record).ok
    except NodenetError:
        there = False
    listeners = tuple(Listener(port=port, alive=port in alive) for port in wanted_ports(record))
    return PodState(
        pod=record.name,
        uid=record.uid,
        node=record.node,
        backend=record.backend,
        direction=record.direction,
        dns=record.dns,
        on_proxy_down=record.on_proxy_down,
        mode=record.mode,
        exclude_ports=record.exclude_ports,
        exclude_cidrs=record.exclude_cidrs,
        ips=record.ips,
        netns=record.netns,
        netns_inode=record.netns_inode,
        netns_cookie=str(record.netns_cookie),
        listeners=listeners,
        counters=_counters(record, totals),
        enrolled_at=record.enrolled_at,
        existing=record.existing,
        ok=there and live and all(entry.alive for entry in listeners),
    )
