"""What is counted for each pod, and the picture of it that others get."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nodenet.abi import Direction
from nodenet.agents.ztunnel.decision import Reason


class PodCounters:
    """Counts since the pod was added. Written by the data path only."""

    __slots__ = (
        "accepted_in",
        "accepted_out",
        "bytes_received",
        "bytes_sent",
        "dial_failed",
        "refused",
        "reset",
    )

    def __init__(self) -> None:
        self.accepted_out = 0
        self.accepted_in = 0
        self.refused: Counter[Reason] = Counter()
        self.dial_failed: Counter[str] = Counter()
        self.reset = 0
        self.bytes_sent = 0
        self.bytes_received = 0

    def accepted(self, direction: Direction) -> None:
        """One connection was accepted, whatever becomes of it."""
        if direction is Direction.OUT:
            self.accepted_out += 1
        else:
            self.accepted_in += 1

    def add(self, other: PodCounters) -> None:
        """Takes in the counts of a pod that has gone."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def carried(self, sent: int, received: int) -> None:
        """A connection has ended after carrying so many bytes, seen from the pod."""
        self.bytes_sent += sent
        self.bytes_received += received


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSnapshot:
    """The counters of one pod at one moment, live connections included."""

    cookie: int
    name: str
    serving: bool
    """False when the pod is un-enrolled and only its last connections are carried on."""
    accepted_out: int
    accepted_in: int
    active: int
    """Connections open now, those still being dialled included."""
    refused: dict[str, int]
    """By `Reason` value."""
    dial_failed: dict[str, int]
    """By name of the errno; ETIMEDOUT is the connect deadline's too."""
    reset: int
    """Connections that ended by a reset or an error after they had been established."""
    bytes_sent: int
    """Payload the pod sent through the proxy."""
    bytes_received: int
    """Payload the pod received through the proxy."""
