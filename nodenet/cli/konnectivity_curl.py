"""nodenet konnectivity curl: one HTTP request through a server, to try it out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from nodenet.cli.commands import Verb
from nodenet.cli.globals import Format, Globals, pass_globals
from nodenet.cli.params import SecondsType
from nodenet.errors import NodenetError, NotFound, UsageError

if TYPE_CHECKING:
    import ssl

    from nodenet.konnectivity.fetch import Answer, Url
    from nodenet.konnectivity.tls_stream import TlsFailed

#: Where a server listens by default on a control-plane node.
DEFAULT_SERVER = "unix:/etc/kubernetes/konnectivity-server/konnectivity-server.socket"
#: In OpenSSL's names of alerts; with TLS 1.2 who shows no certificate gets HANDSHAKE_FAILURE.
_CLIENT_ALERTS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")
#: Of a body that is kept for the JSON document.
JSON_BODY_BYTES = 1024 * 1024


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """One header of the answer."""

    name: str
    value: str


class CurlReport(msgspec.Struct, frozen=True, kw_only=True):
    """``konnectivity curl -j``."""

    ok: bool
    """Whether the status is below 400."""
    url: str
    status: int
    reason: str
    headers: list[Header]
    body: str
    """Its first MiB."""
    body_bytes: int
    """The length of all of it."""
    dial_ms: float
    first_byte_ms: float
    total_ms: float


class HttpFailure(NodenetError):
    """The remote answered with a status of 400 or more, and --fail was given."""


@click.command(
    "curl",
    cls=Verb,
    short_help="Ask a URL through a server.",
    epilog="Example: nodenet konnectivity curl --server unix:/run/k.sock http://10.0.0.5:8080/",
)
@click.argument("url")
@click.option("--server", metavar="WHERE", default=DEFAULT_SERVER, help="unix:PATH or HOST:PORT.")
@click.option(
    "--mode",
    type=click.Choice(["grpc", "http-connect"]),
    default="grpc",
    help="As the server's --mode (grpc).",
)
@click.option("--ca", type=click.Path(path_type=Path), help="CA of the server, for HOST:PORT.")
@click.option("--cert", type=click.Path(path_type=Path), help="Certificate shown to the server.")
@click.option("--key", type=click.Path(path_type=Path), help="Its key.")
@click.option("--server-name", metavar="NAME", help="Name in the server's certificate.")
@click.option("-X", "--request", "method", default=None, metavar="METHOD", help="GET, or POST.")
@click.option("-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Sent too.")
@click.option("-d", "--data", metavar="TEXT", help="Body of the request; @FILE reads one.")
@click.option("-i", "--include", is_flag=True, help="Print the answer's head too.")
@click.option("-f", "--fail", is_flag=True, help="Exit 1 for a status of 400 or more.")
@click.option("-k", "--insecure", is_flag=True, help="Do not check the remote's certificate.")
@click.option("--remote-ca", type=click.Path(path_type=Path), help="CA of the remote, for https.")
@click.option("--timeout", type=SecondsType(0.001), default=30.0, metavar="SECONDS",
              help="Of each wait (30).")  # fmt: skip
@pass_globals
def curl(
    g: Globals,
    url: str,
    server: str,
    mode: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    server_name: str | None,
    method: str | None,
    headers: tuple[str, ...],
    data: str | None,
    include: bool,
    fail: bool,
    insecure: bool,
    remote_ca: Path | None,
    timeout: float,
) -> None:
    """Ask a URL through a konnectivity server, as kube-apiserver would, and print the body.

    With -j one object with status, headers, body and how long each step took.
    """
    import asyncio

    from nodenet.konnectivity.client import ProxyUnreachable, TlsFiles, parse_server
    from nodenet.konnectivity.fetch import fetch, parse_url
    from nodenet.konnectivity.tls_files import why_no_file
    from nodenet.konnectivity.tls_stream import TlsFailed

    if (cert is None) != (key is None):
        raise UsageError("--cert and --key need each other", hint="give both")
    for option, path in (("ca", ca), ("cert", cert), ("key", key), ("remote-ca", remote_ca)):
        if path is not None and (reason := why_no_file(path)) is not None:
            raise UsageError(f"--{option}={path}: {reason}")
    tls = None
    if ca is not None:
        tls = TlsFiles(ca=ca, cert=cert, key=key, server_name=server_name)
    body, fields = _body(data), [_header(text) for text in headers]
    kept = _Keeper()
    as_json = g.format is Format.JSON
    where, target = parse_server(server, tls), parse_url(url)
    if where.path is not None and _is_missing(where.path):
        raise NotFound(
            f"no konnectivity server at {where}: no such file",
            hint="name it: --server unix:PATH, or HOST:PORT with --ca FILE",
        )
    try:
        answer = asyncio.run(
            fetch(
                where,
                target,
                mode="http-connect" if mode == "http-connect" else "grpc",
                write=kept.write if as_json else _write,
                on_head=_print_head if include and not as_json else None,
                method=method or ("POST" if data is not None else "GET"),
                headers=fields,
                body=body,
                context=_remote_context(insecure, remote_ca) if target.scheme == "https" else None,
                timeout=timeout,
            )
        )
    except ProxyUnreachable as error:
        error.hint = _at_the_server(error, cert) or error.hint
        raise
    except TlsFailed as error:
        error.hint = _at_the_remote(error, target)
        raise
    sys.stdout.buffer.flush()
    if fail and answer.status >= 400:
        raise HttpFailure(f"{url}: HTTP {answer.status} {answer.reason}".rstrip())
    if as_json:
        from nodenet.cli.output import emit_report

        emit_report(g, _document(url, answer, kept), lambda _report, _style: "")


class _Keeper:
    """Keeps the beginning of a body."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """One more piece."""
        room = JSON_BODY_BYTES - self._size
        if room > 0:
            self._parts.append(data[:room])
            self._size += len(self._parts[-1])

    @property
    def text(self) -> str:
        """As text, whatever it is."""
        return b"".join(self._parts).decode(errors="replace")


def _at_the_server(error: BaseException, cert: Path | None) -> str | None:
    """What to do when the server could not be reached; both modes have the same causes."""
    import ssl

    below: BaseException | None = error
    while below is not None:
        if isinstance(below, PermissionError):
            return "run with sudo, or as a member of the socket's group"
        if isinstance(below, ssl.SSLCertVerificationError):
            return "give the CA of the server, --ca FILE, or the name in it, --server-name NAME"
        if isinstance(below, ssl.SSLError) and _is_about_the_client(below.reason or ""):
            if cert is None:
                return "show a certificate that its --server-ca-cert knows: --cert FILE --key FILE"
            return f"its --server-ca-cert must know the certificate --cert {cert}"
        below = below.__cause__
    return None


def _is_about_the_client(reason: str) -> bool:
    """Whether a server's alert is one for the certificate of its client, or for having none."""
    return "_ALERT_" in reason and any(word in reason for word in _CLIENT_ALERTS)


def _at_the_remote(error: TlsFailed, url: Url) -> str | None:
    """What to do when there is no TLS with the remote."""
    if error.no_tls:
        return f"is it http://{url.address}{url.target}?"
    return "give its CA, --remote-ca FILE, or take any, -k" if error.unverified else None


def _is_missing(path: Path) -> bool:
    """Whether there is no such file; what may not be looked at is left to the connection."""
    try:
        return not path.exists()
    except PermissionError:
        return False


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)


def _document(url: str, answer: Answer, kept: _Keeper) -> CurlReport:
    return CurlReport(
        ok=answer.status < 400,
        url=url,
        status=answer.status,
        reason=answer.reason,
        headers=[Header(name=name, value=value) for name, value in answer.headers],
        body=kept.text,
        body_bytes=answer.body_bytes,
        dial_ms=answer.dial_ms,
        first_byte_ms=answer.first_byte_ms,
        total_ms=answer.total_ms,
    )


def _print_head(answer: Answer) -> None:
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}".rstrip()]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    sys.stdout.buffer.write("\n".join([*lines, "", ""]).encode(errors="replace"))


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"--header {text!r}: not NAME: VALUE", hint="-H 'Accept: text/plain'")
    return name.strip(), value.strip()


def _body(data: str | None) -> bytes:
    if data is None or not data.startswith("@"):
        return (data or "").encode()
    try:
        return Path(data[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"--data {data}: {(error.strerror or str(error)).lower()}") from error


def _remote_context(insecure: bool, ca: Path | None) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is not None:
        # whatever is in the file is believed, as by `TlsFiles`
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"--remote-ca={ca}: it has no certificate in PEM",
                hint=f"look at it: openssl x509 -noout -text -in {ca}",
            ) from error
    return context
