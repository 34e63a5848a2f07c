"""Compiled programs as JSON and back."""

from __future__ import annotations

import pytest

from nodenet.kernel.bytecode import Compiled, CompiledProgram, ToolFile
from nodenet.kernel.map_shape import Shape

COMPILED = Compiled(
    programs={"nn_a": CompiledProgram(bytes(range(256)), ((0, "cfg"), (16, "pods")))},
    maps={"cfg": Shape(2, 4, 40, 1, 0)},
    bcc_version="0.26.0",
    toolchain=(ToolFile("/lib/libbcc.so.0", 3, 4),),
)


def test_round_trip() -> None:
    assert Compiled.decode(COMPILED.encode()) == COMPILED


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"programs": {"a": ["!", 1]}, "maps": {}, "bcc_version": "", "toolchain": []}',
        b'{"programs": {}, "maps": {"cfg": [1, 2]}, "bcc_version": "", "toolchain": []}',
        b'{"programs": {}, "maps": {}, "bcc_version": "", "toolchain": [["a"]]}',
    ],
)
def test_anything_else_is_refused_with_one_of_three_errors(raw: bytes) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        Compiled.decode(raw)
