"""The ``traceparent`` header: an id that the logs of both proxies of a connection share.

W3C Trace Context: ``00-<32 hex digits>-<16 hex digits>-00``. ztunnel takes any text of 55
characters; here it also has to have that form, else the connection gets an id of its own.
"""

from __future__ import annotations

import re
from random import Random
from typing import Final, NamedTuple

_FORM: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


class TraceParent(NamedTuple):
    """A trace and the span within it, as lower-case hex digits (32 and 16)."""

    trace_id: str
    span_id: str

    def header(self) -> bytes:
        """The value of the header; nothing is said to be sampled."""
        return f"00-{self.trace_id}-{self.span_id}-00".encode()


def new_traceparent(rng: Random) -> TraceParent:
    """A fresh id. Not a secret: any generator seeded differently in each process will do."""
    # a zero is not an id (W3C Trace Context section 3.2.2.3)
    return TraceParent(f"{rng.getrandbits(128) or 1:032x}", f"{rng.getrandbits(64) or 1:016x}")


def parse_traceparent(header: bytes | None) -> TraceParent | None:
    """The id that a peer sent; None when it sent none or something else."""
    found = None if header is None else _FORM.fullmatch(header)
    return None if found is None else TraceParent(found[1].decode(), found[2].decode())
