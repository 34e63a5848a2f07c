"""The token that an agent shows, read anew for each connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodenet.agents.konnectivity.agent_config import load
from nodenet.agents.konnectivity.agent_tls import CredentialsUnreadable, token


def test_a_token_is_stripped(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc\n")
    flags = [f"--ca-cert={__file__}", f"--service-account-token-path={path}"]
    assert token(load(flags, {})) == "abc"
    assert token(load(flags[:1], {})) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x00\xff\xfe", "it is no token: not ASCII text"),
        (b"", "it is empty or no token"),
        (b"two words", "it is empty or no token"),
        (None, "no such file or directory"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content or b"")
    config = load([f"--ca-cert={__file__}", f"--service-account-token-path={path}"], {})
    if content is None:
        path.unlink()
    with pytest.raises(CredentialsUnreadable) as caught:
        token(config)
    assert caught.value.message == f"cannot read the token {path}: {reason}"
