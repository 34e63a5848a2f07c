"""The pod's link at the level of packets: what leaves the pod, and packets made by hand to it.

One raw socket on the node's end of the pod's veth pair. scapy writes and reads the packets, no
more: its own sockets and routes belong to the host's namespace.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from nodenet.abi import IPAddress
from nodenet.lab.topology import Namespace
from tests.root.dialling import TIMEOUT_SECONDS, Dialled
from tests.root.parity.cases import Case
from tests.root.recording import Greeting

ETH_P_ALL: Final = 0x0003
PACKET_OUTGOING: Final = 4
_FRAME_BYTES: Final = 65536
#: TCP flags.
FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10

#: A packet of scapy, which has no types.
Packet = Any
#: What is made of one packet before it is sent: fragments, extension headers.
Shape = Callable[[Packet], list[Packet]]


def as_it_is(packet: Packet) -> list[Packet]:
    """The packet alone."""
    return [packet]


class Wire:
    """The node's end of the pod's link, for one family. A context manager."""

    def __init__(self, case: Case) -> None:
        from scapy.layers.inet import IP, TCP
        from scapy.layers.inet6 import IPv6
        from scapy.layers.l2 import Ether

        self._tcp, self._ether = TCP, Ether
        self._ip = IP if case.family.version == 4 else IPv6
        self.pod = case.a.pod
        self._pod, self._node = case.world.pod, case.a.node
        self._macs = {"src": _mac(case.world.node, "pod"), "dst": _mac(case.world.pod, "eth0")}
        with case.world.node.entered():
            self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._sock.bind(("pod", 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sock.close()

    # -- sending

    def tcp(self, source: IPAddress, sport: int, dport: int, flags: int, **fields: Any) -> Packet:
        """A TCP packet to the pod."""
        payload = fields.pop("payload", b"")
        packet = self._ip(src=str(source), dst=str(self.pod)) / self._tcp(
            sport=sport, dport=dport, flags=flags, **fields
        )
        return packet / payload if payload else packet

    def send(self, *packets: Packet) -> None:
        """Puts IP packets onto the link, towards the pod."""
        for packet in packets:
            self._sock.send(bytes(self._ether(**self._macs) / packet))

    # -- watching

    def clear(self) -> None:
        """Forgets what has been seen so far."""
        while _readable(self._sock, 0):
            self._sock.recv(_FRAME_BYTES)

    def left_the_pod(self) -> list[Packet]:
        """Every packet that left the pod since `clear`, up to now.

        A datagram of our own marks the end: the link keeps the order.
        """
        mark = secrets.token_bytes(16)
        family = socket.AF_INET if self._node.version == 4 else socket.AF_INET6
        with self._pod.entered():
            fence = socket.socket(family, socket.SOCK_DGRAM)
        with fence:
            fence.sendto(mark, (str(self._node), 9))
        found: list[Packet] = []
        for packet in self._packets(TIMEOUT_SECONDS):
            if bytes(packet).endswith(mark):
                return found
            found.append(packet)
        raise AssertionError("the end mark did not arrive")

    def first(
        self, wanted: Callable[[Packet], bool], timeout: float = TIMEOUT_SECONDS
    ) -> Packet | None:
        """The first such packet that leaves the pod; None when there is none in time."""
        return next((p for p in self._packets(timeout) if wanted(p)), None)

    def _packets(self, timeout: float) -> Iterator[Packet]:
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0 and _readable(self._sock, left):
            data, address = self._sock.recvfrom(_FRAME_BYTES)
            if address[2] != PACKET_OUTGOING:  # outgoing is what goes to the pod
                yield self._ether(data)

    def is_tcp(self, packet: Packet, host: IPAddress, port: int) -> bool:
        """Whether it is a TCP packet to that address and port."""
        return bool(
            self._ip in packet
            and self._tcp in packet
            and packet[self._ip].dst == str(host)
            and packet[self._tcp].dport == port
        )

    def segment(self, packet: Packet) -> Packet:
        """The TCP part."""
        return packet[self._tcp]

    # -- a client made by hand

    def connect(
        self, source: IPAddress, dport: int, shape: Shape = as_it_is, **fields: Any
    ) -> Dialled:
        """A whole handshake from an address nobody has; what the pod's side says first.

        ``fields`` are of the SYN, ``shape`` what becomes of it on the way.
        """
        sport = 1024 + int.from_bytes(os.urandom(2), "big") % 60000
        start = int.from_bytes(os.urandom(4), "big") >> 1
        flags = SYN | fields.pop("flags", 0)
        self.clear()
        self.send(*shape(self.tcp(source, sport, dport, flags, seq=start, **fields)))
        answer = self.first(lambda p: self.is_tcp(p, source, sport))
        if answer is None:
            return Dialled(error=errno.ETIMEDOUT)
        got = self.segment(answer)
        if int(got.flags) & RST:
            return Dialled(error=errno.ECONNREFUSED)
        assert int(got.flags) & (SYN | ACK) == SYN | ACK, answer
        # data in the SYN is not taken without a fast-open cookie
        assert got.ack == start + 1
        self.send(self.tcp(source, sport, dport, ACK, seq=start + 1, ack=got.seq + 1))
        data = self.first(
            lambda p: (
                self.is_tcp(p, source, sport) and bytes(self.segment(p).payload).find(b"{") >= 0
            )
        )
        self.send(self.tcp(source, sport, dport, RST, seq=start + 1))
        assert data is not None, "no greeting"
        line = bytes(self.segment(data).payload).partition(b"\n")[0]
        return Dialled(
            local=(source, sport),
            peer=(self.pod, dport),
            greeting=Greeting.read(json.loads(line)),
        )


def _mac(namespace: Namespace, name: str) -> str:
    (link,) = json.loads(namespace.run("ip", "-j", "link", "show", name).stdout)
    return str(link["address"])


def _readable(sock: socket.socket, timeout: float) -> bool:
    return bool(select.select([sock], [], [], timeout)[0])
