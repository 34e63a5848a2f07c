"""Writes docs/parity.md from the declarations and from the tests that carry their ids.

    python -m tests.root.parity.document [--check]

The tests are read, not run: no rights are needed. A unit test keeps the document current.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from nodenet.capture.rows import IN_ROWS, OUT_ROWS, Row
from tests.root.parity.rows import ROWS, ParityRow

HERE: Final = Path(__file__).parent
DOCUMENT: Final = HERE.parents[2] / "docs" / "parity.md"

_HEAD: Final = """\
# Parity with the reference's redirect rules

The reference is the in-pod redirection of Istio's ambient mode: iptables rules that its CNI agent
writes into a pod's network namespace. nodenet has two backends that do the same job, `ebpf` and
`iptables`; one suite of tests (`tests/root/parity`) runs against both, in IPv4, IPv6 and IPv4
through IPv6 sockets, and asks `nodenet capture explain` about every connection it makes.

This file is written by `python -m tests.root.parity.document`; edit `tests/root/parity/rows.py`.
"""


class Shown(NamedTuple):
    """One test and what it shows."""

    file: str
    name: str
    rows: tuple[str, ...]
    rules: tuple[str, ...]


def tests(directory: Path = HERE) -> Iterator[Shown]:
    """Every test below ``directory`` that names rows, in order."""
    for path in sorted(directory.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    found = _parity(decorator)
                    if found is not None:
                        yield Shown(path.name, node.name, *found)


def _parity(decorator: ast.expr) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "parity"):
        return None
    rows = tuple(ast.literal_eval(argument) for argument in decorator.args)
    rules = next(k.value for k in decorator.keywords if k.arg == "rules")
    return rows, tuple(ast.literal_eval(rules))


def document(shown: Iterable[Shown]) -> str:
    """The text of docs/parity.md."""
    known = list(shown)
    parts = [_HEAD, "## Behaviours\n", _behaviours(known)]
    parts += ["## Where a backend differs on purpose\n", _differences()]
    parts += [
        "## The decision order\n",
        "The first row that fires decides. `nodenet capture explain` prints the walk.\n",
        _decisions("Outbound, at connect()", OUT_ROWS, known),
        _decisions("Inbound, at the SYN", IN_ROWS, known),
    ]
    parts += ["## Tests\n", _index(known)]
    return "\n".join(parts)


def _behaviours(known: list[Shown]) -> str:
    lines = [["Row", "Required", "From", "Rule", "`ebpf`", "`iptables`", "Tests"]]
    for row in ROWS:
        mine = [t for t in known if row.id in t.rows]
        rules = sorted({r for t in mine for r in t.rules}, key=_rule_order)
        lines.append(
            [
                row.id,
                row.required,
                row.source,
                " ".join(rules),
                _state(row.ebpf),
                _state(row.iptables),
                str(len(mine)),
            ]
        )
    return _table(lines)


def _state(text: str) -> str:
    return "as required" if text == "as required" else text


def _differences() -> str:
    lines = [["Row", "Why"]]
    lines += [[row.id, row.differs] for row in ROWS if row.differs]
    return _table(lines)


def _decisions(title: str, rows: Iterable[Row], known: list[Shown]) -> str:
    lines = [["Row", title, "What happens", "Tests"]]
    for row in rows:
        count = sum(row.id in t.rules for t in known)
        lines.append([row.id, row.question, row.meaning, str(count)])
    return _table(lines)


def _index(known: list[Shown]) -> str:
    lines = [["Test", "Rows", "Rules"]]
    lines += [
        [
            f"`{t.file.removeprefix('test_').removesuffix('.py')}` {_words(t.name)}",
            " ".join(t.rows),
            " ".join(t.rules),
        ]
        for t in known
    ]
    return _table(lines)


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _rule_order(rule: str) -> tuple[bool, int]:
    return rule.startswith("I"), int(rule[1:])


def _table(lines: list[list[str]]) -> str:
    head, *body = lines
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    text += ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in body]
    return "\n".join(text) + "\n"


def rows_without_tests(known: Iterable[Shown]) -> list[ParityRow]:
    """Declarations that no test shows."""
    covered = {row for t in known for row in t.rows}
    return [row for row in ROWS if row.id not in covered]


def main(arguments: list[str]) -> int:
    """Writes the document, or with ``--check`` says whether it is current."""
    text = document(tests())
    if "--check" in arguments:
        current = DOCUMENT.exists() and DOCUMENT.read_text() == text
        if not current:
            print(f"{DOCUMENT} is not current; run: python -m tests.root.parity.document")
        return 0 if current else 1
    DOCUMENT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
