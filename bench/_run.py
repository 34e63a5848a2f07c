"""What the benchmarks' commands have in common: options, progress, the answer, errors."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TypeVar

from bench._machine import need_root
from bench._report import Report
from nodenet.errors import NodenetError

T = TypeVar("T")

_PRIORITY: Final = -15


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a benchmark was called."""

    quick: bool
    rounds: int | None
    """None: the benchmark's own choice."""
    milliseconds: int | None
    """How long one sample lasts, None likewise."""
    pods: int | None
    only: frozenset[str]
    """The sections to run."""
    plot: Path | None = None
    """The picture to make."""

    def choose_rounds(self, full: int, quick: int) -> int:
        """How many rounds."""
        return self.rounds or (quick if self.quick else full)

    def choose_milliseconds(self, full: int, quick: int) -> int:
        """How long a sample lasts."""
        return self.milliseconds or (quick if self.quick else full)


def parse(
    name: str, about: str, sections: Sequence[str], argv: Sequence[str], *, plots: bool = False
) -> tuple[Options, bool]:
    """The options, and whether JSON is wanted. Exits 2 with a usage line on an unknown one."""
    parser = argparse.ArgumentParser(
        prog=f"./dev bench {name}", description=about, allow_abbrev=False
    )
    parser.add_argument("-j", "--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--quick", action="store_true", help="rough numbers in under a minute")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often everything is measured")
    parser.add_argument("--ms", type=int, metavar="N", help="how long one sample lasts")
    parser.add_argument(
        "--only", action="append", choices=sections, metavar="SECTION",
        help=f"only this part, repeatable; one of: {' '.join(sections)}",
    )  # fmt: skip
    if "pods" in sections:
        parser.add_argument("--pods", type=int, metavar="N", help="how many pods are enrolled")
    if plots:
        parser.add_argument(
            "--plot", type=Path, metavar="FILE.png", help="the figures as a picture besides"
        )
    found = parser.parse_args(argv)
    for option in ("rounds", "ms", "pods"):
        value = getattr(found, option, None)
        if value is not None and value < 1:
            parser.error(f"--{option} {value}: must be at least 1")
    options = Options(
        quick=found.quick,
        rounds=found.rounds,
        milliseconds=found.ms,
        pods=getattr(found, "pods", None),
        only=frozenset(found.only or sections),
        plot=getattr(found, "plot", None),
    )
    return options, bool(found.json)


class Progress:
    """One line a step on stderr; a benchmark that says nothing for minutes looks dead."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, step: str) -> None:
        """Says what begins now."""
        print(f"[{time.monotonic() - self._started:6.1f}s] {step}", file=sys.stderr, flush=True)


def main(
    name: str,
    about: str,
    sections: Sequence[str],
    run: Callable[[Options, Progress], Report],
    argv: Sequence[str] | None = None,
    *,
    plots: bool = False,
) -> int:
    """Runs one benchmark; the exit status. Floors that are missed do not change it.

    ``plots``: it can make a picture, `Options.plot`.
    """
    given = sys.argv[1:] if argv is None else argv
    options, as_json = parse(name, about, sections, given, plots=plots)
    # as an exception, so that every block on the way out removes what it made
    signal.signal(signal.SIGTERM, _stop)
    try:
        need_root()
        with _before_others():
            report = run(options, Progress())
    except NodenetError as error:
        print(f"bench: {error.line()}", file=sys.stderr)
        if as_json:
            print(json.dumps(failure(error)))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    print(json.dumps(report.document()) if as_json else report.text())
    return 0


@contextlib.contextmanager
def _before_others() -> Iterator[None]:
    """What else runs on the machine waits, instead of being measured; children inherit it.

    Where sessions share the CPUs as groups (CONFIG_SCHED_AUTOGROUP), a process' own priority counts
    within its session only: the session's is raised too, until the end.
    """
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    group = Path("/proc/self/autogroup")
    try:
        had = group.read_text().split()[-1]
        group.write_text(str(_PRIORITY))
    except (OSError, IndexError):  # this kernel has no such groups, or does not use them
        yield
        return
    try:
        yield
    finally:
        group.write_text(had)


def in_turn(variants: tuple[T, ...], turn: int) -> tuple[T, ...]:
    """The variants, each round beginning with another one, so that none is always first."""
    start = turn % len(variants)
    return variants[start:] + variants[:start]


def failure(error: NodenetError) -> dict[str, str | int | None]:
    """The JSON document of an error, as the command line prints it."""
    return {
        "error": error.message,
        "kind": error.kind,
        "exit": error.exit_code,
        "hint": error.hint,
    }


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
