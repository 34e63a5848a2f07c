"""Lists, reports and streams in each form."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml

from nodenet.cli.output import _Changes


def test_a_list_as_table(items: Callable) -> None:  # type: ignore[type-arg]
    outcome = items("item", "list")
    assert outcome.status == 0 and outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["ID", "POD", "REMOTE", "STATE", "SENT"]
    assert lines[1].split("  ")[0] == "3a01" and lines[1].endswith("12.4K")
    assert lines[2].split()[1] == "-"


def test_json_is_one_document_and_pretty_is_the_same(items: Callable) -> None:  # type: ignore[type-arg]
    plain, pretty = items("item", "list", "-j"), items("item", "list", "-p")
    assert plain.out.count("\n") == 1 and plain.out.endswith("\n")
    assert pretty.out.count("\n") > 10
    assert plain.json == pretty.json
    assert plain.json[1] == {
        "id": "12e4",
        "pod": None,
        "remote": "[fd42:1:2:3:4:5:6:7]:40112",
        "state": "degraded",
        "bytes_sent": 3_251_000,
    }


@pytest.mark.parametrize(
    "words",
    [
        ["-j", "item", "list"],
        ["item", "-j", "list"],
        ["item", "list", "-j"],
        ["item", "list", "-o", "json"],
        ["-o", "json", "item", "list"],
        ["--output=json", "items", "ls"],
        ["it", "l", "-o", "table", "-o", "json"],
        ["-o", "table", "item", "list", "-o", "json"],
    ],
)
def test_global_options_anywhere(items: Callable, words: list[str]) -> None:  # type: ignore[type-arg]
    assert len(items(*words).json) == 3


def test_yaml_holds_the_same_and_ids_stay_text(items: Callable) -> None:  # type: ignore[type-arg]
    outcome = items("item", "list", "-o", "yaml")
    assert yaml.safe_load(outcome.out) == items("item", "list", "-j").json
    # YAML 1.2 would read 12e4 as 120000
    assert "id: '12e4'" in outcome.out


def test_names_only(items: Callable) -> None:  # type: ignore[type-arg]
    assert items("item", "list", "-o", "name").out == "3a01\n12e4\n3a45\n"


def test_names_of_a_report_are_refused(items: Callable) -> None:  # type: ignore[type-arg]
    outcome = items("item", "show", "-o", "name")
    assert (outcome.status, outcome.out) == (2, "")


def test_wide_exact_and_no_headers(items: Callable) -> None:  # type: ignore[type-arg]
    wide = items("item", "list", "-o", "wide", "--exact", "--no-headers").out
    assert wide.splitlines()[0].split()[-2:] == ["12702", "wide"]
    assert "REMOTE" not in wide


def test_filters_and_an_empty_list(items: Callable) -> None:  # type: ignore[type-arg]
    empty = items("item", "list", "--pod", "nobody")
    assert (empty.status, empty.err) == (0, "nodenet: no items\n")
    assert empty.out == "ID  POD  REMOTE  STATE  SENT\n"
    assert items("item", "list", "--pod", "nobody", "-q").err == ""
    as_json = items("item", "list", "--pod", "nobody", "-j")
    assert (as_json.status, as_json.json, as_json.err) == (0, [], "")


def test_fail_empty_is_4(items: Callable) -> None:  # type: ignore[type-arg]
    outcome = items("item", "list", "--pod", "nobody", "--fail-empty", "-j")
    assert outcome.status == 4
    assert outcome.json == {
        "error": "nothing found: no items",
        "kind": "NotFound",
        "exit": 4,
        "hint": None,
    }
    assert items("item", "list", "--fail-empty").status == 0


@pytest.mark.parametrize(
    ("key", "ids"),
    [
        ("bytes_sent", ["3a45", "3a01", "12e4"]),
        ("-bytes_sent", ["12e4", "3a01", "3a45"]),
        ("pod", ["3a01", "3a45", "12e4"]),
        ("-pod", ["3a45", "3a01", "12e4"]),  # absent comes last both ways
    ],
)
def test_sort(items: Callable, key: str, ids: list[str]) -> None:  # type: ignore[type-arg]
    assert [row["id"] for row in items("item", "list", "-j", "--sort", key).json] == ids


def test_an_unknown_sort_key_is_2_also_without_rows(items: Callable) -> None:  # type: ignore[type-arg]
    outcome = items("item", "list", "--sort", "bytes", "--pod", "nobody")
    assert outcome.status == 2
    assert outcome.err == (
        "nodenet: unknown key bytes in --sort; one of: id pod remote state bytes_sent\n"
    )


def test_limit_says_what_is_missing(items: Callable) -> None:  # type: ignore[type-arg]
    outcome = items("item", "list", "--limit", "1", "-j")
    assert [row["id"] for row in outcome.json] == ["3a01"]
    assert outcome.err == "nodenet: 2 of 3 left out (--limit 1)\n"
    assert items("item", "list", "--limit", "0", "-q", "-j").json == []
    assert items("item", "list", "--limit", "3").err == ""


def test_a_report_that_says_no_is_still_the_answer(items: Callable) -> None:  # type: ignore[type-arg]
    assert items("item", "show", "-j").json == {"ok": False, "count": 3}
    outcome = items("item", "show")
    assert (outcome.status, outcome.out, outcome.err) == (1, "count ok\n", "")


def test_a_stream_ends_well_when_interrupted(items: Callable) -> None:  # type: ignore[type-arg]
    text = items("item", "events")
    assert (text.status, text.out) == (0, "event 1\nevent 2\nevent 3\n")
    lines = items("item", "events", "-p").out.splitlines()
    assert [json.loads(line) for line in lines] == [{"n": 1}, {"n": 2}, {"n": 3}]
    documents = yaml.safe_load_all(items("item", "events", "-o", "yaml").out)
    assert list(documents) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_watch_appends_tables_when_there_is_no_terminal(items: Callable) -> None:  # type: ignore[type-arg]
    outcome = items("item", "list", "--watch", "0.1")
    assert outcome.status == 0
    tables = outcome.out.split("\n\n")
    assert [len(t.splitlines()) for t in tables] == [4, 3, 3]
    assert "\x1b" not in outcome.out


def test_watch_as_json_prints_changes_only(items: Callable) -> None:  # type: ignore[type-arg]
    lines = [json.loads(t) for t in items("item", "list", "-j", "-w", "0.1").out.splitlines()]
    assert [(line["change"], line["id"]) for line in lines] == [
        ("added", "3a01"),
        ("added", "12e4"),
        ("added", "3a45"),
        ("gone", "3a45"),
    ]
    assert lines[0].keys() == {"change", "id", "pod", "remote", "state", "bytes_sent"}


def test_rows_with_one_name_are_each_watched() -> None:
    """Ids of one peer are another one's too, and dials under way have none."""

    def row(peer: str, number: int, sent: int = 0) -> dict[str, object]:
        return {"peer": peer, "id": number, "sent": sent}

    changes = _Changes(("peer", "id"), ())
    rounds = [
        [row("a", 1), row("b", 1), row("a", 0), row("a", 0)],
        [row("a", 1), row("b", 1, 5), row("a", 0)],
        [row("b", 1, 5)],
    ]
    told = [
        [(each["change"], each["peer"], each["id"]) for each in changes.since_last(found)]
        for found in rounds
    ]
    assert told == [
        [("added", "a", 1), ("added", "b", 1), ("added", "a", 0), ("added", "a", 0)],
        [("changed", "b", 1), ("gone", "a", 0)],
        [("gone", "a", 1), ("gone", "a", 0)],
    ]


def test_a_watch_does_not_tell_of_ages_alone(items: Callable) -> None:  # type: ignore[type-arg]
    lines = [json.loads(t) for t in items("item", "ages", "-j", "-w", "0.1").out.splitlines()]
    assert [(line["change"], line["id"], line["age_s"]) for line in lines] == [
        ("added", "a", 1),
        ("added", "b", 1),
        ("changed", "a", 3),
    ]
    out = items("item", "ages", "--report", "-j", "-w", "0.1").out
    first, second = (json.loads(line) for line in out.splitlines())
    assert (first["change"], second["change"]) == ("added", "changed")
    assert [row["age_s"] for row in second["rows"]] == [3, 3]


def test_watch_without_a_number_takes_its_default(items: Callable) -> None:  # type: ignore[type-arg]
    outcome = items("item", "list", "-o", "name", "-w")
    assert outcome.status == 2
    assert outcome.err.startswith("nodenet: -o name and --watch do not go together")


def test_colour_can_be_forced_into_a_pipe(items: Callable) -> None:  # type: ignore[type-arg]
    assert "\x1b[33mdegraded\x1b[0m" in items("item", "list", "--color", "always").out
    assert "\x1b" not in items("item", "list").out
    assert "\x1b" not in items("item", "list", "--color", "always", "-j").out
