"""The README's output is what the commands print."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NODENET = str(Path(sys.executable).with_name("nodenet"))
README = Path(__file__).parents[3] / "README.md"


def run(*words: str) -> str:
    """What the command prints; it must succeed."""
    done = subprocess.run([NODENET, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def lab() -> Iterator[str]:
    """A lab with the default addresses, under another name."""
    name = f"r{secrets.token_hex(4)}"
    try:
        run("lab", "up", "--id", name)
        yield name
    finally:
        run("lab", "down", "--id", name)


def block(after: str) -> list[str]:
    """The lines of the first fenced block behind a mark in the README."""
    text = README.read_text().split(after, 1)[1]
    return text.split("```", 2)[1].strip("\n").splitlines()


def masked(line: str) -> str:
    """Without what differs from run to run: the moment of the enrolment, the number of packets."""
    line = re.sub(r"\d+ packets", "N packets", line)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", line)


def test_the_demo_table_is_a_real_one(lab: str) -> None:
    printed = [masked(line) for line in run("lab", "demo", "--id", lab).splitlines()]
    shown = [masked(line) for line in block("<!-- demo -->") if line != "…"]
    assert len(shown) > 5
    assert [line for line in shown if line not in printed] == []


def test_the_explanation_is_a_real_one(lab: str) -> None:
    printed = [masked(x) for x in run("capture", "explain", "a1", "10.77.2.2:8080", "--id", lab)
               .splitlines()]  # fmt: skip
    text = README.read_text()
    start = text.index("lab/a1 (10.77.1.2) -> lab/a2")
    shown = text[start:].split("\n\n", 1)[0].splitlines()
    assert [masked(line) for line in shown] == printed
