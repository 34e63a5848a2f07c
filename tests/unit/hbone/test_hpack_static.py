"""The static table against the general library's."""

from __future__ import annotations

from hpack.table import HeaderTable

from nodenet.hbone.hpack_static import STATIC


def test_the_table_is_that_of_the_standard() -> None:
    assert STATIC == HeaderTable.STATIC_TABLE
