"""Errors: one line on stderr, one document on stdout with -j, the right exit status."""

from __future__ import annotations

from typing import Any

import pytest

from nodenet.cli.run import glance

Cli = Any


def test_an_error_of_ours(items: Cli) -> None:
    outcome = items("item", "fail", "unsupported")
    assert outcome.status == 3
    assert outcome.out == ""
    assert outcome.err == (
        "nodenet: cgroup/connect4: not supported here; needs Linux 4.17; upgrade\n"
    )


def test_the_same_as_json(items: Cli) -> None:
    outcome = items("item", "fail", "unsupported", "-j")
    assert outcome.status == 3
    assert outcome.err.count("\n") == 1
    assert outcome.json == {
        "error": "cgroup/connect4: not supported here; needs Linux 4.17",
        "kind": "NotSupported",
        "exit": 3,
        "hint": "upgrade",
    }


def test_v_adds_causes_and_vv_the_trace(items: Cli) -> None:
    causes = items("item", "fail", "unsupported", "-v").err.splitlines()
    assert causes[1] == "  caused by: PermissionError: [Errno 1] Operation not permitted"
    assert len(causes) == 2
    trace = items("-vv", "item", "fail", "unsupported").err
    assert "Traceback (most recent call last)" in trace
    assert trace.startswith("nodenet: cgroup/connect4")


def test_an_unexpected_exception_is_one_line(items: Cli) -> None:
    outcome = items("item", "fail", "badly")
    assert outcome.status == 1
    assert outcome.err.startswith("nodenet: internal error: ValueError: bad badly (nodenet/cli/")
    assert outcome.err.endswith("; please report, -vv shows the trace\n")
    assert outcome.err.count("\n") == 1
    assert items("item", "fail", "badly", "-j").json["kind"] == "InternalError"


def test_a_permission_error_names_the_capabilities(items: Cli) -> None:
    outcome = items("item", "fail", "permission", "-j")
    assert outcome.status == 1
    assert outcome.json["kind"] == "NotPermitted"
    assert "/sys/fs/bpf/nodenet: permission denied" in outcome.json["error"]
    assert outcome.json["hint"] == "run with sudo; needs CAP_BPF and CAP_NET_ADMIN"


def test_the_group_of_a_task_group_is_opened_and_lines_are_joined(items: Cli) -> None:
    outcome = items("item", "fail", "group")
    assert (outcome.status, outcome.err) == (4, "nodenet: gone: in a task with two lines\n")


def test_an_error_after_the_answer_adds_no_second_document(items: Cli) -> None:
    outcome = items("item", "fail", "late", "-j")
    assert (outcome.status, outcome.json) == (4, {"ok": True})
    assert outcome.err == "nodenet: gone: thing\n"


def test_an_error_in_a_stream_is_one_line_more(items: Cli) -> None:
    lines = items("item", "fail", "stream", "-j").out.splitlines()
    assert len(lines) == 2 and '"exit":4' in lines[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["item", "list", "--pdo"], "no option --pdo: nodenet item list; did you mean --pod"),
        (
            ["item", "list", "--zzz"],
            "no option --zzz: nodenet item list; see: nodenet item list --help",
        ),
        (["item", "list", "-X"], "no option -X: nodenet item list; see: nodenet item list --help"),
        (["item", "fail"], "missing HOW: nodenet item fail; see: nodenet item fail --help"),
        (
            ["item", "hang", "x", "y"],
            "got unexpected extra arguments (x y): nodenet item hang; "
            "see: nodenet item hang --help",
        ),
        (
            ["item", "list", "--limit"],
            "option --limit requires an argument: nodenet item list; see: nodenet item list --help",
        ),
        (
            ["item", "list", "--limit", "x"],
            "x is not a number in --limit; write e.g. 10",
        ),
        (
            ["item", "list", "-w", "shop/cart"],
            "shop/cart is not a length of time of 0.1s or more in --watch; write e.g. 10s",
        ),
        (
            ["item", "list", "--only", "CLOSING_WAIT"],
            "unknown state CLOSING_WAIT in --only; one of: ok degraded missing",
        ),
        (["item", "list", "--port", "65536"], "port 65536 out of range 1-65535 in --port 65536"),
        (["item"], "item needs a verb; one of: list show events flood hang work fail"),
        (["item", "lsit"], "unknown verb of item lsit; did you mean list"),
        (["item", "f"], "ambiguous verb of item f: flood, fail; write one"),
        (["-j", "item", "list", "-o", "wide"], "-j and -o wide ask for two formats; give one"),
        (
            ["--id", "A B", "item", "list"],
            "instance id 'A B': not of the form [a-z0-9-]{1,31}; use e.g. --id lab",
        ),
    ],
)
def test_usage_errors_are_2_one_line_and_json(items: Cli, words: list[str], line: str) -> None:
    outcome = items(*words)
    assert (outcome.status, outcome.err) == (2, f"nodenet: {line}\n")
    as_json = items("-j", *words)
    assert as_json.status == 2
    document = as_json.json
    assert document["exit"] == 2
    assert line == "; ".join(filter(None, (document["error"], document["hint"])))


def test_json_is_answered_even_when_its_option_was_never_reached(items: Cli) -> None:
    assert items("item", "list", "--zzz", "-j").json["exit"] == 2
    assert items("item", "list", "--zzz", "-o", "json").json["exit"] == 2
    assert items("nothing", "-p").json["exit"] == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("conn list", (False, 0)),
        ("conn list -j", (True, 0)),
        ("-vj conn", (True, 1)),
        ("-vv conn -p", (True, 2)),
        ("-o json", (True, 0)),
        ("-ojson", (True, 0)),
        ("-vojson", (True, 1)),
        ("--output=json --verbose", (True, 1)),
        ("--output yaml", (False, 0)),
        ("-o", (False, 0)),
        ("-n jp", (False, 0)),
        ("-njp", (False, 0)),
        ("lab exec a1 -- curl -jv", (False, 0)),
        ("-", (False, 0)),
    ],
)
def test_glance(words: str, expected: tuple[bool, int]) -> None:
    assert glance(words.split()) == expected


def test_help_is_no_error(items: Cli) -> None:
    outcome = items("item", "list", "-h")
    assert outcome.status == 0
    assert "--fail-empty" in outcome.out and "--pod" in outcome.out
    # the global options stand once, in `nodenet --help`
    assert "--pretty" not in outcome.out
