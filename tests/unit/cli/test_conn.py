"""nodenet conn: what it refuses, and how rows look."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from nodenet.agents.ztunnel.views import ProxyConnection
from nodenet.cli.conn_batches import emit_batches
from nodenet.cli.conn_detail import ConnectionDetail
from nodenet.cli.conn_proxy import is_half
from nodenet.cli.conn_show import BLOCKS, parse_id, render
from nodenet.cli.conn_table import columns
from nodenet.cli.globals import Format, Globals
from nodenet.cli.style import Style
from nodenet.cli.tables import render_table
from nodenet.conns.connection import KEYS, Connection
from nodenet.errors import NotFound, UsageError
from nodenet.times import rfc3339_ns

NOBODY = "nn-nobody"


def started() -> str:
    """2 h 5 min 10 s before now, whenever the test runs."""
    return rfc3339_ns(time.time_ns() - (2 * 3600 + 5 * 60 + 10) * 1_000_000_000)


START = started()


def connection(**changes: Any) -> Connection:
    """The first row of the documentation's example."""
    row = Connection(
        id="3a01",
        pod="shop/cart-7d9f6b",
        netns_cookie="41",
        cgroup="/kubepods/pod1",
        dir="out",
        family=4,
        local="10.42.1.7:51034",
        remote="10.42.1.7:15001",
        orig_dst="10.42.1.9:5432",
        peer_name="shop/db-1",
        state="established",
        captured_by="ebpf",
        reason="captured",
        rule="O8",
        bytes_sent=12_702,
        bytes_received=3_250_586,
        bytes_acked=12_702,
        segs_out=100,
        segs_in=2000,
        retransmits=0,
        lost=0,
        rtt_us=340,
        rtt_min_us=290,
        cwnd=10,
        start=START,
        end=None,
        duration_us=None,
        pid=4711,
        comm="python3",
        end_reason=None,
        end_by=None,
        errno=None,
        proxy=False,
    )
    return msgspec.structs.replace(row, **changes)


PLAIN = connection(
    id="39f0",
    remote="10.42.9.4:9093",
    orig_dst=None,
    peer_name=None,
    captured_by="none",
    reason="excluded-port",
    rule="O6",
    rtt_us=None,
)


def test_the_table_of_the_documentation() -> None:
    text = render_table([connection(start=started()), PLAIN], columns(), Style())
    header, first, second = text.splitlines()
    assert header.split() == [
        "ID", "POD", "DIR", "LOCAL", "PEER", "STATE", "VIA", "SENT", "RECV", "RTT", "RETR", "AGE",
        "PROCESS",
    ]  # fmt: skip
    assert first.split() == [
        "3a01", "shop/cart-7d9f6b", "out", "10.42.1.7:51034", "shop/db-1:5432", "ESTAB", "ebpf",
        "12.4K", "3.1M", "340us", "0", "2h05m", "python3[4711]",
    ]  # fmt: skip
    assert second.endswith("python3[4711] (excluded-port)")
    assert "10.42.9.4:9093" in second and " - " in second


def test_raw_shows_addresses() -> None:
    text = render_table([connection()], columns(raw=True), Style())
    assert "10.42.1.9:5432" in text and "shop/db-1" not in text


def test_wide_adds_columns() -> None:
    header, row = render_table([connection()], columns(), Style(wide=True)).splitlines()
    added = "ORIGINAL-DST REASON CWND MINRTT PKTS-OUT PKTS-IN NETNS CGROUP STARTED"
    assert header.split()[-9:] == added.split()
    assert "10.42.1.9:5432" in row and "290us" in row and "/kubepods/pod1" in row


def test_closed_ones_say_how_they_ended() -> None:
    ended = connection(state="closed", end_reason="fin", end_by="peer", duration_us=14_200_000)
    header, row = render_table([ended], columns(closed=True), Style()).splitlines()
    assert "END" in header.split() and "LASTED" in header.split() and "STATE" not in header
    assert "fin peer" in row and "14s" in row


def test_what_is_unknown_is_a_dash() -> None:
    bare = connection(pod=None, pid=None, comm=None, rtt_us=None, start=None, dir=None)
    row = render_table([bare], columns(), Style()).splitlines()[1]
    assert row.split()[1:3] == ["netns:41", "-"]
    assert row.split()[-4:] == ["-", "0", "-", "-"]


@pytest.mark.parametrize(
    ("text", "cookie"), [("3a01", 0x3A01), ("sk:3a01", 0x3A01), ("0x3A01", 0x3A01), ("0", 0)]
)
def test_ids(text: str, cookie: int) -> None:
    assert parse_id(text) == cookie


@pytest.mark.parametrize("text", ["", "xyz", "-1", "3a 01", "1" * 17, "3_a", "sk:"])
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(UsageError, match="is not a connection id"):
        parse_id(text)


def detail(half: ProxyConnection | None = None, **changes: object) -> ConnectionDetail:
    """A connection as `conn show` prints it."""
    return ConnectionDetail(**msgspec.structs.asdict(connection(**changes)), ztunnel=half)


def proxied(**changes: object) -> ProxyConnection:
    """The proxy's half of `connection`."""
    half: dict[str, object] = {
        "id": "3a02", "pod": "shop/cart-7d9f6b", "dir": "out", "local": "10.42.1.7:51034",
        "peer": "10.42.1.9:5432", "peer_name": "shop/db-1", "security": "mtls",
        "peer_identity": "spiffe://cluster.local/ns/shop/sa/db", "upstream": "10.42.2.9:15008",
        "policy": None, "bytes_sent": 1, "bytes_received": 2,
        "start": "2026-01-31T00:00:01.000000Z", "row": "Z9", "protocol": "HBONE",
        "hbone_conn": "77", "stream_id": 3, "src": "10.42.1.7:51034",
        "original_dst": "10.42.1.9:5432", "actual_dst": "10.42.2.9:15008", "service": None,
        "dialled_from": None, "end": "2026-01-31T00:00:02.000000Z", "error": "io error: reset",
        "flag": "CONNECT",
    }  # fmt: skip
    return ProxyConnection(**half | changes)  # type: ignore[arg-type]  # the table is mixed


def test_show_adds_the_proxys_half() -> None:
    lines = render(detail(proxied()), Style()).splitlines()
    at = lines.index("ztunnel")
    assert "  security:        mtls" in lines[at:]
    assert "  error:           io error: reset" in lines[at:]
    assert "ztunnel" not in render(detail(), Style()).splitlines()


@pytest.mark.parametrize(
    ("record", "half", "same"),
    [
        ({}, {}, True),
        ({}, {"src": "10.42.1.7:51035"}, False),
        ({}, {"pod": "shop/other"}, False),
        ({"id": "3a02", "local": "10.42.1.7:1"}, {}, True),
        ({"captured_by": "none"}, {}, False),
        (
            {"dir": "in", "remote": "10.42.7.3:9"},
            {"dir": "in", "dialled_from": "10.42.7.3:9"},
            True,
        ),
        ({"dir": "in", "remote": "10.42.7.3:9"}, {"dir": "in", "dialled_from": None}, False),
    ],
)
def test_halves_are_joined_by_the_address_between_them(
    record: dict[str, object], half: dict[str, object], same: bool
) -> None:
    c = connection(**({"local": "10.42.1.7:51034", "pod": "shop/cart-7d9f6b", **record}))
    assert is_half(c, proxied(**half)) is same


def test_show_has_every_key_once() -> None:
    assert sorted(key for keys in BLOCKS.values() for key in keys) == sorted(KEYS)
    text = render(detail(), Style())
    lines = text.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(BLOCKS)
    assert "  bytes_sent:      12702 (12.4K)" in lines
    assert "  rtt_us:          340 (340us)" in lines
    assert "  end_reason:      -" in lines
    assert "  bytes_sent:      12702" in render(detail(), Style(exact=True)).splitlines()


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (
            ["conn", "show"],
            2,
            "nodenet: conn show needs an ID; list them: nodenet conn list",
        ),
        (
            ["conn", "show", "3a0x"],
            2,
            "nodenet: 3a0x is not a connection id; ids are hexadecimal, see: nodenet conn list",
        ),
        (
            ["conn", "list", "--state", "CLOSING_WAIT"],
            2,
            "nodenet: unknown state CLOSING_WAIT in --state; one of: established syn-sent syn-recv "
            "fin-wait-1 fin-wait-2 time-wait closed last-ack listen closing close-wait",
        ),
        (
            ["conn", "list"],
            4,
            "nodenet: no statistics: /sys/fs/bpf/nodenet-nn-nobody/maps/conns is not there; "
            "start capture: nodenet node run, or nodenet lab up",
        ),
        (
            ["conn", "summary"],
            4,
            "nodenet: no statistics: /sys/fs/bpf/nodenet-nn-nobody/maps/conns is not there; "
            "start capture: nodenet node run, or nodenet lab up",
        ),
        (
            ["conn", "list", "--all", "--closed"],
            2,
            "nodenet: --all and --closed: the kernel keeps closed connections of pods only",
        ),
        (
            ["conn", "watch", "--events", "opened"],
            2,
            "nodenet: unknown event opened in --events; one of: open established refused closed",
        ),
        (
            ["conn", "summary", "--by", "node"],
            2,
            "nodenet: unknown group node in --by; one of: pod peer edge process reason",
        ),
        (
            ["conn", "top", "--sort", "-bytes"],
            2,
            "nodenet: unknown key -bytes in --sort; one of: time pod peer dir id connections "
            "opened_per_s rate_bytes_sent_per_s rate_bytes_received_per_s rtt_us retransmits_per_s",
        ),
        (
            ["conn", "top", "-w", "0"],
            2,
            "nodenet: --watch 0: needs time between two rounds; write 0.5s",
        ),
    ],
)
def test_refusals(cli: Callable[..., Any], words: list[str], status: int, error: str) -> None:
    outcome = cli("--id", NOBODY, *words)
    assert (outcome.status, outcome.err.strip()) == (status, error)
    as_json = cli("--id", NOBODY, "-j", *words)
    assert as_json.status == as_json.json["exit"] == status


def test_an_unknown_sort_key_names_the_keys(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodenet.conns.query.open_connections", lambda *_, **__: iter([[]]))
    outcome = cli("--id", NOBODY, "conn", "list", "--sort", "bytes")
    assert outcome.status == 2
    assert outcome.err.startswith("nodenet: unknown key bytes in --sort; one of: id pod netns_")


def _emit(g: Globals, *batches: list[Connection]) -> None:
    def produce() -> Iterator[list[Connection]]:
        return iter(batches)

    emit_batches(g, produce, columns(), row_type=Connection, empty="no connections")


Output = pytest.CaptureFixture[bytes]


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (2, 1), (0, 2, 0, 3, 0), (1, 1, 1)], ids=str)
def test_streamed_json_is_one_array(capsysbinary: Output, sizes: tuple[int, ...]) -> None:
    g = Globals(json=True)
    _emit(g, *([connection()] * size for size in sizes))
    raw = capsysbinary.readouterr().out
    assert raw.endswith(b"]\n") and raw.count(b"\n") == 1
    assert json.loads(raw) == [msgspec.to_builtins(connection())] * sum(sizes)
    assert g.documents == 1


def test_streamed_json_equals_the_pretty_one(capsysbinary: Output) -> None:
    _emit(Globals(json=True), [connection()], [PLAIN])
    streamed = json.loads(capsysbinary.readouterr().out)
    _emit(Globals(pretty=True), [connection()], [PLAIN])
    pretty = capsysbinary.readouterr().out
    assert pretty.count(b"\n") > 10
    assert json.loads(pretty) == streamed


def test_sort_and_limit_need_all_rows(capsysbinary: Output) -> None:
    _emit(Globals(json=True, sort="-id", limit=1, quiet=True), [PLAIN], [connection()])
    assert [row["id"] for row in json.loads(capsysbinary.readouterr().out)] == ["3a01"]


def test_fail_empty_prints_no_array(capsysbinary: Output) -> None:
    with pytest.raises(NotFound, match="nothing found: no connections"):
        _emit(Globals(json=True, fail_empty=True))
    assert capsysbinary.readouterr().out == b""


def test_other_formats_are_not_streamed(capsysbinary: Output) -> None:
    _emit(Globals(output=Format.NAME), [connection()], [PLAIN])
    assert capsysbinary.readouterr().out == b"3a01\n39f0\n"
