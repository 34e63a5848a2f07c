"""Where the API is and how to be let in: a pod's service account, or a kubeconfig file.

Files named here are read again when they change (`Access.files`), because tokens and certificates
of both kinds are rotated under a running process.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from nodenet.endpoint import format_host_port
from nodenet.errors import NodenetError

#: Where a pod finds its service account (client-go: rest/config.go, InClusterConfig).
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoAccess(NodenetError):
    """The file or the environment does not say how to reach the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach and enter one API. Of a file and data of the same thing, data wins."""

    host: str
    port: int
    secure: bool = True
    server_name: str | None = None
    """What the certificate must be for, None: ``host``."""
    verify: bool = True
    ca_file: Path | None = None
    ca_data: bytes | None = None
    cert_file: Path | None = None
    cert_data: bytes | None = None
    key_file: Path | None = None
    key_data: bytes | None = None
    token_file: Path | None = None
    token: str | None = None
    path: str = ""
    """Before every path of the API."""
    kubeconfig: Path | None = None
    """The file all this was read from; it is read again when it changes (`current`)."""

    def __str__(self) -> str:
        return format_host_port(self.host, self.port)

    def files(self) -> list[Path]:
        """What may change under us."""
        own = (self.kubeconfig, self.ca_file, self.cert_file, self.key_file, self.token_file)
        return [p for p in own if p]

    def current(self) -> Access:
        """The same as its kubeconfig says it now; blocking. NoAccess."""
        return self if self.kubeconfig is None else from_kubeconfig(self.kubeconfig)

    def bearer(self) -> str | None:
        """The token as it is now; blocking. NoAccess."""
        if self.token_file is not None:
            try:
                return self.token_file.read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                if self.token is not None:
                    return self.token  # it may come later
                raise NoAccess(f"token {self.token_file}: {_reason(error)}") from error
        return self.token

    def context(self) -> ssl.SSLContext | None:
        """The TLS of a new connection, None for plain text; blocking. NoAccess.

        Whatever is in the file of authorities is believed, as by Go, be it signed by another one or
        not.
        """
        if not self.secure:
            return None
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        made.set_alpn_protocols(["http/1.1"])
        self._load_authorities(made)
        if self.cert_data is not None or self.cert_file is not None:
            self._load_certificate(made)
        return made

    def _load_authorities(self, context: ssl.SSLContext) -> None:
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca_data is not None:
            with self._about("certificate-authority-data"):
                context.load_verify_locations(cadata=self.ca_data.decode("ascii"))
        elif self.ca_file is not None:
            with self._about(f"certificate-authority {self.ca_file}"):
                context.load_verify_locations(cafile=self.ca_file)
        else:
            context.load_default_certs()

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        chain, of_chain = self._content("client-certificate", self.cert_file, self.cert_data)
        key, of_key = self._content("client-key", self.key_file, self.key_data)
        # the library reads files only: this one has no name and no other reader
        fd = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
        try:
            os.write(fd, chain + b"\n" + key)
            with self._about(f"{of_chain} with {of_key}"):
                context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    def _content(self, key: str, path: Path | None, data: bytes | None) -> tuple[bytes, str]:
        """What a key of the kubeconfig stands for, and what to call it."""
        if data is not None:
            return data, f"{key}-data"
        if path is None:
            raise NoAccess(f"credentials for {self}: a client certificate needs its key")
        name = f"{key} {path}"
        with self._about(name):
            return path.read_bytes(), name

    @contextlib.contextmanager
    def _about(self, what: str) -> Iterator[None]:
        """NoAccess that names it for what goes wrong inside the block."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise NoAccess(f"credentials for {self}: {what}: {_reason(error)}") from error


def in_cluster(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """The service account of the pod we run in. NoAccess."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not port.isdigit():
        raise NoAccess(
            "not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
            hint="give --kubeconfig",
        )
    token, ca = folder / "token", folder / "ca.crt"
    if not token.is_file():
        raise NoAccess(f"no service account token: {token}", hint="give --kubeconfig")
    return Access(host=host, port=int(port), token_file=token, ca_file=ca if ca.is_file() else None)


def from_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig, with all of its files there; blocking.

    NoAccess, also for what is not supported.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NoAccess(f"kubeconfig {path}: {_reason(error)}") from error
    if not isinstance(found, dict):
        raise NoAccess(f"kubeconfig {path}: not a configuration")
    try:
        return _read_context(path, found)
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise NoAccess(f"kubeconfig {path}: {_reason(error)}") from error


def _read_context(path: Path, config: dict[str, Any]) -> Access:
    name = config.get("current-context") or ""
    context = _named(path, config, "contexts", "context", name)
    cluster = _named(path, config, "clusters", "cluster", context.get("cluster", ""))
    user_name = context.get("user", "")
    user = _named(path, config, "users", "user", user_name) if user_name else {}
    for unsupported in ("exec", "auth-provider"):
        if unsupported in user:
            raise NoAccess(
                f"kubeconfig {path}: user {user_name} needs {unsupported}, which is not supported",
                hint="use a token, a token file or a client certificate",
            )
    url = urlsplit(str(cluster["server"]))
    if url.scheme not in ("https", "http") or not url.hostname:
        raise NoAccess(f"kubeconfig {path}: server {cluster['server']!r} is no URL")

    secure = url.scheme == "https"
    verify = secure and not cluster.get("insecure-skip-tls-verify", False)

    def file(section: dict[str, Any], key: str, other: str, used: bool = True) -> Path | None:
        if not section.get(key):
            return None
        found = path.parent / str(section[key])
        if used and not section.get(other):  # which will do
            _must_be_there(path, key, found)
        return found

    def data(section: dict[str, Any], key: str) -> bytes | None:
        return base64.b64decode(section[key], validate=True) if section.get(key) else None

    return Access(
        host=url.hostname,
        port=url.port or (443 if url.scheme == "https" else 80),
        secure=secure,
        server_name=cluster.get("tls-server-name") or None,
        verify=not cluster.get("insecure-skip-tls-verify", False),
        ca_file=file(cluster, "certificate-authority", "certificate-authority-data", used=verify),
        ca_data=data(cluster, "certificate-authority-data"),
        cert_file=file(user, "client-certificate", "client-certificate-data", used=secure),
        cert_data=data(user, "client-certificate-data"),
        key_file=file(user, "client-key", "client-key-data", used=secure),
        key_data=data(user, "client-key-data"),
        token_file=file(user, "tokenFile", "token"),
        token=str(user["token"]).strip() if user.get("token") else None,
        path=url.path.rstrip("/"),
        kubeconfig=path,
    )


def _must_be_there(config: Path, key: str, found: Path) -> None:
    # by name only: a token may be in a pipe, which can be read once
    try:
        found.stat()
    except OSError as error:
        raise NoAccess(f"kubeconfig {config}: {key} {found}: {_reason(error)}") from error


def _named(path: Path, config: dict[str, Any], table: str, inner: str, name: str) -> dict[str, Any]:
    for entry in config.get(table) or ():
        if entry.get("name") == name:
            found = entry.get(inner) or {}
            if isinstance(found, dict):
                return found
    raise NoAccess(f"kubeconfig {path}: no {inner} {name!r} in {table}")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no {error.args[0]}"
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return " ".join(str(reason).lower().replace("_", " ").split())
