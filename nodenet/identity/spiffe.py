"""Workload identities: ``spiffe://<trust domain>/ns/<namespace>/sa/<service account>``.

Source: ztunnel: src/identity/manager.rs; SPIFFE-ID section 2 for the characters of a segment.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from nodenet.identity.errors import InvalidIdentity

_SCHEME: Final = "spiffe://"
#: Longest id that is taken (SPIFFE-ID section 2.3).
MAX_ID_BYTES: Final = 2048
_SEGMENT: Final = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+"
_PARTS: Final = re.compile(f"{_SEGMENT}/{_SEGMENT}/{_SEGMENT}")


class _Parts(NamedTuple):
    trust_domain: str
    namespace: str
    service_account: str


class Identity(_Parts):
    """Who a workload is. ``str()`` is the SPIFFE id.

    A tuple of three strings, so that hashing and comparing happen in C. InvalidIdentity when a
    part is empty or has a character that a segment of a SPIFFE id cannot have: one with a slash
    would be somebody else's id.
    """

    __slots__ = ()

    def __new__(cls, trust_domain: str, namespace: str, service_account: str) -> Self:
        """The identity of a service account."""
        joined = f"{trust_domain}/{namespace}/{service_account}"
        if not _PARTS.fullmatch(joined) or len(joined) > MAX_ID_BYTES - 15:
            raise InvalidIdentity(
                f"{_SCHEME}{trust_domain}/ns/{namespace}/sa/{service_account}",
                "not a SPIFFE id of a workload",
            )
        return super().__new__(cls, trust_domain, namespace, service_account)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The identity a SPIFFE id names; InvalidIdentity unless it has exactly these segments."""
        if not text.startswith(_SCHEME):
            raise InvalidIdentity(text, "does not start with spiffe://")
        parts = text[len(_SCHEME) :].split("/")
        if len(parts) != 5 or parts[1] != "ns" or parts[3] != "sa":
            raise InvalidIdentity(text, "not a SPIFFE id of a workload")
        try:
            return cls(parts[0], parts[2], parts[4])
        except InvalidIdentity as error:
            raise InvalidIdentity(text, error.reason) from None

    def __str__(self) -> str:
        return f"{_SCHEME}{self.trust_domain}/ns/{self.namespace}/sa/{self.service_account}"

    def __repr__(self) -> str:
        return f"Identity({str(self)!r})"
