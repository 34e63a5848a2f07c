"""Completion: the candidates, and the bash script in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from nodenet import abi
from nodenet.cli import complete
from nodenet.cli.complete_command import DIRECTORIES, FILES, candidates, for_bash
from nodenet.cli.globals import Globals
from nodenet.cli.root import OBJECTS
from nodenet.paths import Instance

ROOT = Path(__file__).parents[3]


def values(line: str) -> list[str]:
    return [value for value, _help in candidates(line)[0]]


def test_objects_with_their_help() -> None:
    found, incomplete = candidates("nodenet ")
    assert incomplete == ""
    assert found == [(o.name, o.help) for o in OBJECTS if not o.hidden]
    assert values("nodenet c") == ["capture", "conn", "completion"]


def test_options_and_values() -> None:
    assert "--json" in values("nodenet --")
    assert "--json" in values("nodenet version --")
    assert values("nodenet --color ") == ["auto", "always", "never"]
    assert values("nodenet version -o j") == ["json"]
    assert values("nodenet version --output=y") == ["yaml"]
    assert values("nodenet completion ") == ["bash", "zsh", "fish"]
    assert values("nodenet -j compl z") == ["zsh"]


def test_words_that_mean_nothing_complete_to_nothing() -> None:
    assert values("nodenet bogus ") == []
    assert values("nodenet c ") == []  # ambiguous
    assert values("nodenet version '") == []


def test_bash_gets_what_follows_the_last_colon() -> None:
    found = [("netns:/run/netns/a", ""), (FILES, ""), (DIRECTORIES, "")]
    assert for_bash(found, "netns:/r") == ["/run/netns/a", FILES, DIRECTORIES]
    assert for_bash([("netns:x", "")], "ne") == ["netns:x"]


def ask(callback: complete.Completer, incomplete: str, instance: str = "nn-none") -> list[str]:
    context = click.Context(click.Command("x"), obj=Globals(id=instance))
    return [i.value for i in callback(context, click.Argument(["x"]), incomplete)]


def test_names_of_maps_and_programs_come_from_the_abi() -> None:
    assert ask(complete.maps, "") == sorted(abi.MAPS)
    assert ask(complete.maps, "co") == ["conns"]
    assert "nn_connect4" in ask(complete.progs, "nn_c")


def test_pods_come_from_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from nodenet.capture import records

    monkeypatch.setattr("nodenet.paths.RUN", tmp_path)
    for cookie, name in enumerate(("shop/cart-1", "shop/db", "mail/db")):
        records.write_record(
            Instance("nn-t"),
            records.PodRecord(
                name=name, netns="/x", netns_inode=1, netns_cookie=cookie, pod_id=cookie,
                ips=(), backend="ebpf", enrolled_at="2026-11-21T10:42:07.118004Z",
            ),
        )  # fmt: skip
    # db alone would be ambiguous
    assert ask(complete.pods, "", "nn-t") == ["mail/db", "shop/cart-1", "shop/db", "cart-1"]
    assert ask(complete.pods, "shop/", "nn-t") == ["shop/cart-1", "shop/db"]
    assert "pid:" in ask(complete.targets, "p", "nn-t")
    assert ask(complete.pods, "", "nn-none") == []


def test_a_completer_that_fails_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(instance: Instance) -> list[str]:
        raise PermissionError(1, "no")

    assert ask(complete.completer(broken), "") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_hidden_command(cli: Any, shell: str) -> None:
    outcome = cli("completion", shell)
    assert outcome.status == 0
    assert f"nodenet _complete {shell} -- " in outcome.out
    assert FILES in outcome.out and DIRECTORIES in outcome.out
    checker = shutil.which(shell)
    if checker:  # bash is always there
        subprocess.run([checker, "-n"], input=outcome.out, text=True, check=True)


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("nodenet comp", ["completion"]),
        ("nodenet completion ", ["bash", "zsh", "fish"]),
        ("nodenet -o y", ["yaml"]),
        ("nodenet bogus ", []),
    ],
)
def test_a_real_bash(tmp_path: Path, cli: Any, line: str, replies: list[str]) -> None:
    command = tmp_path / "nodenet"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m nodenet.cli.main "$@"\n')
    command.chmod(0o755)
    program = cli("completion", "bash").out + (
        f"\nCOMP_LINE='{line}' COMP_POINT={len(line)}\n"
        "compopt() { :; }\n"  # only callable from readline
        '_nodenet nodenet\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.split() == replies
    assert done.stderr == ""


def test_a_script_has_one_form(cli: Any) -> None:
    assert cli("completion", "bash").out.startswith("# nodenet completion bash")
    outcome = cli("completion", "bash", "-j")
    assert (outcome.status, outcome.json["kind"]) == (2, "UsageError")
