"""What crossed from node to node: who spoke TLS to whom, and which marks could be read.

Pure: packets in, findings out. The packets of each TCP connection are put into order first, so a
mark is found also where it lies across two packets, and a record of TLS wherever it begins.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from nodenet.abi import HBONE_PORT
from nodenet.lab.pcap import ACK, SYN, TCP, Packet
from nodenet.lab.plan import WORKLOAD_PORTS

#: What is listened on in a lab's pods.
LISTENED: Final = (*WORKLOAD_PORTS, HBONE_PORT)
#: RFC 8446 section 5.1: content types change_cipher_spec to application_data.
_TLS_TYPES: Final = range(20, 24)
_TLS_HEADER_BYTES: Final = 5
#: RFC 8446 section 5.2.
_TLS_MAX_BYTES: Final = (1 << 14) + 256
_WRAP: Final = 1 << 32


class WireReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the capture between the nodes shows; ``wire`` of the demo's report."""

    ok: bool
    packets: int
    """IP packets, each once."""
    lost: int
    """Packets that crossed and are not in the capture: with one of them nothing is proved."""
    ports: tuple[int, ...]
    """Every TCP port at which a pod of the mesh was reached by another one."""
    tls_records: int
    """Records of TLS between pods of the mesh."""
    plaintext_in_mesh: int
    """Marks that could be read between pods of the mesh: must be none."""
    plaintext_elsewhere: int
    """Marks that could be read where one end is not in the mesh: shows that marks are found."""
    not_tls: tuple[str, ...]
    """What else than TLS to 15008 went between pods of the mesh, a sentence each."""
    read_by: str
    pcap: str


class Wire:
    """The findings of one capture."""

    def __init__(self, packets: Iterable[Packet], members: Collection[str], token: str) -> None:
        """``members``: addresses between which nothing but HBONE may go. ``token``: the beginning
        of every mark of this demo, four more characters make one."""
        self.packets = 0
        self.tls_records = 0
        self.not_tls: dict[tuple[str, str], str] = {}
        """By the two addresses, the first to speak first."""
        self.marks: Counter[str] = Counter()
        """How often each mark could be read."""
        self.marks_in_mesh = 0
        self._members = members
        self._mark = re.compile(re.escape(token.encode()) + rb".{4}", re.DOTALL)
        self._ports: dict[tuple[str, str], set[int]] = {}
        connections: dict[frozenset[tuple[str, int]], _Connection] = {}
        finished: list[_Connection] = []
        for packet in packets:
            self.packets += 1
            if packet.protocol != TCP or not packet.source_port:
                self._other(packet)
                continue
            ends = (packet.source, packet.source_port), (packet.target, packet.target_port)
            connection = connections.get(frozenset(ends))
            if connection is None or connection.is_another(packet):
                if connection is not None:
                    finished.append(connection)
                connection = connections[frozenset(ends)] = _Connection(packet)
            connection.add(packet)
        for connection in (*finished, *connections.values()):
            self._judge(connection)

    @property
    def marks_elsewhere(self) -> int:
        """How many marks could be read where one end is not in the mesh."""
        return self.marks.total() - self.marks_in_mesh

    def ports(self, source: str, target: str) -> tuple[int, ...]:
        """Ports at which one address was connected to by another."""
        return tuple(sorted(self._ports.get((source, target), ())))

    def mesh_ports(self) -> tuple[int, ...]:
        """Ports at which pods of the mesh were connected to by each other."""
        found: set[int] = set()
        for (source, target), ports in self._ports.items():
            if self._in_mesh(source, target):
                found |= ports
        return tuple(sorted(found))

    def fault_between(self, one: str, other: str) -> str | None:
        """What else than TLS to 15008 went between two addresses of the mesh."""
        return self.not_tls.get((one, other)) or self.not_tls.get((other, one))

    def report(self, *, lost: int, read_by: str, pcap: str) -> WireReport:
        """All of it. ``lost`` packets were not captured."""
        return WireReport(
            ok=not (self.marks_in_mesh or self.not_tls or lost),
            packets=self.packets,
            lost=lost,
            ports=self.mesh_ports(),
            tls_records=self.tls_records,
            plaintext_in_mesh=self.marks_in_mesh,
            plaintext_elsewhere=self.marks_elsewhere,
            not_tls=tuple(self.not_tls.values()),
            read_by=read_by,
            pcap=pcap,
        )

    def _in_mesh(self, one: str, other: str) -> bool:
        return one in self._members and other in self._members

    def _other(self, packet: Packet) -> None:
        self._look_for_marks(packet.source, packet.target, packet.payload)
        if self._in_mesh(packet.source, packet.target):
            what = f"{packet.source} -> {packet.target}: IP protocol {packet.protocol}"
            self.not_tls.setdefault((packet.source, packet.target), what)

    def _judge(self, connection: _Connection) -> None:
        (client, _), (server, port) = connection.client, connection.server
        self._ports.setdefault((client, server), set()).add(port)
        mesh, fault = self._in_mesh(client, server), None
        if mesh and port != HBONE_PORT:
            fault = f"port {port}"
        for end, other in ((client, server), (server, client)):
            stream = connection.stream_of(end)
            data = stream.data()
            self._look_for_marks(end, other, data)
            if mesh:
                records, wrong = tls_records(data, from_start=stream.whole)
                self.tls_records += records
                fault = fault or wrong or ("packets are missing" if stream.has_gap else None)
        if fault is not None:
            what = f"{client} -> {server}: {fault}"
            self.not_tls.setdefault((client, server), what)

    def _look_for_marks(self, source: str, target: str, data: bytes) -> None:
        found = [mark.decode("latin-1") for mark in self._mark.findall(data)]
        self.marks.update(found)
        if self._in_mesh(source, target):
            self.marks_in_mesh += len(found)


class _Stream:
    """One direction of a connection."""

    def __init__(self) -> None:
        self._first: int | None = None
        self.whole = False
        """Whether its beginning is there."""
        self.has_gap = False
        self._segments: list[tuple[int, bytes]] = []

    def add(self, packet: Packet) -> None:
        if packet.flags & SYN:
            self._first, self.whole = (packet.sequence + 1) % _WRAP, True
        elif self._first is None:
            self._first = packet.sequence
        if packet.payload:
            offset = (packet.sequence + bool(packet.flags & SYN) - self._first) % _WRAP
            # before what was seen first: it came out of order
            offset -= _WRAP if offset >= _WRAP // 2 else 0
            self._segments.append((offset, packet.payload))

    def data(self) -> bytes:
        """The bytes in order, each once; ``has_gap`` is known afterwards."""
        found = bytearray()
        end: int | None = 0 if self.whole else None
        for offset, payload in sorted(self._segments, key=lambda s: s[0]):
            if end is None:
                end = offset
            if offset > end:
                self.has_gap = True
                end = offset
            fresh = payload[end - offset :]
            found += fresh
            end += len(fresh)
        return bytes(found)


class _Connection:
    """The packets of one TCP connection."""

    def __init__(self, first: Packet) -> None:
        ends = (first.source, first.source_port), (first.target, first.target_port)
        opening = bool(first.flags & SYN)
        self._opened_with = first.sequence if opening and not first.flags & ACK else None
        if opening:
            backwards = bool(first.flags & ACK)
        else:  # it was there before: who listens is guessed by the port
            backwards = _is_service(first.source_port, first.target_port)
        self.client, self.server = reversed(ends) if backwards else ends
        self._streams = {ends[0][0]: _Stream(), ends[1][0]: _Stream()}

    def is_another(self, packet: Packet) -> bool:
        """Whether the packet opens a new connection with the same ports."""
        opens = packet.flags & SYN and not packet.flags & ACK
        return bool(opens) and packet.sequence != self._opened_with

    def add(self, packet: Packet) -> None:
        self._streams[packet.source].add(packet)

    def stream_of(self, address: str) -> _Stream:
        return self._streams[address]


def _is_service(port: int, other: int) -> bool:
    """Whether the port, rather than the other one, is listened on."""
    known = port in LISTENED, other in LISTENED
    return known[0] if known[0] != known[1] else port < other


def tls_records(data: bytes, *, from_start: bool) -> tuple[int, str | None]:
    """How many records of TLS the data is, and what of it is none.

    The last record may be cut off. Not ``from_start``: the first one too, so the first place is
    looked for from where records follow each other up to the end.
    """
    if not data:
        return 0, None
    if from_start:
        records = _chain(data, 0)
        return (0, "not TLS") if records is None else (records, None)
    for start in range(min(len(data), _TLS_MAX_BYTES + _TLS_HEADER_BYTES)):
        records = _chain(data, start)
        if records:
            return records, None
    return 0, "not TLS"


def _chain(data: bytes, start: int) -> int | None:
    """Records from ``start`` to the end; None when something there is no record."""
    records, end = 0, len(data)
    while start < end:
        head = data[start : start + _TLS_HEADER_BYTES]
        # a head that is cut off at the end of the capture counts as far as it goes
        if head[0] not in _TLS_TYPES or (len(head) > 1 and head[1] != 3):
            return None
        if len(head) < _TLS_HEADER_BYTES:
            break
        length = int.from_bytes(head[3:], "big")
        if length > _TLS_MAX_BYTES:
            return None
        start += _TLS_HEADER_BYTES + length
        records += 1
    return records
