"""The static table of objects against the modules behind it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from nodenet.cli.commands import ObjectGroup
from nodenet.cli.root import OBJECTS, PLANNED, Object, root

Cli = Any


def test_help_lists_objects_and_global_options(cli: Cli) -> None:
    outcome = cli("--help")
    assert outcome.status == 0
    for shown in OBJECTS:
        assert (f"  {shown.name} " in outcome.out) is not shown.hidden
    for option in ("--json", "--pretty", "--no-headers", "--color", "--id", "--version"):
        assert option in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert cli().out == outcome.out


def test_help_fits_one_line_an_object(cli: Cli) -> None:
    lines = cli("--help").out.splitlines()
    start = lines.index("Objects:") + 1
    visible = [o.name for o in OBJECTS if not o.hidden]
    assert [line.split()[0] for line in lines[start : start + len(visible)]] == visible
    assert not lines[start + len(visible)]


@pytest.mark.parametrize("shown", [o for o in OBJECTS if find_spec(o.module)], ids=str)
def test_the_module_is_what_the_table_says(shown: Object) -> None:
    with click.Context(root) as context:
        command = root.get_command(context, shown.name)
    assert command is not None and command.name == shown.name
    assert isinstance(command, ObjectGroup) is shown.verbs
    assert command.hidden is shown.hidden
    assert command.get_short_help_str()


def test_prefixes(cli: Cli) -> None:
    assert cli("c", "l").err == "nodenet: ambiguous object c: capture, conn; write one\n"
    assert cli("c", "l").status == 2
    assert cli("vers", "-q").status == 0
    assert cli("completions", "bash").out.startswith("# nodenet completion bash")


def test_an_unknown_object(cli: Cli) -> None:
    assert cli("cnon").err == "nodenet: unknown object cnon; did you mean conn\n"
    assert cli("cnon").status == 2


def test_globals_without_an_object_are_an_error(cli: Cli) -> None:
    outcome = cli("-j")
    assert outcome.status == 2
    assert outcome.json["error"] == "nodenet needs an object"
    assert "conn" in outcome.json["hint"]


def test_the_version_option(cli: Cli) -> None:
    from nodenet import __version__

    assert cli("-V").out == f"nodenet {__version__}\n"


def test_an_object_that_is_not_installed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Object("gone", "not there")
    monkeypatch.setitem(root.__class__.get_command.__globals__["_BY_NAME"], "gone", gone)
    outcome = cli("gone", "show")
    assert outcome.status == 1
    assert outcome.err == (
        "nodenet: no gone in this installation: nodenet.cli.gone; reinstall nodenet\n"
    )


@pytest.mark.parametrize("command", PLANNED)
def test_what_is_planned_says_so(cli: Cli, command: str) -> None:
    outcome = cli(*command.split(), "--help")
    assert outcome.status == 3
    line = f"nodenet: {command}: not there yet in this version; {PLANNED[command]}\n"
    assert (outcome.out, outcome.err) == ("", line)
    assert cli("-j", *command.split()).json["kind"] == "NotThereYet"


def test_the_readme_names_what_is_planned() -> None:
    table = (Path(__file__).parents[3] / "README.md").read_text().split("## What works today")[1]
    for command in PLANNED:
        assert f"`nodenet {command}" in table
