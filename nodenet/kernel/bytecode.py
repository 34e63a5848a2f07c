"""What the compiler gives: instructions with holes for maps, and the maps' shapes."""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from typing import NamedTuple

from nodenet.kernel.map_shape import Shape


class CompiledProgram(NamedTuple):
    """Instructions, and where a map's file descriptor goes: (byte offset, map name)."""

    instructions: bytes
    relocations: tuple[tuple[int, str], ...]


class ToolFile(NamedTuple):
    """One file of the toolchain as it was when it compiled."""

    path: str
    size: int
    mtime_ns: int


class Compiled(NamedTuple):
    """All programs and maps of one source, and what compiled it."""

    programs: Mapping[str, CompiledProgram]
    maps: Mapping[str, Shape]
    bcc_version: str
    toolchain: tuple[ToolFile, ...]

    def encode(self) -> bytes:
        """As JSON."""
        programs = {
            name: [b2a_base64(program.instructions, newline=False).decode(), program.relocations]
            for name, program in self.programs.items()
        }
        return json.dumps(
            {
                "bcc_version": self.bcc_version,
                "toolchain": self.toolchain,
                "maps": dict(self.maps),
                "programs": programs,
            }
        ).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Compiled:
        """The reverse of `encode`; LookupError, TypeError or ValueError when it is not that."""
        data = json.loads(raw)
        return cls(
            programs={
                name: CompiledProgram(
                    a2b_base64(code), tuple((int(offset), str(map_)) for offset, map_ in holes)
                )
                for name, (code, holes) in data["programs"].items()
            },
            maps={name: Shape(*map(int, shape)) for name, shape in data["maps"].items()},
            bcc_version=str(data["bcc_version"]),
            toolchain=tuple(ToolFile(str(p), int(s), int(m)) for p, s, m in data["toolchain"]),
        )
