"""YAML without guesses, without tags, and with the line of everything."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodenet.mesh import yaml_text
from nodenet.mesh.yaml_text import MAX_DEPTH, YamlFault, line_of, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing", None),
        ("a: 1", {"a": 1}),
        ("{a: {80: 8080}}", {"a": {"80": 8080}}),
        ("[1.10, 010, on, yes, 1:30, 0x1f, 2001-01-01, -1, 0]",
         ["1.10", "010", "on", "yes", "1:30", "0x1f", "2001-01-01", -1, 0]),
        ("[true, false, 'true', null, ~, 'null', '']",
         [True, False, "true", None, None, "null", ""]),
        ("a:", {"a": None}),
        ("a: '1'", {"a": "1"}),
        ("a: 12345678901234567890", {"a": "12345678901234567890"}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("- a\n- - b", ["a", ["b"]]),
        ('{"a": [{"b": "\\u00e9"}]}', {"a": [{"b": "é"}]}),
    ],
)  # fmt: skip
def test_values(text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\nb: 2\na: 3", 3, "'a' is there twice, first in line 1"),
        ("a: 1\n--- b", 2, "a second document"),
        ("\na: !!python/object:os.system x", 2, "tags"),
        ("a: !!int '1'", 1, "tags"),
        ("a: !x [1]", 1, "tags"),
        ("[a]: 1", 1, "where a key is needed"),
        ("{a: 1}: 1", 1, "where a key is needed"),
        ("x: &a b\n*a : 1", 2, "an alias where a key is needed"),
        ("x: *a", 1, "*a stands for nothing yet"),
        ("x: &a [*a]", 1, "*a stands for nothing yet"),
        ("a: 'x", 1, "unexpected end of stream"),
        ("a: 1\n\tb: 2", 2, ""),
        ("a: 1\n b: 2", 2, ""),
        ("a: \x07", 1, "U+0007"),
        ("a: 1\nb: \ud800", 2, "UTF-8"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), 1, "levels"),
        ("[" * 100_000, 1, ""),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_faults(text: str, line: int, reason: str) -> None:
    with pytest.raises(YamlFault) as caught:
        parse(text)
    assert reason in caught.value.reason
    assert caught.value.line == line


def test_aliases_are_counted() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
    )
    with pytest.raises(YamlFault, match=f"more than {yaml_text.MAX_VALUES} values"):
        parse(text)


TEXT = """\
a:
  - b: 1
    c:
      d: 2

  - b: 3
e: {f: 4,
    g: 5}
h: &h
  i: 6
j: *h
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("a",), 1),
        (("a", 0), 2),
        (("a", 0, "c"), 3),
        (("a", 0, "c", "d"), 4),
        (("a", 1, "b"), 6),
        (("e", "g"), 8),
        (("j", "i"), 11),
        pytest.param(("a", 1, "missing"), 6, id="the-nearest-around"),
        pytest.param(("missing",), 1, id="the-document"),
        pytest.param(("a", 0, "b", "deeper"), 2, id="beyond-a-scalar"),
    ],
)
def test_lines(path: tuple[str | int, ...], line: int) -> None:
    assert line_of(TEXT, path) == line


#: JSON escapes what is above U+FFFF by halves, which YAML does not know; and controls.
TEXTS = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_json_is_yaml(value: object) -> None:
    assert parse(json.dumps(value, ensure_ascii=False)) == value


@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%,? \n\t1~"), max_size=40) | st.text(max_size=40))
@example("? a\n: b")
@example("%TAG ! x\n--- !a b")
def test_any_text(text: str) -> None:
    try:
        parse(text)
    except YamlFault as fault:
        assert 1 <= fault.line <= text.count("\n") + 2
        assert fault.reason
