"""Lines of the access log: fields, order, what is left out, quoting; plain and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from nodenet.agents.ztunnel.access_log import AccessLog, LogFormat, quoted
from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.flow_facts import FlowFacts
from nodenet.agents.ztunnel.timestamps import Timestamps
from nodenet.hbone.baggage import Baggage
from tests.unit.agents.ztunnel.flows import APP, CART_ID, DB_ID, VIP, inbound, outbound, plain

#: 2026-11-21T10:42:07.118004Z
NOW_NS = 1_795_257_727_118_004_321
TIME = "2026-11-21T10:42:07.118004Z"


def line(form: LogFormat, write: Callable[[AccessLog], None]) -> str:
    lines: list[bytes] = []
    write(AccessLog(form, lines.append, Timestamps(lambda: NOW_NS)))
    (found,) = lines
    assert found.endswith(b"\n")
    return found.decode()[:-1]


def complete(facts: FlowFacts, error: str | None = None, form: LogFormat = LogFormat.PLAIN) -> str:
    return line(form, lambda log: log.complete(facts, log.fragment(facts), 11, 22, 0.0129, error))


def test_a_tunnelled_connection() -> None:
    assert complete(outbound()) == (
        f"{TIME}\tinfo\taccess\tconnection complete\t"
        'src.addr=10.42.1.7:51034 src.workload="cart-7d9f6b" src.namespace="shop" '
        f'src.identity="{CART_ID}" src.cluster="Kubernetes" '
        "dst.addr=10.42.2.9:15008 dst.hbone_addr=10.42.2.9:5432 "
        'dst.service="db.shop.svc.cluster.local" dst.workload="db-0" dst.namespace="shop" '
        f'dst.identity="{DB_ID}" dst.cluster="Kubernetes" '
        'direction="outbound" bytes_sent=11 bytes_recv=22 duration="12ms" conn.id=3a01'
    )


def test_the_same_as_json_has_the_same_fields_in_the_same_order() -> None:
    text = complete(outbound(), 'a "bad" end', LogFormat.JSON)
    found = json.loads(text)
    assert list(found) == [
        "level", "time", "scope", "message",
        "src.addr", "src.workload", "src.namespace", "src.identity", "src.cluster",
        "dst.addr", "dst.hbone_addr", "dst.service", "dst.workload", "dst.namespace",
        "dst.identity", "dst.cluster",
        "direction", "bytes_sent", "bytes_recv", "duration", "error", "conn.id",
    ]  # fmt: skip
    assert found["level"] == "error"
    assert found["time"] == TIME
    assert found["scope"] == "access"
    assert (found["bytes_sent"], found["bytes_recv"]) == (11, 22)
    assert found["error"] == 'a "bad" end'
    assert found["dst.hbone_addr"] == "10.42.2.9:5432"


def test_without_mtls_no_identity_is_told_and_nothing_empty() -> None:
    assert complete(plain(src_identity=CART_ID)) == (
        f"{TIME}\tinfo\taccess\tconnection complete\t"
        'src.addr=10.42.1.7:51034 src.workload="cart-7d9f6b" src.namespace="shop" '
        'src.cluster="Kubernetes" dst.addr=203.0.113.9:443 '
        'direction="outbound" bytes_sent=11 bytes_recv=22 duration="12ms" conn.id=3a02'
    )


def test_an_end_that_is_known_by_baggage_has_its_canonical_service() -> None:
    told = Baggage(namespace="far", workload_name="web", service_name="web-svc", cluster="c2")
    text = complete(inbound(src_workload=None, src_baggage=told))
    assert 'src.workload="web-svc" src.namespace="far"' in text
    assert 'src.cluster="c2"' in text


def test_an_error_makes_the_line_an_error() -> None:
    text = complete(outbound(), "io error: Connection reset by peer (os error 104)")
    assert text.split("\t")[1] == "error"
    assert text.endswith(
        'duration="12ms" error="io error: Connection reset by peer (os error 104)" conn.id=3a01'
    )


def test_opened() -> None:
    facts = outbound()
    text = line(LogFormat.PLAIN, lambda log: log.opened(facts, log.fragment(facts)))
    assert text.split("\t")[1:4] == ["debug", "access", "connection opened"]
    assert text.endswith('direction="outbound" conn.id=3a01')
    found = json.loads(line(LogFormat.JSON, lambda log: log.opened(facts, log.fragment(facts))))
    assert found["message"] == "connection opened"
    assert found["conn.id"] == "3a01"


@pytest.mark.parametrize(("dst", "shown"), [(VIP, " dst.addr=10.96.0.20:5432"), (None, "")])
def test_failed_has_four_fields(dst: Address | None, shown: str) -> None:
    error = "no healthy upstream: 10.96.0.20:5432"
    text = line(LogFormat.PLAIN, lambda log: log.failed(APP, dst, "outbound", error))
    assert text == (
        f"{TIME}\twarn\taccess\tconnection failed\tsrc.addr=10.42.1.7:51034{shown} "
        f'direction="outbound" error="{error}"'
    )
    found = json.loads(line(LogFormat.JSON, lambda log: log.failed(APP, dst, "outbound", error)))
    assert found["error"] == error
    assert ("dst.addr" in found) is (dst is not None)


def test_ipv6_addresses_are_in_brackets() -> None:
    facts = outbound(src=Address("fd42:1::7", 40112), dst=Address("fd42:2::9", 15008))
    text = complete(facts)
    assert "src.addr=[fd42:1::7]:40112 " in text
    assert "dst.addr=[fd42:2::9]:15008 " in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", '"plain"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("two\nlines\t\x1b[31m", '"two\\nlines\\t\\x1b[31m"'),
        ("caf\u00e9", '"caf\u00e9"'),
    ],
)
def test_strings_stay_on_their_line(text: str, shown: str) -> None:
    assert quoted(text) == shown


def test_a_peer_cannot_write_lines_of_its_own() -> None:
    told = Baggage(namespace='x"\nwarn\taccess', workload_name="w", service_name="\udcff")
    for form in LogFormat:
        text = complete(inbound(src_workload=None, src_baggage=told), form=form)
        assert "\n" not in text
        assert text.count("\t") == (4 if form is LogFormat.PLAIN else 0)


def test_the_date_is_that_of_each_moment() -> None:
    moments = iter([1_000_000_000, 1_999_999_999, 86_400_000_000_000])
    stamps = Timestamps(lambda: next(moments))
    assert [stamps.text() for _ in range(3)] == [
        "1970-01-01T00:00:01.000000Z",
        "1970-01-01T00:00:01.999999Z",
        "1970-01-02T00:00:00.000000Z",
    ]


def test_an_authority_that_is_no_address_is_quoted() -> None:
    text = complete(inbound(hbone_addr='x src.identity="spiffe://admin":80'))
    assert ' dst.hbone_addr="x src.identity=\\"spiffe://admin\\":80" ' in text
    assert text.count("src.identity=") == 2
