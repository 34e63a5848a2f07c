"""From C to loaded programs: compile or take from the cache, fill in the maps, BPF_PROG_LOAD.

BCC only compiles. Loading is the same whether the bytecode is fresh or kept: raw bpf(2) on our own
pinned maps, so a warm start imports no compiler (docs/bpf.md).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Self

from nodenet import abi
from nodenet.errors import NotSupported
from nodenet.kernel import btf, cache, pins, spec
from nodenet.kernel.bytecode import Compiled, CompiledProgram
from nodenet.kernel.errors import KernelError
from nodenet.kernel.map_shape import Shape
from nodenet.kernel.maps import Map
from nodenet.kernel.pinned_maps import SchemaMismatch, open_map, open_maps, open_or_create_maps
from nodenet.kernel.syscall import Command, address, bpf, object_info

__all__ = [
    "AbiMismatch",
    "Program",
    "SchemaMismatch",
    "VerifierRejected",
    "check_abi",
    "load_programs",
    "open_map",
    "open_maps",
    "open_or_create_maps",
]

_LICENSE: Final = b"GPL\0"
_LOAD: Final = struct.Struct("<IIQQIIQII16sIIIIQIIQIIII")
_LOG_BYTES: Final = 1 << 20
_LOG_BYTES_MAX: Final = 64 << 20
#: Opcode of a 64-bit immediate load, two instructions long.
_LD_IMM64: Final = 0x18
#: The verifier gives up when a signal is pending; libbpf tries as often.
_LOAD_ATTEMPTS: Final = 5
#: Lines of the verifier's log that go into the message.
_LOG_TAIL: Final = 3

#: The kernel function that stands for an iterator in BTF.
_ITERATOR_PREFIX: Final = "bpf_iter_"


class VerifierRejected(KernelError):
    """The kernel refused a program; ``log`` is the whole verifier log, ``errno`` the reason."""

    def __init__(self, program: str, number: int, log: str) -> None:
        lines = [line for line in log.splitlines() if line and not line.startswith("processed ")]
        tail = " | ".join(line.strip() for line in lines[-_LOG_TAIL:]) or "no verifier log"
        super().__init__(
            f"program {program}: the kernel refuses it ({os.strerror(number)}): {tail}"
        )
        self.program = program
        self.errno = number
        self.log = log


class AbiMismatch(KernelError):
    """C and `nodenet.abi` disagree about a map; a fault of this build."""


class Program:
    """A loaded program. A context manager; links and pins keep it alive after `close`."""

    __slots__ = ("_closed", "compiled", "defn", "fd")

    def __init__(
        self, fd: int, defn: abi.ProgramDef, compiled: CompiledProgram | None = None
    ) -> None:
        """Takes the file descriptor over; ``compiled`` is what it was loaded from, if known."""
        self.fd = fd
        self.compiled = compiled
        self.defn = defn
        self._closed = False

    @property
    def name(self) -> str:
        """Its C function."""
        return self.defn.name

    @property
    def id(self) -> int:
        """The kernel's id, as `bpftool prog` shows it."""
        return self._head()[0]

    @property
    def tag(self) -> str:
        """The kernel's digest of the instructions, 16 hex digits."""
        return self._head()[1].hex()

    def _head(self) -> tuple[int, bytes]:
        info = bytearray(16)
        object_info(self.fd, info)
        ident, tag = struct.unpack("<4xI8s", info)
        return ident, tag

    def __repr__(self) -> str:
        return f"<Program {self.name} fd {self.fd}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pin(self, path: Path) -> None:
        """Pins the program; FileExistsError when the path is taken."""
        pins.pin(self.fd, path)

    def close(self) -> None:
        """Closes the file descriptor; a second call does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)


def load_programs(
    maps: Mapping[str, Map],
    *,
    only: Collection[str] | None = None,
    use_cache: bool = True,
    source: spec.BpfSpec | None = None,
) -> dict[str, Program]:
    """Loads the programs of `nodenet.abi.PROGRAMS`, or those named, onto these maps.

    Takes about 10 ms with kept bytecode, 0.3-1 s without. When the kernel refuses kept bytecode,
    it is compiled once more. Raises NotPermitted, NotSupported, VerifierRejected, AbiMismatch and
    what `compiler.compile_programs` and `btf.read_facts` raise; programs loaded so far are
    closed then.
    """
    wanted = [d for d in abi.PROGRAMS.values() if only is None or d.name in only]
    sources = source or spec.BpfSpec.read()
    store = cache.Cache(cache.default_directory() if use_cache else None)
    facts = store.facts(sources.offsets, _iterators(abi.PROGRAMS.values()))
    cflags = [f"-DNN_OFF_{name}={value}" for name, value in sorted(facts.offsets.items())]
    cflags.append(f"-DNN_PAGE_SIZE={os.sysconf('SC_PAGE_SIZE')}")
    text = sources.text
    key = cache.bytecode_key(text, cflags, abi.SCHEMA)
    kept = store.compiled(key)
    if kept is not None:
        try:
            return _load_all(wanted, kept, maps, facts)
        except (VerifierRejected, AbiMismatch) as error:
            import logging  # 5 ms that a good start does not pay

            logging.getLogger(__name__).warning("kept bytecode refused, compiling: %s", error)
    compiled = _compile(text, cflags)
    loaded = _load_all(wanted, compiled, maps, facts)
    store.keep_compiled(key, compiled)
    return loaded


def _compile(text: str, cflags: Collection[str]) -> Compiled:
    # only here: a warm start must not pay for what only compiling needs
    from nodenet.kernel.compiler import compile_programs

    return compile_programs(text, cflags, list(abi.PROGRAMS))


def _iterators(programs: Collection[abi.ProgramDef]) -> list[str]:
    return [_iterator(p) for p in programs if p.attach == "iter"]


def _iterator(defn: abi.ProgramDef) -> str:
    return _ITERATOR_PREFIX + defn.hook.removeprefix("iter/")


def _load_all(
    wanted: Collection[abi.ProgramDef],
    compiled: Compiled,
    maps: Mapping[str, Map],
    facts: btf.KernelFacts,
) -> dict[str, Program]:
    check_abi(compiled)
    loaded: dict[str, Program] = {}
    try:
        for defn in wanted:
            function = facts.functions[_iterator(defn)] if defn.attach == "iter" else 0
            loaded[defn.name] = _load(defn, compiled.programs[defn.name], maps, function)
    except BaseException:
        for one in loaded.values():
            one.close()
        raise
    return loaded


def check_abi(compiled: Compiled) -> None:
    """Compares every map that C declares with `nodenet.abi.MAPS`; AbiMismatch names the first."""
    for name, declared in compiled.maps.items():
        defn = abi.MAPS.get(name)
        wanted = Shape.of(defn) if defn else None
        if wanted and wanted.type == abi.MapType.RINGBUF:
            # C says pages, whose size the machine chooses; the bound of nodenet.abi is in bytes
            declared = declared._replace(max_entries=wanted.max_entries)
        if declared != wanted:
            raise AbiMismatch(f"map {name}: C declares ({declared}), nodenet.abi ({wanted})")


def load_program(
    defn: abi.ProgramDef,
    compiled: CompiledProgram,
    maps: Mapping[str, Map],
    constants: Mapping[int, int],
) -> Program:
    """Loads one program again, each 64-bit constant of ``constants`` replaced by its value."""
    return _load(defn, compiled, maps, 0, constants)


def _set_constants(code: bytearray, constants: Mapping[int, int]) -> None:
    for wanted, value in constants.items():
        low = struct.pack("<I", wanted & 0xFFFFFFFF)
        at = -1
        while (at := code.find(low, at + 1)) >= 0:
            offset = at - 4  # where the instruction is, if these bytes are an operand
            if offset < 0 or offset % 8 or offset + 16 > len(code):
                continue
            opcode, registers = code[offset], code[offset + 1]
            (high,) = struct.unpack_from("<I", code, offset + 12)
            # the register's upper half is 0 for a plain number, something else for a map
            if opcode == _LD_IMM64 and not registers >> 4 and high == wanted >> 32:
                struct.pack_into("<I", code, offset + 4, value & 0xFFFFFFFF)
                struct.pack_into("<I", code, offset + 12, value >> 32)


def _load(
    defn: abi.ProgramDef,
    program: CompiledProgram,
    maps: Mapping[str, Map],
    btf_id: int,
    constants: Mapping[int, int] | None = None,
) -> Program:
    code = bytearray(program.instructions)
    if constants:
        _set_constants(code, constants)
    for offset, name in program.relocations:
        struct.pack_into("<i", code, offset + 4, maps[name].fd)
    try:
        return Program(_prog_load(defn, code, btf_id, None), defn, program)
    except OSError as error:
        number = error.errno or 0
        if number == errno.EPERM:
            raise pins.refused(f"load program {defn.name}", defn.hook) from error
        log = _verifier_log(defn, code, btf_id)
        if log is None:  # a passing shortage: the second try went well
            return Program(_prog_load(defn, code, btf_id, None), defn, program)
        if number == errno.EINVAL and not log:
            # the type or the attach point is unknown; nothing was verified
            raise NotSupported(defn.hook, "a newer kernel") from error
        raise VerifierRejected(defn.name, number, log) from error


def _prog_load(defn: abi.ProgramDef, code: bytearray, btf_id: int, log: bytearray | None) -> int:
    level, size = (1, len(log)) if log is not None else (0, 0)
    attr = _LOAD.pack(
        defn.type, len(code) // 8, address(code), address(_LICENSE), level, size, address(log),
        0, 0, defn.name.encode()[:15], 0, defn.attach_type, 0, 0, 0, 0, 0, 0, 0, btf_id, 0, 0,
    )  # fmt: skip
    for _ in range(_LOAD_ATTEMPTS - 1):
        try:
            return bpf(Command.PROG_LOAD, attr)
        except BlockingIOError:
            continue
    return bpf(Command.PROG_LOAD, attr)


def _verifier_log(defn: abi.ProgramDef, code: bytearray, btf_id: int) -> str | None:
    """The log of a second try; None when that one succeeded."""
    size = _LOG_BYTES
    while True:
        log = bytearray(size)
        try:
            os.close(_prog_load(defn, code, btf_id, log))
            return None
        except OSError as error:
            if error.errno == errno.ENOSPC and size < _LOG_BYTES_MAX:
                size *= 4
                continue
        return log[: log.index(0)].decode(errors="replace")
