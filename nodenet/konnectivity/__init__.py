"""Reverse tunnels, wire-compatible with the apiserver-network-proxy: the cores, without I/O.

For programs: `dial` gives a tunnel through a server, see `nodenet.konnectivity.client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nodenet.konnectivity.client import Stream, TlsFiles, dial

__all__ = ["Stream", "TlsFiles", "dial"]


def __getattr__(name: str) -> Any:
    """Imported when they are asked for: most of who imports this package needs a core only."""
    if name in __all__:
        from nodenet.konnectivity import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
