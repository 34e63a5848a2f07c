"""The table renderer: widths, dropping, eliding, alignment, what a pipe gets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.cli import numbers
from nodenet.cli.style import Style
from nodenet.cli.tables import Column, Elide, cell, elide, printable, render_table, text

PIPE = Style()
TERMINAL = Style(width=80)
LONG_POD = "shop/cart-7d9f6b-with-a-name-that-goes-on"
ROWS = [
    {"id": "3a01", "pod": LONG_POD, "peer": "10.42.1.7:51034", "state": "ok", "sent": 12_702},
    {"id": "3a44", "pod": "shop/db", "peer": "[2001:db8:1:2:3:4:5:6]:65535", "state": "down",
     "sent": None},
]  # fmt: skip
COLUMNS = (
    Column("ID", "id"),
    Column("POD", "pod", max=32, elide=Elide.MIDDLE),
    Column("PEER", "peer", keep=True),
    Column("STATE", "state", state=True),
    Column("SENT", "sent", numbers.size, right=True),
    Column("HIDDEN", "id", wide=True),
)


def test_a_pipe_gets_everything_in_full() -> None:
    assert render_table(ROWS, COLUMNS, PIPE) == (
        "ID    POD                                        PEER                          STATE   SENT\n"  # noqa: E501
        "3a01  shop/cart-7d9f6b-with-a-name-that-goes-on  10.42.1.7:51034               ok     12.4K\n"  # noqa: E501
        "3a44  shop/db                                    [2001:db8:1:2:3:4:5:6]:65535  down       -\n"  # noqa: E501
    )


def test_a_terminal_of_80_elides_the_pod_and_keeps_addresses() -> None:
    shown = render_table(ROWS, COLUMNS, TERMINAL)
    assert max(map(len, shown.splitlines())) == 80
    assert "[2001:db8:1:2:3:4:5:6]:65535" in shown
    assert "shop/cart-7d9f6…e-that-goes-on  10.42" in shown  # room for 30 of the 32 allowed
    assert "SENT" in shown


def test_columns_go_from_the_right_but_never_a_kept_one() -> None:
    shown = render_table(ROWS, COLUMNS, replace(TERMINAL, width=54))
    assert shown.splitlines()[0].split() == ["ID", "POD", "PEER"]
    shown = render_table(ROWS, COLUMNS, replace(TERMINAL, width=20))
    assert shown.splitlines()[0].split() == ["ID", "PEER"]
    assert "[2001:db8:1:2:3:4:5:6]:65535" in shown


def test_dropping_gives_its_room_to_the_others() -> None:
    wide = render_table(ROWS, COLUMNS, replace(TERMINAL, width=75))
    narrow = render_table(ROWS, COLUMNS, replace(TERMINAL, width=65))
    assert "STATE" in wide and "STATE" in narrow
    assert "SENT" in wide and "SENT" not in narrow
    assert max(map(len, narrow.splitlines())) <= 65


def test_no_header() -> None:
    shown = render_table(ROWS, COLUMNS, replace(PIPE, headers=False))
    assert shown.startswith("3a01")
    assert len(shown.splitlines()) == 2
    assert render_table([], COLUMNS, replace(PIPE, headers=False)) == ""


def test_wide_shows_more() -> None:
    assert "HIDDEN" in render_table(ROWS, COLUMNS, replace(PIPE, wide=True))


def test_an_empty_table_is_its_header() -> None:
    assert render_table([], COLUMNS, PIPE) == "ID  POD  PEER  STATE  SENT\n"


def test_colour_surrounds_the_word_and_leaves_the_columns_where_they_are() -> None:
    plain = render_table(ROWS, COLUMNS, PIPE)
    painted = render_table(ROWS, COLUMNS, replace(PIPE, colour=True))
    assert "\x1b[32mok\x1b[0m     12.4K" in painted
    assert "\x1b[31mdown\x1b[0m" in painted
    for code in ("\x1b[32m", "\x1b[31m", "\x1b[0m"):
        painted = painted.replace(code, "")
    assert painted == plain


def test_no_trailing_blanks() -> None:
    rows = [{"a": "x", "b": "longer"}, {"a": "longer", "b": "x"}]
    shown = render_table(rows, (Column("A", "a"), Column("B", "b")), PIPE)
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_a_tilde_where_the_ellipsis_cannot_be_shown() -> None:
    shown = render_table(ROWS, COLUMNS, replace(TERMINAL, ellipsis="~"))
    assert "~" in shown and shown.isascii()


@pytest.mark.parametrize(
    ("width", "where", "shown"),
    [
        (9, Elide.MIDDLE, "abcd…ghij"),
        (8, Elide.MIDDLE, "abcd…hij"),
        (10, Elide.MIDDLE, "abcdefghij"),
        (1, Elide.MIDDLE, "…"),
        (2, Elide.MIDDLE, "a…"),
        (5, Elide.END, "abcd…"),
        (3, Elide.NEVER, "abcdefghij"),
    ],
)
def test_elide(width: int, where: Elide, shown: str) -> None:
    assert elide("abcdefghij", width, where) == shown


@given(st.text("ab/-", max_size=60), st.integers(1, 60), st.sampled_from(Elide))
def test_elided_text_is_never_longer_than_asked(word: str, width: int, where: Elide) -> None:
    shown = elide(word, width, where)
    assert len(shown) <= width or where is Elide.NEVER
    assert shown == word or len(word) > width


@given(
    st.lists(st.tuples(st.text("abc:.", max_size=50), st.integers(0, 10**12)), max_size=5),
    st.integers(1, 120),
)
def test_lines_fit_whatever_the_content(rows: list[tuple[str, int]], width: int) -> None:
    columns = (
        Column("FIRST", "0", elide=Elide.MIDDLE),
        Column("SECOND", "1", numbers.size, right=True),
        Column("THIRD", "0", elide=Elide.END, max=10),
    )
    given_rows = [{"0": word, "1": number} for word, number in rows]
    shown = render_table(given_rows, columns, Style(width=width))
    # the first column stays at its floor even when the terminal has no room for that
    assert all(len(line) <= max(width, 16) for line in shown.splitlines())
    assert len(shown.splitlines()) == len(rows) + 1


def test_values_as_text() -> None:
    assert text(True) == "yes"
    assert text(["a", "b"]) == "a,b"
    assert text([]) == "-"
    assert cell({"k": None}, Column("K", "k")) == "-"
    assert cell({"k": 0}, Column("K", "k")) == "0"
    assert cell({"k": 1}, Column("K", "other", value=lambda row: row["k"] + 1)) == "2"


def test_control_characters_are_written_out() -> None:
    assert printable("evil\x1b[31m\n") == "evil\\x1b[31m\\n"
    shown = render_table([{"c": "a\x1b]0;x\x07\nb"}], (Column("COMM", "c"),), PIPE)
    assert "\x1b" not in shown and len(shown.splitlines()) == 2
