"""What one pod looks like in the maps, and the writes that put it there and take it out.

``pods`` is the switch: every other entry is written before it and removed after it. A pod first
gets an entry without ``LIVE`` so that the proxy's listeners are registered; the update that adds
``LIVE`` is one atomic write.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodenet import abi
from nodenet.abi import PodFlag, pack_ip
from nodenet.capture.options import pod_id
from nodenet.capture.records import ExcludedPort, PodRecord
from nodenet.kernel.maps import Map

_ALLOWED = b"\x01"
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_OUT, _IN = 0, 1
#: ``netns`` of the entries of ``lips`` that the node's own processes are judged by.
ANY_NETNS = 0


def flags_of(record: PodRecord) -> PodFlag:
    """The flags a live pod with these options has."""
    flags = PodFlag.LIVE
    if record.direction in ("both", "out"):
        flags |= PodFlag.OUT
    if record.mode == "ingress":
        flags |= PodFlag.INGRESS
    elif record.direction in ("both", "in"):
        flags |= PodFlag.IN
    if record.dns:
        flags |= PodFlag.DNS
    if record.on_proxy_down == "closed":
        flags |= PodFlag.CLOSED_OUT | PodFlag.CLOSED_IN
    if record.backend == "iptables":
        flags |= PodFlag.IPTABLES
    if record.exclude_ports:
        flags |= PodFlag.PORTS
    if record.exclude_cidrs:
        flags |= PodFlag.CIDRS
    return flags


@dataclass(frozen=True, slots=True)
class PodAddresses:
    """The addresses of a namespace, as the maps need them."""

    owned: tuple[abi.IPAddress, ...]
    """Every address that is not loopback, link-local ones too."""
    ip4: ipaddress.IPv4Address | None
    """Where captured IPv4 connects go: the first global one."""
    ip6: ipaddress.IPv6Address | None

    @classmethod
    def choose(cls, addresses: Iterable[abi.IPAddress]) -> PodAddresses:
        """Sorts out what ``NetNs.addresses`` found, in the order of the interfaces."""
        owned = tuple(a for a in addresses if not a.is_loopback)
        usable = [a for a in owned if not a.is_link_local]
        return cls(
            owned,
            next((a for a in usable if isinstance(a, ipaddress.IPv4Address)), None),
            next((a for a in usable if isinstance(a, ipaddress.IPv6Address)), None),
        )


def pod_value(
    addresses: PodAddresses, netns_cookie: int, flags: PodFlag, enrolled_ns: int
) -> bytes:
    """The ``nn_pod`` of one pod."""
    return abi.POD.pack(
        flags=int(flags),
        id=pod_id(netns_cookie),
        ip4=pack_ip(addresses.ip4) if addresses.ip4 else b"",
        ip6=pack_ip(addresses.ip6) if addresses.ip6 else b"",
        outbound_port=abi.OUTBOUND_PORT,
        inbound_port=abi.INBOUND_PORT,
        dns_port=abi.DNS_PORT,
        hbone_port=abi.HBONE_PORT,
        enrolled_ns=enrolled_ns,
    )


def boot_ns() -> int:
    """CLOCK_BOOTTIME now, in nanoseconds: the clock of every kernel record."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def netns_key(netns_cookie: int) -> bytes:
    """Key of ``pods``."""
    return abi.NETNS_KEY.pack(netns_cookie=netns_cookie)


def write_addresses(
    maps: Mapping[str, Map], addresses: PodAddresses, netns_cookie: int, node_id: int
) -> None:
    """Puts every address of the pod into ``lips``, the global ones for the node as well."""
    value = abi.LIP.pack(netns=netns_cookie, pod_id=pod_id(netns_cookie), node_id=node_id)
    for address in addresses.owned:
        maps["lips"].update(lip_key(netns_cookie, address), value)
        if not address.is_link_local:
            maps["lips"].update(lip_key(ANY_NETNS, address), value)


def lip_key(netns_cookie: int, address: abi.IPAddress) -> bytes:
    """Key of ``lips``; under `ANY_NETNS` an address tells whose pod it is."""
    return abi.LIP_KEY.pack(netns=netns_cookie, ip=pack_ip(address))


def _port_key(netns_cookie: int, port: ExcludedPort) -> bytes:
    return abi.PORT_KEY.pack(
        netns=netns_cookie, port=port.port, dir=_OUT if port.dir == "out" else _IN
    )


def _cidr_key(netns_cookie: int, cidr: str) -> bytes:
    network = ipaddress.ip_network(cidr)
    offset = 96 if network.version == 4 else 0
    return abi.CIDR_KEY.pack(
        prefixlen=64 + offset + network.prefixlen,
        netns_be=netns_cookie.to_bytes(8, "big"),
        ip=pack_ip(network.network_address),
    )


def _cidr_value(cidr: str) -> bytes:
    """The IP version the network is about; ``::ffff:10.0.0.0/104`` is an IPv4 one."""
    network = ipaddress.ip_network(cidr)
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        return b"\x04"
    return bytes((network.version,))


def write_exclusions(maps: Mapping[str, Map], record: PodRecord) -> None:
    """Adds the pod's excluded ports and CIDRs; nothing reads them before its flags say so."""
    for port in record.exclude_ports:
        maps["ports"].update(_port_key(record.netns_cookie, port), _ALLOWED)
    for cidr in record.exclude_cidrs:
        maps["cidrs"].update(_cidr_key(record.netns_cookie, cidr), _cidr_value(cidr))


def remove_exclusions(
    maps: Mapping[str, Map], old: PodRecord, keep: PodRecord | None = None
) -> None:
    """Removes what ``old`` excluded and ``keep`` does not."""
    if old.pending:
        scrub(maps, old.netns_cookie, keep)
        return
    kept_ports = set(keep.exclude_ports) if keep else set()
    kept_cidrs = set(keep.exclude_cidrs) if keep else set()
    for port in old.exclude_ports:
        if port not in kept_ports:
            maps["ports"].delete(_port_key(old.netns_cookie, port))
    for cidr in old.exclude_cidrs:
        if cidr not in kept_cidrs:
            maps["cidrs"].delete(_cidr_key(old.netns_cookie, cidr))


def scrub(maps: Mapping[str, Map], netns_cookie: int, keep: PodRecord | None) -> None:
    """Removes every exclusion and address of a pod that ``keep`` does not name.

    Reads the whole maps: only for what a killed enrolment left, which no record tells.
    """
    ports = {_port_key(netns_cookie, p) for p in keep.exclude_ports} if keep else set()
    for key, _ in list(maps["ports"].items()):
        if abi.PORT_KEY.unpack(key)["netns"] == netns_cookie and key not in ports:
            maps["ports"].delete(key)
    cidrs = {_cidr_key(netns_cookie, c) for c in keep.exclude_cidrs} if keep else set()
    wanted = netns_cookie.to_bytes(8, "big")
    for key, _ in list(maps["cidrs"].items()):
        if abi.CIDR_KEY.unpack(key)["netns_be"] == wanted and key not in cidrs:
            maps["cidrs"].delete(key)
    own = {pack_ip(ipaddress.ip_address(ip)) for ip in keep.ips} if keep else set()
    for key, value in list(maps["lips"].items()):
        if abi.LIP.unpack(value)["netns"] == netns_cookie and key[-16:] not in own:
            maps["lips"].delete(key)


def remove_addresses(maps: Mapping[str, Map], ips: Iterable[str], netns_cookie: int) -> None:
    """Takes the pod's addresses out; what another pod with the same address wrote stays."""
    for text in ips:
        address = ipaddress.ip_address(text)
        maps["lips"].delete(lip_key(netns_cookie, address))
        shared = lip_key(ANY_NETNS, address)
        found = maps["lips"].lookup(shared)
        if found is not None and abi.LIP.unpack(found)["netns"] == netns_cookie:
            maps["lips"].delete(shared)


def remove_totals(maps: Mapping[str, Map], netns_cookie: int) -> None:
    """Drops the pod's entries of ``agg``, by the keys it can have."""
    identity = pod_id(netns_cookie)
    for direction in abi.Direction:
        for reason in abi.Reason:
            for via in abi.Via:
                maps["agg"].delete(
                    abi.AGG_KEY.pack(pod_id=identity, dir=direction, reason=reason, via=via)
                )


def listening(maps: Mapping[str, Map], netns_cookie: int, ports: Iterable[int]) -> tuple[int, ...]:
    """Which of the ports the proxy listens on in that namespace."""
    return tuple(
        port
        for port in ports
        if maps["lsn"].lookup(abi.LSN_KEY.pack(netns=netns_cookie, port=port)) is not None
    )
