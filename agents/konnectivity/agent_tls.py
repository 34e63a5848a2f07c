"""What an agent shows to a server and how it checks it, made anew for each connection.

Files are read each time, so a rotated certificate, key, CA or token is used by the next connection
and nothing has to be watched.
"""

from __future__ import annotations

from nodenet.agents.konnectivity.agent_config import AgentConfig
from nodenet.errors import NodenetError
from nodenet.konnectivity.tls_files import load_authorities, load_pair
from nodenet.tls.context import Context, Side


class CredentialsUnreadable(NodenetError):
    """The token file cannot be used now."""


def context(config: AgentConfig) -> Context:
    """The TLS of one connection; blocking, it reads files. TlsUnusable."""
    made = Context(Side.CLIENT, alpn=[*config.alpn, "h2"])
    load_authorities(made, config.ca_cert)
    if config.cert is not None and config.key is not None:
        load_pair(made, config.cert, config.key)
    return made


def token(config: AgentConfig) -> str | None:
    """The service account token as it is now; blocking. CredentialsUnreadable."""
    path = config.token_path
    if path is None:
        return None
    try:
        # Upstream sends the file as it is; a newline at its end is no legal header.
        found = path.read_text(encoding="ascii").strip()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CredentialsUnreadable(f"cannot read the token {path}: {reason}") from error
    except UnicodeDecodeError as error:
        raise CredentialsUnreadable(
            f"cannot read the token {path}: it is no token: not ASCII text"
        ) from error
    if not found or any(c.isspace() or not c.isprintable() for c in found):
        raise CredentialsUnreadable(f"cannot read the token {path}: it is empty or no token")
    return found
