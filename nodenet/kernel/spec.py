"""The kernel programs as text: the pieces of ``bpf/`` joined into the one source BCC compiles.

A description that is the same on every machine and needs no rights. Map and program definitions
are those of `nodenet.abi`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, Self

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
    """Where the sources and the header tree (``include/``) are installed."""
    path = Path(str(resources.files("nodenet") / "bpf"))
    return path.resolve()


@dataclass(frozen=True, slots=True)
class Piece:
    """One source file."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class BpfSpec:
    """The sources, in the order in which they are joined."""

    pieces: tuple[Piece, ...]

    @classmethod
    def read(cls, directory: Path | None = None) -> Self:
        """The installed sources; SourcesMissing when they are not there."""
        where = directory or bpf_directory()
        try:
            names = [p.name for p in where.iterdir() if p.name.endswith((".h", ".bpf.c"))]
            return cls(tuple(Piece(n, (where / n).read_text("utf-8")) for n in ordered(names)))
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


def ordered(names: list[str]) -> list[str]:
    """File names in joining order."""
    return sorted(
        names, key=lambda n: (FIRST.index(n) if n in FIRST else len(FIRST), n.endswith(".c"), n)
    )
