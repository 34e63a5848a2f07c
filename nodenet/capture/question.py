"""From what a person types, ``shop/cart 10.96.0.20:5432``, to a question for the kernel."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nodenet import abi
from nodenet.abi import Asker, Direction, IPAddress, PodFlag
from nodenet.capture.explain import Explanation, explain
from nodenet.capture.pod_maps import ANY_NETNS, lip_key, netns_key
from nodenet.capture.records import PodRecord
from nodenet.capture.targets import resolve_target
from nodenet.endpoint import parse_endpoint
from nodenet.errors import NotFound, UsageError
from nodenet.kernel.netns import NetNs

if TYPE_CHECKING:
    from nodenet.capture.session import Capture

#: The port shown for a side whose port does not matter to the decision.
_ANY_PORT = 0
#: Interface index of the loopback in every namespace.
_LO = 1


def answer(
    capture: Capture,
    src: str,
    dst: str,
    *,
    inbound: bool = False,
    protocol: Literal["tcp", "udp"] = "tcp",
    proxy: bool = False,
    places: Mapping[str, Path] | None = None,
    service: Callable[[str, int], IPAddress | None] = lambda _name, _port: None,
) -> Explanation:
    """Explains a connect of SRC to DST, or with ``inbound`` the SYN of SRC that arrives at DST.

    SRC is a TARGET, or inbound also an address; DST an ENDPOINT whose name may be a pod. Inbound,
    a TARGET in the namespace of the pod's node (``pid:1``) stands for the node's own processes,
    and ``proxy`` for the proxy's leg to the app. ``places`` are the namespaces of pods that can be
    named although they are not enrolled, ``service`` finds the address of a name that is no pod's.
    """
    records = list(capture.records())
    places = places or {}
    names = {ip: record.name for record in records for ip in record.ips}
    remote, name = _destination(dst, records, places, service)
    if name is not None:
        names.setdefault(str(remote[0]), name)
    if inbound:
        owners = [r for r in records if str(remote[0]) in r.ips]
        if len(owners) > 1:
            listed = " and ".join(r.name for r in owners)
            raise UsageError(f"{remote[0]} is an address of {listed}; un-enroll one to ask")
        pod = owners[0] if owners else None
        if pod is None:
            raise NotFound(
                f"cannot explain: {remote[0]} is no address of a pod enrolled here; "
                "see: nodenet capture show"
            )
        peer, of_node = _source(capture, src, records, places, remote[0])
        return explain(
            capture.instance,
            capture.maps,
            pod,
            netns_cookie=pod.netns_cookie,
            direction=Direction.IN,
            local=remote,
            remote=(peer, _ANY_PORT),
            names=names,
            protocol=protocol,
            asker=Asker.PROXY if proxy else Asker.NODE if of_node else Asker.ANYBODY,
        )
    target = resolve_target(src, records, places)
    if target.record is not None:
        cookie = target.record.netns_cookie
        own = [ipaddress.ip_address(ip) for ip in target.record.ips]
    else:
        with NetNs.open(target.netns_path) as ns:
            cookie = ns.cookie()
            own = _addresses(ns)
        names.update((str(ip), target.name) for ip in own)
    return explain(
        capture.instance,
        capture.maps,
        target.record,
        netns_cookie=cookie,
        direction=Direction.OUT,
        local=(_same_family(own, remote[0]), _ANY_PORT),
        remote=remote,
        names=names,
        protocol=protocol,
        asker=Asker.PROXY if proxy else Asker.ANYBODY,
    )


def _same_family(own: list[IPAddress], other: IPAddress) -> IPAddress:
    usable = [a for a in own if a.version == other.version and not a.is_link_local]
    if usable:
        return usable[0]
    return ipaddress.ip_address("0.0.0.0" if other.version == 4 else "::")


def _addresses(ns: NetNs) -> list[IPAddress]:
    """Those that others could dial, IPv4 first."""
    found = [i.interface.ip for i in ns.addresses() if not i.interface.ip.is_loopback]
    return sorted(found, key=lambda ip: (ip.is_link_local, ip.version))


def _destination(
    text: str,
    records: list[PodRecord],
    places: Mapping[str, Path],
    service: Callable[[str, int], IPAddress | None],
) -> tuple[tuple[IPAddress, int], str | None]:
    """Address and port, and whose they are when a name was given."""
    endpoint = parse_endpoint(text)
    if endpoint.address is not None:
        return (_unmapped(endpoint.address), endpoint.port), None
    assert endpoint.name is not None
    try:
        target = resolve_target(endpoint.name, records, places)
    except NotFound:
        found = service(endpoint.name, endpoint.port)
        if found is None:
            raise
        return (found, endpoint.port), None
    if target.record is not None:
        return (ipaddress.ip_address(target.record.ips[0]), endpoint.port), target.name
    with NetNs.open(target.netns_path) as ns:
        own = _addresses(ns)
    if not own:
        raise NotFound(f"{endpoint.name} has no address; give one")
    return (own[0], endpoint.port), target.name


def _source(
    capture: Capture,
    text: str,
    records: list[PodRecord],
    places: Mapping[str, Path],
    pod: IPAddress,
) -> tuple[IPAddress, bool]:
    """The address of SRC, and whether it is a process of the pod's own node."""
    try:
        return _unmapped(ipaddress.ip_address(text)), False
    except ValueError:
        pass
    target = resolve_target(text, records, places)
    if target.record is not None:
        own = [ipaddress.ip_address(ip) for ip in target.record.ips]
        return _same_family(own, pod), False
    with NetNs.open(target.netns_path) as ns:
        node = _node_id(capture, ns.cookie())
        # what stands on lo is not what the node dials from
        found = sorted(ns.addresses(), key=lambda i: i.ifindex == _LO)
        own = [i.interface.ip for i in found if not i.interface.ip.is_loopback]
    if node is None and target.name in places:
        return _same_family(own, pod), False
    if node is None:
        raise UsageError(
            f"{text} is not enrolled, so its address is not known; give an address as SRC"
        )
    owner = capture.maps["lips"].lookup(lip_key(ANY_NETNS, pod))
    return _same_family(own, pod), owner is not None and abi.LIP.unpack(owner)["node_id"] == node


def _node_id(capture: Capture, netns_cookie: int) -> int | None:
    """The node whose own namespace it is; None when it is not a node's."""
    raw = capture.maps["pods"].lookup(netns_key(netns_cookie))
    if raw is None:
        return None
    fields = abi.POD.unpack(raw)
    return int(fields["id"]) if int(fields["flags"]) & PodFlag.HOST else None


def _unmapped(address: IPAddress) -> IPAddress:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
