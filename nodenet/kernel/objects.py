"""Programs and maps of the kernel as rows, with bpftool's keys and values, then ours.

An instance's objects are found by their pins; `all_programs` and `all_maps` list the whole
kernel's. Keys up to ``pids`` are those of ``bpftool -j prog show`` and ``map show``, which leaves
out zeroes where these rows always have every key.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from nodenet import abi
from nodenet.errors import NodenetError, NotFound
from nodenet.kernel import pins
from nodenet.kernel.links import LinkInfo, link_info
from nodenet.kernel.maps import Map
from nodenet.kernel.programs import (
    ProgramInfo,
    bytes_memlock,
    map_by_id,
    program_by_id,
    program_info,
)
from nodenet.kernel.syscall import Command, bpf, object_info
from nodenet.paths import Instance
from nodenet.times import rfc3339_ns

# linux/bpf.h, in order; names as bpftool prints them
PROG_TYPES: Final = (
    "unspec", "socket_filter", "kprobe", "sched_cls", "sched_act", "tracepoint", "xdp",
    "perf_event", "cgroup_skb", "cgroup_sock", "lwt_in", "lwt_out", "lwt_xmit", "sock_ops",
    "sk_skb", "cgroup_device", "sk_msg", "raw_tracepoint", "cgroup_sock_addr", "lwt_seg6local",
    "lirc_mode2", "sk_reuseport", "flow_dissector", "cgroup_sysctl", "raw_tracepoint_writable",
    "cgroup_sockopt", "tracing", "struct_ops", "ext", "lsm", "sk_lookup", "syscall", "netfilter",
)  # fmt: skip
MAP_TYPES: Final = (
    "unspec", "hash", "array", "prog_array", "perf_event_array", "percpu_hash", "percpu_array",
    "stack_trace", "cgroup_array", "lru_hash", "lru_percpu_hash", "lpm_trie", "array_of_maps",
    "hash_of_maps", "devmap", "sockmap", "cpumap", "xskmap", "sockhash", "cgroup_storage",
    "reuseport_sockarray", "percpu_cgroup_storage", "queue", "stack", "sk_storage", "devmap_hash",
    "struct_ops", "ringbuf", "inode_storage", "task_storage", "bloom_filter", "user_ringbuf",
    "cgrp_storage", "arena",
)  # fmt: skip
#: cgroup id to how its directory is shown.
CgroupName = Callable[[int], str]
_MAP_INFO_BYTES: Final = 88
_MAP_BTF_ID_OFFSET: Final = 64


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds an object open."""

    pid: int
    comm: str


class ProgramRow(msgspec.Struct, frozen=True, kw_only=True):
    """One program. Sizes in bytes, times in ns."""

    id: int
    type: str
    name: str
    tag: str
    gpl_compatible: bool
    run_time_ns: int
    run_cnt: int
    recursion_misses: int
    loaded_at: int
    """Unix seconds, as bpftool has it."""
    uid: int
    bytes_xlated: int
    jited: bool
    bytes_jited: int
    bytes_memlock: int
    map_ids: tuple[int, ...]
    btf_id: int | None
    pids: tuple[Holder, ...]
    pinned: tuple[str, ...]
    """Pins of the program itself, below the instance's directory."""
    hook: str | None
    attach: tuple[str, ...]
    """Where each link attaches it: a cgroup's path, ``netns:INODE``, ``map:NAME``."""
    link_id: tuple[int, ...]
    link_pinned: tuple[str, ...]
    schema: int | None
    loaded_at_time: str
    """The same as ``loaded_at`` in RFC 3339."""
    runs: int | None = None
    """Runs while statistics were on (--stats), as the two that follow."""
    ns_per_run: int | None = None
    cpu_percent: float | None = None
    """Of one processor."""


class MapRow(msgspec.Struct, frozen=True, kw_only=True):
    """One map. Sizes in bytes."""

    id: int
    type: str
    name: str
    flags: int
    bytes_key: int
    bytes_value: int
    max_entries: int
    bytes_memlock: int
    frozen: int
    btf_id: int | None
    pids: tuple[Holder, ...]
    pinned: tuple[str, ...]
    entries: int | None
    """None for types that cannot be counted."""
    fill: float | None
    """Percent of ``max_entries``."""
    evicted: int | None
    """Entries the kernel dropped for newer ones; None where nobody counts them."""
    schema: int | None


class Pinned(msgspec.Struct, frozen=True):
    """What is pinned below one instance, by program id."""

    programs: dict[int, tuple[str, ...]]
    links: dict[int, tuple[tuple[str, LinkInfo], ...]]


def read_schema(instance: Instance) -> int | None:
    """The schema an instance's maps were made with; None when it is not loaded."""
    try:
        with Map.open(instance.maps / "cfg") as cfg:
            raw = cfg.lookup(abi.INDEX_KEY.pack(index=0))
    except NotFound:
        return None
    return int.from_bytes(raw[:4], "little") if raw else None


def cgroup_directory(cgroup_id: int) -> str:
    """The directory of a cgroup; ``cgroup:ID`` when it has gone or cgroup2 is not mounted."""
    from nodenet.kernel.cgroups import CgroupPaths

    if not cgroup_id:
        return "cgroup:gone"
    try:
        paths = CgroupPaths()
        name = paths.name(cgroup_id)
    except NodenetError:
        name = None
    return f"cgroup:{cgroup_id}" if name is None else f"{paths.mount}{name}".rstrip("/")


def read_pins(instance: Instance) -> Pinned:
    """Opens every pin of programs and links and asks what it is."""
    programs: defaultdict[int, list[str]] = defaultdict(list)
    links: defaultdict[int, list[tuple[str, LinkInfo]]] = defaultdict(list)
    for path in _files(instance.progs):
        with _opened(path) as fd:
            if fd is not None:
                programs[program_info(fd).id].append(str(path))
    for path in _files(instance.links):
        with _opened(path) as fd:
            if fd is not None:
                found = link_info(fd)
                links[found.prog_id].append((str(path), found))
    return Pinned(
        {ident: tuple(paths) for ident, paths in programs.items()},
        {ident: tuple(sorted(found)) for ident, found in links.items()},
    )


def instance_programs(
    instance: Instance, schema: int | None, cgroup_name: CgroupName
) -> list[ProgramRow]:
    """The programs an instance has pinned, in the order of `nodenet.abi.PROGRAMS`."""
    pinned = read_pins(instance)
    holders = find_holders("prog")
    order = list(abi.PROGRAMS)
    rows = [
        row
        for ident in {*pinned.programs, *pinned.links}
        if (row := _program_row(ident, pinned, holders, schema, cgroup_name)) is not None
    ]
    return sorted(rows, key=lambda r: (order.index(r.name) if r.name in order else 99, r.id))


def all_programs(
    instance: Instance, schema: int | None, cgroup_name: CgroupName
) -> list[ProgramRow]:
    """Every program of the kernel by id; our keys are filled in for the instance's."""
    pinned = read_pins(instance)
    holders = find_holders("prog")
    found = (
        _program_row(ident, pinned, holders, schema, cgroup_name)
        for ident in _ids(Command.PROG_GET_NEXT_ID)
    )
    return [row for row in found if row is not None]


def instance_maps(instance: Instance, schema: int | None) -> list[MapRow]:
    """The maps an instance has pinned, by name."""
    holders = find_holders("map")
    rows = []
    for path in _files(instance.maps):
        with _opened(path) as fd:
            if fd is not None:
                rows.append(_map_row(fd, holders, (str(path),), schema))
    return rows


def all_maps(instance: Instance, schema: int | None) -> list[MapRow]:
    """Every map of the kernel by id; our keys are filled in for the instance's."""
    ours = {row.id: row for row in instance_maps(instance, schema)}
    holders = find_holders("map")
    rows = []
    for ident in _ids(Command.MAP_GET_NEXT_ID):
        if ident in ours:
            rows.append(ours[ident])
            continue
        with contextlib.suppress(NodenetError):
            fd = map_by_id(ident)
            try:
                rows.append(_map_row(fd, holders, (), None))
            finally:
                os.close(fd)
    return rows


def find_holders(kind: Literal["prog", "map"]) -> dict[int, tuple[Holder, ...]]:
    """Object id to the processes with a descriptor of it, found in /proc."""
    wanted, label = f"anon_inode:bpf-{kind}", f"{kind}_id:"
    found: defaultdict[int, dict[int, Holder]] = defaultdict(dict)
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):  # the process, or its descriptor, has gone
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if pid == os.getpid() or os.readlink(f"/proc/{pid}/fd/{fd}") != wanted:
                    continue
                with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as lines:
                    ident = next((int(x.split()[1]) for x in lines if x.startswith(label)), None)
                if ident is not None and pid not in found[ident]:
                    comm = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
                    found[ident][pid] = Holder(pid=pid, comm=comm)
    return {ident: tuple(by_pid[p] for p in sorted(by_pid)) for ident, by_pid in found.items()}


def measured(rows: list[ProgramRow], later: list[ProgramRow], seconds: float) -> list[ProgramRow]:
    """``later`` with what the programs did since ``rows``, ``seconds`` before."""
    before = {row.id: row for row in rows}
    found = []
    for row in later:
        old = before.get(row.id)
        if old is not None:
            runs, spent = row.run_cnt - old.run_cnt, row.run_time_ns - old.run_time_ns
            row = msgspec.structs.replace(
                row,
                runs=runs,
                ns_per_run=spent // runs if runs else None,
                cpu_percent=round(spent / seconds / 1e7, 3),
            )
        found.append(row)
    return found


def _program_row(
    ident: int,
    pinned: Pinned,
    holders: Mapping[int, tuple[Holder, ...]],
    schema: int | None,
    cgroup_name: CgroupName,
) -> ProgramRow | None:
    try:
        fd = program_by_id(ident)
    except NodenetError:
        return None  # unloaded meanwhile
    try:
        info = program_info(fd)
    finally:
        os.close(fd)
    links = pinned.links.get(ident, ())
    ours = bool(links) or ident in pinned.programs
    return _described(
        info,
        holders.get(ident, ()),
        pinned.programs.get(ident, ()),
        links,
        schema if ours else None,
        cgroup_name,
    )


def _described(
    info: ProgramInfo,
    pids: tuple[Holder, ...],
    pinned: tuple[str, ...],
    links: tuple[tuple[str, LinkInfo], ...],
    schema: int | None,
    cgroup_name: CgroupName,
) -> ProgramRow:
    definition = abi.PROGRAMS.get(info.name)
    return ProgramRow(
        id=info.id,
        type=_name(PROG_TYPES, info.type),
        name=info.name,
        tag=info.tag,
        gpl_compatible=info.gpl_compatible,
        run_time_ns=info.run_time_ns,
        run_cnt=info.run_cnt,
        recursion_misses=info.recursion_misses,
        loaded_at=int(info.loaded_at),
        uid=info.uid,
        bytes_xlated=info.bytes_xlated,
        jited=info.jited,
        bytes_jited=info.bytes_jited,
        bytes_memlock=info.bytes_memlock,
        map_ids=info.map_ids,
        btf_id=info.btf_id or None,
        pids=pids,
        pinned=pinned,
        hook=definition.hook if definition and (links or pinned) else None,
        attach=tuple(_target(found, cgroup_name) for _, found in links),
        link_id=tuple(found.id for _, found in links),
        link_pinned=tuple(path for path, _ in links),
        schema=schema,
        loaded_at_time=rfc3339_ns(int(info.loaded_at * 1e9)),
    )


def _target(link: LinkInfo, cgroup_name: CgroupName) -> str:
    if link.cgroup_id is not None:
        return cgroup_name(link.cgroup_id)
    if link.netns_ino is not None:
        return f"netns:{link.netns_ino}"
    if link.map_id is not None:
        with contextlib.suppress(NodenetError), Map(map_by_id(link.map_id)) as table:
            return f"map:{table.name}"
        return f"map:{link.map_id}"
    return link.type_name


def _map_row(
    fd: int,
    holders: Mapping[int, tuple[Holder, ...]],
    pinned: tuple[str, ...],
    schema: int | None,
) -> MapRow:
    raw = bytearray(_MAP_INFO_BYTES)
    object_info(fd, raw)
    kind, ident, key, value, bound, flags, name = struct.unpack_from("<IIIIII16s", raw)
    (btf_id,) = struct.unpack_from("<I", raw, _MAP_BTF_ID_OFFSET)
    entries = _entries(fd) if pinned else None
    return MapRow(
        id=ident,
        type=_name(MAP_TYPES, kind),
        name=name.rstrip(b"\0").decode(errors="replace"),
        flags=flags,
        bytes_key=key,
        bytes_value=value,
        max_entries=bound,
        bytes_memlock=bytes_memlock(fd),
        frozen=_frozen(fd),
        btf_id=btf_id or None,
        pids=holders.get(ident, ()),
        pinned=pinned,
        entries=entries,
        fill=round(100 * entries / bound, 2) if entries is not None and bound else None,
        evicted=None,
        schema=schema,
    )


def _entries(fd: int) -> int | None:
    try:
        with Map(os.dup(fd)) as table:
            return table.count()
    except NodenetError:
        return None


def _frozen(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("frozen:")), 0)


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else str(number)


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.rglob("*") if not path.is_dir())


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """A descriptor of a pin; None when it has gone meanwhile."""
    try:
        fd: int | None = pins.get(path)
    except NodenetError:
        if path.exists():
            raise
        fd = None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _ids(command: Command) -> Iterator[int]:
    ident = 0
    while True:
        attr = bytearray(struct.pack("<III", ident, 0, 0))
        try:
            bpf(command, attr)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            if error.errno == errno.EPERM:
                raise pins.refused("list the kernel's objects", "bpf(2)") from error
            raise
        (ident,) = struct.unpack_from("<I", attr, 4)
        yield ident
