"""Compiles and runs the load generator, ``load*.c``, and makes measures of what it prints."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from nodenet.errors import NodenetError, NotSupported

SOURCES: Final = tuple(Path(__file__).with_name(n) for n in ("load.c", "load_many.c"))
_FLAGS: Final = ("-O2", "-Wall", "-Wextra")
#: Beyond what it measures: compiling is not in it, waiting for an answer is.
_SPARE_SECONDS: Final = 60.0

Mode = Literal["conn", "rtt", "bulk", "open", "up", "down", "trips"]


class LoadFailed(NodenetError):
    """The load generator did not compile, or a connection of it failed."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as load.c prints it: times in nanoseconds, of all clients together."""

    count: int
    total: int
    """With those that only warm up, which CPU times include."""
    elapsed_ns: int
    bytes: int
    client_cpu_ns: int
    server_cpu_ns: int
    client_switches: int
    """How often the clients lost their CPU."""
    p50_ns: int = 0
    p99_ns: int = 0
    max_ns: int = 0
    reply_p50_ns: int = 0
    reply_p99_ns: int = 0
    reply_max_ns: int = 0

    @property
    def cpu_share(self) -> float:
        """CPU of client and server by time: near 1 where both share a CPU that nobody else used."""
        return (self.client_cpu_ns + self.server_cpu_ns) / self.elapsed_ns

    @property
    def per_second(self) -> float:
        """Connections or round trips a second."""
        return self.count / self.elapsed_ns * 1e9

    @property
    def cpu_us_each(self) -> float:
        """CPU of client and server for one connection or round trip."""
        return (self.client_cpu_ns + self.server_cpu_ns) / self.total / 1e3

    @property
    def gb_per_second(self) -> float:
        """10^9 bytes a second."""
        return self.bytes / self.elapsed_ns

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU of client and server for 10^9 bytes."""
        return (self.client_cpu_ns + self.server_cpu_ns) / self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Where one end runs."""

    netns: Path | None = None
    """None: where this process is."""
    cpu: int
    cgroup: Path | None = None

    def arguments(self, prefix: str) -> Iterator[str]:
        """Its keys for load.c; the root cgroup where none is named."""
        if self.netns is not None:
            yield f"{prefix}_ns={self.netns}"
        yield f"{prefix}_cpu={self.cpu}"
        if self.cgroup is not None:
            yield f"{prefix}_cgroup={self.cgroup}"


class Load:
    """The compiled program. A context manager: what it compiled is removed at the end."""

    def __init__(self) -> None:
        """Compiles it, in a tenth of a second. NotSupported without a C compiler."""
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise NotSupported("bench", "a C compiler", hint="apt install gcc libc6-dev")
        self._directory = tempfile.TemporaryDirectory(prefix="nodenet-bench-")
        self.program = Path(self._directory.name, "load")
        argv = [compiler, *_FLAGS, "-o", str(self.program), *map(str, SOURCES)]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode:
            self._directory.cleanup()
            raise LoadFailed(f"load generator: does not compile: {done.stderr.strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def run(
        self,
        mode: Mode,
        *,
        client: Side,
        dial: str,
        server: Side | None = None,
        listen: str | None = None,
        milliseconds: int,
        size: int = 64,
        clients: int = 1,
        connections: int = 1,
        exchange: bool = False,
        batch: bool = False,
    ) -> Sample:
        """One measurement. LoadFailed when a connection fails or bytes are missing.

        ``clients`` are processes (``conn``), ``connections`` those of one process (the modes that
        are in load_many.c).
        """
        argv = [str(self.program), mode, f"dial={dial}", *client.arguments("client")]
        if server is not None and listen is not None:
            argv += [f"listen={listen}", *server.arguments("server")]
        argv += [f"ms={milliseconds}", f"size={size}", f"clients={clients}"]
        argv += [f"exchange={int(exchange)}", f"batch={int(batch)}", f"count={connections}"]
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=milliseconds / 1e3 + _SPARE_SECONDS,
        )
        if done.returncode:
            raise LoadFailed(f"{' '.join(argv[1:])}: {done.stderr.strip() or done.returncode}")
        return msgspec.json.decode(done.stdout, type=Sample)

    @contextlib.contextmanager
    def holding(self, connections: int, *, where: Side, address: str) -> Iterator[None]:
        """So many connections of a process to itself are open for the length of the block."""
        argv = [str(self.program), "hold", f"dial={address}", f"count={connections}"]
        with _until_closed([*argv, *where.arguments("client")]):
            yield

    @contextlib.contextmanager
    def idling(
        self, connections: int, *, client: Side, dial: str, server: Side, listen: str
    ) -> Iterator[Idle]:
        """So many connections, opened and silent, for the length of the block. LoadFailed."""
        argv = [str(self.program), "idle", f"dial={dial}", f"listen={listen}"]
        argv += [f"count={connections}", *client.arguments("client"), *server.arguments("server")]
        with _until_closed(argv) as process:
            yield Idle(process)


class Idle:
    """Connections of `Load.idling`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def verify(self) -> int:
        """Sends a byte there and back on each, and returns how many did; to be called once.

        LoadFailed at the first that does not.
        """
        process = self._process
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        return _said_count(process)


@contextlib.contextmanager
def _until_closed(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The program runs and has its connections; it ends with its standard input."""
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        try:
            _said_count(process)
            yield process
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()


def _said_count(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    if not line:
        raise LoadFailed(process.stderr.read().decode().strip() or "load: ended without a word")
    return msgspec.json.decode(line, type=_Count).count


class _Count(msgspec.Struct, frozen=True):
    count: int
