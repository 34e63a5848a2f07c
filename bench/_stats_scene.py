"""What counting a connection costs when it is not captured: the statistics alone.

The pod is enrolled for the other direction only, so its connections are recorded and go where they
were meant to. Client and server are in the pod and outside and share one CPU, as in
`bench._kernel_scene`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final, Literal

from bench import _kernel_scene as kernel
from bench._load import Load, Mode
from bench._samples import Samples
from bench._world import ATTACHED, NONE, POD_NAME, Standing, Variant, World, loaded
from nodenet import abi
from nodenet.capture.options import EnrolOptions
from nodenet.capture.session import Capture
from nodenet.errors import NodenetError

OPENED: Final = "opened by the pod"
ACCEPTED: Final = "accepted by the pod"
RECORDED: Final = "recorded"
WATCHED: Final = "watched"
VARIANTS: Final = (NONE.name, ATTACHED.name, RECORDED, WATCHED)
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 10.0
_CLOSED: Final = abi.INDEX_KEY.pack(index=abi.EventKind.CLOSED)


class WatchFailed(NodenetError):
    """`nodenet conn watch` did not begin to read."""


def variants(scene: str, watch_cpu: int) -> tuple[Variant, ...]:
    """The variants of a scene, the baseline first."""
    other: Literal["in", "out"] = "in" if scene == OPENED else "out"

    @contextlib.contextmanager
    def recorded(world: World) -> Iterator[Standing]:
        with loaded(world) as capture:
            _enroll(capture, world, other)
            yield Standing(captured=False)

    @contextlib.contextmanager
    def watched(world: World) -> Iterator[Standing]:
        with loaded(world) as capture:
            _enroll(capture, world, other)
            with _watching(capture, watch_cpu):
                yield Standing(captured=False)

    return (NONE, ATTACHED, Variant(RECORDED, recorded), Variant(WATCHED, watched))


def measure(
    load: Load,
    world: World,
    scene: str,
    variant: Variant,
    samples: Samples,
    *,
    mode: Mode,
    milliseconds: int,
    cpu: int,
) -> None:
    """One round of one variant."""
    with variant.standing(world) as standing:
        path = _path(world, scene)
        sample = kernel.run(load, world, standing, path, mode, milliseconds, cpu)
        kernel.record(samples, scene, variant.name, mode, sample)


def _path(world: World, scene: str) -> kernel.Path:
    if scene == OPENED:
        client, server, ip = world.pod.path, world.outside.path, world.outside_ip
    else:
        client, server, ip = world.outside.path, world.pod.path, world.pod_ip
    address = f"{ip}:8080"
    return kernel.Path(scene, client, server, address, address)


def _enroll(capture: Capture, world: World, direction: Literal["in", "out"]) -> None:
    options = EnrolOptions(direction=direction)
    capture.enroll(world.pod.path, name=POD_NAME, options=options)


@contextlib.contextmanager
def _watching(capture: Capture, cpu: int) -> Iterator[None]:
    """`nodenet conn watch` reads every event, on a CPU of its own."""
    argv = ["taskset", "-c", str(cpu), sys.executable, "-m", "nodenet.cli.main"]
    argv += ["--id", str(capture.instance.id), "-j", "conn", "watch"]
    with subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stderr is not None
        try:
            _await_reader(capture, process)
            yield
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_reader(capture: Capture, process: subprocess.Popen[str]) -> None:
    """Returns when the reader has asked for events; nothing but the map tells."""
    overdue = threading.Event()
    limit = threading.Timer(_START_SECONDS, overdue.set)
    limit.start()
    try:
        while not int.from_bytes(capture.maps["watch"].lookup(_CLOSED) or b"", "little"):
            if process.poll() is not None or overdue.wait(0.002):
                process.kill()
                said = process.communicate()[1].strip()
                raise WatchFailed(f"conn watch does not read: {said or 'too slow'}")
    finally:
        limit.cancel()
