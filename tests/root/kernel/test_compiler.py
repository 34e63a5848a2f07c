"""Compiling with the real BCC."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.kernel.compiler import CompileError, compile_programs
from nodenet.kernel.map_shape import Shape
from nodenet.kernel.spec import BpfSpec

pytestmark = [pytest.mark.root, pytest.mark.bpf]

SMALL = Path(__file__).parent / "pieces" / "small.bpf.c"


def test_programs_maps_and_the_holes_between_them() -> None:
    compiled = compile_programs(SMALL.read_text(), ["-DNN_FLAG=41"], ["nn_small"])
    assert compiled.maps == {
        "counter": Shape(abi.MapType.ARRAY, 4, 8, 1, 0),
        "seen": Shape(abi.MapType.HASH, 4, 8, 8, 0),
    }
    program = compiled.programs["nn_small"]
    assert [name for _, name in program.relocations] == ["counter", "seen"]
    for offset, _ in program.relocations:
        assert program.instructions[offset] == 0x18
    # the flag arrived as an immediate
    assert (41).to_bytes(4, "little") in program.instructions
    assert len(program.instructions) % 8 == 0


def test_the_toolchain_is_recorded() -> None:
    compiled = compile_programs(SMALL.read_text(), ["-DNN_FLAG=1"], ["nn_small"])
    names = [os.path.basename(file.path) for file in compiled.toolchain]
    assert any(name.startswith("libbcc.so") for name in names)
    assert any(name.startswith("libLLVM") for name in names)
    assert compiled.bcc_version
    for file in compiled.toolchain:
        assert os.stat(file.path).st_size == file.size


def test_nothing_of_the_compiler_touches_this_process() -> None:
    # in a process of its own: another test may have loaded the library to probe for it
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from nodenet.kernel.compiler import compile_programs\n"
        "here = os.getcwd()\n"
        "compile_programs(Path(sys.argv[1]).read_text(), ['-DNN_FLAG=1'], ['nn_small'])\n"
        "assert os.getcwd() == here\n"
        "print('libbcc' in Path('/proc/self/maps').read_text())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(SMALL)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_an_error_names_file_and_line(sources_with: Callable[[str], BpfSpec]) -> None:
    spec = sources_with("does_not_compile.bpf.c")
    flags = [f"-DNN_OFF_{name}=0" for name in spec.offsets]
    with pytest.raises(CompileError) as caught:
        compile_programs(spec.text, flags, ["nn_explain"])
    assert caught.value.message == (
        "kernel programs do not compile: "
        "does_not_compile.bpf.c:5: use of undeclared identifier 'nn_no_such_thing'"
    )
    assert "return nn_no_such_thing;" in caught.value.output


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(CompileError, match="no function nn_other"):
        compile_programs(SMALL.read_text(), ["-DNN_FLAG=1"], ["nn_other"])
