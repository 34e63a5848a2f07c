"""Maps of every kind in the kernel: entries, whole maps, bounds, errors."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.abi import Field, Layout, MapDef, MapType
from nodenet.errors import NotFound
from nodenet.kernel.map_shape import possible_cpus
from nodenet.kernel.maps import Map, MapFailed, MapFull, NotListable, Update
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

U32 = Layout("__u32", Field("n", "I"))
U64 = Layout("__u64", Field("n", "Q"))
WIDE = Layout("wide", Field("bytes", "152s"))
ODD = Layout("odd", Field("bytes", "5s"))
LPM = Layout("lpm", Field("prefixlen", "I"), Field("n", "I"))
SOCKET_COOKIE = 57  # SO_COOKIE, linux/asm-generic/socket.h

HASHES = [
    MapDef("t_hash", MapType.HASH, U64, WIDE, 4000),
    MapDef("t_noprealloc", MapType.HASH, U64, WIDE, 4000, abi.F_NO_PREALLOC),
    MapDef("t_lru", MapType.LRU_HASH, U64, WIDE, 16000),
    MapDef("t_percpu", MapType.PERCPU_HASH, U64, ODD, 4000),
    MapDef("t_lpm", MapType.LPM_TRIE, LPM, WIDE, 4000, abi.F_NO_PREALLOC),
]


@pytest.fixture
def make() -> Iterator[Callable[[MapDef], Map]]:
    made: list[Map] = []

    def create(defn: MapDef) -> Map:
        made.append(Map.create(defn))
        return made[-1]

    yield create
    for one in made:
        one.close()


def key(map_: Map, n: int) -> bytes:
    return struct.pack("<II", 32, n) if map_.type == MapType.LPM_TRIE else n.to_bytes(8, "little")


def value(map_: Map, n: int) -> bytes:
    """Different on each CPU, so that mixing them up shows."""
    if not map_.per_cpu:
        return n.to_bytes(8, "little").ljust(map_.value_size, b"v")
    slots = (struct.pack("<IB3x", n, cpu) for cpu in range(possible_cpus()))
    return b"".join(slots)


def entries(map_: Map, batch: int | None) -> dict[bytes, bytes]:
    """What `read_all` gives, cut up."""
    contents = map_.read_all(batch_entries=batch)
    size, stride = map_.key_size, map_.value_stride
    assert len(contents.keys) == contents.entries * size
    assert len(contents.values) == contents.entries * stride
    return {
        bytes(contents.keys[i * size : (i + 1) * size]): bytes(
            contents.values[i * stride : (i + 1) * stride]
        )
        for i in range(contents.entries)
    }


@pytest.mark.parametrize("defn", HASHES, ids=lambda d: d.name)
def test_one_entry(defn: MapDef, make: Callable[[MapDef], Map]) -> None:
    map_ = make(defn)
    one = key(map_, 1)
    assert map_.lookup(one) is None
    assert map_.delete(one) is False
    map_.update(one, value(map_, 7))
    assert map_.lookup(one) == value(map_, 7)
    map_.update(one, value(map_, 8))
    assert map_.lookup(one) == value(map_, 8)
    assert map_.delete(one) is True
    assert map_.lookup(one) is None


@pytest.mark.parametrize("batch", [None, 1, 2, 100, 3999])
@pytest.mark.parametrize("defn", HASHES, ids=lambda d: d.name)
def test_the_whole_map(defn: MapDef, batch: int | None, make: Callable[[MapDef], Map]) -> None:
    map_ = make(defn)
    wanted = {key(map_, n): value(map_, n) for n in range(3000)}
    map_.update_batch(b"".join(wanted), b"".join(wanted.values()))
    assert map_.read_all(batch_entries=batch).entries == 3000
    assert entries(map_, batch) == wanted


@pytest.mark.parametrize("defn", HASHES, ids=lambda d: d.name)
def test_an_empty_map_and_emptying_one(defn: MapDef, make: Callable[[MapDef], Map]) -> None:
    map_ = make(defn)
    assert list(map_.items()) == []
    assert map_.count() == 0
    map_.clear()
    map_.update_batch(b"", b"")
    map_.delete_batch(b"")
    for n in range(50):
        map_.update(key(map_, n), value(map_, n))
    assert map_.count() == 50
    # some are gone already, in front, in the middle and at the end
    for n in (0, 1, 25, 49):
        assert map_.delete(key(map_, n))
    map_.delete_batch(b"".join(key(map_, n) for n in range(50)))
    assert map_.count() == 0


def test_a_full_map_is_read_whole(make: Callable[[MapDef], Map]) -> None:
    map_ = make(HASHES[0])
    wanted = {key(map_, n): value(map_, n) for n in range(4000)}
    map_.update_batch(b"".join(wanted), b"".join(wanted.values()))
    assert dict(map_.items()) == wanted
    with pytest.raises(MapFull, match="map t_hash: update"):
        map_.update(key(map_, 4000), value(map_, 1))


def test_per_cpu_values_come_apart(make: Callable[[MapDef], Map]) -> None:
    map_ = make(HASHES[3])
    map_.update(key(map_, 1), value(map_, 258))
    wanted = [b"\x02\x01\0\0" + bytes([cpu]) for cpu in range(possible_cpus())]
    assert map_.lookup_percpu(key(map_, 1)) == wanted
    assert list(map_.items_percpu()) == [(key(map_, 1), wanted)]
    assert map_.lookup_percpu(key(map_, 2)) is None


@pytest.mark.parametrize("kind", [MapType.ARRAY, MapType.PERCPU_ARRAY], ids=lambda k: k.name)
def test_arrays(kind: MapType, make: Callable[[MapDef], Map]) -> None:
    map_ = make(MapDef("t_array", kind, U32, U64, 10))
    three = (3).to_bytes(4, "little")
    filled = b"".join((n + 1).to_bytes(8, "little") for n in range(map_.value_stride // 8))
    map_.update(three, filled)
    assert map_.count() == 10
    found = dict(map_.items())
    assert len(found) == 10
    assert found[three] == filled
    assert map_.lookup((10).to_bytes(4, "little")) is None
    map_.clear()
    assert map_.lookup(three) == bytes(map_.value_stride)
    with pytest.raises(MapFailed):
        map_.delete(three)


def test_flags_of_an_update(make: Callable[[MapDef], Map]) -> None:
    map_ = make(HASHES[0])
    one = key(map_, 1)
    with pytest.raises(KeyError):
        map_.update(one, value(map_, 1), Update.EXIST)
    map_.update(one, value(map_, 1), Update.NOEXIST)
    with pytest.raises(FileExistsError):
        map_.update(one, value(map_, 2), Update.NOEXIST)
    map_.update(one, value(map_, 3), Update.EXIST)
    assert map_.lookup(one) == value(map_, 3)


def test_wrong_sizes_never_reach_the_kernel(make: Callable[[MapDef], Map]) -> None:
    map_ = make(HASHES[0])
    with pytest.raises(ValueError, match="key has 4 bytes, not 8"):
        map_.lookup(bytes(4))
    with pytest.raises(ValueError, match="key has 9 bytes"):
        map_.delete(bytes(9))
    with pytest.raises(ValueError, match="value has 1 bytes, not 152"):
        map_.update(bytes(8), b"x")
    with pytest.raises(ValueError, match="no keys of 8"):
        map_.delete_batch(bytes(12))
    with pytest.raises(ValueError, match="values has 152 bytes, not 304"):
        map_.update_batch(bytes(16), bytes(152))


def test_reading_a_map_that_changes_ends_and_invents_nothing(
    make: Callable[[MapDef], Map],
) -> None:
    map_ = make(HASHES[1])
    command = [sys.executable, "-c", CHURN, str(map_.id)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"churning\n"
            for batch in (None, 64, 1):
                for one, content in entries(map_, batch).items():
                    assert int.from_bytes(one, "little") < 3000
                    assert content[:8] == one
        finally:
            writer.kill()


CHURN = """
import random, sys
from nodenet.kernel.maps import Map
from nodenet.kernel.programs import map_by_id
with Map(map_by_id(int(sys.argv[1]))) as map_:
    numbers = [n.to_bytes(8, "little") for n in range(3000)]
    for one in numbers:
        map_.update(one, one.ljust(152, b"v"))
    print("churning", flush=True)
    while True:
        one = random.choice(numbers)
        if not map_.delete(one):
            map_.update(one, one.ljust(152, b"v"))
"""


def test_socket_storage_by_file_descriptor(make: Callable[[MapDef], Map]) -> None:
    map_ = make(abi.MAPS["conns"])
    record = abi.CONN.pack(cookie=42, comm=b"test")
    with socket.socket() as one, socket.socket() as other:
        map_.update(struct.pack("<i", one.fileno()), record)
        assert map_.lookup(struct.pack("<i", one.fileno())) == record
        assert map_.lookup(struct.pack("<i", other.fileno())) is None
    with pytest.raises(NotListable, match="map conns: cannot be listed"):
        map_.read_all()


def test_a_ring_buffer_has_no_entries(make: Callable[[MapDef], Map]) -> None:
    with pytest.raises(NotListable):
        list(make(abi.MAPS["evs"]).items())


def test_a_socket_hash_shows_cookies(make: Callable[[MapDef], Map]) -> None:
    map_ = make(abi.MAPS["lsn"])
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as two,
    ):
        wanted = {}
        for port, listener in ((15006, one), (15008, two)):
            where = abi.LSN_KEY.pack(netns=5, port=port)
            map_.update(where, struct.pack("<Q", listener.fileno()))
            wanted[where] = listener.getsockopt(socket.SOL_SOCKET, SOCKET_COOKIE, 8)
        assert dict(map_.items()) == wanted
        assert map_.count() == 2
    # the kernel takes a closed socket out by itself
    assert map_.count() == 0


def test_pin_open_and_gone(make: Callable[[MapDef], Map], instance: Instance) -> None:
    instance.maps.mkdir(parents=True)
    map_ = make(HASHES[0])
    path = instance.maps / "one"
    map_.pin(path)
    map_.update(key(map_, 1), value(map_, 1))
    with Map.open(path) as again:
        assert (again.id, again.name, again.shape) == (map_.id, "t_hash", map_.shape)
        assert again.lookup(key(map_, 1)) == value(map_, 1)
    with pytest.raises(FileExistsError):
        map_.pin(path)
    path.unlink()
    with pytest.raises(NotFound, match=f"no pinned object: {path}"):
        Map.open(path)


def test_an_unprivileged_user_is_told_what_is_missing() -> None:
    said = subprocess.run(
        [sys.executable, "-c", CREATE],
        user=65534,
        group=65534,
        cwd="/",
        env={"PYTHONPATH": str(Path(abi.__file__).parents[1]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.stdout == (
        "create map pods: not permitted, this process lacks CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF; "
        "run with sudo\n"
    ), said.stderr


CREATE = """
from nodenet import abi
from nodenet.errors import NotPermitted
from nodenet.kernel.maps import Map
try:
    Map.create(abi.MAPS["pods"])
except NotPermitted as error:
    print(error.line())
"""
