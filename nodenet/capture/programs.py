"""Attaching the programs once, and taking over what an earlier process attached.

Links are pinned, so capture does not end with a process. A process that starts again finds the
links, sees by ``cfg.build`` that they run the programs it would load, and loads nothing. After an
upgrade each link gets its new program by LINK_UPDATE: between the two no connect is missed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nodenet import abi
from nodenet.errors import NotFound
from nodenet.kernel import pins
from nodenet.kernel.bytecode import CompiledProgram
from nodenet.kernel.cgroups import Cgroup, CgroupPaths
from nodenet.kernel.links import Link, create_iter_link, create_link, open_link
from nodenet.kernel.loader import Program, SchemaMismatch, load_program, load_programs
from nodenet.kernel.maps import Map
from nodenet.kernel.spec import BpfSpec
from nodenet.paths import Instance

logger = logging.getLogger(__name__)

_CFG_KEY = abi.INDEX_KEY.pack(index=0)
ROOT_PROGRAMS = tuple(p for p in abi.PROGRAMS.values() if p.attach in ("root", "agent", "iter"))
SHELF_PROGRAMS = tuple(p for p in abi.PROGRAMS.values() if p.attach == "none")
_POD_PROGRAM = abi.PROGRAMS["nn_sk_lookup"]
_BUILD = struct.Struct("<Q")


def read_config(maps: Mapping[str, Map]) -> dict[str, int | bytes]:
    """The ``cfg`` entry; zeroes when the capture was never configured."""
    return abi.CFG.unpack(maps["cfg"].lookup(_CFG_KEY) or bytes(abi.CFG.size))


def write_config(maps: Mapping[str, Map], agent: Cgroup, build: int) -> None:
    """Writes ``cfg``; ``build`` zero says that the links are not complete yet."""
    maps["cfg"].update(
        _CFG_KEY,
        abi.CFG.pack(
            schema=abi.SCHEMA,
            mark=abi.MARK,
            mark_mask=abi.MARK_MASK,
            tmark=abi.TRANSPARENT_MARK,
            agent_level=agent.level,
            max_live=abi.MAX_LIVE,
            agent_cgroup=agent.id,
            build=build,
        ),
    )


def build_id(spec: BpfSpec) -> int:
    """Which programs these are: 64 bits of the hash of their source."""
    return int.from_bytes(hashlib.sha256(spec.text.encode()).digest()[:8], "little")


def agent_cgroup(maps: Mapping[str, Map], paths: CgroupPaths | None = None) -> Cgroup | None:
    """The agent's cgroup as configured; None when it has been removed."""
    paths = paths or CgroupPaths()
    name = paths.name(int(read_config(maps)["agent_cgroup"]))
    return None if name is None else Cgroup.open(paths.mount / name.lstrip("/"), paths.mount)


def attached(
    instance: Instance,
    definition: abi.ProgramDef,
    maps: Mapping[str, Map],
    root: Cgroup,
    agent: Cgroup | None,
) -> bool:
    """Whether the pinned link of a program is where it should be: a pin may outlive its link."""
    try:
        with open_link(instance.links / definition.pin) as link:
            info = link.info()
    except NotFound:
        return False
    if definition.attach == "iter":
        return info.map_id == maps["conns"].id
    target = agent if definition.attach == "agent" else root
    return target is not None and info.cgroup_id == target.id


def _complete(instance: Instance, maps: Mapping[str, Map], root: Cgroup, agent: Cgroup) -> bool:
    return all(attached(instance, p, maps, root, agent) for p in ROOT_PROGRAMS) and all(
        (instance.progs / p.pin).exists() for p in SHELF_PROGRAMS
    )


def ensure_attached(
    instance: Instance,
    maps: Mapping[str, Map],
    root: Cgroup,
    agent: Cgroup,
    *,
    use_cache: bool = True,
) -> bool:
    """Attaches every program, or adopts the pinned ones; True when programs were loaded.

    Safe after a kill at any point: what is pinned is updated, what is missing is made, and
    ``cfg.build`` is written when all of it is in place.
    """
    build = build_id(BpfSpec.read())
    config = read_config(maps)
    schema = int(config["schema"])
    if schema not in (0, abi.SCHEMA):
        raise SchemaMismatch(
            "cfg", instance.maps / "cfg", f"schema {schema}", f"schema {abi.SCHEMA}"
        )
    same = config["build"] == build and config["agent_cgroup"] == agent.id
    if same and _complete(instance, maps, root, agent):
        return False
    write_config(maps, agent, 0)
    programs = load_programs(maps, use_cache=use_cache)
    try:
        for directory in (instance.links, instance.pod_links, instance.progs):
            directory.mkdir(parents=True, exist_ok=True)
            for stray in directory.glob("*~*"):
                # a process was killed between pin and rename: the link is attached a second time
                stray.unlink()
        for definition in ROOT_PROGRAMS:
            _attach(instance, definition, programs[definition.name], maps, root, agent)
        for definition in SHELF_PROGRAMS:
            _shelve(instance.progs / definition.pin, programs[definition.name])
        pod_program = programs[_POD_PROGRAM.name]
        assert pod_program.compiled is not None
        _write_pod_bytecode(instance, build, pod_program.compiled)
        _update_pod_links(instance, maps, pod_program)
    finally:
        for program in programs.values():
            program.close()
    write_config(maps, agent, build)
    logger.info("instance %s: %d programs attached", instance.name, len(programs))
    return True


def _attach(
    instance: Instance,
    definition: abi.ProgramDef,
    program: Program,
    maps: Mapping[str, Map],
    root: Cgroup,
    agent: Cgroup,
) -> None:
    pin = instance.links / definition.pin
    # an iterator link cannot be updated, and one that sits elsewhere must be made anew
    if definition.attach != "iter" and attached(instance, definition, maps, root, agent):
        with open_link(pin) as link:
            link.update(program.fd)
        return
    if definition.attach == "iter":
        link = create_iter_link(program, maps["conns"])
    else:
        target = agent if definition.attach == "agent" else root
        target_fd = os.open(target.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            link = create_link(program, target_fd)
        finally:
            os.close(target_fd)
    with link:
        _replace_pin(pin, link)


def _beside(pin: Path) -> Path:
    """Where a pin's successor is until it takes the place; free, as the instance is locked."""
    fresh = pin.with_name(f"{pin.name}~")
    # a process was killed between pin and rename: the link is attached a second time
    fresh.unlink(missing_ok=True)
    return fresh


def _shelve(pin: Path, program: Program) -> None:
    fresh = _beside(pin)
    program.pin(fresh)
    fresh.rename(pin)


def _replace_pin(pin: Path, link: Link) -> None:
    # a new link is pinned before the old one goes: no moment without a program
    fresh = _beside(pin)
    link.pin(fresh)
    fresh.rename(pin)


def _update_pod_links(instance: Instance, maps: Mapping[str, Map], program: Program) -> None:
    assert program.compiled is not None
    for pin in sorted((instance.pod_links).iterdir()):
        with open_link(pin) as link:
            if link.info().netns_ino and pin.name.isdecimal():
                own = {abi.SELF_COOKIE: int(pin.name)}
                with load_program(_POD_PROGRAM, program.compiled, maps, own) as fresh:
                    link.update(fresh.fd)


def attach_pod(
    instance: Instance, maps: Mapping[str, Map], netns_cookie: int, netns_fd: int
) -> None:
    """Makes the inbound link of one pod; a pinned one of that pod that lives is kept."""
    pin = instance.pod_links / str(netns_cookie)
    if pin.exists():
        _beside(pin)
        with open_link(pin) as link:
            if link.info().netns_ino:
                return
        pin.unlink()
    elif not instance.pod_links.is_dir():
        instance.pod_links.mkdir(parents=True)
    with _pod_program(instance, maps, netns_cookie) as program:
        with create_link(program, netns_fd) as link:
            _replace_pin(pin, link)


def _pod_program(instance: Instance, maps: Mapping[str, Map], netns_cookie: int) -> Program:
    """``nn_sk_lookup`` with the pod's cookie in it. About a millisecond."""
    compiled = _read_pod_bytecode(instance, int(read_config(maps)["build"]))
    if compiled is None:  # the run directory was lost while the pins stayed
        with load_programs(maps, only={_POD_PROGRAM.name})[_POD_PROGRAM.name] as program:
            assert program.compiled is not None
            compiled = program.compiled
        _write_pod_bytecode(instance, build_id(BpfSpec.read()), compiled)
    return load_program(_POD_PROGRAM, compiled, maps, {abi.SELF_COOKIE: netns_cookie})


def _bytecode_path(instance: Instance) -> Path:
    return instance.run / "sk_lookup.bytecode"


def _write_pod_bytecode(instance: Instance, build: int, compiled: CompiledProgram) -> None:
    path = _bytecode_path(instance)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(_BUILD.pack(build))
        file.write(msgspec.msgpack.encode((compiled.instructions, compiled.relocations)))
    fresh.replace(path)


def _read_pod_bytecode(instance: Instance, build: int) -> CompiledProgram | None:
    try:
        with open(_bytecode_path(instance), "rb", buffering=0) as file:
            trusted = os.fstat(file.fileno()).st_uid in (0, os.geteuid())
            raw = file.read()
    except FileNotFoundError:
        return None
    if not trusted or raw[: _BUILD.size] != _BUILD.pack(build):
        return None
    code, holes = msgspec.msgpack.decode(
        raw[_BUILD.size :], type=tuple[bytes, tuple[tuple[int, str], ...]]
    )
    return CompiledProgram(code, holes)


def shelved(instance: Instance, name: str) -> Program:
    """A pinned program that is attached on demand, or run; NotFound when nothing is loaded."""
    definition = abi.PROGRAMS[name]
    return Program(pins.get(instance.progs / definition.pin), definition)


def detach_pod(instance: Instance, netns_cookie: int) -> None:
    """Removes the inbound link of one pod; nothing happens when there is none."""
    pin = instance.pod_links / str(netns_cookie)
    _beside(pin)
    pin.unlink(missing_ok=True)


def pod_link_alive(instance: Instance, netns_cookie: int) -> bool | None:
    """Whether the namespace behind the pod's inbound link lives; None when it has no link."""
    pin = instance.pod_links / str(netns_cookie)
    if not pin.exists():
        return None
    with open_link(pin) as link:
        return bool(link.info().netns_ino)


def remove_pins(instance: Instance) -> None:
    """Detaches everything: links first, so that nothing runs on maps that are going.

    Root links before those of pods, ``cfg`` last: killed anywhere, what is left is seen to be not
    complete, and of which version it is.
    """
    for directory in (instance.links, instance.pod_links, instance.progs, instance.maps):
        if directory.is_dir():
            for pin in sorted(directory.iterdir(), key=lambda p: (p.name == "cfg", p.name)):
                if not pin.is_dir():
                    pin.unlink(missing_ok=True)
    for directory in (
        instance.pod_links, instance.links, instance.progs, instance.maps, instance.pins
    ):  # fmt: skip
        if directory.is_dir():
            directory.rmdir()
    for path in instance.run.glob(f"*{_bytecode_path(instance).name}*"):
        path.unlink(missing_ok=True)  # also what a killed process was writing
