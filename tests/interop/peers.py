"""Konnectivity servers and agents as processes: the real ones from Go, and ours.

Used by the tests below and by `bench.konnectivity`, which measures both pairs the same way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self, TypeVar

from nodenet.konnectivity.client import Mode, Server, TlsFiles
from tests.interop.certificates import Certificates
from tests.interop.go_peer import go_peer

Maker = Literal["go", "ours"]
Transport = Literal["uds", "tcp"]
P = TypeVar("P", bound="Process")
#: For a process to serve, and to end when told. Machines that run several suites are slow.
START_SECONDS: Final = 30.0
END_SECONDS: Final = 20.0
_PROBE_SECONDS: Final = 0.02


def free_ports(count: int) -> list[int]:
    """Ports nobody has now, within what upstream's server takes (1024 to 49151).

    Below those that the kernel gives to outgoing connections (net.ipv4.ip_local_port_range), so
    that none of them takes one before its process does, and in turn, so that none is given twice
    to processes that are slow to take them.
    """
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            candidate = next(_CANDIDATES)
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("0.0.0.0", candidate))
                found.append(candidate)
    return found


def _in_turn(ports: range) -> Iterator[int]:
    """Round and round, from somewhere else in each process."""
    at = os.getpid() * 97 + time.monotonic_ns() // 1000
    while True:
        yield ports[at % len(ports)]
        at += 1


_CANDIDATES: Final = _in_turn(range(12_000, 32_000))


def wait_for(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Returns when it is so. AssertionError with ``what`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(_PROBE_SECONDS)


def command_of(maker: Maker, role: Literal["server", "agent"]) -> list[str]:
    """What starts a program; its flags follow."""
    if maker == "go":
        return [str(go_peer()), role]
    return [sys.executable, "-m", "nodenet.cli.main", "konnectivity", role]


@dataclass(slots=True)
class Process:
    """One program with a health port. A context manager: started inside, killed after."""

    name: str
    command: Sequence[str]
    folder: Path
    health_port: int
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What it wrote to stderr."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def start(self) -> None:
        """Starts it and waits for /healthz."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            wait_for(self._healthy, f"{self.name} is healthy")
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.log.read_text()[-4000:]}") from None
        except BaseException:  # Ctrl-C: nobody else knows of it yet
            self.kill()
            raise

    def _healthy(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self._process.returncode}")
        return self.get("/healthz")[0] == 200

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a path of the health port; status 0 when nobody is there."""
        url = f"http://127.0.0.1:{self.health_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels; 0 when there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0].rstrip() == name and all(each in head for each in wanted):
                total += float(value)
        return total

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Sends a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Waits for its end; the exit status."""
        assert self._process is not None
        return self._process.wait(seconds)

    @property
    def running(self) -> bool:
        """Whether it is."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Ends it at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(END_SECONDS)


@dataclass(slots=True, kw_only=True)
class ServerProcess(Process):
    """A server with its frontend at a Unix socket or a TCP port."""

    target: Server
    mode: Mode
    agent_port: int
    server_id: str
    admin_port: int = 0

    @property
    def ready(self) -> bool:
        """Whether an agent is connected."""
        return self.get("/readyz")[0] == 200


@dataclass(slots=True, kw_only=True)
class AgentProcess(Process):
    """An agent."""

    admin_port: int
    agent_id: str = ""


@dataclass(slots=True)
class World:
    """Makes processes below one folder and ends what is left of them."""

    folder: Path
    certificates: Certificates
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _made: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def server(
        self,
        maker: Maker,
        *flags: str,
        mode: Mode = "grpc",
        transport: Transport = "uds",
        server_id: str | None = None,
        agent_port: int | None = None,
        start: bool = True,
    ) -> ServerProcess:
        """A server that takes agents with a certificate of the CA."""
        self._made += 1
        name = f"{maker}-server-{self._made}"
        front, agents, health, admin = free_ports(4)
        files = self.certificates
        command = [
            *command_of(maker, "server"),
            f"--mode={mode}",
            f"--agent-port={agent_port or agents}",
            f"--health-port={health}",
            f"--admin-port={admin}",
            f"--cluster-ca-cert={files.ca}",
            f"--cluster-cert={files.server.cert}",
            f"--cluster-key={files.server.key}",
            f"--server-id={server_id or name}",
        ]
        if maker == "ours":
            command.append(f"--admin-socket={self.folder}/d{self._made}")
        if transport == "uds":
            path = self.folder / f"s{self._made}"
            target = Server(path=path)
            command += ["--server-port=0", f"--uds-name={path}"]
        else:
            tls = TlsFiles(ca=files.ca, cert=files.client.cert, key=files.client.key)
            target = Server(host="127.0.0.1", port=front, tls=tls)
            command += [
                f"--server-port={front}",
                f"--server-ca-cert={files.ca}",
                f"--server-cert={files.server.cert}",
                f"--server-key={files.server.key}",
            ]
        made = ServerProcess(
            name,
            [*command, *flags],
            self.folder,
            health,
            target=target,
            mode=mode,
            agent_port=agent_port or agents,
            server_id=server_id or name,
            admin_port=admin,
        )
        return self._started(made) if start else made

    def agent(
        self,
        maker: Maker,
        server: ServerProcess | int,
        *flags: str,
        agent_id: str | None = None,
        start: bool = True,
    ) -> AgentProcess:
        """An agent of a server, or of whoever listens at a port of this host."""
        self._made += 1
        name = f"{maker}-agent-{self._made}"
        health, admin = free_ports(2)
        files = self.certificates
        port = server if isinstance(server, int) else server.agent_port
        command = [
            *command_of(maker, "agent"),
            "--proxy-server-host=127.0.0.1",
            f"--proxy-server-port={port}",
            f"--ca-cert={files.ca}",
            f"--agent-cert={files.client.cert}",
            f"--agent-key={files.client.key}",
            f"--health-server-port={health}",
            f"--admin-server-port={admin}",
            f"--agent-id={agent_id or name}",
        ]
        if maker == "ours":
            command.append(f"--admin-socket={self.folder}/a{self._made}")
        made = AgentProcess(
            name,
            [*command, *flags],
            self.folder,
            health,
            admin_port=admin,
            agent_id=agent_id or name,
        )
        return self._started(made) if start else made

    def connected(
        self, server: Maker, agent: Maker, *, mode: Mode, transport: Transport = "uds"
    ) -> tuple[ServerProcess, AgentProcess]:
        """A server with one agent connected to it."""
        one = self.server(server, mode=mode, transport=transport)
        other = self.agent(agent, one)
        wait_for(lambda: one.ready, f"{other.name} is connected to {one.name}")
        return one, other

    def _started(self, process: P) -> P:
        self._stack.enter_context(process)
        return process
