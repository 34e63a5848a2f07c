"""Compiles the kernel programs with BCC, in a child process.

BCC changes the working directory while it compiles, creates every map it meets, keeps 120 MB of
LLVM, and prints what clang says to file descriptor 2; a child keeps all that away from the agent.
The child is this module run as a program: it reads a request as JSON on stdin and writes
`nodenet.kernel.bytecode.Compiled`, or what failed, as JSON on stdout.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from nodenet.kernel.bytecode import Compiled, CompiledProgram, ToolFile
from nodenet.kernel.errors import KernelError
from nodenet.kernel.map_shape import Shape
from nodenet.kernel.spec import HeadersMissing, bpf_directory

if TYPE_CHECKING:
    import ctypes

logger = logging.getLogger(__name__)

#: The slowest machine seen takes 1 s; a child beyond this hangs.
COMPILE_SECONDS: Final = 120.0
#: The interpreter that the distribution's bcc package is for.
SYSTEM_PYTHON: Final = "/usr/bin/python3"
_NOT_STARTED: Final = ("ImportError:", "ModuleNotFoundError:", "SyntaxError:")
_HEADERS_PROBE: Final = "include/linux/kconfig.h"
_ERROR_LINE: Final = re.compile(
    r"^(?P<where>[^\s:]+:\d+)(?::\d+)?: (?:fatal )?error: (?P<what>.+)$", re.MULTILINE
)

#: LD_IMM64, and its source register for "a map's file descriptor" (linux/bpf.h).
_LD_IMM64: Final = 0x18
_PSEUDO_MAP_FD: Final = 1
_TOOL_LIBRARIES: Final = ("libbcc.so", "libLLVM", "libclang")


class CompilerMissing(KernelError):
    """BCC cannot be imported by ``python``."""

    def __init__(self, python: str, why: str) -> None:
        super().__init__(f"BCC cannot be used ({why}): {python}; install python3-bpfcc")
        self.python = python

    exit_code = 3


class CompileError(KernelError):
    """clang or BCC refused the source; ``output`` is all they said."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


class CompilerDied(CompileError):
    """The compiling child crashed or took too long."""


def compile_programs(
    source: str,
    cflags: Collection[str],
    programs: Collection[str],
    *,
    headers: Path | None = None,
    timeout_seconds: float = COMPILE_SECONDS,
) -> Compiled:
    """Compiles ``source`` and takes out the functions named, in 0.2-1 s. Needs root: BCC makes
    the maps while it compiles.

    ``headers`` is the directory above ``include/``. Raises HeadersMissing, CompilerMissing,
    CompileError, CompilerDied.
    """
    tree = (headers or bpf_directory()).resolve()
    if not (tree / _HEADERS_PROBE).is_file():
        raise HeadersMissing(
            f"private kernel headers not found: {tree / _HEADERS_PROBE}; reinstall nodenet"
        )
    request = {"source": source, "cflags": list(cflags), "programs": list(programs)}
    missing: CompilerMissing | None = None
    for python in _interpreters():
        try:
            return _run(python, json.dumps(request).encode(), tree, timeout_seconds)
        except CompilerMissing as error:
            missing = missing or error
    assert missing is not None  # there is always one interpreter
    raise missing


def _interpreters() -> list[str]:
    """This one, then the distribution's, the only one bcc is packaged for."""
    return list(dict.fromkeys((sys.executable, SYSTEM_PYTHON)))


def _run(python: str, request: bytes, tree: Path, timeout_seconds: float) -> Compiled:
    # the child must find this very package, however the parent found it
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    try:
        child = subprocess.run(
            [python, "-m", "nodenet.kernel.compiler"],
            input=request,
            capture_output=True,
            timeout=timeout_seconds,
            cwd="/",
            env=os.environ
            | {"BCC_KERNEL_SOURCE": str(tree), "PYTHONPATH": os.pathsep.join(filter(None, path))},
        )
    except FileNotFoundError as error:
        raise CompilerMissing(python, "no such interpreter") from error
    except subprocess.TimeoutExpired as late:
        output = (late.stderr or b"").decode(errors="replace")
        raise CompilerDied(
            f"compiling the kernel programs: no result after {timeout_seconds:g} s", output
        ) from late
    output = child.stderr.decode(errors="replace")
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        raise CompilerDied(f"compiling the kernel programs: the compiler died of {name}", output)
    if child.returncode:
        raise _failure(python, child.stdout, output)
    if output.strip():
        logger.debug("the compiler said:\n%s", output)
    try:
        return Compiled.decode(child.stdout)
    except (LookupError, TypeError, ValueError) as error:
        raise CompileError("compiling the kernel programs: no answer", output) from error


def _failure(python: str, answer: bytes, output: str) -> KernelError:
    try:
        failed = str(json.loads(answer)["failed"])
    except (ValueError, LookupError, TypeError):
        failed = (output.strip() or "the compiler ended without a word").splitlines()[-1]
        if failed.startswith(_NOT_STARTED):  # too old an interpreter for this package
            return CompilerMissing(python, failed)
    else:
        if failed.startswith("import"):
            return CompilerMissing(python, failed)
    found = _ERROR_LINE.search(output)
    what = f"{found['where']}: {found['what']}" if found else failed
    return CompileError(f"kernel programs do not compile: {what}", output)


# The rest runs in the child.


def main() -> None:
    """Entry of the child."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what BCC prints is a diagnostic, wherever it prints it
    request = json.load(sys.stdin)

    def fail(what: str) -> NoReturn:
        with answer:
            answer.write(json.dumps({"failed": what}).encode())
        sys.exit(1)

    try:
        import bcc
        from bcc.libbcc import lib
    except (ImportError, OSError) as error:
        fail(f"import: {error}")
    try:
        module = bcc.BPF(text=request["source"].encode(), cflags=request["cflags"])
    except Exception as error:  # BCC raises bare Exception; clang's words are on descriptor 2
        fail(str(error))
    try:
        maps, names = _maps(lib, module.module)
        programs = {name: _program(module, name, names) for name in request["programs"]}
    except _Unusable as error:
        fail(str(error))
    compiled = Compiled(programs, maps, bcc.__version__, _toolchain())
    with answer:
        answer.write(compiled.encode())


class _Unusable(Exception):
    pass


def _maps(lib: ctypes.CDLL, module: int) -> tuple[dict[str, Shape], dict[int, str]]:
    """Shapes by name, and names by the file descriptor that BCC wrote into the instructions."""
    import ctypes

    for function, result in (
        ("bpf_table_name", ctypes.c_char_p),
        ("bpf_table_key_size_id", ctypes.c_size_t),
        ("bpf_table_leaf_size_id", ctypes.c_size_t),
    ):
        getattr(lib, function).restype = result
        getattr(lib, function).argtypes = [ctypes.c_void_p, ctypes.c_ulonglong]
    lib.bpf_num_tables.restype = ctypes.c_ulonglong
    lib.bpf_num_tables.argtypes = [ctypes.c_void_p]
    shapes, names = {}, {}
    for i in range(lib.bpf_num_tables(module)):
        raw = lib.bpf_table_name(module, i)
        shapes[raw.decode()] = Shape(
            lib.bpf_table_type_id(module, i),
            lib.bpf_table_key_size_id(module, i),
            lib.bpf_table_leaf_size_id(module, i),
            lib.bpf_table_max_entries_id(module, i),
            lib.bpf_table_flags_id(module, i),
        )
        names[lib.bpf_table_fd(module, raw)] = raw.decode()
    return shapes, names


def _program(module: Any, name: str, maps: dict[int, str]) -> CompiledProgram:
    try:
        code = module.dump_func(name.encode())
    except Exception as error:  # BCC raises bare Exception
        raise _Unusable(f"no function {name}: {error}") from error
    holes = []
    offset = 0
    while offset < len(code):
        opcode, registers, _, immediate = struct.unpack_from("<BBhi", code, offset)
        if opcode == _LD_IMM64:
            source = registers >> 4
            if source == _PSEUDO_MAP_FD:
                holes.append((offset, maps[immediate]))
            elif source:
                raise _Unusable(f"{name}: a reference of kind {source} that no loader here knows")
            offset += 8  # it takes two slots
        offset += 8
    return CompiledProgram(code, tuple(holes))


def _toolchain() -> tuple[ToolFile, ...]:
    """The compiler's libraries as mapped right now, so that a later start need not import them."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as mapped:
        paths = {line.split(maxsplit=5)[5].strip() for line in mapped if line.count("/")}
    found = []
    for path in sorted(p for p in paths if os.path.basename(p).startswith(_TOOL_LIBRARIES)):
        status = os.stat(path)
        found.append(ToolFile(path, status.st_size, status.st_mtime_ns))
    return tuple(found)


if __name__ == "__main__":
    main()
