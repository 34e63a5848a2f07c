"""docs/json holds what the types say now."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nodenet.cli import schemas
from nodenet.conns.connection import KEYS

DOCS = Path(__file__).parents[3] / "docs" / "json"


@pytest.mark.parametrize("name", sorted(schemas.DOCUMENTS))
def test_the_file_is_up_to_date(name: str) -> None:
    assert (DOCS / f"{name}.json").read_text() == schemas.text(name), (
        "write them: python -m nodenet.cli.schemas docs/json"
    )


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in DOCS.glob("*.json")} == set(schemas.DOCUMENTS)


def test_a_connection_has_every_key() -> None:
    document = msgspec.json.decode(schemas.text("conn-list"))
    connection = document["$defs"]["Connection"]
    assert tuple(connection["properties"]) == KEYS
    assert set(connection["required"]) == set(KEYS)


def test_writing_them(tmp_path: Path) -> None:
    schemas.main(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == len(schemas.DOCUMENTS)
