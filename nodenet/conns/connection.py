"""One connection as every reader, filter and exporter here sees it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from nodenet.conns.tcp import EndBy, EndReason


class Connection(msgspec.Struct, frozen=True, gc=False):
    """A TCP connection of this node; the field names are the JSON keys of ``conn list -j``.

    Texts instead of address types, and positional construction: 16 000 of these are made and
    encoded in well under 100 ms, which a list command's whole budget depends on (docs/cli.md).
    ``gc=False`` is safe because no field can refer back to a connection.
    """

    id: str
    """Socket cookie in hex, what ``ss -e`` prints as ``sk:``."""
    pod: str | None
    """The enrolled pod's name, None when the namespace has no enrolment record."""
    netns_cookie: str | None
    cgroup: str | None
    """Path below the cgroup2 mount, ``id:N`` when that cgroup has gone."""
    dir: Literal["out", "in"] | None
    """Who opened it, seen from the pod; None for a listening socket."""
    family: Literal[4, 6]
    local: str
    """ENDPOINT as the kernel has it."""
    remote: str
    """ENDPOINT as the kernel has it; for a captured connection the proxy's listener."""
    orig_dst: str | None
    """ENDPOINT the connection was made to when it was captured: outbound what the application asked
    for, inbound the pod's own address."""
    peer_name: str | None
    """Name of the pod that owns the peer's address, when it is known."""
    state: str
    captured_by: Literal["ebpf", "iptables", "none"]
    reason: str | None
    rule: str | None
    """Row of the decision order, ``O1``..``O8`` or ``I1``..``I10``."""
    bytes_sent: int | None
    """Payload bytes the application wrote; None, as the other counters, for a socket that has none
    any more (time-wait)."""
    bytes_received: int | None
    """Payload bytes that arrived in order."""
    bytes_acked: int | None
    """Payload bytes the peer acknowledged."""
    segs_out: int | None
    segs_in: int | None
    retransmits: int | None
    lost: int | None
    rtt_us: int | None
    rtt_min_us: int | None
    cwnd: int | None
    start: str | None
    """RFC 3339 UTC, microseconds; None when the kernel does not know (older than the record)."""
    end: str | None
    """None while open."""
    duration_us: int | None
    """From start to end; None while open, so that what nothing happens on stays the same."""
    pid: int | None
    comm: str | None
    end_reason: EndReason | None
    end_by: EndBy | None
    errno: str | None
    proxy: bool
    """Whether it is one of the proxy's own sockets."""

    @property
    def peer(self) -> str:
        """ENDPOINT the application believes it talks to."""
        return (self.orig_dst or self.remote) if self.dir == "out" else self.remote

    @property
    def pod_label(self) -> str:
        """The pod's name, else ``netns:COOKIE``; never empty."""
        return self.pod or f"netns:{self.netns_cookie or '?'}"

    @property
    def peer_label(self) -> str:
        """The peer by name with its port when the name is known, else its ENDPOINT."""
        peer = self.peer
        return f"{self.peer_name}:{peer.rpartition(':')[2]}" if self.peer_name else peer

    @property
    def process(self) -> str | None:
        """``curl[4902]``; None when the process is not known."""
        return f"{self.comm or '?'}[{self.pid}]" if self.pid else None


#: JSON keys in order, which `--sort` accepts.
KEYS: Final[tuple[str, ...]] = Connection.__struct_fields__
