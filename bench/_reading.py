"""How fast what the kernel holds can be read: whole maps, and the open connections.

Maps are read by `nodenet.kernel.maps.Map.read_all` and, to compare, dumped by bpftool as JSON; both
ways the kernel hands over every key and value. Listing is `nodenet conn list -j` as a user runs it,
a whole process, with its parts measured inside this process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from bench._load import Load, Side
from bench._machine import as_installed, two_cpus
from bench._report import Floor
from bench._run import Options, Progress
from bench._samples import Samples
from bench._world import POD_NAME, World, loaded
from nodenet.abi import Field, Layout, MapDef, MapType
from nodenet.conns.reader import ConnReader
from nodenet.errors import NodenetError
from nodenet.kernel.maps import Map

MAPS: Final = "whole map, 152 B values"
LISTING: Final = "open connections"
NODENET: Final = "nodenet"
BPFTOOL: Final = "bpftool"
SOCKETS: Final = 16_000

_KEY: Final = Layout("__u64", Field("key", "Q"))
_VALUE: Final = Layout("char[152]", Field("value", "152s", "bytes"))
_FILL_BATCH: Final = 100_000
_ADDRESS: Final = "127.0.0.1:8080"


class ReadingWrong(NodenetError):
    """A reading did not give what is there."""


def measure_maps(samples: Samples, options: Options, progress: Progress) -> list[Floor]:
    """100,000 and, unless quick, 1,000,000 entries."""
    sizes = [(100_000, 3 if options.quick else options.choose_rounds(7, 3))]
    if not options.quick:
        sizes.append((1_000_000, 3))
    for entries, rounds in sizes:
        with Map.create(MapDef("bench_read", MapType.HASH, _KEY, _VALUE, entries)) as table:
            _fill(table, entries)
            for turn in range(rounds):
                progress(f"maps: {entries} entries, round {turn + 1} of {rounds}")
                name = f"{entries} entries"
                samples.record(MAPS, name, "s", NODENET, _read_seconds(table, entries))
                samples.record(MAPS, name, "s", BPFTOOL, _bpftool_seconds(table))
    return [
        Floor(
            name="reading 100,000 map entries, nodenet/bpftool",
            sense="<=",
            wanted=0.1,
            got=samples.ratio(MAPS, "100000 entries", NODENET, BPFTOOL),
        )
    ]


def _fill(table: Map, entries: int) -> None:
    for start in range(0, entries, _FILL_BATCH):
        count = min(_FILL_BATCH, entries - start)
        # spread over the hash's buckets as cookies are: each key once
        keys = b"".join(i.to_bytes(8, "little") for i in range(start, start + count))
        table.update_batch(keys, bytes(range(152)) * count)


def _read_seconds(table: Map, entries: int) -> float:
    started = time.perf_counter()
    contents = table.read_all()
    elapsed = time.perf_counter() - started
    if contents.entries != entries or len(contents.values) != 152 * entries:
        raise ReadingWrong(f"map {table.name}: {contents.entries} of {entries} entries were read")
    return elapsed


def _bpftool_seconds(table: Map) -> float:
    argv = ["bpftool", "-j", "map", "dump", "id", str(table.id)]
    started = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def measure_listing(
    load: Load, samples: Samples, options: Options, progress: Progress
) -> list[Floor]:
    """The listing of 16,000 open sockets of one pod, whole and in parts."""
    rounds = options.choose_rounds(full=15, quick=5)
    progress(f"listing: {SOCKETS} open sockets")
    with World.made() as world, loaded(world) as capture:
        capture.enroll(world.pod.path, name=POD_NAME)
        _, cpu = two_cpus()
        where = Side(netns=world.pod.path, cpu=cpu)
        with load.holding(SOCKETS // 2, where=where, address=_ADDRESS):
            argv = [sys.executable, "-m", "nodenet.cli.main", "--id", str(world.ebpf.id)]
            argv += ["-j", "conn", "list"]
            _check_listing(argv)
            reader = ConnReader(world.ebpf)
            command = f"nodenet conn list -j, {SOCKETS} sockets"
            for _ in range(rounds):
                samples.record(LISTING, command, "ms", NODENET, _ms(lambda: _run(argv)))
                samples.record(LISTING, "iterator alone", "ms", NODENET, _ms(reader.live_records))
                samples.record(LISTING, "iterator and rows", "ms", NODENET, _ms(reader.live))
                samples.record(LISTING, "no sockets: nodenet version", "ms", NODENET, _ms(_start))
    return [
        Floor(
            name=f"ms of nodenet conn list -j with {SOCKETS} sockets",
            sense="<=",
            wanted=150.0,
            got=samples.median(LISTING, command, NODENET),
        )
    ]


def _check_listing(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, check=True, env=as_installed())
    rows = len(msgspec.json.decode(done.stdout, type=list[msgspec.Raw]))
    if rows != SOCKETS:
        raise ReadingWrong(f"conn list: {rows} of {SOCKETS} sockets are listed")


def _run(argv: list[str]) -> None:
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True, env=as_installed())


def _start() -> None:
    _run([sys.executable, "-m", "nodenet.cli.main", "version"])


def _ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3
