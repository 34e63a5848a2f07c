"""Which flag an error gets."""

from __future__ import annotations

import pytest

from nodenet.agents.ztunnel.flow_facts import ResponseFlag
from nodenet.errors import NodenetError
from nodenet.hbone.errors import ErrorCode, H2Error
from nodenet.identity.errors import (
    CertificateRevoked,
    CertificateUnavailable,
    HandshakeFailed,
    NotTls,
    TlsError,
)


class Told(NodenetError):
    """An error that knows its flag."""

    response_flag = ResponseFlag.NETWORK_POLICY


@pytest.mark.parametrize(
    ("error", "flag"),
    [
        (None, "-"),
        (Told("late"), "NETWORK_POLICY"),
        (NodenetError("io error: reset"), "CONNECT"),
        (OSError(111, "refused"), "CONNECT"),
        (TlsError("no such cipher"), "TLS_FAILURE"),
        # reaches ztunnel as an I/O error
        (HandshakeFailed("alert"), "CONNECT"),
        (NotTls("SSH"), "CONNECT"),
        (CertificateRevoked(7), "CERT_REVOKED"),
        (CertificateUnavailable("spiffe://x", "no CA"), "IDENTITY_ERROR"),
        (H2Error(ErrorCode.PROTOCOL_ERROR, "nonsense"), "H2_HANDSHAKE_FAILURE"),
    ],
)
def test_flag_of_an_error(error: BaseException | None, flag: str) -> None:
    assert ResponseFlag.of(error).value == flag
