"""Event lines."""

from __future__ import annotations

import re

import msgspec
import pytest

from nodenet.cli.conn_watch import event_line
from nodenet.conns.connection import Connection
from nodenet.conns.events import Event, Lost

BASE = Connection(
    id="3a44",
    pod="shop/cart-7d9f6b",
    netns_cookie="41",
    cgroup=None,
    dir="out",
    family=6,
    local="[fd42:1::7]:40112",
    remote="[fd42:1::7]:15001",
    orig_dst="[2001:db8::25]:443",
    peer_name=None,
    state="closed",
    captured_by="ebpf",
    reason="captured",
    rule="O8",
    bytes_sent=831,
    bytes_received=12_702,
    bytes_acked=831,
    segs_out=9,
    segs_in=9,
    retransmits=2,
    lost=0,
    rtt_us=18_000,
    rtt_min_us=17_000,
    cwnd=10,
    start="2026-01-31T10:41:53.282000Z",
    end="2026-01-31T10:42:07.482000Z",
    duration_us=14_200_000,
    pid=4902,
    comm="curl",
    end_reason="fin",
    end_by="peer",
    errno=None,
    proxy=False,
)
TIME = "2026-01-31T10:42:07.482000Z"


def _event(name: str, **changes: object) -> Event:
    row = msgspec.structs.replace(BASE, **changes)
    return Event(*(*msgspec.structs.astuple(row), name, TIME))


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            _event("closed"),
            "closed   out shop/cart-7d9f6b curl[4902]       [fd42:1::7]:40112     -> "
            "[2001:db8::25]:443  id=3a44 via=ebpf sent=831 recv=12702 rtt=18ms retr=2 dur=14.2s "
            "end=fin by=peer",
        ),
        (
            _event(
                "refused", pod="shop/db-0", comm="psql", pid=5120, local="10.42.1.9:0",
                remote="10.96.0.20:5432", orig_dst=None, captured_by="none", reason="proxy-down",
                rule="O7", errno="ECONNREFUSED", end_reason="refused", end_by="local",
            ),
            "refused  out shop/db-0 psql[5120]       10.42.1.9:0           -> 10.96.0.20:5432  "
            "reason=proxy-down rule=O7 errno=ECONNREFUSED",
        ),
        (
            _event("open", peer_name="mail/relay-2"),
            "open     out shop/cart-7d9f6b curl[4902]       [fd42:1::7]:40112     -> "
            "mail/relay-2:443  id=3a44 via=ebpf",
        ),
        (
            _event("established", dir="in", captured_by="none", reason="loopback", pid=None),
            "established in  shop/cart-7d9f6b -                [fd42:1::7]:40112     -> "
            "[fd42:1::7]:15001  id=3a44 via=none reason=loopback",
        ),
        (
            _event("closed", rtt_us=None, end_reason=None, end_by=None, errno="EHOSTUNREACH",
                   duration_us=None),
            "closed   out shop/cart-7d9f6b curl[4902]       [fd42:1::7]:40112     -> "
            "[2001:db8::25]:443  id=3a44 via=ebpf sent=831 recv=12702 retr=2 end=none "
            "errno=EHOSTUNREACH",
        ),
    ],
)  # fmt: skip
def test_lines(event: Event, line: str) -> None:
    clock, _, rest = event_line(event).partition(" ")
    assert re.fullmatch(r"\d\d:\d\d:07\.482", clock)
    assert rest == line


def test_raw_and_lost() -> None:
    assert "-> [2001:db8::25]:443 " in event_line(_event("open", peer_name="x/y"), raw=True)
    assert event_line(Lost("lost", TIME, 12)).endswith(" lost     count=12")
    assert event_line(Lost("lost", TIME, None)).endswith(" lost     count=?")


def test_a_name_cannot_break_the_line() -> None:
    assert "\n" not in event_line(_event("open", comm="a\nb\x1b[2J")).rstrip("\n")
