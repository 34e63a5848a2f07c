"""Processes that are killed, started again, told to end, and that cannot start at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Literal

import pytest

from nodenet.konnectivity.client import dial
from tests.interop.peers import (
    AgentProcess,
    Process,
    ServerProcess,
    World,
    command_of,
    free_ports,
    wait_for,
)
from tests.interop.remotes import Remote, echo

pytestmark = pytest.mark.timeout(600)  # many processes, one after the other


def works(server: ServerProcess, address: str) -> bool:
    """Whether a tunnel carries bytes."""

    async def work() -> bytes:
        async with await dial(server.target, address, timeout=10) as stream:
            await stream.write(b"works")
            return await stream.read()

    return asyncio.run(work()) == b"works"


def sockets_below(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_socket()}


def test_what_a_killed_process_left_stops_no_start(world: World) -> None:
    server = world.server("ours")
    agent = world.agent("ours", server)
    processes: tuple[Process, ...] = (server, agent)
    with Remote(echo) as remote:
        for _ in range(2):
            wait_for(lambda: server.ready, "connected")
            assert works(server, remote.address)
            for process in processes:
                process.kill()
            assert sockets_below(world.folder) == {"s1", "d1", "a2"}, "they are left behind"
            for process in processes:
                process.start()
        wait_for(lambda: server.ready, "connected")
        assert works(server, remote.address)
    for process in reversed(processes):
        process.signal(signal.SIGTERM)
        assert process.wait(15) == 0
    assert not sockets_below(world.folder), "a clean end leaves nothing"


def test_what_a_killed_server_left_is_kept_where_that_is_asked_for(world: World) -> None:
    """As by upstream's, whose bind(2) finds the address in use."""
    server = world.server("ours", "--delete-existing-uds-file=false")
    server.kill()
    with pytest.raises(AssertionError) as caught:
        server.start()
    assert (
        f"nodenet: socket {world.folder}/s1: left by a process that is gone; "
        "remove it or give another --uds-name, or --delete-existing-uds-file\n"
    ) in str(caught.value)
    assert "s1" in sockets_below(world.folder)
    (world.folder / "s1").unlink()
    server.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a directory below /run")
def test_the_sockets_of_the_run_directory_too(world: World) -> None:
    name = f"nn-{uuid.uuid4().hex[:8]}"
    run = Path(f"/run/nodenet-{name}")
    try:
        server = world.server("ours", f"--id={name}", "--admin-socket=")
        agent = world.agent("ours", server, f"--id={name}", "--admin-socket=")
        both = {"konnectivity.sock", "konnectivity-agent.sock"}
        for process in (server, agent):
            process.kill()
        assert sockets_below(run) == both
        for process in (server, agent):
            process.start()
        wait_for(lambda: server.ready, "connected")
        for role, text in (("server", "1 agents"), ("agent", "connected to 1 of 1 servers")):
            show = [*command_of("ours", "server")[:-1], "show", f"--id={name}", "--role", role]
            done = subprocess.run(show, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0 and text in done.stdout, done.stderr
        for process in (agent, server):
            process.signal(signal.SIGTERM)
            assert process.wait(15) == 0
        assert not sockets_below(run)
    finally:
        shutil.rmtree(run, ignore_errors=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("role", ["server", "agent"])
def test_the_second_signal_ends_a_drain(
    world: World, role: Literal["server", "agent"], number: signal.Signals
) -> None:
    server = world.server("ours", "--graceful-shutdown-timeout=60s")
    agent = world.agent("ours", server, "--drain-timeout=60s")
    told: ServerProcess | AgentProcess = server if role == "server" else agent
    wait_for(lambda: server.ready, "connected")

    async def work(address: str) -> None:
        stream = await dial(server.target, address, timeout=10)
        await stream.write(b"one")
        assert await stream.read() == b"one"
        told.signal(number)
        text = "ending: 1 tunnels" if role == "server" else "draining: 1 tunnels"
        await asyncio.to_thread(wait_for, lambda: text in told.log.read_text(), "it drains")
        await stream.write(b"two")
        assert await stream.read() == b"two", "the tunnel goes on"
        told.signal(number)
        status = await asyncio.to_thread(told.wait, 15)
        assert status == (1 if role == "server" else 0)
        with contextlib.suppress(Exception):
            await stream.close()

    with Remote(echo) as remote:
        asyncio.run(work(remote.address))
        wait_for(lambda: remote.open == 0, "the remote hears of it")


def start(role: Literal["server", "agent"], *flags: str) -> tuple[int, str]:
    """Exit status and stderr of a start that fails."""
    done = subprocess.run(
        [*command_of("ours", role), *flags], capture_output=True, text=True, timeout=30, check=False
    )
    assert not done.stdout
    return done.returncode, done.stderr


def test_a_server_where_one_runs_already(world: World) -> None:
    server = world.server("ours")
    flags = [flag for flag in server.command if flag.startswith("--")]
    health, admin, agents = free_ports(3)
    free = (f"--health-port={health}", f"--admin-port={admin}", f"--agent-port={agents}")
    for number, option in enumerate(("health-port", "admin-port", "agent-port")):
        taken = next(f for f in flags if f.startswith(f"--{option}="))
        own = f"--admin-socket={world.folder}/x"
        status, text = start("server", *flags, own, *free[:number], taken, *free[number + 1 :])
        port = taken.partition("=")[2]
        assert status == 1
        assert text.endswith(
            f"nodenet: port {port} is in use by pid {server.pid} (python); stop it or --{option}\n"
        )
    wait_for(lambda: server.get("/healthz")[0] == 200, "the first one goes on")
    keep = "--delete-existing-uds-file=false"
    status, text = start("server", *flags, *free, f"--admin-socket={world.folder}/x", keep)
    assert status == 1
    assert f"socket {server.target.path} is in use by pid {server.pid}; stop it" in text


def test_what_cannot_start_says_so_in_a_line(world: World) -> None:
    files, folder = world.certificates, world.folder
    rubbish, secret = folder / "rubbish", folder / "secret"
    rubbish.write_text("no PEM")
    secret.mkdir(mode=0o700)
    ports = free_ports(3)
    server = (
        f"--uds-name={folder}/f",
        "--server-port=0",
        f"--cluster-cert={files.server.cert}",
        f"--cluster-key={files.server.key}",
        f"--cluster-ca-cert={files.ca}",
        *(f"--{n}-port={p}" for n, p in zip(("agent", "health", "admin"), ports, strict=True)),
        f"--admin-socket={folder}/d",
    )
    agent = (
        f"--ca-cert={files.ca}",
        f"--health-server-port={ports[1]}",
        f"--admin-server-port={ports[2]}",
        f"--admin-socket={folder}/d",
    )
    long = folder / ("x" * 300)
    for role, flags, status, text in (
        ("server", (f"--uds-name={long}",), 1, f"socket {long}: path of more than 107 bytes"),
        ("server", (f"--uds-name={rubbish}/f",), 1, f"cannot make socket {rubbish}/f: "),
        ("server", ("--uds-name=/proc/no/f",), 1, "cannot make socket /proc/no/f: "),
        ("server", (f"--uds-name={rubbish}",), 1, f"socket {rubbish}: something else is there"),
        ("server", ("--admin-socket=/proc/no/d",), 1, "cannot make socket /proc/no/d: "),
        ("server", (f"--cluster-key={rubbish}",), 1, f"--cluster-key={rubbish}: it has no private"),
        ("server", (f"--cluster-ca-cert={rubbish}",), 1, f"--cluster-ca-cert={rubbish}: it has no"),
        ("server", (f"--cluster-key={secret}",), 2, f"--cluster-key={secret}: is a directory"),
        ("server", ("--health-bind-address=192.0.2.1",), 1, "cannot listen on 192.0.2.1 port "),
        ("server", ("--enable-lease-controller",), 1, "not in a pod: KUBERNETES_SERVICE_HOST"),
        ("server", ("--enable-lease-controller", f"--kubeconfig={rubbish}"), 1, "kubeconfig "),
        ("server", ("--mode=smoke",), 2, "--mode=smoke: unknown; one of: grpc http-connect any"),
        ("server", ("serve",), 2, "nodenet konnectivity server takes flags only: 'serve'"),
        ("agent", (f"--ca-cert={rubbish}",), 1, f"--ca-cert={rubbish}: it has no certificate"),
        ("agent", ("--ca-cert=",), 2, "--ca-cert is missing; give the CAs"),
        ("agent", ("--count-server-leases",), 1, "not in a pod: KUBERNETES_SERVICE_HOST"),
        ("agent", (f"--admin-socket={rubbish}/d",), 1, f"cannot make socket {rubbish}/d: "),
    ):
        given = server if role == "server" else agent
        found, said = start("server" if role == "server" else "agent", *given, *flags)
        assert found == status, (flags, said)
        assert said.startswith(f"nodenet: {text}") and said.count("\n") == 1, (flags, said)
    assert sockets_below(folder) == set()
