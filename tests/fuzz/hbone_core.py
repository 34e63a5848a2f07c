"""Coverage-guided fuzzing of the HTTP/2 core: ``python tests/fuzz/hbone_core.py [-runs=N] [DIR]``.

Needs the package `atheris` (libFuzzer), which nothing else here does. The first byte of an input
is the role and how the rest is cut; what may happen is what `tests/unit/hbone/test_fuzz.py` says.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

atheris = importlib.import_module("atheris")

with atheris.instrument_imports(include=["nodenet.hbone"]):
    from nodenet.hbone.settings import Role
    from tests.unit.hbone.test_fuzz import GOOD, outcome

CUTS = ([1], [7], [9], [2, 30], [100])


def one_input(raw: bytes) -> None:
    """Whole and in pieces, both must end alike."""
    if not raw:
        return
    role = Role.SERVER if raw[0] & 1 else Role.CLIENT
    assert outcome(role, raw[1:], CUTS[raw[0] // 2 % len(CUTS)]) == outcome(role, raw[1:], [])


def main() -> None:
    """Starts from the good conversation of the unit tests."""
    one_input(b"\1" + GOOD)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
