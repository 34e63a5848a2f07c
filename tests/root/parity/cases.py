"""One behaviour on one backend in one address family: do it, and compare what three parties say.

What the application and the accepting side saw (`tests.root.dialling`), which row the kernel
counted (map ``stat``), and what `capture explain` answers for the same connection must agree. A
test that expects them not to agree says what explain answers instead.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

import pytest

from nodenet import abi
from nodenet.abi import Direction, IPAddress, Reason, rule
from nodenet.capture.explain import Explanation
from nodenet.capture.question import answer
from nodenet.endpoint import format_endpoint
from nodenet.lab.topology import Namespace
from tests.root.dialling import TIMEOUT_SECONDS, Dialled, Prepare, ask, dial, sockaddr
from tests.root.recording import Greeting
from tests.root.world import ADDRESSES, DNS_PORT, Addresses, Version, World

Result = Literal["captured", "bypassed", "refused"]

#: Listeners that connections are redirected to; HBONE reaches its own as it is.
REDIRECT_PORTS: Final = (abi.OUTBOUND_PORT, abi.INBOUND_PORT, abi.DNS_PORT)
#: By its namespace: also when it is not enrolled, so has no name.
NETNS: Final = "netns:{}"
_INDICES: Final = {
    Direction.OUT: range(0, abi.Stat.IN),
    Direction.IN: range(abi.Stat.IN, 2 * abi.Stat.IN),
}

#: For what the other backend cannot do at all.
only_ebpf = pytest.mark.parametrize("world", ["ebpf"], indirect=True)


class Family(Enum):
    """How the application addresses the other side."""

    V4 = "v4"
    V6 = "v6"
    MAPPED = "mapped"
    """IPv4 through an IPv6 socket, ::ffff:a.b.c.d."""

    @property
    def version(self) -> Version:
        """Of the packets."""
        return 6 if self is Family.V6 else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What became of one connection, or of one DNS question."""

    result: Result
    rule: str
    dialled: Dialled

    @property
    def verdict(self) -> str:
        """``captured O8``: what tests compare."""
        return f"{self.result} {self.rule}"

    @property
    def greeting(self) -> Greeting:
        """What the accepting side said; there must be one."""
        assert self.dialled.greeting is not None, self.dialled
        return self.dialled.greeting


@dataclass(frozen=True, slots=True)
class Case:
    """The world seen through one family."""

    world: World
    family: Family

    @property
    def a(self) -> Addresses:
        """Who is who."""
        return ADDRESSES[self.family.version]

    @property
    def mapped(self) -> bool:
        """Whether sockets are IPv6 ones with IPv4 inside."""
        return self.family is Family.MAPPED

    @property
    def ebpf(self) -> bool:
        """Whether this is the ebpf backend."""
        return self.world.backend == "ebpf"

    def connect(
        self,
        host: IPAddress,
        port: int,
        *,
        prepare: Prepare | None = None,
        timeout: float = TIMEOUT_SECONDS,
        explained: str | None = None,
    ) -> Observed:
        """The pod's app connects; see the module's text. ``explained`` when explain differs."""
        return self.observe(
            Direction.OUT,
            lambda: dial(
                self.world.pod, host, port, mapped=self.mapped, prepare=prepare, timeout=timeout
            ),
            self.foretold(host, port),
            explained,
        )

    def query(
        self,
        host: IPAddress,
        port: int = DNS_PORT,
        *,
        connect: bool = False,
        prepare: Prepare | None = None,
        timeout: float = TIMEOUT_SECONDS,
        explained: str | None = None,
    ) -> Observed:
        """The pod's app sends a datagram and waits for the answer."""
        return self.observe(
            Direction.OUT,
            lambda: ask(
                self.world.pod,
                host,
                port,
                connect=connect,
                mapped=self.mapped,
                prepare=prepare,
                timeout=timeout,
            ),
            self.foretold(host, port, protocol="udp"),
            explained,
        )

    def arrive(
        self,
        port: int,
        *,
        to: IPAddress | None = None,
        source: Namespace | None = None,
        address: IPAddress | None = None,
        timeout: float = TIMEOUT_SECONDS,
        explained: str | None = None,
    ) -> Observed:
        """Somebody else (``source``, else the outside, from ``address``) connects to the pod."""
        a = self.a
        host, peer = to or a.pod, address or a.outside
        return self.observe(
            Direction.IN,
            lambda: dial(
                source or self.world.outside,
                host,
                port,
                mapped=self.mapped,
                prepare=lambda sock: sock.bind(sockaddr(peer, 0, mapped=self.mapped)),
                timeout=timeout,
            ),
            self.foretold_inbound(peer, host, port),
            explained,
        )

    def foretold(
        self, host: IPAddress, port: int, *, protocol: Literal["tcp", "udp"] = "tcp"
    ) -> str:
        """What `capture explain` answers for a connect of the pod, as a verdict."""
        return _told(
            answer(
                self.world.capture,
                NETNS.format(self.world.pod.path),
                format_endpoint(host, port),
                protocol=protocol,
            )
        )

    def foretold_inbound(
        self,
        peer: IPAddress | Namespace,
        host: IPAddress,
        port: int,
        *,
        protocol: Literal["tcp", "udp"] = "tcp",
        proxy: bool = False,
    ) -> str:
        """What `capture explain --in` answers, as a verdict; ``peer`` may be a node's namespace."""
        source = NETNS.format(peer.path) if isinstance(peer, Namespace) else str(peer)
        destination = format_endpoint(host, port)
        return _told(
            answer(
                self.world.capture,
                source,
                destination,
                inbound=True,
                protocol=protocol,
                proxy=proxy,
            )
        )

    def observe(
        self,
        direction: Direction,
        act: Callable[[], Dialled],
        foretold: str,
        explained: str | None = None,
    ) -> Observed:
        """Does it, and compares what happened with what was foretold."""
        before = self.counted(direction)
        dialled = act()
        fired = self.fired(direction, before)
        row = fired or foretold.partition(" ")[2]
        observed = Observed(result=_result(dialled), rule=row, dialled=dialled)
        assert foretold == (explained or observed.verdict), (
            f"explain says {foretold}, what happened is {observed}"
        )
        return observed

    def counted(self, direction: Direction) -> dict[Reason, int]:
        """How often each reason was counted so far on this instance."""
        indices = _INDICES[direction]
        found = {}
        for key, values in self.world.capture.maps["stat"].items_percpu():
            index = int.from_bytes(key, "little")
            total = sum(int.from_bytes(value[:8], "little") for value in values)
            if index in indices and total:
                found[Reason(index - indices.start)] = total
        return found

    def fired(self, direction: Direction, before: Mapping[Reason, int]) -> str | None:
        """The one row counted since ``before``; None when nothing was, as for un-enrolled pods."""
        after = self.counted(direction)
        reasons = [reason for reason in after if after[reason] > before.get(reason, 0)]
        assert len(reasons) < 2, f"more than one row fired: {reasons}"
        return rule(direction, reasons[0]) if reasons else None


def _told(explanation: Explanation) -> str:
    return f"{explanation.result} {explanation.rule}"


def _result(dialled: Dialled) -> Result:
    greeting = dialled.greeting
    if greeting is not None and greeting.by == "proxy" and greeting.listener in REDIRECT_PORTS:
        return "captured"
    # tests dial where somebody answers, so nobody but the capture refuses
    return "refused" if dialled.error == errno.ECONNREFUSED else "bypassed"
