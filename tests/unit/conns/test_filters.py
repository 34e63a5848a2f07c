"""Filters: OR, AND, not, and that no wrong value is silently dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodenet.abi import ConnFlag, Direction, EventKind, Reason
from nodenet.conns.connection import Connection
from nodenet.conns.filters import Filter, compile_filter
from nodenet.conns.names import Names
from nodenet.errors import NodenetError, UsageError

Record = Callable[..., bytes]
Rows = Callable[..., list[Connection]]
#: 2026-01-31T00:00:10Z
NOW_NS = 1_769_817_610 * 1_000_000_000


@pytest.fixture
def passing(names: Names, rows: Rows, record: Record) -> Callable[..., list[str]]:
    """The ids of what passes a filter, out of four connections."""
    # outbound captured, inbound captured, plain IPv6 in close-wait, closed and uncaptured
    inbound = {
        "dir": Direction.IN, "local": "10.42.1.9", "local_port": 5432, "remote": "10.42.1.7",
        "remote_port": 51034, "orig": b"", "netns": 42,
    }  # fmt: skip
    plain = {
        "orig": b"", "remote": "2001:db8::25", "remote_port": 443, "local": "fd42:1::7",
        "family": 10, "reason": Reason.EXCLUDED_PORT, "via": 0, "state": 8, "comm": b"curl",
        "pid": 4902, "start_ns": 8_000_000_000, "flags": ConnFlag.PEER_FIN,
    }  # fmt: skip
    ended = {
        "kind": EventKind.CLOSED, "state": 7, "old_state": 9, "end_ns": 9_000_000_000,
        "orig": b"", "remote": "10.42.9.4", "remote_port": 9093, "reason": Reason.LOOPBACK,
        "via": 0,
    }  # fmt: skip
    everything = (
        record(cookie=0xA), record(cookie=0xB, **inbound), record(cookie=0xC, **plain),
        record(cookie=0xD, **ended),
    )  # fmt: skip

    def ids(**wanted: object) -> list[str]:
        compiled = compile_filter(Filter(**wanted), names, NOW_NS)  # type: ignore[arg-type]
        return [r.id for r in compiled.keep(rows(*everything, netns=compiled.netns))]

    return ids


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({}, "abcd"),
        ({"pod": ["cart"]}, "acd"),
        ({"pod": ["cart", "db"]}, "abcd"),
        ({"pod": ["!cart"]}, "b"),
        ({"pod": ["cart", "!shop/cart-7d9f6b"]}, ""),
        ({"state": ["established"]}, "ab"),
        ({"state": ["ESTABLISHED", "CLOSE_WAIT"]}, "abc"),
        ({"state": ["estab"]}, "ab"),
        ({"state": ["!established"]}, "cd"),
        ({"state": ["!established", "!closed"]}, "c"),
        ({"dir": ["in"]}, "b"),
        ({"via": ["none"]}, "cd"),
        ({"via": ["!none"]}, "ab"),
        ({"reason": ["captured"]}, "ab"),
        ({"reason": ["excluded-port", "loopback"]}, "cd"),
        ({"reason": ["captured", "!captured"]}, ""),
        ({"port": ["5432"]}, "ab"),
        ({"port": ["443", "9093"]}, "cd"),
        ({"port": ["!5432"]}, "cd"),
        ({"port": ["15001"]}, "a"),
        ({"port": ["34"]}, ""),
        ({"peer": ["10.42.0.0/16"]}, "abd"),
        ({"peer": ["10.42.1.9"]}, "a"),
        ({"peer": ["2001:db8::/32"]}, "c"),
        ({"peer": ["[2001:db8::25]"]}, "c"),
        ({"peer": ["!2001:db8::/32", "!10.42.9.0/24"]}, "ab"),
        ({"peer": ["shop/db"]}, "a"),
        ({"peer": ["cart", "2001:db8::/32"]}, "bc"),
        ({"process": ["curl"]}, "c"),
        ({"process": ["4902"]}, "c"),
        ({"process": ["curl[4902]"]}, "c"),
        ({"process": ["!curl"]}, "abd"),
        ({"families": (4,)}, "abd"),
        ({"families": (6,)}, "c"),
        ({"families": (4, 6)}, "abcd"),
        ({"since_seconds": 3.0}, "cd"),
        ({"since_seconds": 1.5}, "d"),
        ({"since_seconds": 60.0}, "abcd"),
        ({"dir": ["out"], "via": ["ebpf"]}, "a"),
        ({"dir": ["out"], "via": ["none"], "families": (4,)}, "d"),
    ],
)
def test_what_passes(
    passing: Callable[..., list[str]], wanted: dict[str, object], ids: str
) -> None:
    assert passing(**wanted) == list(ids)


@pytest.mark.parametrize(
    ("wanted", "line", "code"),
    [
        (
            {"state": ["CLOSING_WAIT"]},
            "unknown state CLOSING_WAIT in --state; one of: established syn-sent syn-recv "
            "fin-wait-1 fin-wait-2 time-wait closed last-ack listen closing close-wait",
            2,
        ),
        ({"dir": ["sideways"]}, "unknown dir sideways in --dir; one of: in out", 2),
        ({"via": ["!bpf"]}, "unknown via bpf in --via; one of: ebpf iptables none", 2),
        ({"port": ["65536"]}, "port 65536 out of range 1-65535 in --port 65536", 2),
        ({"port": ["http"]}, "port 'http' is not a number in --port http", 2),
        ({"peer": ["10.0.0.0/40"]}, "--peer 10.0.0.0/40: no network; write e.g. 10.0.0.0/8", 2),
        ({"peer": ["[fd00::/x]"]}, "--peer [fd00::/x]: no network; write e.g. 10.0.0.0/8", 2),
        (
            {"pod": ["shop/crat"]},
            "unknown pod shop/crat: not enrolled on this node; nearest: shop/cart-7d9f6b",
            4,
        ),
        (
            {"peer": ["shop/bd-1"]},
            "unknown peer shop/bd-1: not enrolled on this node; nearest: shop/db-1",
            4,
        ),
    ],
)
def test_a_wrong_value_is_an_error(
    passing: Callable[..., list[str]], wanted: dict[str, object], line: str, code: int
) -> None:
    with pytest.raises(NodenetError) as raised:
        passing(**wanted)
    assert raised.value.line() == line
    assert raised.value.exit_code == code


def test_reasons_are_those_of_the_kernel(passing: Callable[..., list[str]]) -> None:
    with pytest.raises(UsageError) as raised:
        passing(reason=["because"])
    assert raised.value.line().startswith("unknown reason because in --reason; one of: not-tcp ")
    assert raised.value.line().endswith(" pre-enrolment")


@pytest.mark.parametrize(
    ("wanted", "worth_it"),
    [
        ({}, True),
        ({"pod": ["cart"]}, True),
        ({"reason": ["pre-enrolment"]}, True),
        ({"reason": ["captured"]}, False),
        ({"reason": ["!captured"]}, True),
        ({"reason": ["!pre-enrolment"]}, False),
        ({"via": ["ebpf"]}, False),
        ({"via": ["none"]}, True),
        ({"since_seconds": 5.0}, False),
    ],
)
def test_when_older_connections_are_worth_a_look(
    names: Names, wanted: dict[str, object], worth_it: bool
) -> None:
    compiled = compile_filter(Filter(**wanted), names, NOW_NS)  # type: ignore[arg-type]
    assert compiled.may_be_older is worth_it
