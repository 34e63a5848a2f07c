"""The ``forwarded`` header of a CONNECT: who asks, and which service was addressed.

``for="10.0.0.1:41000";host=db.shop.svc.cluster.local``, in the form that ztunnel writes and reads:
the host is not quoted and names are in lower case (RFC 7239 would allow more). The receiver takes
the host for its labels and logs; it believes nobody's ``for``, the client's address is that of the
TCP connection. Source: ztunnel: src/proxy/outbound.rs, src/proxy/h2.rs.
"""

from __future__ import annotations

import re
from typing import Final

#: A longer header says nothing. The longest of ours has 54 + 253 bytes.
MAX_LENGTH: Final = 1024

#: What a hostname of a service may hold; anything else is not written, it could end the part.
_HOST: Final = re.compile(r"[A-Za-z0-9*._-]{1,253}")
_KEY: Final = "host="


def format_forwarded(client: str, host: str | None = None) -> bytes:
    """The value of the header.

    ``client`` is an address with its port, ``10.0.0.1:80`` or ``[fd00::1]:80``; ``host`` is the
    hostname of the service addressed, None when there was none.
    """
    if host is None or _HOST.fullmatch(host) is None:
        return f'for="{client}"'.encode()
    return f'for="{client}";host={host}'.encode()


def parse_forwarded_host(header: bytes | None) -> str | None:
    """The host that the header names; None when it names none or is no ASCII text."""
    if header is None or len(header) > MAX_LENGTH:
        return None
    try:
        text = header.decode("ascii")
    except UnicodeDecodeError:
        return None
    for part in text.split(";"):
        part = part.strip()
        if part.startswith(_KEY):
            return _unquoted(part[len(_KEY) :]) or None
    return None


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text
