"""The kernel programs as text: the pieces of ``bpf/`` joined into the one source BCC compiles.

A description that is the same on every machine and needs no rights. Map and program definitions
are those of `nodenet.abi`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple, Self

import nodenet
from nodenet.kernel.errors import KernelError

#: What must come first, in this order: each may use what stands before it. Other ``nn_*.h``
#: follow by name, then ``*.bpf.c`` by name.
FIRST: Final = ("nn_abi.h", "nn_maps.h", "nn_helpers.h")

_OWN_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"nn_[a-z0-9_]+\.h".*$', re.MULTILINE)
_OFFSET: Final = re.compile(r"\bNN_OFF_([A-Z0-9_]*[A-Z0-9])\b")


class SourcesMissing(KernelError):
    """The C sources or the header tree did not come with this installation."""


class HeadersMissing(SourcesMissing):
    """The private header tree that stands in for kernel headers is not there."""


def bpf_directory() -> Path:
    """Where the sources and the header tree (``include/``) are installed.

    They are data of the package. Not through importlib.resources, whose import takes 5 ms of a
    start of 50: BCC wants a real directory, so an installation inside an archive is out anyway.
    """
    return Path(nodenet.__file__).with_name("bpf")


class Piece(NamedTuple):
    """One source file."""

    name: str
    text: str


class BpfSpec(NamedTuple):
    """The sources, in the order in which they are joined."""

    pieces: tuple[Piece, ...]

    @classmethod
    def read(cls, directory: Path | None = None) -> Self:
        """The installed sources; SourcesMissing when they are not there."""
        where = directory or bpf_directory()
        try:
            names = [name for name in os.listdir(where) if name.endswith((".h", ".bpf.c"))]
            return cls(tuple(_read_piece(where, name) for name in ordered(names)))
        except OSError as error:
            raise SourcesMissing(
                f"kernel program sources not found: {where}; reinstall nodenet"
            ) from error

    @property
    def text(self) -> str:
        """One text for the compiler; messages still name the piece and its own line.

        Joined rather than included, because BCC rewrites map calls only in the main text.
        """
        return "".join(
            f'#line 1 "{piece.name}"\n{_OWN_INCLUDE.sub("", piece.text).rstrip()}\n'
            for piece in self.pieces
        )

    @property
    def offsets(self) -> tuple[str, ...]:
        """Names of the kernel struct offsets the sources use, without ``NN_OFF_``, sorted."""
        return tuple(sorted({m for p in self.pieces for m in _OFFSET.findall(p.text)}))


def _read_piece(directory: Path, name: str) -> Piece:
    with open(f"{directory}/{name}", encoding="utf-8") as file:
        return Piece(name, file.read())


def ordered(names: list[str]) -> list[str]:
    """File names in joining order."""
    return sorted(
        names, key=lambda n: (FIRST.index(n) if n in FIRST else len(FIRST), n.endswith(".c"), n)
    )
