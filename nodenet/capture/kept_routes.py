"""Policy routes that outlive an enrolment, for connections that the proxy goes on carrying.

The proxy dials the app as the remote client, and the app's answers come back by the routes of
`pod_routes`. Un-enrolling leaves them while such a connection is open. A file in ``<run>/routes``
remembers the namespace, so that somebody removes them after the last one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from nodenet.abi import IPAddress
from nodenet.capture import pod_routes
from nodenet.capture.namespaces import open_namespace
from nodenet.capture.records import PodRecord
from nodenet.errors import NodenetError
from nodenet.kernel.netns import NetNs
from nodenet.kernel.sock_diag import TcpSocket, tcp_sockets
from nodenet.paths import Instance

#: Established, and closing on one side: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT.
CONNECTED: Final = (1, 4, 5, 8)


class _KeptRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """One namespace that has routes without an enrolment."""

    netns: str
    netns_inode: int
    netns_cookie: int


def proxied_inbound(ns: NetNs, owned: Collection[IPAddress]) -> list[TcpSocket]:
    """Open sockets of inbound connections that the proxy carries to the app as their client.

    ``owned`` are the namespace's own addresses: a socket with another one, and not loopback's, is
    the proxy's. Their answers need the policy routes.
    """
    return [
        s for s in tcp_sockets(ns, CONNECTED) if s.local not in owned and not s.local.is_loopback
    ]


def own_addresses(ns: NetNs) -> set[IPAddress]:
    """Every address of the namespace."""
    return {found.interface.ip for found in ns.addresses()}


def remember_routes(instance: Instance, ns: NetNs, record: PodRecord) -> None:
    """Notes that the namespace keeps its routes although the pod is taken out."""
    directory = _directory(instance)
    directory.mkdir(parents=True, exist_ok=True)
    cookie = record.netns_cookie
    kept = _KeptRoutes(netns=ns.path, netns_inode=ns.inode, netns_cookie=cookie)
    temporary = directory / f".{cookie}.json.{os.getpid()}"
    temporary.write_bytes(msgspec.json.encode(kept))
    temporary.replace(directory / f"{cookie}.json")


def remove_unneeded_routes(
    instance: Instance, in_use: Collection[int], tell: Callable[[str], object]
) -> None:
    """Removes remembered routes that no connection needs any more.

    ``in_use`` are the cookies of enrolled pods that need their routes; those are only forgotten.
    """
    directory = _directory(instance)
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        try:
            if _is_done(path, in_use):
                path.unlink(missing_ok=True)
        except (NodenetError, OSError) as error:
            tell(f"policy routes that are not needed any more stay: {path}: {error}")
    with contextlib.suppress(OSError):  # not empty
        directory.rmdir()


def _is_done(path: Path, in_use: Collection[int]) -> bool:
    """Removes the routes if it may; whether the file has served."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_KeptRoutes)
    except msgspec.DecodeError:
        return True  # half-written, or nobody's
    if kept.netns_cookie in in_use:
        return True
    ns = open_namespace(kept)
    if ns is None:
        return True
    with ns:
        if proxied_inbound(ns, own_addresses(ns)):
            return False
        pod_routes.remove(ns)
    return True


def _directory(instance: Instance) -> Path:
    return instance.run / "routes"
