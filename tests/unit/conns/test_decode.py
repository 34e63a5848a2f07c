"""Records to rows, field by field."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet import abi
from nodenet.abi import ConnFlag, Direction, EventKind, Reason
from nodenet.conns import decode
from nodenet.conns.connection import Connection
from nodenet.conns.decode import Decoder, address_text, kinds, offsets_by_netns, written_records
from nodenet.conns.names import Names
from nodenet.paths import Instance

Record = Callable[..., bytes]
Rows = Callable[..., list[Connection]]


def test_the_fast_layout_is_that_of_the_abi() -> None:
    """Members read together must be neighbours, in the ABI's order, with nothing left out."""
    groups = (
        "cookie", "netns cgroup", "start_ns", "local", "remote", "orig", "local_port",
        "remote_port", "orig_port", "family dir", "pid", "state flags reason via", "comm", "end_ns",
        "bytes_sent", "bytes_acked", "bytes_received", "srtt_us", "rtt_min_us", "retransmits",
        "lost", "segs_out", "segs_in", "cwnd", "kind old_state err", "pod_id pad",
    )  # fmt: skip
    assert " ".join(groups).split() == list(abi.EVENT.names)
    offsets = abi.EVENT.offsets()
    codes = [code for code in decode.FAST.format.removeprefix("<").split(" ") if code]
    singles: list[str] = []
    for code in codes:
        if code[0].isdigit():
            part = ""
            for letter in code:
                part += letter
                if letter.isalpha():
                    singles.append(part)
                    part = ""
        else:
            singles += list(code)
    assert len(singles) == len(groups)
    position = 0
    for code, group in zip(singles, groups, strict=True):
        members = [offsets[name] for name in group.split()]
        assert members[0][0] == position
        assert sum(size for _, size in members) == struct.calcsize("<" + code)
        position += struct.calcsize("<" + code)
    assert position == abi.EVENT.size


def test_every_key_of_an_open_captured_connection(record: Record, rows: Rows) -> None:
    (row,) = rows(record())
    assert msgspec.to_builtins(row) == {
        "id": "3a01",
        "pod": "shop/cart-7d9f6b",
        "netns_cookie": "41",
        "cgroup": "/cg7",
        "dir": "out",
        "family": 4,
        "local": "10.42.1.7:51034",
        "remote": "10.42.1.7:15001",
        "orig_dst": "10.42.1.9:5432",
        "peer_name": "shop/db-1",
        "state": "established",
        "captured_by": "ebpf",
        "reason": "captured",
        "rule": "O8",
        "bytes_sent": 12_702,
        "bytes_received": 3_100_000,
        "bytes_acked": 12_000,
        "segs_out": 30,
        "segs_in": 40,
        "retransmits": 2,
        "lost": 1,
        "rtt_us": 340,
        "rtt_min_us": 290,
        "cwnd": 10,
        "start": "2026-01-31T00:00:01.000000Z",
        "end": None,
        "duration_us": None,
        "pid": 4711,
        "comm": "python3",
        "end_reason": None,
        "end_by": None,
        "errno": None,
        "proxy": False,
    }
    assert row.peer == "10.42.1.9:5432"
    assert row.peer_label == "shop/db-1:5432"
    assert row.process == "python3[4711]"


def test_inbound_the_peer_is_who_connected(record: Record, rows: Rows) -> None:
    (row,) = rows(
        record(
            dir=Direction.IN,
            local="10.42.1.9",
            local_port=5432,
            remote="10.42.1.7",
            remote_port=40110,
            orig="10.42.1.9",
            orig_port=5432,
            netns=42,
        )
    )
    assert (row.peer, row.peer_name, row.rule) == ("10.42.1.7:40110", "shop/cart-7d9f6b", "I10")
    assert row.orig_dst == "10.42.1.9:5432"


def test_ipv6_has_brackets_and_a_mapped_address_is_ipv4(record: Record, rows: Rows) -> None:
    (row,) = rows(
        record(local="fd42:1::7", remote="2001:db8::25", remote_port=443, orig=b"", family=10)
    )
    assert (row.local, row.remote) == ("[fd42:1::7]:51034", "[2001:db8::25]:443")
    assert (row.family, row.orig_dst, row.peer) == (6, None, "[2001:db8::25]:443")
    (mapped,) = rows(record(remote=abi.pack_ip(ipaddress.IPv4Address("10.0.0.1"))))
    assert mapped.remote == "10.0.0.1:15001"


def test_what_is_absent_is_none(record: Record, rows: Rows) -> None:
    (row,) = rows(
        record(
            srtt_us=0, rtt_min_us=0xFFFFFFFF, pid=0, comm=b"", reason=0, via=0, orig=b"", netns=99
        )
    )
    assert (row.rtt_us, row.rtt_min_us, row.pid, row.comm) == (None, None, None, None)
    assert (row.reason, row.rule, row.captured_by) == (None, None, "none")
    assert (row.pod, row.pod_label, row.process) == (None, "netns:99", None)


def test_a_closed_one_has_an_end(record: Record, rows: Rows) -> None:
    (row,) = rows(
        record(
            kind=EventKind.CLOSED,
            state=7,
            old_state=9,
            flags=ConnFlag.CAPTURED | ConnFlag.PEER_FIN,
            end_ns=3_500_123_999,
        )
    )
    assert (row.state, row.end) == ("closed", "2026-01-31T00:00:03.500123Z")
    assert (row.end_reason, row.end_by, row.errno) == ("fin", "peer", None)
    assert row.duration_us == 2_500_123


def test_refused_by_the_capture(record: Record, rows: Rows) -> None:
    """The socket has no address yet: the pod's own one of that family stands for it."""
    refused = {
        "kind": EventKind.REFUSED,
        "state": 7,
        "old_state": 0,
        "err": 111,
        "local": b"",
        "local_port": 0,
        "remote": "10.96.0.20",
        "remote_port": 5432,
        "orig": b"",
        "reason": Reason.PROXY_DOWN,
        "via": 0,
    }
    (row,) = rows(record(**refused))
    assert (row.local, row.remote) == ("10.42.1.7:0", "10.96.0.20:5432")
    assert (row.reason, row.rule, row.errno) == ("proxy-down", "O7", "ECONNREFUSED")
    assert (row.end_reason, row.end_by) == ("refused", "local")
    (six,) = rows(record(**refused, family=10))
    assert six.local == "[fd42:1::7]:0"
    (unknown,) = rows(record(**refused, netns=99))
    assert unknown.local == "0.0.0.0:0"


def test_the_proxys_own_sockets_and_other_namespaces_can_be_left_out(
    record: Record, rows: Rows
) -> None:
    raw = (record(cookie=1), record(cookie=2, flags=ConnFlag.PROXY), record(cookie=3, netns=42))
    assert [r.id for r in rows(*raw)] == ["1", "2", "3"]
    assert [r.proxy for r in rows(*raw)] == [False, True, False]
    assert [r.id for r in rows(*raw, proxy=False)] == ["1", "3"]
    assert [r.id for r in rows(*raw, netns={42})] == ["3"]
    size = abi.EVENT.size
    assert [r.id for r in rows(*raw, offsets=[2 * size, 0])] == ["3", "1"]


def test_numbers_a_newer_kernel_side_writes_are_shown_not_fatal(record: Record, rows: Rows) -> None:
    (row,) = rows(record(reason=31, state=77, via=9, dir=7))
    assert (row.reason, row.rule) == ("reason-31", None)
    assert (row.state, row.captured_by, row.dir) == ("state-77", "none", None)


def test_a_process_name_may_be_any_bytes(record: Record, rows: Rows) -> None:
    (row,) = rows(record(comm=b"\xff\xfe\0rest-is-old"))
    assert row.comm == "��"


def test_an_unchanged_directory_is_not_read_again(record: Record, names: Names) -> None:
    decoder = Decoder(names, lambda number: None, 0)
    (row,) = decoder.rows(record())
    assert row.pod == "shop/cart-7d9f6b"
    assert names.refresh() is False


def test_kinds_and_end_times_are_read_without_rows(record: Record) -> None:
    raw = record(kind=EventKind.OPEN, end_ns=5) + record(kind=EventKind.CLOSED, end_ns=9)
    assert list(kinds(raw)) == [EventKind.OPEN, EventKind.CLOSED]
    assert list(decode.end_times(raw)) == [5, 9]


def test_records_of_a_ring(record: Record) -> None:
    """Slots without a cookie are empty or being written."""
    one, empty, two = (
        record(cookie=1, end_ns=10),
        bytes(abi.EVENT.size),
        record(cookie=2, end_ns=20),
    )
    ring = memoryview(one + empty + two)
    assert bytes(written_records(ring)) == one + two
    assert bytes(written_records(ring, since_boot_ns=20)) == two
    full = memoryview(one + two)
    assert written_records(full) is full
    found = decode.find_record(ring, 2)
    assert found is not None and bytes(found) == two
    assert decode.find_record(ring, 3) is None


def test_offsets_by_namespace_are_oldest_first(record: Record) -> None:
    raw = b"".join(
        record(netns=netns, start_ns=start) for netns, start in ((41, 9), (42, 5), (41, 3))
    )
    size = abi.EVENT.size
    assert offsets_by_netns(memoryview(raw)) == {41: [2 * size, 0], 42: [size]}
    assert offsets_by_netns(memoryview(b"")) == {}


@given(st.binary(min_size=16, max_size=16))
def test_any_address_is_text_that_reads_back(raw: bytes) -> None:
    text = address_text(raw)
    address = abi.unpack_ip(raw)
    assert ipaddress.ip_address(text.strip("[]")) == address
    assert text.startswith("[") == (address.version == 6)


@given(st.binary(min_size=abi.EVENT.size, max_size=abi.EVENT.size))
def test_any_bytes_are_a_row(raw: bytes) -> None:
    """Whatever the kernel wrote, a list command shows it."""
    decoder = Decoder(Names(Instance("none")), lambda number: None, 0)
    (row,) = decoder.rows(raw)
    assert msgspec.json.decode(msgspec.json.encode(row))["id"] == row.id


@pytest.mark.parametrize("second", [0, 86_399, 1_769_817_600])
def test_times_are_utc_with_microseconds(record: Record, names: Names, second: int) -> None:
    decoder = Decoder(names, lambda number: None, 0)
    (row,) = decoder.rows(record(start_ns=second * 10**9 + 7_008_999))
    expected = {0: "1970-01-01T00:00:00", 86_399: "1970-01-01T23:59:59"}.get(
        second, "2026-01-31T00:00:00"
    )
    assert row.start == f"{expected}.007008Z" == decoder.time(second * 10**9 + 7_008_999)
