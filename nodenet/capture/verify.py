"""Is the redirect really in place for this pod, now? Each check says what it found and what to do.

Read-only, but for ``--probe`` (`nodenet.capture.probe`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from nodenet import abi
from nodenet.abi import PodFlag
from nodenet.capture import iptables, pod_maps, pod_routes, programs
from nodenet.capture.records import PodRecord
from nodenet.errors import NotFound
from nodenet.kernel.cgroups import Cgroup, cgroup2_mount
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs, host_inode
from nodenet.paths import Instance

State = Literal["ok", "fail", "skip"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one pod."""

    id: str
    state: State
    found: str
    rule: str | None = None
    parity: tuple[str, ...] = ()
    means: str | None = None
    do: str | None = None


class PodVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one pod."""

    pod: str
    ok: bool
    checks: tuple[Check, ...]


_CLOSED: Final = "new connections are refused (on-proxy-down=closed)"
_REDIRECTED: Final = "new connections are refused: a netfilter redirect looks for no listener"
_OPEN: Final = "new connections pass uncaptured (on-proxy-down=open)"


def verify(
    instance: Instance,
    maps: Mapping[str, Map] | None,
    record: PodRecord,
    *,
    probe_seconds: float | None = None,
) -> PodVerdict:
    """Checks one enrolled pod; with ``probe_seconds`` also by real connections, each with that
    deadline."""
    checks: list[Check] = []
    try:
        ns = NetNs.open(record.netns)
    except NotFound:
        ns = None
    if ns is None or ns.inode != record.netns_inode:
        if ns is not None:
            ns.close()
        checks.append(
            Check(
                id="netns",
                state="fail",
                found=f"{record.netns} is not there, or another namespace",
                means="the pod is gone; its enrolment is a leftover",
                do=f"nodenet capture unenroll {record.name}",
            )
        )
        return PodVerdict(pod=record.name, ok=False, checks=tuple(checks))
    with ns:
        checks.append(_namespace(ns, record))
        if maps is not None:
            checks.append(_entry(maps, record))
        if record.backend == "iptables":
            checks.append(_iptables(ns, record))
            if maps is not None:
                checks.extend(_listeners(maps, record))
            checks.append(
                Check(id="probe", state="skip", found="there is none for the iptables backend")
            )
        elif maps is not None:
            checks.append(_addresses(maps, ns, record))
            checks.append(_programs(instance, maps))
            checks.append(_inbound(instance, record))
            checks.append(_routes(ns, record))
            checks.extend(_listeners(maps, record))
            if probe_seconds is None:
                checks.append(Check(id="probe", state="skip", found="needs --probe"))
            else:
                from nodenet.capture.probe import probe

                checks.extend(probe(instance, maps, ns, record, probe_seconds))
    ok = not any(c.state == "fail" for c in checks)
    return PodVerdict(pod=record.name, ok=ok, checks=tuple(checks))


def _namespace(ns: NetNs, record: PodRecord) -> Check:
    if ns.inode == host_inode():
        return Check(
            id="netns",
            state="fail",
            found=f"inode {ns.inode} is the host's",
            parity=("P30",),
            means="host-network pods must never be captured",
            do=f"nodenet capture unenroll {record.name}",
        )
    return Check(
        id="netns",
        state="ok",
        found=f"inode {ns.inode}, cookie {record.netns_cookie}, not the host's",
        parity=("P30",),
    )


def _entry(maps: Mapping[str, Map], record: PodRecord) -> Check:
    raw = maps["pods"].lookup(pod_maps.netns_key(record.netns_cookie))
    wanted = pod_maps.flags_of(record)
    found = PodFlag(int(abi.POD.unpack(raw)["flags"])) if raw is not None else PodFlag(0)
    if found == wanted:
        return Check(id="entry", state="ok", found=f"live in map pods, flags {int(found):#x}")
    return Check(
        id="entry",
        state="fail",
        found=f"map pods has flags {int(found):#x}, the enrolment asks for {int(wanted):#x}",
        rule="O2",
        means="the pod is not captured as asked; an enrolment did not finish",
        do=f"nodenet capture enroll {record.name}",
    )


def _addresses(maps: Mapping[str, Map], ns: NetNs, record: PodRecord) -> Check:
    now = pod_maps.PodAddresses.choose(i.interface.ip for i in ns.addresses())
    missing = []
    for address in now.owned:
        if address.is_link_local:
            continue
        raw = maps["lips"].lookup(pod_maps.lip_key(record.netns_cookie, address))
        if raw is None or abi.LIP.unpack(raw)["netns"] != record.netns_cookie:
            missing.append(str(address))
    if missing:
        return Check(
            id="addresses",
            state="fail",
            found=f"{', '.join(missing)} not in map lips as this pod's",
            rule="I3",
            parity=("P5", "P7"),
            means="connections to these addresses are not captured, and self calls are",
            do=f"nodenet capture enroll {record.name}",
        )
    shown = ", ".join(str(a) for a in now.owned if not a.is_link_local)
    return Check(id="addresses", state="ok", found=f"{shown} in map lips", parity=("P5", "P7"))


def _programs(instance: Instance, maps: Mapping[str, Map]) -> Check:
    root = Cgroup.open(cgroup2_mount())
    agent = programs.agent_cgroup(maps)
    loose = [
        p.hook
        for p in programs.ROOT_PROGRAMS
        if not programs.attached(instance, p, maps, root, agent)
    ]
    if loose:
        return Check(
            id="programs",
            state="fail",
            found=f"not attached: {', '.join(loose)}",
            rule="O8",
            parity=("P1",),
            means="connections are not captured, or not recorded",
            do="nodenet node run, or enroll any pod: it attaches them again",
        )
    return Check(
        id="programs",
        state="ok",
        found=f"{len(programs.ROOT_PROGRAMS)} attached at {root.path}, agent's cgroup "
        f"{agent.name if agent is not None else '-'}",
        rule="O8",
        parity=("P1",),
    )


def _inbound(instance: Instance, record: PodRecord) -> Check:
    if programs.pod_link_alive(instance, record.netns_cookie):
        return Check(
            id="inbound",
            state="ok",
            found="sk_lookup attached to the namespace",
            rule="I10",
            parity=("P7",),
        )
    return Check(
        id="inbound",
        state="fail",
        found="no sk_lookup link in the namespace",
        rule="I10",
        parity=("P7", "P9"),
        means="inbound connections go to the app uncaptured",
        do=f"nodenet capture unenroll {record.name}; nodenet capture enroll {record.name}",
    )


def _routes(ns: NetNs, record: PodRecord) -> Check:
    if record.direction == "out":
        return Check(id="routes", state="skip", found="not needed without inbound capture")
    problems = pod_routes.check(ns)
    if not problems:
        return Check(id="routes", state="ok", found="mark 0x111 is routed to lo", parity=("P15",))
    return Check(
        id="routes",
        state="fail",
        found="; ".join(str(p) for p in problems),
        rule="I8",
        parity=("P15",),
        means="the proxy cannot reach the app with the client's address",
        do=f"nodenet capture unenroll {record.name}; nodenet capture enroll {record.name}",
    )


def _listeners(maps: Mapping[str, Map], record: PodRecord) -> list[Check]:
    wanted = []
    if record.direction != "in":
        wanted.append((abi.OUTBOUND_PORT, "O7", "outbound"))
    if record.direction != "out" and record.mode == "pod":
        wanted.append((abi.INBOUND_PORT, "I9", "inbound"))
    if record.dns:
        wanted.append((abi.DNS_PORT, "O7", "DNS"))
    found = pod_maps.listening(maps, record.netns_cookie, (port for port, _, _ in wanted))
    checks = []
    for port, rule, what in wanted:
        parity = ("P26", "P28")
        if port in found:
            checks.append(
                Check(
                    id=f"listener_{port}",
                    state="ok",
                    found=f"{port}: the proxy listens",
                    rule=rule,
                    parity=parity,
                )
            )
        else:
            means = _CLOSED if record.on_proxy_down == "closed" else _OPEN
            if record.backend == "iptables":
                means = _REDIRECTED
            checks.append(
                Check(
                    id=f"listener_{port}",
                    state="fail",
                    found=f"{port}: nobody of the proxy listens",
                    rule=rule,
                    parity=parity,
                    means=f"{what}: {means}",
                    do="nodenet ztunnel run, and look at its log for this pod",
                )
            )
    return checks


def _iptables(ns: NetNs, record: PodRecord) -> Check:
    state = iptables.state(ns, record)
    if state.ok:
        return Check(id="iptables", state="ok", found="the redirect rules are in place")
    return Check(
        id="iptables",
        state="fail",
        found=state.text,
        rule="O8",
        parity=("P1", "P7", "P32"),
        means="connections of this pod are not redirected as asked",
        do=f"nodenet capture unenroll {record.name}; nodenet capture enroll {record.name}",
    )
