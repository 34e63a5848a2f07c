"""What an Accept-Encoding header allows."""

from __future__ import annotations

import pytest

from nodenet.httpd.compression import accepts_gzip


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("identity", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("zstd, br;q=1.0, gzip;q=0.1", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0, *", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=nonsense", False),
        (",,;;", False),
    ],
)
def test_accepts_gzip(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted
