"""`konnectivity show`: of a server that runs in the test, and of nobody."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nodenet.agents.konnectivity.agent import serve
from nodenet.agents.konnectivity.process import StopSignals
from nodenet.agents.konnectivity.server_config import Mode
from nodenet.agents.konnectivity.views import ServerRow
from nodenet.cli.konnectivity_show import AgentReport, _agent_text, _why_fewer
from nodenet.cli.main import main
from nodenet.cli.style import Style
from nodenet.konnectivity.packets import DialRequest
from nodenet.konnectivity.strategies import Strategy
from tests.interop import certificates
from tests.interop.certificates import Certificates
from tests.interop.peers import free_ports
from tests.unit.agents.konnectivity.agent_scene import config_for, run, until
from tests.unit.agents.konnectivity.server_wire import fake_agent, proxy_stream
from tests.unit.agents.konnectivity.test_server_admin import asked

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.make(tmp_path_factory.mktemp("certs"))


def shown(capsys: Capture, folder: Path, *arguments: str) -> Callable[[], tuple[int, str, str]]:
    """Runs the command against the server's socket."""

    def call() -> tuple[int, str, str]:
        status = main(["konnectivity", "show", "--admin", str(folder / "admin"), *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_a_server_and_its_agents(tmp_path: Path, capsys: Capture) -> None:
    async def test() -> None:
        async with asked(tmp_path, Mode.GRPC) as scene:
            status, out, err = await asyncio.to_thread(shown(capsys, tmp_path))
            assert status == 1 and "0 agents" in out
            assert err == "nodenet: no agent is connected to server s1\n"
            async with (
                fake_agent(scene.server, "a1", identifiers="host=node1") as agent,
                proxy_stream(tmp_path / "f") as client,
            ):
                client.send(DialRequest("tcp", "x:1", 5))
                await agent.accept_dial(3)
                await client.next()
                status, out, err = await asyncio.to_thread(shown(capsys, tmp_path))
                lines = out.splitlines()
                assert status == 0 and err == ""
                assert lines[0] == "server s1: 1 agents, 1 of 1 servers, strategies default"
                assert lines[1].split() == (
                    "AGENT NODE ADDRESS IDENTIFIERS STREAMS CONNS DIALS FAILED AGE".split()
                )
                assert lines[2].split()[:2] == ["a1", "node1"]
                status, out, _ = await asyncio.to_thread(shown(capsys, tmp_path, "-j"))
                found = json.loads(out)
                assert found["ok"] is True and found["agents"][0]["conns"] == 1
                _, out, _ = await asyncio.to_thread(shown(capsys, tmp_path, "--connections", "-j"))
                (tunnel,) = json.loads(out)
                assert tunnel["connect_id"] == 3 and tunnel["state"] == "open"

    run(test())


def test_why(tmp_path: Path, capsys: Capture) -> None:
    async def test() -> None:
        strategies = (Strategy.DEST_HOST, Strategy.DEFAULT_ROUTE)
        async with (
            asked(tmp_path, strategies=strategies) as scene,
            fake_agent(scene.server, "a1", identifiers="host=node1"),
        ):
            status, out, _ = await asyncio.to_thread(shown(capsys, tmp_path, "--why", "node1:80"))
            assert status == 0
            assert out.splitlines() == [
                "> destHost      identifier node1 of a1",
                "  defaultRoute  no agent has default-route=true",
                "Result: agent a1, by destHost",
            ]
            status, out, err = await asyncio.to_thread(shown(capsys, tmp_path, "--why", "node2"))
            assert status == 1
            assert err == (
                "nodenet: node2 matches no agent identifier; default-route agents: none\n"
            )
            status, out, _ = await asyncio.to_thread(
                shown(capsys, tmp_path, "--why", "node2", "-j")
            )
            assert status == 1 and json.loads(out)["ok"] is False

    run(test())


def test_rows_are_chosen_as_those_of_a_list(tmp_path: Path, capsys: Capture) -> None:
    async def test() -> None:
        async with asked(tmp_path) as scene:
            status, out, err = await asyncio.to_thread(shown(capsys, tmp_path, "--fail-empty"))
            assert (status, out, err) == (4, "", "nodenet: nothing found: no agents\n")
            async with fake_agent(scene.server, "a1"), fake_agent(scene.server, "a2"):

                async def agents(*options: str) -> tuple[list[str], str]:
                    call = shown(capsys, tmp_path, *options, "-j")
                    status, out, err = await asyncio.to_thread(call)
                    assert status == 0
                    return [row["agent_id"] for row in json.loads(out)["agents"]], err

                assert await agents("--sort", "-agent_id", "--fail-empty") == (["a2", "a1"], "")
                left_out = "nodenet: 1 of 2 left out (--limit 1)\n"
                assert await agents("--sort", "agent_id", "--limit", "1") == (["a1"], left_out)
                assert (await agents("--limit", "0"))[0] == [], "and it is ready all the same"
                _, out, _ = await asyncio.to_thread(shown(capsys, tmp_path, "--limit", "1"))
                assert out.startswith("server s1: 2 agents") and len(out.splitlines()) == 3
                status, out, err = await asyncio.to_thread(
                    shown(capsys, tmp_path, "--sort", "nokey")
                )
                assert status == 2 and out == ""
                assert err.startswith(
                    "nodenet: unknown key nokey in --sort; one of: agent_id node address "
                )

    run(test())


@pytest.mark.parametrize("option", [("--sort", "why"), ("--limit", "1"), ("--fail-empty",)])
def test_a_walk_through_the_strategies_is_no_list(capsys: Capture, option: tuple[str]) -> None:
    assert main(["--id", "nobody", "konnectivity", "show", "--why", "x", *option]) == 2
    assert f"--why and {option[0]} exclude each other; " in capsys.readouterr().err


def test_nobody_there(capsys: Capture, tmp_path: Path) -> None:
    status, out, err = shown(capsys, tmp_path)()
    assert status == 4 and out == ""
    assert err == (
        f"nodenet: no konnectivity here: connect {tmp_path}/admin: no such file; "
        "start it: nodenet konnectivity server, or name one: --admin 127.0.0.1:8095\n"
    )


def test_a_socket_may_be_written_as_curl_takes_it(capsys: Capture, tmp_path: Path) -> None:
    for where in (f"unix:{tmp_path}/x", f"unix://{tmp_path}/x", f"{tmp_path}/x"):
        assert main(["konnectivity", "show", "--admin", where]) == 4
        assert f"connect {tmp_path}/x: no such file; " in capsys.readouterr().err


def test_a_port_of_something_else(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        assert main(["konnectivity", "show", "--role", "server", "--admin", where]) == 1
        thread.join()
    assert capsys.readouterr().err == (
        f"nodenet: konnectivity at {where}: no answer in HTTP came; "
        "is it an admin port? a server's is 8095, an agent's 8094\n"
    )


def left_behind(path: Path) -> None:
    """The file of a daemon that was killed."""
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def test_a_killed_server_does_not_hide_the_agent(
    capsys: Capture, tmp_path: Path, certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodenet.paths.RUN", tmp_path)
    folder = tmp_path / "nodenet-killed"
    left_behind(folder / "konnectivity.sock")

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["--id", "killed", "konnectivity", "show", *words])
        return status, *capsys.readouterr()

    status, _, err = call()
    assert status == 4 and "konnectivity.sock: connection refused" in err

    async def test() -> None:
        health, admin = free_ports(2)
        flags = (f"--health-server-port={health}", f"--admin-server-port={admin}")
        config = config_for(certs, 1, "--agent-id=a1", *flags)
        stop, ready = StopSignals(), io.StringIO()
        path = folder / "konnectivity-agent.sock"
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(config, stop, path, environ={}, ready=ready))
            await until(lambda: bool(ready.getvalue()), "the agent serves")
            status, out, err = await asyncio.to_thread(call)
            assert status == 1 and out.startswith("connected to 0 of 1 servers"), err
            status, _, _ = await asyncio.to_thread(call, "--role", "server")
            assert status == 4, "whoever asks for the server gets no agent"
            status, _, err = await asyncio.to_thread(call, "--sort", "nokey")
            assert status == 2 and "one of: server_id address state " in err
            status, out, err = await asyncio.to_thread(call, "--limit", "0")
            assert status == 1 and out == "connected to 0 of 1 servers (count from: server)\n"
            assert "connected to 0 of 1 servers: 127.0.0.1:1: " in err, "of all, not of those shown"
            stop.request()
            stop.request()

    run(test())


def test_a_lab_is_not_where_the_daemons_of_the_host_are(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Konnectivity needs no pins, so a host with a lab and a server has only the lab's."""
    monkeypatch.delenv("NODENET_ID", raising=False)
    monkeypatch.setattr("nodenet.paths.RUN", tmp_path / "run")
    monkeypatch.setattr("nodenet.paths.BPFFS", tmp_path / "bpf")
    (tmp_path / "bpf" / "nodenet-lab" / "maps").mkdir(parents=True)
    assert main(["konnectivity", "show"]) == 4
    assert f"connect {tmp_path}/run/nodenet/konnectivity.sock: " in capsys.readouterr().err
    monkeypatch.setenv("NODENET_ID", "mine")
    assert main(["konnectivity", "show"]) == 4
    assert f"connect {tmp_path}/run/nodenet-mine/konnectivity.sock: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--why", ""),
        ("--why", "x", "--connections"),
        ("--role", "agent", "--why", "x"),
        ("--admin", "host:port"),
        ("--admin", "http://127.0.0.1:8095"),
        ("--admin", "http://127.0.0.1:8095/"),
        ("--admin", "unix:"),
    ],
)
def test_what_cannot_mean_anything(capsys: Capture, arguments: tuple[str, ...]) -> None:
    assert main(["--id", "nobody", "konnectivity", "show", *arguments]) == 2


def report(*, connected: int, error: str | None) -> AgentReport:
    row = ServerRow(
        server_id=None,
        address="10.0.0.5:8091",
        state="failed",
        conns=0,
        dials=0,
        failed=0,
        age_s=None,
        last_error=error,
        last_error_at=None,
        dial_ms_p50=None,
        dial_ms_p99=None,
        queue_bytes=0,
    )
    return AgentReport(
        ok=False,
        role="agent",
        agent_id="a",
        connected=connected,
        known=3,
        count_from="lease",
        draining=False,
        servers=[row],
    )


def test_an_agent_with_fewer_servers_than_there_are() -> None:
    found = report(connected=0, error="x509 unknown authority; check --ca-cert")
    assert _why_fewer(found) == (
        "connected to 0 of 3 servers: 10.0.0.5:8091: x509 unknown authority; check --ca-cert"
    )
    text = _agent_text(found, found.servers, Style())
    assert text.splitlines()[0] == "connected to 0 of 3 servers (count from: lease)"
    assert text.splitlines()[1].split() == "SERVER-ID ADDRESS STATE CONNS LAST-ERROR".split()
    assert _why_fewer(report(connected=2, error=None)) == "connected to 2 of 3 servers"


def test_why_servers_are_missing_may_be_said_at_one_that_is_connected() -> None:
    """An address that always leads to the same server has no failed row."""
    text = "10.0.0.5:8091: leads to server s1 again (16 times)"
    found = report(connected=1, error=text)
    found.servers[0].state = "ready"
    assert _why_fewer(found) == f"connected to 1 of 3 servers: {text}"
    (failed,) = report(connected=1, error="10.0.0.6:8091: connection refused").servers
    failed.address = "10.0.0.6:8091"
    found.servers.append(failed)
    assert _why_fewer(found).endswith("servers: 10.0.0.6:8091: connection refused"), "failed first"
