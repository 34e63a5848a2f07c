"""Verbs that take upstream's flags and nodenet's own options."""

from __future__ import annotations

from typing import Any

import click
import pytest

from nodenet.cli import run
from nodenet.cli.complete_command import candidates
from nodenet.cli.globals import Format, Globals
from nodenet.cli.go_verb import GoVerb
from nodenet.konnectivity.go_flags import Flag, Kind, parse

Cli = Any
FLAGS = (
    Flag("port", Kind.NUMBER, 8091, "Where."),
    Flag("name", Kind.TEXT, "", "Who."),
    Flag("sync", Kind.SWITCH, False, "Whether."),
    Flag("quiet", Kind.TEXT, "", "Upstream's own, of a name that nodenet has too."),
)


def given(*words: str) -> tuple[Globals, list[str]]:
    """The global options, and the words that are left for upstream's parser."""
    state, left = Globals(), list[str]()

    @click.command("go", cls=GoVerb, flags=FLAGS)
    def go(arguments: tuple[str, ...]) -> None:
        left.extend(arguments)

    with go.make_context("go", list(words), obj=state) as context:
        go.invoke(context)
    return state, left


def test_global_options_work_behind_the_verb() -> None:
    state, left = given("-j", "--port=1", "-q", "--sync", "--id", "lab", "--color=never")
    assert state.json and state.quiet and state.id == "lab" and state.color == "never"
    assert left == ["--port=1", "--sync"]
    assert given("--id=lab")[0].id == "lab"
    assert given("-o", "yaml")[0].output is given("-oyaml")[0].output is Format.YAML
    assert given("-jq")[0].json and given("-jq")[0].quiet


def test_a_value_of_upstreams_is_no_option() -> None:
    state, left = given("--name", "-j", "--log-file", "-q")
    assert not state.json and not state.quiet
    assert left == ["--name", "-j", "--log-file", "-q"]


def test_upstreams_flag_wins() -> None:
    state, left = given("--quiet", "x", "--quiet=y")
    assert not state.quiet and left == ["--quiet", "x", "--quiet=y"]
    assert given("-q")[0].quiet, "which has no short form"


@pytest.mark.parametrize("words", [("-v=4",), ("--v=4",), ("-v", "4"), ("--v", "4"), ("--v",)])
def test_a_number_makes_it_klogs(words: tuple[str, ...]) -> None:
    state, left = given(*words, "--port=1")
    assert state.verbose == 0 and left == [*words, "--port=1"]
    parsed = parse("go", FLAGS, left)
    assert parsed.number("port") == 1 and parsed.ignored == (words[0],)


@pytest.mark.parametrize(
    ("words", "verbose"), [(("-v",), 1), (("-vv",), 2), (("-v", "-v"), 2), (("--verbose",), 1)]
)
@pytest.mark.parametrize("more", [(), ("--port=1",), ("-j",)])
def test_without_a_number_it_is_nodenets(
    words: tuple[str, ...], verbose: int, more: tuple[str, ...]
) -> None:
    state, left = given(*words, *more)
    assert state.verbose == verbose
    assert left == [word for word in more if word != "-j"]
    assert state.json is ("-j" in more)


@pytest.mark.parametrize(
    "words", [["--nope"], ["-port=1"], ["-port", "1"], ["-jx"], ["serve"], ["--"], ["-"]]
)
def test_the_rest_is_left_to_upstreams_parser(words: list[str]) -> None:
    assert given(*words)[1] == words


def test_what_the_programs_make_of_it(cli: Cli) -> None:
    outcome = cli("konnectivity", "agent", "-v", "--ca-cert=/nowhere")
    assert outcome.status == 2
    assert "--ca-cert=/nowhere: no such file" in outcome.err, "-v has not taken it"
    assert cli("konnectivity", "server", "--mode=x", "-j").json["kind"] == "UsageError"
    assert cli("konnectivity", "server", "--id").err.startswith("nodenet: option --id requires")
    outcome = cli("konnectivity", "agent", "--ca-cert=x", "-h")
    assert outcome.status == 0 and "--proxy-server-host" in outcome.out
    assert "klog's flags are taken and mean nothing, -v=4 too" in " ".join(outcome.out.split())


def test_completion_offers_the_global_options() -> None:
    for line in ("server -", "agent --ca-cert=x -v -", "server --mode grpc -v 4 -"):
        found = {value for value, _ in candidates(f"nodenet konnectivity {line}")[0]}
        assert {"--help", "--json", "--quiet", "--id"} <= found
    assert run.run(["_complete", "bash", "nodenet konnectivity server --id"]) == 0
