"""The one mirror of ``bpf/nn_abi.h``: layouts, numbers and names the kernel programs use.

A `Layout` packs and unpacks one C struct. Addresses are 16 bytes in network order with IPv4 as
v4-mapped, ports are host order, everything is little endian. A unit test compares every field
with the C declaration through the compiler.
"""

from __future__ import annotations

import ipaddress
import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

SCHEMA: Final = 1

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_MAPPED_PREFIX: Final = b"\0" * 10 + b"\xff\xff"


def pack_ip(address: IPAddress) -> bytes:
    """16 bytes in network order; IPv4 becomes v4-mapped."""
    if isinstance(address, ipaddress.IPv4Address):
        return _MAPPED_PREFIX + address.packed
    return address.packed


def unpack_ip(raw: bytes) -> IPAddress:
    """The reverse of `pack_ip`: a v4-mapped address comes back as IPv4."""
    if raw.startswith(_MAPPED_PREFIX):
        return ipaddress.IPv4Address(raw[12:])
    return ipaddress.IPv6Address(raw)


class Field(NamedTuple):
    """One member of a C struct: its name, `struct` code and, for decoding, what it means.

    ``role`` is one of ``int``, ``ip``, ``text``, ``bytes``, ``pad``, ``id`` (a 64-bit id, shown as
    a string), ``flags``, ``reason``, ``port``.
    """

    name: str
    code: str
    role: str = "int"


class Layout:
    """A C struct by name: ``pack(**fields)``, ``unpack(raw)`` to a dict, offsets for the check."""

    def __init__(self, c_name: str, *fields: Field) -> None:
        self.c_name = c_name
        self.fields = fields
        self.struct = struct.Struct("<" + "".join(f.code for f in fields))
        self.names = tuple(f.name for f in fields)
        self._zeroes: dict[str, int | bytes] = {
            f.name: b"" if f.code.endswith("s") else 0 for f in fields
        }

    @property
    def size(self) -> int:
        """Bytes of the whole struct, padding included."""
        return self.struct.size

    def offsets(self) -> dict[str, tuple[int, int]]:
        """Per field: (offset, size) in bytes."""
        result, position = {}, 0
        for field in self.fields:
            width = struct.calcsize("<" + field.code)
            result[field.name] = (position, width)
            position += width
        return result

    def pack(self, **values: int | bytes) -> bytes:
        """The struct's bytes; fields left out are zero, an unknown name is a TypeError."""
        all_values = self._zeroes | values
        if len(all_values) != len(self._zeroes):
            unknown = values.keys() - self._zeroes.keys()
            raise TypeError(f"{self.c_name} has no field {sorted(unknown)}")
        return self.struct.pack(*all_values.values())

    def unpack(self, raw: bytes) -> dict[str, int | bytes]:
        """Field name to value; padding is left out."""
        return {
            f.name: value
            for f, value in zip(self.fields, self.struct.unpack(raw), strict=True)
            if f.role != "pad"
        }


class PodFlag(IntFlag):
    """``nn_pod.flags``."""

    OUT = 1
    IN = 2
    DNS = 4
    CLOSED_OUT = 8
    CLOSED_IN = 16
    INGRESS = 32
    DIRECT = 64
    IPTABLES = 128
    HOST = 256
    LIVE = 512
    PORTS = 1024
    CIDRS = 2048


class Reason(IntEnum):
    """``enum nn_reason``: why a connection was captured, passed or refused."""

    NONE = 0
    NOT_TCP = 1
    NOT_ENROLLED = 2
    DIRECTION_OFF = 3
    PROXY = 4
    LOOPBACK = 5
    SELF = 6
    EXCLUDED_PORT = 7
    EXCLUDED_CIDR = 8
    PROXY_DOWN = 9
    CAPTURED = 10
    DNS = 11
    KERNEL_LOOKUP = 12
    HBONE = 13
    OWN_PORT = 14
    PROBE_ADDRESS = 15
    HOST_PROBE = 16
    FROM_PROXY = 17
    PRE_ENROLMENT = 18

    @property
    def text(self) -> str:
        """The hyphenated name used on the command line and in JSON."""
        return self.name.lower().replace("_", "-")


class Action(IntEnum):
    """What a decision does with the connection."""

    PASS = 0
    REDIRECT = 1
    REFUSE = 2


class Direction(IntEnum):
    """``nn_conn.dir``: who opened the connection, seen from the pod."""

    OUT = 1
    IN = 2


class ConnFlag(IntFlag):
    """``nn_conn.flags``."""

    CAPTURED = 1
    HANDED = 2
    ORPHAN = 4
    PROXY = 8
    PEER_FIN = 16
    BYP = 32
    COUNTED = 64
    LISTENER = 128


class Via(IntEnum):
    """``nn_conn.via``: which backend captured the connection."""

    NONE = 0
    EBPF = 1
    IPTABLES = 2


class EventKind(IntEnum):
    """``nn_event.kind``."""

    LIVE = 0
    OPEN = 1
    ESTABLISHED = 2
    REFUSED = 3
    CLOSED = 4


class Asker(IntEnum):
    """``nn_query.asker``: whose socket a question is about."""

    ANYBODY = 0
    PROXY = 1
    NODE = 2


class Stat(IntEnum):
    """Indices of the ``stat`` array beyond the per-reason ones (outbound 0, inbound 32)."""

    IN = 32
    EVENTS_LOST = 64
    NO_STORAGE = 65
    NO_ORIGINAL = 66
    LISTENER_FAILED = 67
    ASSIGN_FAILED = 68
    OVER_LIMIT = 69
    AGG_FULL = 70
    LISTENER_OK = 71


STAT_MAX: Final = 128


class Live(IntEnum):
    """Indices of the ``live`` array."""

    NOW = 0
    CLOSED = 1


#: Stands for a pod's cookie in the bytecode of ``nn_sk_lookup``; the loader replaces it.
SELF_COOKIE: Final = 0x6E6F64656E657421

#: How many closed connections the kernel keeps: number N is in slot N modulo this.
CLOSED_KEPT: Final = 16_384

#: Row of the decision order by reason (spec of the decision: docs/parity.md).
OUT_RULES: Final[dict[Reason, str]] = {
    Reason.NOT_TCP: "O1",
    Reason.NOT_ENROLLED: "O2",
    Reason.DIRECTION_OFF: "O2",
    Reason.PROXY: "O3",
    Reason.LOOPBACK: "O4",
    Reason.SELF: "O5",
    Reason.EXCLUDED_PORT: "O6",
    Reason.EXCLUDED_CIDR: "O6",
    Reason.PROBE_ADDRESS: "O6",
    Reason.PROXY_DOWN: "O7",
    Reason.CAPTURED: "O8",
    Reason.DNS: "O8",
}
IN_RULES: Final[dict[Reason, str]] = {
    Reason.NOT_TCP: "I1",
    Reason.KERNEL_LOOKUP: "I1",
    Reason.LOOPBACK: "I2",
    Reason.SELF: "I2",
    Reason.NOT_ENROLLED: "I3",
    Reason.DIRECTION_OFF: "I3",
    Reason.HBONE: "I4",
    Reason.OWN_PORT: "I5",
    Reason.EXCLUDED_PORT: "I6",
    Reason.PROBE_ADDRESS: "I7",
    Reason.HOST_PROBE: "I8",
    Reason.FROM_PROXY: "I8",
    Reason.PROXY_DOWN: "I9",
    Reason.CAPTURED: "I10",
}


def rule(direction: Direction, reason: Reason) -> str | None:
    """``O1``..``O8`` or ``I1``..``I10``; None for reasons that no row decides."""
    return (OUT_RULES if direction is Direction.OUT else IN_RULES).get(reason)


#: What each of a pod's own ports is, as ``nn_pod`` orders them.
OUTBOUND_PORT: Final = 15001
INBOUND_PORT: Final = 15006
HBONE_PORT: Final = 15008
DNS_PORT: Final = 15053

MARK: Final = 0x539
MARK_MASK: Final = 0xFFF
TRANSPARENT_MARK: Final = 0x111
MAX_LIVE: Final = 100_000
EVENTS_BYTES: Final = 4 << 20

_CONN_FIELDS: Final = (
    Field("cookie", "Q", "id"),
    Field("netns", "Q", "id"),
    Field("cgroup", "Q", "id"),
    Field("start_ns", "Q"),
    Field("local", "16s", "ip"),
    Field("remote", "16s", "ip"),
    Field("orig", "16s", "ip"),
    Field("local_port", "H", "port"),
    Field("remote_port", "H", "port"),
    Field("orig_port", "H", "port"),
    Field("family", "B"),
    Field("dir", "B"),
    Field("pid", "I"),
    Field("state", "B"),
    Field("flags", "B"),
    Field("reason", "B", "reason"),
    Field("via", "B"),
    Field("comm", "16s", "text"),
)

NETNS_KEY: Final = Layout("__u64", Field("netns_cookie", "Q", "id"))
COOKIE_KEY: Final = Layout("__u64", Field("cookie", "Q", "id"))
INDEX_KEY: Final = Layout("__u32", Field("index", "I"))
COUNTER: Final = Layout("__u64", Field("value", "Q"))
FLAG_VALUE: Final = Layout("__u8", Field("value", "B"))


CFG: Final = Layout(
    "struct nn_cfg",
    Field("schema", "I"),
    Field("mark", "I"),
    Field("mark_mask", "I"),
    Field("tmark", "I"),
    Field("agent_level", "I"),
    Field("max_live", "I"),
    Field("agent_cgroup", "Q", "id"),
    Field("build", "Q", "id"),
)
POD: Final = Layout(
    "struct nn_pod",
    Field("flags", "I", "flags"),
    Field("id", "I"),
    Field("ip4", "16s", "ip"),
    Field("ip6", "16s", "ip"),
    Field("outbound_port", "H", "port"),
    Field("inbound_port", "H", "port"),
    Field("dns_port", "H", "port"),
    Field("hbone_port", "H", "port"),
    Field("enrolled_ns", "Q"),
)
LIP_KEY: Final = Layout(
    "struct nn_lip_key",
    Field("netns", "Q", "id"),
    Field("ip", "16s", "ip"),
)
LIP: Final = Layout(
    "struct nn_lip",
    Field("netns", "Q", "id"),
    Field("pod_id", "I"),
    Field("node_id", "I"),
)
PORT_KEY: Final = Layout(
    "struct nn_port_key",
    Field("netns", "Q", "id"),
    Field("port", "H", "port"),
    Field("dir", "B"),
    Field("pad1", "B", "pad"),
    Field("pad2", "I", "pad"),
)
CIDR_KEY: Final = Layout(
    "struct nn_cidr_key",
    Field("prefixlen", "I"),
    Field("netns_be", "8s", "bytes"),
    Field("ip", "16s", "ip"),
)
FLOW_KEY: Final = Layout(
    "struct nn_flow_key",
    Field("netns", "Q", "id"),
    Field("ip", "16s", "ip"),
    Field("port", "H", "port"),
    Field("pad1", "H", "pad"),
    Field("pad2", "I", "pad"),
)
BYP_KEY: Final = Layout(
    "struct nn_byp_key",
    Field("remote", "16s", "ip"),
    Field("local", "16s", "ip"),
    Field("remote_port", "H", "port"),
    Field("local_port", "H", "port"),
    Field("pad", "I", "pad"),
)
BYP: Final = Layout(
    "struct nn_byp",
    Field("since_ns", "Q"),
    Field("reason", "I", "reason"),
    Field("pad", "I", "pad"),
)
LSN_KEY: Final = Layout(
    "struct nn_lsn_key",
    Field("netns", "Q", "id"),
    Field("port", "I", "port"),
    Field("pad", "I", "pad"),
)
DNS: Final = Layout(
    "struct nn_dns",
    Field("ip", "16s", "ip"),
    Field("port", "H", "port"),
    Field("pad1", "H", "pad"),
    Field("pad2", "I", "pad"),
)
CONN: Final = Layout("struct nn_conn", *_CONN_FIELDS)
#: The members of ``conn`` come first, under their own names.
EVENT: Final = Layout(
    "struct nn_event",
    *_CONN_FIELDS,
    Field("end_ns", "Q"),
    Field("bytes_sent", "Q"),
    Field("bytes_acked", "Q"),
    Field("bytes_received", "Q"),
    Field("srtt_us", "I"),
    Field("rtt_min_us", "I"),
    Field("retransmits", "I"),
    Field("lost", "I"),
    Field("segs_out", "I"),
    Field("segs_in", "I"),
    Field("cwnd", "I"),
    Field("kind", "B"),
    Field("old_state", "B"),
    Field("err", "H"),
    Field("pod_id", "I"),
    Field("pad", "I", "pad"),
)
AGG_KEY: Final = Layout(
    "struct nn_agg_key",
    Field("pod_id", "I"),
    Field("dir", "B"),
    Field("reason", "B", "reason"),
    Field("via", "B"),
    Field("pad", "B", "pad"),
)
AGG: Final = Layout(
    "struct nn_agg",
    Field("opened", "Q"),
    Field("closed", "Q"),
    Field("failed", "Q"),
    Field("bytes_sent", "Q"),
    Field("bytes_received", "Q"),
    Field("retransmits", "Q"),
    Field("segs_out", "Q"),
)
QUERY: Final = Layout(
    "struct nn_query",
    Field("netns", "Q", "id"),
    Field("local", "16s", "ip"),
    Field("remote", "16s", "ip"),
    Field("local_port", "H", "port"),
    Field("remote_port", "H", "port"),
    Field("dir", "B"),
    Field("protocol", "B"),
    Field("asker", "B"),
    Field("pad", "B", "pad"),
)

#: Layouts whose C declaration is a struct of nn_abi.h.
STRUCTS: Final = (
    CFG, POD, LIP_KEY, LIP, PORT_KEY, CIDR_KEY, FLOW_KEY, BYP_KEY, BYP, LSN_KEY, DNS, CONN, EVENT,
    AGG_KEY, AGG, QUERY,
)  # fmt: skip


class MapType(IntEnum):
    """``enum bpf_map_type``, the ones used here."""

    HASH = 1
    ARRAY = 2
    PERCPU_HASH = 5
    PERCPU_ARRAY = 6
    LRU_HASH = 9
    LPM_TRIE = 11
    SOCKHASH = 18
    SK_STORAGE = 24
    RINGBUF = 27


F_NO_PREALLOC: Final = 1
F_CLONE: Final = 1 << 9


class MapDef(NamedTuple):
    """What a pinned map must be: name, type, layouts of key and value, bound, creation flags."""

    name: str
    type: MapType
    key: Layout | None
    value: Layout | None
    max_entries: int
    flags: int = 0


_SK: Final = Layout("int", Field("socket", "i"))

#: Every map, in the order of docs/bpf.md. ``bpf/nn_maps.h`` declares the same ones.
MAPS: Final[dict[str, MapDef]] = {
    m.name: m
    for m in (
        MapDef("cfg", MapType.ARRAY, INDEX_KEY, CFG, 1),
        MapDef("pods", MapType.HASH, NETNS_KEY, POD, 4096),
        MapDef("lips", MapType.HASH, LIP_KEY, LIP, 32768, F_NO_PREALLOC),
        MapDef("ports", MapType.HASH, PORT_KEY, FLAG_VALUE, 65536, F_NO_PREALLOC),
        MapDef("cidrs", MapType.LPM_TRIE, CIDR_KEY, FLAG_VALUE, 16384, F_NO_PREALLOC),
        MapDef("flows", MapType.LRU_HASH, FLOW_KEY, CONN, 16384),
        MapDef("byp", MapType.LRU_HASH, BYP_KEY, BYP, 16384),
        MapDef("lsn", MapType.SOCKHASH, LSN_KEY, COUNTER, 16384),
        MapDef("conns", MapType.SK_STORAGE, _SK, CONN, 0, F_NO_PREALLOC | F_CLONE),
        MapDef("dnsd", MapType.SK_STORAGE, _SK, DNS, 0, F_NO_PREALLOC),
        MapDef("closed", MapType.ARRAY, INDEX_KEY, EVENT, CLOSED_KEPT),
        MapDef("evs", MapType.RINGBUF, None, None, EVENTS_BYTES),
        MapDef("agg", MapType.PERCPU_HASH, AGG_KEY, AGG, 65536, F_NO_PREALLOC),
        MapDef("stat", MapType.PERCPU_ARRAY, INDEX_KEY, COUNTER, STAT_MAX),
        MapDef("live", MapType.ARRAY, INDEX_KEY, COUNTER, len(Live)),
        MapDef("watch", MapType.ARRAY, INDEX_KEY, COUNTER, len(EventKind)),
    )
}


class ProgramDef(NamedTuple):
    """One kernel program: C function name, hook as users know it, type, attach type, where.

    ``attach`` is ``root`` (cgroup root), ``agent`` (the proxy's cgroup), ``netns`` (one link a
    pod), ``iter`` (over the conns map) or ``none`` (run on demand).
    """

    name: str
    hook: str
    type: int
    attach_type: int
    attach: str

    @property
    def pin(self) -> str:
        """The pin's name below ``links/`` (``progs/`` for netns and none)."""
        return self.name.removeprefix("nn_")


#: Every program; types and attach types as in linux/bpf.h.
PROGRAMS: Final[dict[str, ProgramDef]] = {
    p.name: p
    for p in (
        ProgramDef("nn_connect4", "cgroup/connect4", 18, 10, "root"),
        ProgramDef("nn_connect6", "cgroup/connect6", 18, 11, "root"),
        ProgramDef("nn_peername4", "cgroup/getpeername4", 18, 29, "root"),
        ProgramDef("nn_peername6", "cgroup/getpeername6", 18, 30, "root"),
        ProgramDef("nn_sendmsg4", "cgroup/sendmsg4", 18, 14, "root"),
        ProgramDef("nn_sendmsg6", "cgroup/sendmsg6", 18, 15, "root"),
        ProgramDef("nn_recvmsg4", "cgroup/recvmsg4", 18, 19, "root"),
        ProgramDef("nn_recvmsg6", "cgroup/recvmsg6", 18, 20, "root"),
        ProgramDef("nn_sockops", "sock_ops", 13, 3, "root"),
        ProgramDef("nn_getsockopt", "cgroup/getsockopt", 25, 21, "agent"),
        ProgramDef("nn_sk_lookup", "sk_lookup", 30, 36, "netns"),
        ProgramDef("nn_iter_conns", "iter/bpf_sk_storage_map", 26, 28, "iter"),
        ProgramDef("nn_explain", "explain", 3, 0, "none"),
    )
}
