"""A skip of a privileged test says why, and becomes a failure where the test must run."""

from __future__ import annotations

import os

import pytest

from tests import requirements


def lacks_bpf(name: str) -> str | None:
    return "no kernel" if name == "bpf" else None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, set()),
        ({"NODENET_REQUIRE": ""}, set()),
        ({"NODENET_REQUIRE": "root"}, {"root"}),
        ({"NODENET_REQUIRE": "root, bpf"}, {"root", "bpf"}),
        ({"CI": "true"}, {"root", "bpf"}),
        ({"CI": "true", "NODENET_REQUIRE": "go"}, {"root", "bpf", "go"}),
        ({"CI": "false"}, set()),
    ],
)
def test_demanded(environ: dict[str, str], expected: set[str]) -> None:
    assert requirements.demanded(environ) == expected


def test_without_a_marker_a_test_runs() -> None:
    assert requirements.judge([], {"CI": "true"}, lacks_bpf) == ("run", "")


def test_what_is_there_runs() -> None:
    assert requirements.judge(["root"], {}, lacks_bpf) == ("run", "")


def test_what_is_missing_is_skipped_with_the_reason() -> None:
    assert requirements.judge(["root", "bpf"], {}, lacks_bpf) == ("skip", "bpf: no kernel")


@pytest.mark.parametrize("environ", [{"CI": "true"}, {"NODENET_REQUIRE": "root,bpf"}])
def test_a_required_skip_is_a_failure(environ: dict[str, str]) -> None:
    assert requirements.judge(["bpf"], environ, lacks_bpf) == ("fail", "bpf: no kernel")


def test_another_marker_being_required_does_not_matter() -> None:
    assert requirements.judge(["bpf"], {"NODENET_REQUIRE": "root"}, lacks_bpf)[0] == "skip"


def test_root_is_asked_of_the_process() -> None:
    assert (requirements.what_is_missing("root") is None) <= (os.geteuid() == 0)
