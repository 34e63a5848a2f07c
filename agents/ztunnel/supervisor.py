"""The life of a proxy process: start, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Final, TextIO

import uvloop

from nodenet.agents.ztunnel import logs, process
from nodenet.agents.ztunnel.access_log import AccessLog, LogFormat
from nodenet.agents.ztunnel.admin import About, Admin
from nodenet.agents.ztunnel.admin_socket import admin_socket
from nodenet.agents.ztunnel.admin_source import ProxySource
from nodenet.agents.ztunnel.config import ZtunnelConfig
from nodenet.agents.ztunnel.log_control import ACCESS, LogControl, LogFilter, Loggers
from nodenet.agents.ztunnel.log_writer import LineWriter
from nodenet.agents.ztunnel.loop_lag import LoopLag
from nodenet.agents.ztunnel.membership import membership
from nodenet.agents.ztunnel.metrics import Metrics
from nodenet.agents.ztunnel.pods import RecordPodSource
from nodenet.agents.ztunnel.readiness import PROXY, Readiness
from nodenet.agents.ztunnel.surfaces import Sockets, serving
from nodenet.agents.ztunnel.telemetry import Telemetry
from nodenet.agents.ztunnel.worker import LocalWorker

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Objects made between two collections. Connections free themselves, so there is little to find.
_GC_THRESHOLD: Final = (50_000, 20, 20)

logger = logging.getLogger(__name__)


def run(config: ZtunnelConfig, env: Mapping[str, str] = os.environ) -> None:
    """Runs the proxy until SIGTERM or SIGINT. NodenetError when it cannot start.

    The order matters: the cgroup before the first socket, the lock before the first listener.
    """
    with LineWriter(sys.stderr.fileno(), as_json=config.log_format is LogFormat.JSON) as writer:
        logs.configure(config.log_level, form=config.log_format, writer=writer)
        cgroup = process.join_cgroup(config)
        files = process.raise_file_limit()
        with process.only_one(config.instance, config.node):
            logger.info(
                "proxy of %s, node %s: cgroup %s, %d descriptors",
                config.instance.name,
                config.node or "-",
                cgroup,
                files,
            )
            uvloop.run(serve(config, files, writer=writer, env=env, ready=sys.stderr))


async def serve(
    config: ZtunnelConfig,
    max_files: int,
    *,
    writer: LineWriter,
    env: Mapping[str, str],
    ready: TextIO,
) -> None:
    """Serves the pods of the configured instance and node until told to stop, then drains.

    Writes the line ``READY …`` to ``ready`` when the pods of this moment are served.
    """
    started_ns = time.time_ns()
    loop = asyncio.get_running_loop()
    telemetry = Telemetry(AccessLog(config.log_format, writer.put), level=config.access_level)
    async with contextlib.AsyncExitStack() as stack:
        sockets = stack.enter_context(
            contextlib.closing(
                Sockets(
                    admin_socket(config.instance, config.node),
                    admin=config.admin,
                    stats=config.stats,
                    readiness=config.readiness,
                )
            )
        )
        stop = stack.enter_context(_StopSignals(loop))
        member = None
        if config.mesh_file is not None:
            member = await stack.enter_async_context(membership(config, config.mesh_file))
        worker = stack.enter_context(
            LocalWorker(
                loop,
                connect_seconds=config.connect_seconds,
                max_connections=config.max_connections,
                max_files=max_files,
                telemetry=telemetry,
                mesh=None if member is None else member.mesh,
            )
        )
        source = RecordPodSource(loop, config.instance, config.node)
        told = ProxySource(config, worker, source, telemetry, member, stop.request)
        logs_in_force = stack.enter_context(
            contextlib.closing(LogControl(config.log_filter, _Levels(telemetry).apply))
        )
        readiness = Readiness(PROXY)
        about = About(
            instance=config.instance.name,
            node=config.node,
            started_ns=started_ns,
            istio_version=env.get("ISTIO_META_ISTIO_VERSION", "unknown"),
        )
        lag = stack.enter_context(contextlib.closing(LoopLag(loop)))
        surfaces = await stack.enter_async_context(
            serving(
                sockets,
                Admin(about, told, telemetry, logs_in_force, readiness),
                Metrics(telemetry, told.figures, lag=lag, writer=writer),
                readiness,
            )
        )
        with contextlib.closing(source):
            await source.start(worker)
            readiness.done(PROXY)
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLD)
            _say_ready(config, worker, env, ready)
            await stop.first.wait()
        await surfaces.close()
        await _drain(config, worker, stop, env)


class _StopSignals:
    """SIGTERM and SIGINT: the first one asks to drain, the second one to end at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def __enter__(self) -> _StopSignals:
        for number in _STOP_SIGNALS:
            self._loop.add_signal_handler(number, self.request)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number in _STOP_SIGNALS:
            self._loop.remove_signal_handler(number)

    def request(self) -> None:
        """One more wish to end."""
        if self.first.is_set():
            self.second.set()
        self.first.set()


class _Levels:
    """Puts filters into force on the loggers and on the access log."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._loggers = Loggers()

    def apply(self, wanted: LogFilter) -> None:
        """See `LogControl`."""
        self._loggers.apply(wanted)
        self._telemetry.level = wanted.number(ACCESS)


def _say_ready(
    config: ZtunnelConfig, worker: LocalWorker, env: Mapping[str, str], ready: TextIO
) -> None:
    pods = len(worker.snapshot())
    ready.write(
        f"READY ztunnel instance={config.instance.name} node={config.node or '-'} "
        f"pods={pods} pid={os.getpid()}\n"
    )
    ready.flush()
    process.notify_service_manager(env, "READY=1")


async def _drain(
    config: ZtunnelConfig, worker: LocalWorker, stop: _StopSignals, env: Mapping[str, str]
) -> None:
    process.notify_service_manager(env, "STOPPING=1")
    logger.info("draining: %d connections, %g s", worker.active, config.drain_seconds)
    async with asyncio.TaskGroup() as tasks:
        drained = tasks.create_task(worker.drain(config.drain_seconds), name="drain")
        hurry = tasks.create_task(stop.second.wait(), name="second-signal")
        await asyncio.wait((drained, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not drained.done():
            drained.cancel()
            logger.info("told twice: %d connections cut", worker.active)
            return
    logger.info("drained: %d connections cut", drained.result())
