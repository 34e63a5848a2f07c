"""What would happen to one connection, answered by the code that decides.

The question goes to the ``nn_explain`` program, which calls the same functions as the hooks on the
same maps (``bpf/nn_decide.h``), by BPF_PROG_TEST_RUN. Nothing is sent. What the rows mean comes
from `nodenet.capture.rows`; why the earlier ones did not fire is told from the pod's record.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from nodenet import abi
from nodenet.abi import Action, Asker, Direction, Reason, pack_ip, rule
from nodenet.capture import pod_maps
from nodenet.capture.errors import CaptureError
from nodenet.capture.programs import shelved
from nodenet.capture.records import PodRecord
from nodenet.capture.rows import Row, rows
from nodenet.endpoint import format_endpoint
from nodenet.kernel.maps import Map
from nodenet.kernel.programs import test_run
from nodenet.paths import Instance

#: Bytes of packet head before the query (``NN_QUERY_OFFSET``); the kernel wants an Ethernet header.
_HEAD: Final = bytes(16)
_PROTOCOLS: Final = {"tcp": 6, "udp": 17}
#: Where the DNS proxy listens.
_LOOPBACK: Final[dict[int, abi.IPAddress]] = {
    4: ipaddress.IPv4Address("127.0.0.1"),
    6: ipaddress.IPv6Address("::1"),
}

Result = Literal["captured", "bypassed", "refused"]
#: The last two only when the proxy was asked, too.
AppSees = Literal[
    "direct", "proxied", "econnrefused", "connect-ok-then-close", "connect-ok-then-reset"
]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One side of the question."""

    name: str | None
    address: str
    port: int | None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the walk, in order; the last one fired."""

    layer: Literal["kernel"] = "kernel"
    rule: str
    question: str
    fired: bool
    answer: str
    why: str | None
    map: str | None = None
    key: str | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, as printed and as JSON."""

    ok: bool = True
    result: Result
    rule: str
    reason: str
    dir: Literal["out", "in"]
    protocol: Literal["tcp", "udp"]
    backend: Literal["ebpf", "iptables", "none"]
    src: Endpoint
    dst: Endpoint
    steps: tuple[Step, ...]
    app_sees: AppSees
    listener: str | None
    """Where the connection goes instead, when it is captured."""
    hint: str | None = None


def ask(
    instance: Instance,
    netns_cookie: int,
    direction: Direction,
    local: tuple[abi.IPAddress, int],
    remote: tuple[abi.IPAddress, int],
    *,
    protocol: Literal["tcp", "udp"] = "tcp",
    asker: Asker = Asker.ANYBODY,
) -> tuple[Reason, Action, int]:
    """Runs the kernel's decision: reason, action, and the proxy port it goes to (0: none).

    ``local`` is the pod's side; ``asker`` whose socket it is, inbound at the other end. Raises
    NotFound when the capture is not loaded.
    """
    query = abi.QUERY.pack(
        netns=netns_cookie,
        local=pack_ip(local[0]),
        remote=pack_ip(remote[0]),
        local_port=local[1],
        remote_port=remote[1],
        dir=direction,
        protocol=_PROTOCOLS[protocol],
        asker=asker,
    )
    with shelved(instance, "nn_explain") as program:
        verdict, _ = test_run(program.fd, _HEAD + query)
    try:
        return Reason(verdict & 0xFF), Action(verdict >> 8 & 0xFF), verdict >> 16 & 0xFFFF
    except ValueError as error:
        raise CaptureError(
            f"the kernel's decision {verdict:#x} is not known: {instance.progs}; "
            "the programs are of another version, run: nodenet node run --upgrade-pins"
        ) from error


def explain(
    instance: Instance,
    maps: Mapping[str, Map],
    pod: PodRecord | None,
    *,
    netns_cookie: int,
    direction: Direction,
    local: tuple[abi.IPAddress, int],
    remote: tuple[abi.IPAddress, int],
    names: Mapping[str, str],
    protocol: Literal["tcp", "udp"] = "tcp",
    asker: Asker = Asker.ANYBODY,
) -> Explanation:
    """The whole answer for one connection; ``names`` maps addresses to pod names."""
    reason, action, port = ask(
        instance, netns_cookie, direction, local, remote, protocol=protocol, asker=asker
    )
    fired = rule(direction, reason)
    assert fired is not None
    captured = reason in (Reason.CAPTURED, Reason.DNS)
    result: Result = (
        "captured" if captured else "refused" if action is Action.REFUSE else "bypassed"
    )
    sees: dict[Result, AppSees] = {
        "captured": "proxied",
        "bypassed": "direct",
        "refused": "econnrefused",
    }
    mine = Endpoint(
        name=pod.name if pod else names.get(str(local[0])),
        address=str(local[0]),
        port=local[1] or None,
    )
    other = Endpoint(name=names.get(str(remote[0])), address=str(remote[0]), port=remote[1] or None)
    listener = None
    if captured:
        own = _LOOPBACK[remote[0].version] if reason is Reason.DNS else local[0]
        listener = format_endpoint(own, port)
    steps = tuple(_steps(maps, pod, direction, fired, reason, action, netns_cookie, remote, port))
    return Explanation(
        result=result,
        rule=fired,
        reason=reason.text,
        dir="out" if direction is Direction.OUT else "in",
        protocol=protocol,
        backend=pod.backend if pod else "none",
        src=mine if direction is Direction.OUT else other,
        dst=other if direction is Direction.OUT else mine,
        steps=steps,
        app_sees=sees[result],
        listener=listener,
        hint=_hint(pod, mine.name, reason, action),
    )


def _steps(
    maps: Mapping[str, Map],
    pod: PodRecord | None,
    direction: Direction,
    fired: str,
    reason: Reason,
    action: Action,
    netns_cookie: int,
    remote: tuple[abi.IPAddress, int],
    port: int,
) -> list[Step]:
    steps = []
    for row in rows(direction):
        if row.id == fired:
            answer = {Action.REDIRECT: "captured", Action.REFUSE: "refused"}.get(action, "passed")
            if reason in (Reason.CAPTURED, Reason.DNS):
                answer = "captured"
            steps.append(
                Step(
                    rule=row.id,
                    question=row.question,
                    fired=True,
                    answer=answer,
                    why=_why_fired(pod, reason, action, remote, port),
                    map=_MAPS.get(reason),
                    key=str(netns_cookie) if reason in _MAPS else None,
                )
            )
            return steps
        steps.append(
            Step(
                rule=row.id,
                question=row.question,
                fired=False,
                answer="no",
                why=_why_not(maps, pod, row, netns_cookie),
            )
        )
    return steps


_MAPS: Final = {
    Reason.NOT_ENROLLED: "pods",
    Reason.DIRECTION_OFF: "pods",
    Reason.SELF: "lips",
    Reason.EXCLUDED_PORT: "ports",
    Reason.EXCLUDED_CIDR: "cidrs",
    Reason.PROXY_DOWN: "lsn",
    Reason.CAPTURED: "pods",
    Reason.DNS: "pods",
    Reason.HOST_PROBE: "byp",
    Reason.FROM_PROXY: "byp",
}


def _why_fired(
    pod: PodRecord | None,
    reason: Reason,
    action: Action,
    remote: tuple[abi.IPAddress, int],
    port: int,
) -> str:
    backend = pod.backend if pod else "ebpf"
    match reason:
        case Reason.NOT_TCP:
            return "only TCP is captured, and DNS over UDP where the pod asks for it"
        case Reason.NOT_ENROLLED:
            return "the namespace is not enrolled"
        case Reason.DIRECTION_OFF:
            return f"enrolled with direction {pod.direction if pod else 'off'}"
        case Reason.PROXY_DOWN:
            down = pod.on_proxy_down if pod else "closed"
            outcome = "refused" if action is Action.REFUSE else "passed uncaptured"
            return f"nobody of the proxy listens here; on-proxy-down is {down}: {outcome}"
        case Reason.CAPTURED:
            return f"{backend} sends it to the proxy's port {port}, the app keeps its addresses"
        case Reason.DNS:
            return f"{backend} sends it to the DNS proxy's port {port}"
        case Reason.EXCLUDED_PORT:
            return "its port is excluded"
        case Reason.EXCLUDED_CIDR:
            return f"{remote[0]} is in an excluded CIDR"
        case _:
            return reason.text


def _why_not(
    maps: Mapping[str, Map], pod: PodRecord | None, row: Row, netns_cookie: int
) -> str | None:
    if pod is None:
        return None
    match row.id:
        case "O2" | "I3":
            return f"enrolled {pod.enrolled_at}, {pod.backend}, direction {pod.direction}"
        case "O3":
            return "asked for a process outside the agent's cgroup"
        case "O6" | "I6":
            wanted = "out" if row.id == "O6" else "in"
            excluded = [f"{p.dir}:{p.port}" for p in pod.exclude_ports if p.dir == wanted]
            if wanted == "out":
                excluded += pod.exclude_cidrs
            return f"excluded here: {', '.join(excluded) or 'nothing'}"
        case "O7" | "I9":
            if pod.backend == "iptables":
                return "not asked: a netfilter redirect does not look for a listener"
            want = abi.OUTBOUND_PORT if row.id == "O7" else abi.INBOUND_PORT
            found = pod_maps.listening(maps, netns_cookie, (want,))
            return f"{want} listens" if found else None
        case _:
            return None


def _hint(pod: PodRecord | None, name: str | None, reason: Reason, action: Action) -> str | None:
    if reason is Reason.NOT_ENROLLED:
        return f"nodenet capture enroll {name or 'TARGET'}"
    if reason is Reason.PROXY_DOWN:
        name = pod.name if pod else "POD"
        return f"start the proxy: nodenet ztunnel run; see: nodenet capture verify {name}"
    if reason is Reason.OWN_PORT and action is Action.REFUSE:
        return "15001, 15006 and 15053 belong to the proxy; use another port"
    return None
