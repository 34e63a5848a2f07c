"""The process around a `server.Server`: limits, surfaces, the Kubernetes API, signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Final, TextIO

import uvloop

from nodenet.agents.konnectivity.process import (
    StopSignals,
    admin_listener,
    close_all,
    memory_given_back,
    raise_file_limit,
)
from nodenet.agents.konnectivity.server import Server
from nodenet.agents.konnectivity.server_admin import ServerAdmin
from nodenet.agents.konnectivity.server_agents import Authenticator
from nodenet.agents.konnectivity.server_config import ServerConfig
from nodenet.agents.konnectivity.server_leases import LeaseKeeper
from nodenet.agents.konnectivity.server_listeners import open_listening
from nodenet.agents.konnectivity.server_metrics import LeaseMetrics
from nodenet.agents.konnectivity.server_tokens import TokenReviewer
from nodenet.httpd.server import HttpServer
from nodenet.kube.access import from_kubeconfig, in_cluster
from nodenet.kube.client import ApiClient
from nodenet.paths import Instance
from nodenet.rpc.malloc import keep_large_buffers

#: Objects made between two collections. Tunnels free themselves, so there is little to find.
_GC_THRESHOLD: Final = (50_000, 20, 20)

logger = logging.getLogger(__name__)


def run(config: ServerConfig, instance: Instance) -> int:
    """Runs the server until it is told to end; the exit status. NodenetError before it serves."""
    raise_file_limit()
    keep_large_buffers()
    stop = StopSignals()
    path = config.admin_socket or instance.run / "konnectivity.sock"
    return int(uvloop.run(serve(config, stop, path, ready=sys.stderr)))


async def serve(config: ServerConfig, stop: StopSignals, path: Path, *, ready: TextIO) -> int:
    """Serves until ``stop``, then drains; 1 when a second wish to end cut that short."""
    async with contextlib.AsyncExitStack() as stack:
        health = open_listening(config.health_host, config.health_port, "--health-port")
        stack.callback(close_all, health)
        admin = open_listening(config.admin_host, config.admin_port, "--admin-port")
        stack.callback(close_all, admin)
        unix = admin_listener(path, wanted=config.admin_socket is not None)
        stack.callback(close_all, unix)
        stack.enter_context(stop.caught(asyncio.get_running_loop()))
        stack.enter_context(memory_given_back(asyncio.get_running_loop()))
        kubernetes = await stack.enter_async_context(_kubernetes(config))
        server = await stack.enter_async_context(
            Server(config, authenticator=kubernetes.authenticator)
        )
        surface = stack.enter_context(contextlib.closing(ServerAdmin(server, kubernetes.metrics)))
        await stack.enter_async_context(HttpServer("health", surface.health_routes(), health))
        await stack.enter_async_context(
            HttpServer("admin", surface.admin_routes(), [*admin, *unix])
        )
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLD)
        ready.write(f"READY konnectivity-server server-id={config.server_id} pid={os.getpid()}\n")
        ready.flush()
        async with kubernetes.leases(server):
            await stop.first.wait()
        return await _drain(config, server, stop)


async def _drain(config: ServerConfig, server: Server, stop: StopSignals) -> int:
    logger.info(
        "ending: %d tunnels and peers are left, up to %g s", server.unfinished, config.drain_timeout
    )
    async with asyncio.TaskGroup() as tasks:
        drained = tasks.create_task(server.drain(config.drain_timeout), name="drain")
        hurry = tasks.create_task(stop.second.wait(), name="second signal")
        await asyncio.wait((drained, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurried = not drained.done()
        for task in (drained, hurry):
            task.cancel()
    logger.info("ended: %d of them cut", server.unfinished)
    return 1 if hurried else 0


class _Kubernetes:
    """What of the Kubernetes API a configuration asks for; without any, nothing is asked."""

    def __init__(self, config: ServerConfig, client: ApiClient | None) -> None:
        self.metrics = LeaseMetrics()
        self._config = config
        self._client = client
        self.authenticator: Authenticator | None = None
        if client is not None and config.token_rule is not None:
            self.authenticator = TokenReviewer(client, config.token_rule)

    @contextlib.asynccontextmanager
    async def leases(self, server: Server) -> AsyncIterator[None]:
        """Keeps this server's lease inside the block."""
        config, client = self._config, self._client
        if client is None or not config.leases:
            yield
            return

        def tell(count: int) -> None:
            server.agents.server_count = count

        keeper = LeaseKeeper(
            client,
            server_id=config.server_id,
            namespace=config.lease_namespace,
            labels=config.lease_labels,
            metrics=self.metrics,
            tell=tell,
            rng=Random(),
        )
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(keeper.run(), name="lease")
            try:
                yield
            finally:
                keeping.cancel()
                await keeper.leave()


@contextlib.asynccontextmanager
async def _kubernetes(config: ServerConfig) -> AsyncIterator[_Kubernetes]:
    if config.token_rule is None and not config.leases:
        yield _Kubernetes(config, None)
        return
    # before a port is opened: a wrong file is found at start
    access = (
        from_kubeconfig(config.kubeconfig)
        if config.kubeconfig is not None
        else in_cluster(os.environ)
    )
    async with ApiClient(access, qps=config.api_qps, burst=config.api_burst) as client:
        yield _Kubernetes(config, client)
