"""From what a person types, ``shop/cart 10.96.0.20:5432``, to a question for the kernel."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Literal

from nodenet.abi import Direction, IPAddress
from nodenet.capture.explain import Explanation, explain
from nodenet.capture.records import PodRecord
from nodenet.capture.targets import resolve_target
from nodenet.endpoint import parse_endpoint
from nodenet.errors import NotFound, UsageError
from nodenet.kernel.netns import NetNs

if TYPE_CHECKING:
    from nodenet.capture.session import Capture

#: The port shown for a side whose port does not matter to the decision.
_ANY_PORT = 0


def answer(
    capture: Capture,
    src: str,
    dst: str,
    *,
    inbound: bool = False,
    protocol: Literal["tcp", "udp"] = "tcp",
    proxy: bool = False,
) -> Explanation:
    """Explains a connect of SRC to DST, or with ``inbound`` the SYN of SRC that arrives at DST.

    SRC is a TARGET, or inbound also an address; DST an ENDPOINT whose name may be a pod.
    """
    records = list(capture.records())
    names = {ip: record.name for record in records for ip in record.ips}
    remote = _destination(dst, records)
    if inbound:
        pod = next((r for r in records if str(remote[0]) in r.ips), None)
        if pod is None:
            raise NotFound(
                f"cannot explain: {remote[0]} is no address of a pod enrolled here; "
                "see: nodenet capture show"
            )
        peer = _source_address(src, records, remote[0])
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
        )
    target = resolve_target(src, records)
    if target.record is not None:
        cookie = target.record.netns_cookie
        own = [ipaddress.ip_address(ip) for ip in target.record.ips]
    else:
        with NetNs.open(target.netns_path) as ns:
            cookie = ns.cookie()
            own = [i.interface.ip for i in ns.addresses() if not i.interface.ip.is_loopback]
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
        proxy=proxy,
    )


def _same_family(own: list[IPAddress], other: IPAddress) -> IPAddress:
    usable = [a for a in own if a.version == other.version and not a.is_link_local]
    if usable:
        return usable[0]
    return ipaddress.ip_address("0.0.0.0" if other.version == 4 else "::")


def _destination(text: str, records: list[PodRecord]) -> tuple[IPAddress, int]:
    endpoint = parse_endpoint(text)
    if endpoint.address is not None:
        return _unmapped(endpoint.address), endpoint.port
    assert endpoint.name is not None
    target = resolve_target(endpoint.name, records)
    if target.record is None:
        raise NotFound(f"{endpoint.name}: no such pod among those enrolled; give an address")
    return ipaddress.ip_address(target.record.ips[0]), endpoint.port


def _source_address(text: str, records: list[PodRecord], other: IPAddress) -> IPAddress:
    try:
        return _unmapped(ipaddress.ip_address(text))
    except ValueError:
        pass
    target = resolve_target(text, records)
    if target.record is None:
        raise UsageError(
            f"{text} is not enrolled, so its address is not known; give an address as SRC"
        )
    own = [ipaddress.ip_address(ip) for ip in target.record.ips]
    return _same_family(own, other)


def _unmapped(address: IPAddress) -> IPAddress:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
