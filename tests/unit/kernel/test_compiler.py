"""The compiling child: what it does when it fails, hangs, dies, or has no BCC."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nodenet.kernel import compiler
from nodenet.kernel.bytecode import Compiled
from nodenet.kernel.compiler import (
    CompileError,
    CompilerDied,
    CompilerMissing,
    compile_programs,
)
from nodenet.kernel.spec import HeadersMissing

#: What clang says through BCC, with one warning before the first error.
CLANG = """\
nn_helpers.h:3:2: warning: unused variable 'x' [-Wunused-variable]
In file included from <built-in>:2:
connect.bpf.c:17:9: error: use of undeclared identifier 'nothing'
        return nothing;
connect.bpf.c:18:1: error: another
2 errors generated.
"""


def script(path: Path, text: str) -> str:
    """A program that stands where Python would."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_first_error_makes_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "said").write_text(CLANG)
    (tmp_path / "answer").write_text('{"failed": "Failed to compile BPF module <text>"}')
    child = script(
        tmp_path / "python",
        f"cat >/dev/null; cat {tmp_path}/said >&2; cat {tmp_path}/answer; exit 1",
    )
    monkeypatch.setattr(sys, "executable", child)
    with pytest.raises(CompileError) as caught:
        compile_programs("", [], [])
    assert caught.value.message == (
        "kernel programs do not compile: connect.bpf.c:17: use of undeclared identifier 'nothing'"
    )
    assert caught.value.output == CLANG


def test_without_a_clang_error_the_last_word_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = script(tmp_path / "python", "cat >/dev/null; echo first >&2; echo last >&2; exit 1")
    monkeypatch.setattr(sys, "executable", child)
    with pytest.raises(CompileError, match="do not compile: last$"):
        compile_programs("", [], [])


def test_a_silent_end_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", "exit 7"))
    with pytest.raises(CompileError, match="without a word"):
        compile_programs("", [], [])


def test_a_crash_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = script(tmp_path / "python", "ulimit -c 0; echo before >&2; kill -SEGV $$")
    monkeypatch.setattr(sys, "executable", child)
    with pytest.raises(CompilerDied, match="died of SIGSEGV") as caught:
        compile_programs("", [], [])
    assert caught.value.output == "before\n"


def test_a_hanging_child_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", "exec sleep 60"))
    with pytest.raises(CompilerDied, match=r"no result after 0\.2 s"):
        compile_programs("", [], [], timeout_seconds=0.2)


def test_no_bcc_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the real child, in an interpreter without any site-packages
    child = script(tmp_path / "python", f'exec {sys.executable} -S "$@"')
    monkeypatch.setattr(sys, "executable", child)
    monkeypatch.setattr(compiler, "SYSTEM_PYTHON", str(tmp_path / "none"))
    with pytest.raises(CompilerMissing) as caught:
        compile_programs("", [], [])
    assert caught.value.line() == (
        f"BCC cannot be used (import: No module named 'bcc'): {child}; install python3-bpfcc"
    )


@pytest.mark.parametrize(
    "reason",
    [
        """echo '{"failed": "import: No module named bcc"}'""",
        """echo "ImportError: cannot import name 'Self' from 'typing'" >&2""",
    ],
)
def test_an_interpreter_without_bcc_leaves_it_to_the_systems(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = script(tmp_path / "python", f"cat >/dev/null; {reason}; exit 1")
    (tmp_path / "answer").write_bytes(Compiled({}, {}, "0.26.0", ()).encode())
    system = script(tmp_path / "system", f"cat >/dev/null; cat {tmp_path}/answer")
    monkeypatch.setattr(sys, "executable", without)
    monkeypatch.setattr(compiler, "SYSTEM_PYTHON", system)
    assert compile_programs("", [], []).bcc_version == "0.26.0"
    monkeypatch.setattr(sys, "executable", system)
    monkeypatch.setattr(compiler, "SYSTEM_PYTHON", without)
    assert compile_programs("", [], []).bcc_version == "0.26.0"


def test_an_answer_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = script(tmp_path / "python", "cat >/dev/null; echo hello")
    monkeypatch.setattr(sys, "executable", child)
    with pytest.raises(CompileError, match="no answer"):
        compile_programs("", [], [])


def test_no_header_tree(tmp_path: Path) -> None:
    with pytest.raises(HeadersMissing, match=r"include/linux/kconfig\.h; reinstall nodenet"):
        compile_programs("", [], [], headers=tmp_path)
