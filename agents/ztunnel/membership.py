"""A proxy as a member of a mesh: its state, where that comes from, and its certificates."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from nodenet.agents.ztunnel.config import ZtunnelConfig
from nodenet.agents.ztunnel.mesh_context import Mesh
from nodenet.agents.ztunnel.mesh_file import MeshFile
from nodenet.agents.ztunnel.mesh_pod import identity_of
from nodenet.agents.ztunnel.revocation import Revocation, issuers_of
from nodenet.errors import NodenetError
from nodenet.identity.ca import EmbeddedCa
from nodenet.identity.clock import LoopClock
from nodenet.identity.crl_file import CrlFile
from nodenet.identity.spiffe import Identity
from nodenet.identity.store import CertificateStore
from nodenet.identity.tls import TlsContexts
from nodenet.mesh.state import Change, MeshState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What keeps a proxy in the mesh."""

    mesh: Mesh
    file: MeshFile


@contextlib.asynccontextmanager
async def membership(config: ZtunnelConfig, mesh_file: Path) -> AsyncIterator[Membership]:
    """The state as the file says and a store of certificates, both kept for the block's length.

    NodenetError when the file or the CA cannot be used now.
    """
    loop = asyncio.get_running_loop()
    assert config.ca_directory is not None
    ca = await asyncio.to_thread(EmbeddedCa, config.ca_directory)
    state = MeshState(node=config.node or "")
    store = CertificateStore(ca, LoopClock(loop), random.Random(), ttl_seconds=config.ttl_seconds)
    unsubscribe = state.subscribe(_Prefetch(config.node, store))
    file = MeshFile(loop, mesh_file, state)
    lists = None
    if config.crl is not None:
        lists = await asyncio.to_thread(_read_lists, config.crl, store)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(store.run(), name="certificates")]
        if lists is not None:
            running.append(tasks.create_task(lists.run(), name="crl"))
        try:
            file.start()
            yield Membership(
                mesh=Mesh(
                    state=state,
                    certificates=store,
                    tls=TlsContexts(config.tls),
                    revocation=None if lists is None else Revocation(lists),
                    network=config.network,
                    response_baggage=config.response_baggage,
                    max_streams=config.max_streams,
                    socks5=config.socks5,
                    idle_seconds=config.pool_idle_seconds,
                ),
                file=file,
            )
        finally:
            file.close()
            unsubscribe()
            store.close()
            for task in running:
                task.cancel()


class _Prefetch:
    """Has certificates made for this node's workloads before their first connection."""

    def __init__(self, node: str | None, store: CertificateStore) -> None:
        self._node = node
        self._store = store

    def __call__(self, change: Change) -> None:
        for workload in change.workloads:
            tunnelled = workload.native_tunnel or workload.is_hbone
            if tunnelled and (self._node is None or workload.node == self._node):
                try:
                    self._store.prefetch(identity_of(workload))
                except NodenetError as error:
                    logger.warning("workload %s: %s", workload.uid, error.line())
        for text in change.forgotten_identities:
            with contextlib.suppress(NodenetError):  # one that never was an identity
                self._store.forget(Identity.parse(text))


def _read_lists(path: Path, store: CertificateStore) -> CrlFile:
    return CrlFile(path, issuers=lambda: issuers_of(store))
