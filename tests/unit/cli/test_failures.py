"""Exceptions as one line each."""

from __future__ import annotations

import errno

from nodenet.cli.failures import causes, describe, innermost, one_line
from nodenet.errors import NodenetError, UsageError


def test_a_full_disk_is_no_internal_error() -> None:
    failure = describe(OSError(errno.ENOSPC, "No space left on device"))
    assert failure.line == "nodenet: cannot write: stdout: no space left on device"
    assert failure.exit == 1


def test_the_place_of_an_unexpected_error_is_the_innermost_line_of_ours() -> None:
    try:
        one_line(None)  # type: ignore[arg-type]  # the fault under test
    except AttributeError as error:
        failure = describe(error)
    assert "(nodenet/cli/failures.py:" in failure.error
    assert failure.kind == "InternalError"


def test_control_characters_never_reach_the_terminal() -> None:
    line = describe(NodenetError("bad name \x1b[2J\nsecond\tline")).line
    assert line == "nodenet: bad name ?[2J second line"


def test_causes_nearest_first_and_no_loop() -> None:
    root = ValueError("root")
    middle = KeyError("middle")
    middle.__cause__ = root
    top = UsageError("top")
    top.__cause__ = middle
    root.__context__ = top  # a loop, as re-raising can make one
    assert list(causes(top)) == ["KeyError: 'middle'", "ValueError: root"]


def test_a_cause_that_was_set_aside_stays_away() -> None:
    try:
        try:
            raise ValueError("inner")
        except ValueError:
            raise UsageError("outer") from None
    except UsageError as error:
        assert list(causes(error)) == []


def test_members_of_a_group_are_causes() -> None:
    group = ExceptionGroup("two", [ValueError("a"), UsageError("b")])
    assert innermost(group) is group
    assert list(causes(group)) == ["ValueError: a", "UsageError: b"]
    only = ValueError("only")
    assert innermost(ExceptionGroup("x", [ExceptionGroup("y", [only])])) is only


def test_document_has_every_key() -> None:
    failure = describe(UsageError("what: where", hint="do"))
    assert failure.document() == {
        "error": "what: where",
        "kind": "UsageError",
        "exit": 2,
        "hint": "do",
    }
    assert failure.line == "nodenet: what: where; do"
