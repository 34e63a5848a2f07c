"""The cache: what counts as present, what as absent, and that it never fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodenet.kernel import cache
from nodenet.kernel.btf import KernelFacts
from nodenet.kernel.bytecode import Compiled, CompiledProgram, ToolFile
from nodenet.kernel.cache import Cache, bytecode_key, default_directory
from nodenet.kernel.map_shape import Shape

KEY = "k" * 64


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def compiled(*files: ToolFile) -> Compiled:
    return Compiled(
        {"nn_a": CompiledProgram(bytes(8), ())}, {"cfg": Shape(2, 4, 40, 1, 0)}, "0.26.0", files
    )


def tool(path: Path) -> ToolFile:
    status = path.stat()
    return ToolFile(str(path), status.st_size, status.st_mtime_ns)


def entry(store: Cache) -> Path:
    assert store.directory is not None
    (found,) = store.directory.iterdir()
    return found


def test_what_is_kept_comes_back(store: Cache, tmp_path: Path) -> None:
    library = tmp_path / "libbcc.so.0"
    library.write_text("x")
    assert store.compiled(KEY) is None
    store.keep_compiled(KEY, compiled(tool(library)))
    assert store.compiled(KEY) == compiled(tool(library))
    assert store.compiled("o" * 64) is None


def test_only_the_owner_may_have_written_it(store: Cache) -> None:
    store.keep_compiled(KEY, compiled())
    assert entry(store).stat().st_mode & 0o777 == 0o644
    entry(store).chmod(0o666)
    assert store.compiled(KEY) is None


@pytest.mark.parametrize("cut", [0, 10, 32, 100])
def test_a_truncated_entry_is_absent(store: Cache, cut: int) -> None:
    store.keep_compiled(KEY, compiled())
    raw = entry(store).read_bytes()
    entry(store).write_bytes(raw[:cut])
    assert store.compiled(KEY) is None


def test_a_changed_entry_is_absent(store: Cache) -> None:
    store.keep_compiled(KEY, compiled())
    raw = bytearray(entry(store).read_bytes())
    raw[-10] ^= 1
    entry(store).write_bytes(raw)
    assert store.compiled(KEY) is None


def test_an_entry_of_another_form_is_absent(store: Cache) -> None:
    store.keep_compiled(KEY, compiled())
    store.write(entry(store).name, b'{"other": 1}')
    assert store.compiled(KEY) is None


def test_links_and_pipes_are_not_followed(store: Cache, tmp_path: Path) -> None:
    store.keep_compiled(KEY, compiled())
    path = entry(store)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert store.compiled(KEY) is None
    path.unlink()
    os.mkfifo(path)
    assert store.compiled(KEY) is None


def test_another_toolchain_makes_it_absent(store: Cache, tmp_path: Path) -> None:
    library, other = tmp_path / "libbcc.so.0", tmp_path / "libLLVM.so"
    library.write_text("x")
    other.write_text("x")
    store.keep_compiled(KEY, compiled(tool(library), tool(other)))
    assert store.compiled(KEY) is not None
    os.utime(library, ns=(1, 1))
    assert store.compiled(KEY) is None
    library.unlink()  # a part of it gone: half an upgrade
    assert store.compiled(KEY) is None
    other.unlink()  # no compiler here at all: bytecode runs without one
    assert store.compiled(KEY) is not None


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = Cache(tmp_path / "file" / "below")
    store.keep_compiled(KEY, compiled())
    assert store.compiled(KEY) is None


def test_switched_off() -> None:
    store = Cache(None)
    store.keep_compiled(KEY, compiled())
    assert store.compiled(KEY) is None


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NODENET_NO_CACHE", raising=False)
    monkeypatch.setenv("NODENET_CACHE", str(tmp_path))
    assert default_directory() == tmp_path
    monkeypatch.setenv("NODENET_NO_CACHE", "1")
    assert default_directory() is None
    monkeypatch.setenv("NODENET_NO_CACHE", "0")
    monkeypatch.delenv("NODENET_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    system = Path("/var/cache/nodenet")
    assert default_directory() == (system if os.geteuid() == 0 else tmp_path / ".cache" / "nodenet")


def test_the_key_tells_everything_apart() -> None:
    keys = [
        bytecode_key("source", ["-DA=1"], 1),
        bytecode_key("source2", ["-DA=1"], 1),
        bytecode_key("source", ["-DA=2"], 1),
        bytecode_key("source", ["-DA=1", ""], 1),
        bytecode_key("source", [], 1),
        bytecode_key("source-DA=1", [], 1),
        bytecode_key("source", ["-DA=1"], 2),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == bytecode_key("source", ["-DA=1"], 1)


def test_facts_are_read_once_for_a_kernel(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = KernelFacts({"SK_ERR": 284}, {"f": 7})
    reads: list[tuple[object, ...]] = []

    def read(*asked: object) -> KernelFacts:
        reads.append(asked)
        return facts

    monkeypatch.setattr(cache, "read_facts", read)
    assert store.facts(["SK_ERR"], ["f"]) == facts
    assert store.facts(["SK_ERR"], ["f"]) == facts
    assert len(reads) == 1
    assert store.facts(["SK_ERR", "SK_MARK"], ["f"]) == facts
    assert len(reads) == 2, "another question needs its own answer"
    monkeypatch.setattr(cache, "kernel_identity", lambda: b"another kernel")
    assert store.facts(["SK_ERR"], ["f"]) == facts
    assert len(reads) == 3
