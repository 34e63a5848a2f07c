"""Where the proxy of a node is asked."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from nodenet.paths import Instance


def admin_socket(instance: Instance, node: str | None) -> Path:
    """``<run>/ztunnel.sock``, of a proxy with a node's name ``<run>/ztunnel-<node>.sock``."""
    suffix = "" if node is None else f"-{quote(node, safe='')}"
    return instance.run / f"ztunnel{suffix}.sock"
