"""What an operator may choose for one pod, parsed and checked before anything is touched."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from nodenet.capture.records import Backend, ExcludedPort, PodRecord
from nodenet.endpoint import parse_port
from nodenet.errors import UsageError

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolOptions:
    """The choices of one enrolment; the defaults are what `nodenet capture enroll` uses."""

    backend: Literal["auto", "ebpf", "iptables"] = "auto"
    direction: Literal["both", "out", "in"] = "both"
    dns: bool = False
    exclude_ports: tuple[ExcludedPort, ...] = ()
    exclude_cidrs: tuple[IPNetwork, ...] = ()
    """Destinations left alone, outbound."""
    on_proxy_down: Literal["closed", "open"] = "closed"
    existing: Literal["keep", "reset"] = "keep"
    """What happens to connections older than the enrolment."""
    mode: Literal["pod", "ingress"] = "pod"
    """``ingress``: a gateway; inbound plaintext goes to the app, HBONE is still served."""

    def matches(self, record: PodRecord, backend: Backend) -> bool:
        """Whether enrolling with these options would change nothing in ``record``."""
        return (
            record.backend == backend
            and record.direction == self.direction
            and record.dns == self.dns
            and sorted(record.exclude_ports, key=_port_order)
            == sorted(self.exclude_ports, key=_port_order)
            and sorted(record.exclude_cidrs) == sorted(map(str, self.exclude_cidrs))
            and record.on_proxy_down == self.on_proxy_down
            and record.mode == self.mode
        )

    def record(
        self,
        *,
        name: str,
        netns: str,
        netns_inode: int,
        netns_cookie: int,
        ips: tuple[str, ...],
        backend: Backend,
        enrolled_at: str,
        node: str | None = None,
        node_id: int = 0,
        uid: str | None = None,
        tw_reuse_before: int | None = None,
    ) -> PodRecord:
        """The record of a pod enrolled with these options."""
        return PodRecord(
            name=name,
            uid=uid,
            node=node,
            node_id=node_id,
            netns=netns,
            netns_inode=netns_inode,
            netns_cookie=netns_cookie,
            pod_id=pod_id(netns_cookie),
            ips=ips,
            backend=backend,
            direction=self.direction,
            dns=self.dns,
            on_proxy_down=self.on_proxy_down,
            exclude_ports=self.exclude_ports,
            exclude_cidrs=tuple(str(c) for c in self.exclude_cidrs),
            mode=self.mode,
            existing=self.existing,
            enrolled_at=enrolled_at,
            tw_reuse_before=tw_reuse_before,
        )


def pod_id(netns_cookie: int) -> int:
    """The pod's 32-bit id: the low half of its cookie, which counts namespaces up from one."""
    return netns_cookie & 0xFFFFFFFF


def _port_order(port: ExcludedPort) -> tuple[str, int]:
    return (port.dir, port.port)


def parse_excluded_ports(values: Iterable[str]) -> tuple[ExcludedPort, ...]:
    """``out:9093,in:8081`` (a list, repeatable) to ports; a bare number means both directions."""
    found: dict[tuple[str, int], ExcludedPort] = {}
    for value in values:
        where = f"--exclude-port {value}"
        for part in value.split(","):
            direction, colon, number = part.strip().partition(":")
            if not colon:
                direction, number = "both", direction
            if direction not in ("in", "out", "both"):
                raise UsageError(f"direction {direction!r} unknown in {where}; one of: out in both")
            port = parse_port(number, where)
            for one in ("out", "in") if direction == "both" else (direction,):
                found[(one, port)] = ExcludedPort(dir="in" if one == "in" else "out", port=port)
    return tuple(found[key] for key in sorted(found))


def parse_cidrs(values: Iterable[str], option: str = "--exclude-cidr") -> tuple[IPNetwork, ...]:
    """CIDRs, comma-separated or repeated; a bare address is one host."""
    found: set[IPNetwork] = set()
    for value in values:
        for part in value.split(","):
            try:
                found.add(ipaddress.ip_network(part.strip(), strict=True))
            except ValueError as error:
                raise UsageError(
                    f"CIDR {part.strip()!r} cannot be read in {option}: {error}; "
                    "write e.g. 10.0.0.0/8 or fd00::/8"
                ) from error
    return tuple(sorted(found, key=lambda n: (n.version, n.network_address, n.prefixlen)))
