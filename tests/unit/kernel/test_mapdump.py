"""Decoding entries by the ABI."""

from __future__ import annotations

import ipaddress

import pytest

from nodenet import abi
from nodenet.abi import ConnFlag, PodFlag, Reason
from nodenet.errors import NodenetError
from nodenet.kernel.mapdump import (
    Key,
    check_layout,
    decoder,
    entries,
    hex_bytes,
    hex_entries,
    matcher,
    open_map,
)
from nodenet.paths import Instance


class Table:
    """What a dump needs of an open map."""

    def __init__(self, definition: abi.MapDef, content: dict[bytes, list[bytes]]) -> None:
        assert definition.key and definition.value
        self.key_size = definition.key.size
        self.value_size = definition.value.size
        self.per_cpu = definition.type in (abi.MapType.PERCPU_ARRAY, abi.MapType.PERCPU_HASH)
        self._content = content

    def items(self) -> list[tuple[bytes, bytes]]:
        return [(key, values[0]) for key, values in self._content.items()]

    def items_percpu(self) -> list[tuple[bytes, list[bytes]]]:
        return list(self._content.items())


def _ip(text: str) -> bytes:
    return abi.pack_ip(ipaddress.ip_address(text))


def test_each_role() -> None:
    flags = int(PodFlag.OUT | PodFlag.LIVE) | 1 << 30
    raw = abi.POD.pack(flags=flags, id=7, ip4=_ip("10.42.1.7"), outbound_port=15001, enrolled_ns=9)
    assert decoder(abi.POD)(raw) == {
        "flags": ["out", "live", "0x40000000"],
        "id": 7,
        "ip4": "10.42.1.7",
        "ip6": None,
        "outbound_port": 15001,
        "inbound_port": 0,
        "dns_port": 0,
        "hbone_port": 0,
        "enrolled_ns": 9,
    }
    byp = decoder(abi.BYP)
    assert byp(abi.BYP.pack(since_ns=5, reason=Reason.FROM_PROXY)) == {
        "since_ns": 5,
        "reason": "from-proxy",
    }
    assert byp(abi.BYP.pack(reason=0))["reason"] is None
    assert byp(abi.BYP.pack(reason=99))["reason"] == "reason-99"
    conn = decoder(abi.CONN)(
        abi.CONN.pack(cookie=1 << 60, flags=ConnFlag.CAPTURED | ConnFlag.PROXY, comm=b"curl\0x")
    )
    assert conn["cookie"] == str(1 << 60)
    assert conn["flags"] == ["captured", "proxy"] and conn["comm"] == "curl"
    cidr = abi.CIDR_KEY.pack(prefixlen=72, netns_be=(41).to_bytes(8, "big"), ip=_ip("10.0.0.0"))
    assert decoder(abi.CIDR_KEY)(cidr) == {"prefixlen": 72, "netns_be": "41", "ip": "10.0.0.0"}


def test_the_shape_of_bpftool_and_the_order_of_keys() -> None:
    definition = abi.MAPS["lips"]
    value = abi.LIP.pack(netns=41, pod_id=7)
    keys = [abi.LIP_KEY.pack(netns=41, ip=_ip(ip)) for ip in ("10.0.0.9", "10.0.0.10", "fd42::7")]
    table = Table(definition, {key: [value] for key in keys})
    found = entries(table, definition)  # type: ignore[arg-type]
    assert found[1] == {
        "key": {"netns": "41", "ip": "10.0.0.9"},
        "value": {"netns": "41", "pod_id": 7, "node_id": 0},
    }
    assert [str(e["key"]) for e in found] == [
        "netns=41,ip=10.0.0.10",
        "netns=41,ip=10.0.0.9",
        "netns=41,ip=fd42::7",
    ]
    raw = hex_entries(table)  # type: ignore[arg-type]
    assert raw[0]["value"] == hex_bytes(value) and raw[0]["value"][0] == "0x29"


def test_per_cpu_maps_have_a_value_for_each() -> None:
    definition = abi.MAPS["stat"]
    key = abi.INDEX_KEY.pack(index=abi.Stat.EVENTS_LOST)
    table = Table(definition, {key: [abi.COUNTER.pack(value=n) for n in (3, 4)]})
    assert entries(table, definition) == [  # type: ignore[arg-type]
        {
            "key": {"index": 64, "name": "events-lost"},
            "values": [{"cpu": 0, "value": {"value": 3}}, {"cpu": 1, "value": {"value": 4}}],
        }
    ]


@pytest.mark.parametrize(
    ("name", "index", "text"),
    [
        ("stat", 10, "out-captured"),
        ("stat", 32 + 9, "in-proxy-down"),
        ("stat", 65, "no-storage"),
        ("stat", 31, None),
        ("stat", 127, None),
        ("watch", 3, "refused"),
        ("watch", 77, None),
    ],
)
def test_indices_have_names(name: str, index: int, text: str | None) -> None:
    definition = abi.MAPS[name]
    table = Table(definition, {abi.INDEX_KEY.pack(index=index): [abi.COUNTER.pack(value=1)]})
    assert entries(table, definition)[0]["key"]["name"] == text  # type: ignore[arg-type]


def test_conditions_on_the_key() -> None:
    fits = matcher(abi.MAPS["lips"], {"ip": "10.0.0.9"})
    assert fits({"key": Key(ip="10.0.0.9")}) and not fits({"key": Key(ip="10.0.0.1")})
    both = matcher(abi.MAPS["agg"], {"pod_id": "7", "dir": "1"})
    assert both({"key": {"pod_id": 7, "dir": 1}}) and not both({"key": {"pod_id": 7, "dir": 2}})
    assert matcher(abi.MAPS["lips"], {})({"key": {}})
    with pytest.raises(NodenetError) as raised:
        matcher(abi.MAPS["agg"], {"pod": "7"})
    assert raised.value.line() == ("map agg has no key field pod; one of: pod_id dir reason via")
    assert raised.value.exit_code == 2


def test_another_layout_is_refused() -> None:
    definition = abi.MAPS["pods"]
    table = Table(definition, {})
    check_layout(table, definition, 1)  # type: ignore[arg-type]
    table.value_size = 48
    with pytest.raises(NodenetError) as raised:
        check_layout(table, definition, 2)  # type: ignore[arg-type]
    assert raised.value.line() == (
        f"map pods: value is 48 bytes, this nodenet expects 56 (schema 2 against {abi.SCHEMA}); "
        "use --hex"
    )
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("name", "line", "code"),
    [
        (
            "nmae",
            "no map nmae; nodenet has: agg byp cfg cidrs closed conns dnsd evs flows lips live lsn "
            "pods ports stat watch",
            4,
        ),
        (
            "evs",
            "map evs is a ring buffer and cannot be dumped; use: nodenet conn watch",
            2,
        ),
        (
            "conns",
            "map conns hangs on the sockets and cannot be dumped; use: nodenet conn list",
            2,
        ),
        (
            "pods",
            "map pods is not loaded: /sys/fs/bpf/nodenet-nn-nobody/maps/pods is not there; "
            "start capture: nodenet node run, or nodenet lab up",
            4,
        ),
    ],
)
def test_what_cannot_be_dumped(name: str, line: str, code: int) -> None:
    with pytest.raises(NodenetError) as raised:
        open_map(Instance("nn-nobody"), name)
    assert (raised.value.line(), raised.value.exit_code) == (line, code)
