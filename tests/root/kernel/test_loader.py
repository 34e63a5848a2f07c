"""Loading for real: cold, warm, with a cache that lies, with programs the kernel refuses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.errors import NotSupported
from nodenet.kernel import cache, compiler
from nodenet.kernel.bytecode import Compiled
from nodenet.kernel.compiler import CompileError
from nodenet.kernel.loader import AbiMismatch, Program, VerifierRejected, load_programs
from nodenet.kernel.maps import Map
from nodenet.kernel.programs import program_info
from nodenet.kernel.spec import BpfSpec, Piece
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each run of the real compiler."""
    runs: list[int] = []
    real = compiler.compile_programs

    def counted(*arguments: object) -> Compiled:
        runs.append(1)
        return real(*arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(compiler, "compile_programs", counted)
    return runs


@pytest.fixture
def load(maps: dict[str, Map]) -> Iterator[Callable[..., dict[str, Program]]]:
    loaded: list[Program] = []

    def run(**options: object) -> dict[str, Program]:
        programs = load_programs(maps, **options)  # type: ignore[arg-type]  # passed on
        loaded.extend(programs.values())
        return programs

    yield run
    for one in loaded:
        one.close()


def bytecode_entry(directory: Path) -> Path:
    (found,) = directory.glob("bytecode-*")
    return found


def test_every_program_loads_onto_the_pinned_maps(
    load: Callable[..., dict[str, Program]], maps: dict[str, Map]
) -> None:
    programs = load()
    assert programs.keys() == abi.PROGRAMS.keys()
    ours = {one.id for one in maps.values()}
    for name, program in programs.items():
        info = program_info(program.fd)
        assert (info.name, info.type) == (name[:15], program.defn.type)
        assert (info.id, info.tag) == (program.id, program.tag)
        assert set(info.map_ids) <= ours, f"{name} uses a map that is not the instance's"
        assert info.gpl_compatible
    used = {ident for program in programs.values() for ident in program_info(program.fd).map_ids}
    assert {maps[name].id for name in ("cfg", "pods", "lsn", "conns", "evs")} <= used


def test_the_second_time_nothing_is_compiled(
    load: Callable[..., dict[str, Program]], compilations: list[int], own_cache: Path
) -> None:
    tags = {name: program.tag for name, program in load().items()}
    entry = bytecode_entry(own_cache)
    before = entry.stat().st_mtime_ns
    assert {name: program.tag for name, program in load().items()} == tags
    assert len(compilations) == 1
    assert entry.stat().st_mtime_ns == before


def test_only_some(load: Callable[..., dict[str, Program]]) -> None:
    assert list(load(only={"nn_explain"})) == ["nn_explain"]


def test_without_the_cache_nothing_is_kept(
    load: Callable[..., dict[str, Program]],
    compilations: list[int],
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(use_cache=False, only={"nn_explain"})
    monkeypatch.setenv("NODENET_NO_CACHE", "1")
    load(only={"nn_explain"})
    assert len(compilations) == 2
    assert not own_cache.exists()


def test_a_damaged_entry_is_made_anew(
    load: Callable[..., dict[str, Program]], compilations: list[int], own_cache: Path
) -> None:
    load(only={"nn_explain"})
    entry = bytecode_entry(own_cache)
    good = entry.read_bytes()
    entry.write_bytes(good[:-100])
    load(only={"nn_explain"})
    assert len(compilations) == 2
    assert entry.read_bytes() == good


def test_kept_bytecode_that_the_kernel_refuses_is_compiled_once_more(
    load: Callable[..., dict[str, Program]],
    compilations: list[int],
    own_cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    load(only={"nn_explain"})
    entry = bytecode_entry(own_cache)
    good = entry.read_bytes()
    store = cache.Cache(own_cache)
    content = store.read(entry.name)
    assert content is not None
    kept = Compiled.decode(content)
    ends_at_once = kept.programs["nn_explain"]._replace(
        instructions=b"\x95" + bytes(7), relocations=()
    )  # exit without a result
    store.write(
        entry.name,
        kept._replace(programs={**kept.programs, "nn_explain": ends_at_once}).encode(),
    )
    assert load(only={"nn_explain"})["nn_explain"].tag
    assert len(compilations) == 2
    assert entry.read_bytes() == good
    assert "kept bytecode refused, compiling" in caplog.text
    assert "R0 !read_ok" in caplog.text


def test_a_rejected_program_comes_with_its_log(
    load: Callable[..., dict[str, Program]],
    sources_with: Callable[[str], BpfSpec],
    own_cache: Path,
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(VerifierRejected) as caught:
        load(source=sources_with("rejected.bpf.c"))
    assert (caught.value.program, caught.value.errno) == ("nn_explain", errno.EACCES)
    assert "invalid access to packet" in caught.value.message
    assert "invalid access to packet" in caught.value.log
    assert "\n" not in caught.value.message
    assert len(os.listdir("/proc/self/fd")) == before, "programs loaded before it stay open"
    assert not list(own_cache.glob("bytecode-*")), "what does not load is not kept"


def test_source_that_does_not_compile(
    load: Callable[..., dict[str, Program]], sources_with: Callable[[str], BpfSpec]
) -> None:
    with pytest.raises(CompileError, match=r"does_not_compile\.bpf\.c:5: "):
        load(source=sources_with("does_not_compile.bpf.c"))


def test_a_map_that_c_declares_otherwise(load: Callable[..., dict[str, Program]]) -> None:
    pieces = BpfSpec.read().pieces
    changed = tuple(
        Piece(p.name, p.text.replace("struct nn_lip, lips, 32768", "struct nn_lip, lips, 8192"))
        for p in pieces
    )
    assert changed != pieces
    with pytest.raises(AbiMismatch, match=r"map lips: C declares .*8192.* nodenet.abi .*32768"):
        load(source=BpfSpec(changed))


def test_a_type_the_kernel_does_not_know(
    load: Callable[..., dict[str, Program]], monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = abi.PROGRAMS["nn_explain"]._replace(hook="cgroup/from_the_future", type=250)
    monkeypatch.setitem(abi.PROGRAMS, "nn_explain", unknown)
    with pytest.raises(NotSupported, match="cgroup/from_the_future: not supported here"):
        load(only={"nn_explain"})


def test_a_warm_start_is_light(
    load: Callable[..., dict[str, Program]], instance: Instance, own_cache: Path
) -> None:
    load()
    facts = len(list(own_cache.glob("btf-*")))
    assert facts == 1
    said = subprocess.run(
        [sys.executable, "-c", WARM, str(instance.id)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode == 0, said.stderr
    programs, megabytes, *unwanted = said.stdout.split()
    assert int(programs) == len(abi.PROGRAMS)
    assert unwanted == []
    assert int(megabytes) < 30


WARM = """
import sys
from nodenet.kernel import btf, loader
from nodenet.kernel.pinned_maps import open_or_create_maps
from nodenet.paths import Instance
btf.Btf = None  # parsing it again would fail
loaded = loader.load_programs(open_or_create_maps(Instance(sys.argv[1])))
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))
heavy = ("bcc", "subprocess", "logging", "nodenet.kernel.compiler", "msgspec", "asyncio")
print(len(loaded), peak, *(name for name in heavy if name in sys.modules))
"""


def test_a_pinned_program_outlives_the_loader(
    load: Callable[..., dict[str, Program]], instance: Instance
) -> None:
    program = load(only={"nn_explain"})["nn_explain"]
    instance.progs.mkdir()
    program.pin(instance.progs / "explain")
    tag = program.tag
    program.close()
    program.close()
    from nodenet.kernel import pins

    with Program(pins.get(instance.progs / "explain"), abi.PROGRAMS["nn_explain"]) as again:
        assert again.tag == tag
