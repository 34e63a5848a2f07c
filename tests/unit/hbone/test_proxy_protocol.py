"""PROXY protocol v2: the bytes of the specification, and a receiver that takes nothing else."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.hbone.proxy_protocol import (
    MAX_LENGTH,
    SIGNATURE,
    ProxyHeader,
    ProxyProtocolError,
    decode_proxy_header,
    encode_proxy_header,
)

V4 = ProxyHeader(
    ipaddress.ip_address("10.0.0.1"), 41000, ipaddress.ip_address("10.0.0.2"), 80, "spiffe://a"
)
V6 = ProxyHeader(ipaddress.ip_address("fd00::1"), 41000, ipaddress.ip_address("fd00::2"), 80)


def test_bytes_of_ipv4_with_identity() -> None:
    assert (
        encode_proxy_header(V4)
        == bytes.fromhex(
            "0d0a0d0a000d0a515549540a"  # signature
            "21 11 0019"  # version 2, PROXY; TCP over IPv4; 12 + 3 + 10 bytes follow
            "0a000001 0a000002 a028 0050"  # source, destination, ports
            "d0 000a"  # TLV of the identity
        )
        + b"spiffe://a"
    )


def test_bytes_of_ipv6_without_identity() -> None:
    assert encode_proxy_header(V6) == bytes.fromhex(
        "0d0a0d0a000d0a515549540a 21 21 0024"
        "fd000000000000000000000000000001 fd000000000000000000000000000002 a028 0050"
    )


def test_addresses_of_two_families() -> None:
    mixed = V6._replace(source=V4.source)
    decoded = decode_proxy_header(encode_proxy_header(mixed))
    assert decoded is not None
    assert decoded[0] == mixed._replace(source=ipaddress.ip_address("::ffff:10.0.0.1"))


def test_an_identity_too_long() -> None:
    with pytest.raises(ProxyProtocolError, match="4096 bytes"):
        encode_proxy_header(V4._replace(identity="s" * 4096))


_PORTS = st.integers(0, 65535)
_HEADERS = st.one_of(
    *(
        st.builds(
            ProxyHeader,
            st.ip_addresses(v=version),
            _PORTS,
            st.ip_addresses(v=version),
            _PORTS,
            st.none() | st.text(max_size=99),
        )
        for version in (4, 6)
    )
)


@given(_HEADERS, st.binary(max_size=9))
def test_both_ways_whatever_follows(header: ProxyHeader, app_bytes: bytes) -> None:
    data = encode_proxy_header(header)
    assert decode_proxy_header(data + app_bytes) == (header, len(data))


@pytest.mark.parametrize("header", [V4, V6])
def test_more_bytes_are_needed_until_the_last(header: ProxyHeader) -> None:
    data = encode_proxy_header(header)
    for size in range(len(data)):
        assert decode_proxy_header(data[:size]) is None


def spoiled(at: int, value: int) -> bytes:
    data = bytearray(encode_proxy_header(V4))
    data[at] = value
    return bytes(data)


def with_tlvs(tlvs: bytes) -> bytes:
    head = SIGNATURE + b"\x21\x11" + struct.pack("!H", 12 + len(tlvs))
    return head + bytes(12) + tlvs


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "signature"),
        (b"\r\n\r\n\0\r\nQUIX", "signature"),
        (spoiled(12, 0x20), "command 0x20"),
        (spoiled(12, 0x11), "command 0x11"),
        (spoiled(13, 0x12), "family 0x12"),
        (spoiled(13, 0x00), "family 0x00"),
        (SIGNATURE + b"\x21\x11\x00\x0b", "of 11 bytes"),
        (SIGNATURE + b"\x21\x21\x00\x0c", "of 12 bytes"),
        (SIGNATURE + b"\x21\x11\xff\xff", "of 65535 bytes"),
        (with_tlvs(b"\xd0"), "within a TLV"),
        (with_tlvs(b"\xd0\x00\x02a"), "within TLV 0xd0"),
        (with_tlvs(b"\xd0\x00\x01a" * 2), "two TLVs 0xd0"),
        (with_tlvs(b"\xd0\x00\x01\xff"), "not UTF-8"),
    ],
)
def test_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProxyProtocolError, match=reason):
        decode_proxy_header(data)


def test_unknown_tlvs_are_skipped() -> None:
    decoded = decode_proxy_header(with_tlvs(b"\x04\x00\x03\0\0\0" + b"\xd0\x00\x01a"))
    assert decoded is not None
    assert decoded[0].identity == "a"


@given(st.binary(max_size=80), st.booleans(), st.binary(max_size=4))
def test_decoding_fails_with_its_own_error_only(tail: bytes, signed: bool, fixed: bytes) -> None:
    data = (SIGNATURE + b"\x21" + fixed if signed else b"") + tail
    try:
        decoded = decode_proxy_header(data)
    except ProxyProtocolError:
        return
    assert decoded is None or decoded[1] <= min(len(data), 16 + MAX_LENGTH)
