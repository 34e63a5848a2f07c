"""Framing of netlink messages: attributes, datagrams, ends of dumps. No socket is opened."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.kernel import netlink


def message(kind: int, body: bytes, *, flags: int = 0, sequence: int = 1) -> bytes:
    length = netlink.HEADER.size + len(body)
    padding = b"\0" * (-length & 3)
    return netlink.HEADER.pack(length, kind, flags, sequence, 0) + body + padding


@given(st.dictionaries(st.integers(1, 0x3FFF), st.binary(max_size=40), max_size=8))
def test_attributes_come_back_as_they_went_in(wanted: dict[int, bytes]) -> None:
    body = b"head" + b"".join(netlink.attribute(k, v) for k, v in wanted.items())
    assert netlink.attributes(body, 4) == wanted


def test_nested_and_byte_order_flags_are_not_part_of_the_type() -> None:
    raw = netlink.ATTRIBUTE.pack(8, 0x8000 | 7) + b"abcd"
    assert netlink.attributes(raw, 0) == {7: b"abcd"}


@given(st.binary(max_size=64))
def test_any_bytes_can_be_parsed(raw: bytes) -> None:
    netlink.attributes(raw, 0)
    list(netlink.split(raw))


def test_split_finds_every_message_of_a_datagram() -> None:
    datagram = message(20, b"abc", flags=2, sequence=7) + message(21, b"", sequence=8)
    assert list(netlink.split(datagram)) == [(20, 2, 7, b"abc"), (21, 0, 8, b"")]


def test_split_stops_at_a_message_that_was_cut() -> None:
    datagram = message(20, b"abcd") + message(21, b"abcdefgh")[:-4]
    assert [kind for kind, *_ in netlink.split(datagram)] == [20]


def test_the_end_of_a_dump_may_carry_an_error() -> None:
    netlink.check_end(struct.pack("=i", 0))
    netlink.check_end(b"")
    with pytest.raises(OSError) as raised:
        netlink.check_end(struct.pack("=i", -errno.ENOENT))
    assert raised.value.errno == errno.ENOENT


def test_a_dump_of_the_own_namespace_needs_no_right() -> None:
    ifaddrmsg = struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0)
    with netlink.NetlinkSocket(netlink.NETLINK_ROUTE) as sock:
        bodies = sock.dump(22, ifaddrmsg)
    assert all(body[0] == socket.AF_INET for body in bodies)


def test_a_refusal_names_the_errno_and_the_kernels_own_words() -> None:
    # a rule of an address family that cannot be
    rule = netlink.Message(32, netlink.NLM_F_CREATE, struct.pack("=BBBBBBBBI", 255, *[0] * 8))
    nothing = netlink.Message(0x3FFF, 0, b"")
    with netlink.NetlinkSocket(netlink.NETLINK_ROUTE) as sock:
        answers = sock.request(rule, nothing)
    assert [type(a) for a in answers] == [netlink.Refused, netlink.Refused]
    assert str(netlink.Refused(errno.EPERM, "")) == "Operation not permitted"
    assert str(netlink.Refused(errno.EPERM, "no")) == "no"
