"""Flags as upstream's programs take them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.errors import UsageError
from nodenet.konnectivity.go_flags import (
    Flag,
    Kind,
    Value,
    duration,
    go_duration,
    help_records,
    parse,
)

FLAGS = [
    Flag("agent-id", Kind.TEXT, "", "Who."),
    Flag("port", Kind.NUMBER, 8091, "Where."),
    Flag("keepalive-time", Kind.DURATION, 3600.0, "When."),
    Flag("qps", Kind.REAL, 0, "How often."),
    Flag("sync-forever", Kind.SWITCH, False, "Whether."),
    Flag("warn", Kind.SWITCH, True, "Whether not."),
    Flag("alpn-proto", Kind.LIST, (), "Names."),
    Flag("old", Kind.TEXT, "", "An older name.", hidden=True),
]


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--agent-id=a=b"], "agent-id", "a=b"),
        (["--agent-id", "-x"], "agent-id", "-x"),
        (["--agent_id="], "agent-id", ""),
        (["--port=-1"], "port", -1),
        (["--port", "0"], "port", 0),
        (["--sync-forever"], "sync-forever", True),
        (["--sync-forever=T"], "sync-forever", True),
        (["--warn=false"], "warn", False),
        (["--warn", "--sync-forever"], "warn", True),
        (["--alpn-proto=[]"], "alpn-proto", ()),
        (["--alpn-proto=[a, b]", "--alpn-proto=c"], "alpn-proto", ("a", "b", "c")),
        (["--alpn-proto="], "alpn-proto", ()),
        (["--keepalive-time=1m30s"], "keepalive-time", 90.0),
        (["--qps=75.5"], "qps", 75.5),
        (["--qps=-1"], "qps", -1.0),
        (["--qps=.5"], "qps", 0.5),
        ([], "port", 8091),
    ],
)
def test_forms(words: list[str], name: str, value: Value) -> None:
    assert parse("p", FLAGS, words).values[name] == value


def test_what_was_given_is_known() -> None:
    parsed = parse("p", FLAGS, ["--port=8091", "--warn"])
    assert parsed.given == {"port", "warn"}


@pytest.mark.parametrize(
    "words",
    [
        ["--logtostderr=true", "--v=4", "-v=2", "-v", "3", "--log_file", "/x", "--one-output"],
        ["--log-file-max-size=0", "--skip-headers", "--stderrthreshold", "2", "--vmodule=a=1"],
        ["-v"],
        ["--v"],
    ],
)
def test_klog_is_ignored(words: list[str]) -> None:
    parsed = parse("p", FLAGS, [*words, "--port=1"])
    assert parsed.ignored and parsed.number("port") == 1 and parsed.given == {"port"}


def test_a_flag_without_its_value_at_the_end() -> None:
    assert parse("p", FLAGS, ["--port=1", "--log-file"]).ignored == ("--log-file",)
    assert parse("p", FLAGS, ["-v"]).ignored == ("-v",)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nope=1"], "unknown flag --nope=1: p"),
        (["-port=1"], "unknown flag -port=1: p"),
        (["serve"], "p takes flags only: 'serve'"),
        (["--"], "p takes flags only: '--'"),
        (["--port"], "--port needs a value"),
        (["--port=x"], "--port=x: not of type int"),
        (["--port=9999999999999999999"], "--port=9999999999999999999: not of type int"),
        (["--qps=."], "--qps=.: not of type float32"),
        (["--qps=inf"], "--qps=inf: not of type float32"),
        (["--sync-forever=yes"], "--sync-forever=yes: not of type bool"),
        (["--keepalive-time=5"], "--keepalive-time=5: not of type duration"),
    ],
)
def test_errors(words: list[str], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse("p", FLAGS, words)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1h", 3600.0),
        ("1h0m0s", 3600.0),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("500ms", 0.5),
        ("10us", 1e-5),
        ("-2s", -2.0),
        ("", None),
        ("1", None),
        ("s", None),
        ("1d", None),
        ("1s ", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert duration(text) == pytest.approx(seconds)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_not(text: str) -> None:
    assert duration(text) is None or isinstance(duration(text), float)


@pytest.mark.parametrize("seconds", [0.0, 0.25, 1.0, 1.5, 60.0, 90.0, 3600.0, 5400.0])
def test_durations_are_printed_as_they_are_read(seconds: float) -> None:
    assert duration(go_duration(seconds)) == seconds


def test_help_hides_what_is_hidden() -> None:
    records = dict(help_records(FLAGS))
    assert records["--port int"] == "Where. (8091)" and records["--sync-forever"] == "Whether."
    assert not any("old" in name for name in records)


@pytest.mark.parametrize(
    ("flag", "example"),
    [
        (Flag("server-count", Kind.NUMBER, 1, ""), "e.g. --server-count=1"),
        (Flag("burst", Kind.NUMBER, 0, ""), "e.g. --burst=1"),
        (Flag("cap", Kind.DURATION, 10.0, ""), "e.g. --cap=10s"),
        (Flag("timeout", Kind.DURATION, 0.0, ""), "e.g. --timeout=1m30s"),
        (Flag("delete", Kind.SWITCH, True, ""), "e.g. --delete=true"),
        (Flag("qps", Kind.REAL, 0, ""), "e.g. --qps=7.5"),
    ],
)
def test_the_example_is_the_default_where_there_is_one(flag: Flag, example: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse("p", [flag], [f"--{flag.name}=what"])
    assert caught.value.hint == example
