"""Which pods have sockets that no record knows, found without looking at a single socket.

The kernel counts the TCP sockets of a namespace. Where that is no more than there are records and
listeners, there is nothing to look for, and that is nearly always so. So this module imports and
does as little as it can: a list of connections pays for it every time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import Counter
from collections.abc import Collection
from functools import cached_property
from typing import Final

from nodenet import abi
from nodenet.capture.records import PodRecord
from nodenet.conns.decode import RECORD_SIZE
from nodenet.kernel import libc

#: A record as 64-bit words, to take one member of all records out by a slice.
_WORDS: Final = RECORD_SIZE // 8
_COOKIE_WORD: Final = abi.EVENT.offsets()["cookie"][0] // 8
_NETNS_WORD: Final = abi.EVENT.offsets()["netns"][0] // 8

_NETLINK_SOCK_DIAG: Final = 4
_NLMSG_DONE, _NLMSG_ERROR = 3, 2
_HEADER: Final = struct.Struct("=IH10x")
#: Netlink header of a dump, then struct inet_diag_req_v2 for TCP sockets in LISTEN.
_LISTENERS: Final = struct.Struct("=IHHII BBBxI 48x")
_RECEIVE_BYTES: Final = 1 << 16


class Recorded:
    """What has a record, taken from raw iterator output."""

    def __init__(self, raw: memoryview) -> None:
        words = raw.cast("Q")
        self._cookies = words[_COOKIE_WORD::_WORDS]
        self.per_netns: Counter[int] = Counter(words[_NETNS_WORD::_WORDS].tolist())
        """How many a namespace has."""

    @cached_property
    def cookies(self) -> frozenset[int]:
        """The ids of all."""
        return frozenset(self._cookies.tolist())


def pods_with_more(
    pods: Collection[PodRecord], recorded: Recorded, netns: Collection[int] | None = None
) -> list[PodRecord]:
    """The pods that have sockets beyond the recorded ones and listeners.

    ``netns`` looks only at those namespaces, by cookie. A pod whose namespace has gone, or may not
    be entered, has none.
    """
    found: list[PodRecord] = []
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for pod in pods:
            if netns is None or pod.netns_cookie in netns:
                with contextlib.suppress(OSError):
                    if _has_more(pod, recorded.per_netns[pod.netns_cookie], back):
                        found.append(pod)
    finally:
        os.close(back)
    return found


def _has_more(pod: PodRecord, known: int, back: int) -> bool:
    there = os.open(pod.netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(there).st_ino != pod.netns_inode:
            return False  # another namespace took the path
        libc.setns(there)
        try:
            in_use = sockets_in_use()
            return in_use > known and in_use > known + count_listeners()
        finally:
            libc.setns(back)
    finally:
        os.close(there)


def sockets_in_use() -> int:
    """How many TCP sockets the thread's namespace has, time-wait not counted."""
    total = 0
    for name, prefix in (("sockstat", "TCP: inuse "), ("sockstat6", "TCP6: inuse ")):
        with (
            contextlib.suppress(FileNotFoundError),  # IPv6 switched off at boot
            open(f"/proc/thread-self/net/{name}") as lines,
        ):
            for line in lines:
                if line.startswith(prefix):
                    total += int(line[len(prefix) :].split()[0])
    return total


def count_listeners() -> int:
    """How many TCP sockets listen in the thread's namespace."""
    total = 0
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
        ) as diag:
            # SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST and NLM_F_DUMP, state 10
            diag.send(
                _LISTENERS.pack(
                    _LISTENERS.size, 20, 0x301, 1, 0, family, socket.IPPROTO_TCP, 0, 1 << 10
                )
            )
            more = True
            while more:
                datagram = diag.recv(_RECEIVE_BYTES)
                offset = 0
                while offset < len(datagram):
                    length, kind = _HEADER.unpack_from(datagram, offset)
                    if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                        more = False
                        break
                    total += 1
                    offset += (length + 3) & ~3
    return total
