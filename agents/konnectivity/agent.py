"""The life of an agent process: start, serve, drain, end.

The first SIGTERM or SIGINT drains: every server is told, tunnels and late dials go on, and the
process ends as soon as there have been none for a second, or at ``--drain-timeout``. (Upstream's
agent only ever ends by a second signal, or by the kill at the end of the grace period.) The second
one ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final, TextIO

import uvloop

from nodenet.agents.konnectivity import agent_leases, agent_tls
from nodenet.agents.konnectivity.agent_admin import AgentAdmin
from nodenet.agents.konnectivity.agent_config import AgentConfig
from nodenet.agents.konnectivity.agent_metrics import LeaseCounts
from nodenet.agents.konnectivity.agent_remote import Sockets
from nodenet.agents.konnectivity.agent_set import ClientSet
from nodenet.agents.konnectivity.process import (
    StopSignals,
    admin_listener,
    close_all,
    memory_given_back,
    raise_file_limit,
)
from nodenet.httpd.server import HttpServer
from nodenet.httpd.sockets import ANYWHERE, open_tcp
from nodenet.paths import Instance
from nodenet.rpc.malloc import keep_large_buffers

#: Objects made between two collections. Tunnels free themselves, so there is little to find.
_GC_THRESHOLD: Final = (50_000, 20, 20)

logger = logging.getLogger(__name__)


def run(config: AgentConfig, instance: Instance, *, environ: Mapping[str, str] = os.environ) -> int:
    """Runs the agent until it is told to end; the exit status. NodenetError before it serves."""
    raise_file_limit()
    keep_large_buffers()
    stop, path = StopSignals(), admin_socket(config, instance)
    uvloop.run(serve(config, stop, path, environ=environ, ready=sys.stderr))
    return 0


def admin_socket(config: AgentConfig, instance: Instance) -> Path:
    """Where the agent answers: ``--admin-socket``, else in the run directory."""
    return config.admin_socket or instance.run / "konnectivity-agent.sock"


async def serve(
    config: AgentConfig,
    stop: StopSignals,
    path: Path,
    *,
    environ: Mapping[str, str],
    ready: TextIO,
) -> None:
    """Serves until ``stop``, then drains. Listeners are opened before any server is dialled.

    NoAccess, TlsUnusable, BindError before that.
    """
    loop = asyncio.get_running_loop()
    api = agent_leases.access(config, environ) if config.count_leases else None
    # each connection reads the files anew; what is wrong from the beginning is said at once
    await asyncio.to_thread(agent_tls.context, config)
    async with contextlib.AsyncExitStack() as stack:
        health = _listeners(config.health_host, config.health_port, "--health-server-port")
        stack.callback(close_all, health)
        admin = _listeners(config.admin_host, config.admin_port, "--admin-server-port")
        stack.callback(close_all, admin)
        unix = admin_listener(path, wanted=config.admin_socket is not None)
        stack.callback(close_all, unix)
        stack.enter_context(stop.caught(loop))
        stack.enter_context(memory_given_back(loop))
        sockets = stack.enter_context(contextlib.closing(Sockets(loop)))
        clients = ClientSet(config, sockets, rng=Random())
        leases = LeaseCounts()
        surface = stack.enter_context(
            contextlib.closing(AgentAdmin(config, clients, sockets, leases))
        )
        await stack.enter_async_context(HttpServer("health", surface.health_routes(), health))
        await stack.enter_async_context(
            HttpServer("admin", surface.admin_routes(), [*admin, *unix])
        )
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLD)
        ready.write(f"READY konnectivity-agent agent-id={config.agent_id} pid={os.getpid()}\n")
        ready.flush()
        try:
            counting = (
                agent_leases.count_leases(config, api, leases, clients.count_leases)
                if api is not None
                else None
            )
            await _until_stopped(config, clients, counting, stop)
        finally:
            clients.close()


async def _until_stopped(
    config: AgentConfig,
    clients: ClientSet,
    counting: Coroutine[Any, Any, None] | None,
    stop: StopSignals,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(clients.run(), name="client set")]
        if counting is not None:
            working.append(tasks.create_task(counting, name="lease counter"))
        await stop.first.wait()
        logger.info(
            "draining: %d tunnels and peers are left, up to %g s",
            clients.unfinished,
            config.drain_timeout,
        )
        for task in working:
            task.cancel()
        clients.drain()
        drained = tasks.create_task(clients.drained(config.drain_timeout), name="drain")
        hurry = tasks.create_task(stop.second.wait(), name="second signal")
        await asyncio.wait((drained, hurry), return_when=asyncio.FIRST_COMPLETED)
        cut = clients.unfinished
        drained.cancel()
        hurry.cancel()
    logger.info("ended: %d of them cut", cut)


def _listeners(host: str, port: int, option: str) -> list[socket.socket]:
    return open_tcp(host or ANYWHERE, port, f"give another {option}")
