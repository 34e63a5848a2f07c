"""`konnectivity curl`: what is said when there is no answer. What it does: tests/interop."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from nodenet.cli.konnectivity_curl import _at_the_remote, _at_the_server, _remote_context
from nodenet.konnectivity.client import ProxyUnreachable
from nodenet.konnectivity.fetch import parse_url
from nodenet.konnectivity.tls_stream import TlsFailed
from tests.interop.certificates import Authority
from tests.unit.tls.wire import Theirs, connect, their_server

Cli = Any


def unreachable(cause: BaseException) -> ProxyUnreachable:
    """An error as the client raises it, with a second one between it and its cause."""
    between = ProxyUnreachable("s", "why")
    between.__cause__ = cause
    error = ProxyUnreachable("s", "why")
    error.__cause__ = between
    return error


def refusal(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


def test_what_to_do_at_the_server() -> None:
    required = unreachable(refusal("TLSV13_ALERT_CERTIFICATE_REQUIRED"))
    assert _at_the_server(required, None) == (
        "show a certificate that its --server-ca-cert knows: --cert FILE --key FILE"
    )
    assert _at_the_server(unreachable(refusal("TLSV1_ALERT_UNKNOWN_CA")), Path("tls.crt")) == (
        "its --server-ca-cert must know the certificate --cert tls.crt"
    )
    assert _at_the_server(unreachable(PermissionError(13, "Permission denied")), None) == (
        "run with sudo, or as a member of the socket's group"
    )
    hint = _at_the_server(unreachable(ssl.SSLCertVerificationError(1, "x")), None)
    assert hint is not None and "--ca FILE" in hint
    for other in (
        ConnectionRefusedError(111, "refused"),
        refusal("WRONG_VERSION_NUMBER"),
        refusal("TLSV1_ALERT_NO_APPLICATION_PROTOCOL"),
    ):
        assert _at_the_server(unreachable(other), None) is None


def test_what_to_do_at_the_remote() -> None:
    url = parse_url("https://10.0.0.5:8080/x?y")
    assert (
        _at_the_remote(TlsFailed("h", "r", no_tls=True), url) == "is it http://10.0.0.5:8080/x?y?"
    )
    hint = _at_the_remote(TlsFailed("h", "r", unverified=True), url)
    assert hint == "give its CA, --remote-ca FILE, or take any, -k"
    assert _at_the_remote(TlsFailed("h", "r"), url) is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--ca", "{folder}"), "--ca={folder}: is a directory"),
        (("--remote-ca", "/nowhere"), "--remote-ca=/nowhere: no such file"),
    ],
)
def test_files(cli: Cli, tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    given = [word.format(folder=tmp_path) for word in words]
    outcome = cli("konnectivity", "curl", "http://a/", *given)
    assert (outcome.status, outcome.err) == (2, f"nodenet: {text.format(folder=tmp_path)}\n")


def test_a_remotes_authority_that_another_one_signed_is_believed(tmp_path: Path) -> None:
    middle = Authority("middle", issuer=Authority("root"))
    remote = Theirs(their_server(middle.issue(tmp_path, "remote", "localhost")))
    context = _remote_context(False, middle.write(tmp_path / "ca"))
    connect(Theirs(context, "localhost"), remote)
