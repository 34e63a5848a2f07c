"""What an agent shows to a server and how it checks it, made anew for each connection.

Files are read each time, so a rotated certificate, key, CA or token is used by the next connection
and nothing has to be watched.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from nodenet.agents.konnectivity.agent_config import AgentConfig
from nodenet.errors import NodenetError


class CredentialsUnreadable(NodenetError):
    """A certificate, key, CA or token file cannot be used now."""


def context(config: AgentConfig) -> ssl.SSLContext:
    """The TLS of one connection; blocking, it reads files. CredentialsUnreadable."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols([*config.alpn, "h2"])
    path: Path = config.ca_cert
    try:
        made.load_verify_locations(cafile=path)
        if config.cert is not None:
            path = config.cert
            made.load_cert_chain(config.cert, config.key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CredentialsUnreadable(f"cannot use {path}: {reason.lower()}") from error
    return made


def token(config: AgentConfig) -> str | None:
    """The service account token as it is now; blocking. CredentialsUnreadable."""
    path = config.token_path
    if path is None:
        return None
    try:
        # Upstream sends the file as it is; a newline at its end is no legal header.
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsUnreadable(f"cannot read the token {path}: {error}") from error
    if not found or any(c.isspace() or not c.isprintable() for c in found):
        raise CredentialsUnreadable(f"cannot read the token {path}: it is empty or no token")
    return found
