"""Which servers an agent is connected to, with real sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from pathlib import Path

import pytest

from nodenet.agents.konnectivity import agent_set, agent_stream, agent_tls
from nodenet.agents.konnectivity.agent_config import AgentConfig
from nodenet.rpc.status import OK
from nodenet.tls.context import Context
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity.agent_scene import (
    REFUSED,
    FakeServer,
    agent,
    config_for,
    run,
    said,
    token_file,
    told,
    until,
)


class Balancer:
    """One port in front of several servers, which get the connections in turn."""

    def __init__(self, servers: list[FakeServer]) -> None:
        self.servers = servers
        self.turn = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, host: str = "127.0.0.1") -> None:
        self._server = await asyncio.start_server(self._accept, host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self.servers[self.turn % len(self.servers)]
        self.turn += 1
        self._writers.append(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.append(far_writer)
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.transport.abort()


async def started(certs: Certificates, *servers: FakeServer) -> list[FakeServer]:
    for server in servers:
        await server.start(certs)
    return list(servers)


def test_every_server_behind_one_address_is_found(certs: Certificates) -> None:
    async def work() -> None:
        servers = await started(certs, *(FakeServer(f"s{n}", count=3) for n in range(3)))
        balancer = Balancer(servers)
        await balancer.start()
        async with agent(config_for(certs, balancer.port)) as clients:
            await until(lambda: clients.ready == 3, "three servers")
            await until(lambda: all(len(s.open) == 1 for s in servers), "one stream each")
            # one is replaced by another, behind the same address
            await servers[1].stop()
            servers[1] = balancer.servers[1] = FakeServer("s9", count=3)
            await servers[1].start(certs)
            await until(
                lambda: {s.server_id for s in clients.streams} == {"s0", "s2", "s9"}, "replaced"
            )
        balancer.stop()
        for server in servers:
            await server.stop()

    run(work())


def test_a_new_server_is_in_the_log_in_upstreams_words(
    certs: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def work() -> None:
        (server,) = await started(certs, FakeServer("s1"))
        async with agent(config_for(certs, server.port)) as clients:
            await until(lambda: clients.ready == 1, "connected")
            server.protocols[0].abort()
            await until(lambda: "Removing client used for server" in caplog.text, "it is lost")
        await server.stop()

    run(work())
    words = (
        "Connect to server serverID=s1 ",
        "successfully connected to new proxy server serverID=s1",
        "Start serving serverID=s1 agentID=agent-1",
        "Removing client used for server connection serverID=s1",
    )
    found = [m for m in caplog.messages if "serverID=" in m][: len(words)]
    assert all(message.startswith(word) for message, word in zip(found, words, strict=True))


def test_a_duplicate_is_given_up(certs: Certificates) -> None:
    async def work() -> None:
        (server,) = await started(certs, FakeServer("s1", count=2))
        async with agent(config_for(certs, server.port)) as clients:
            await until(lambda: len(server.streams) >= 4, "it goes on looking for the second one")
            await until(lambda: len(server.open) <= 2, "duplicates are closed")
            assert clients.ready == 1 and server.streams[0].over is None
        await server.stop()

    run(work())


def test_a_server_count_that_is_too_high_is_said(
    certs: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Or servers that cannot be reached: there is no failure otherwise, and no clue."""

    async def work() -> None:
        servers = await started(certs, FakeServer("s1", count=2), FakeServer("s2", count=2))
        balancer = Balancer(servers[:1])
        await balancer.start()
        address = f"127.0.0.1:{balancer.port}"
        async with agent(config_for(certs, balancer.port)) as clients:
            text = f"{address}: leads to server s1 again (5 times), while 2 servers are said to "
            await told(clients, text + "exist: check their --server-count, and that all can be")
            assert "(3 times)" in said(clients)[0], "twice is no news"
            assert [m for m in caplog.messages if m.startswith("duplicate")] == [
                f"duplicate server connection attempt serverID=s1 address={said(clients)[0]}"
            ]
            balancer.servers = servers
            await until(lambda: clients.ready == 2, "both")
            assert not clients.failures
            # and from the beginning: a new one is found there
            balancer.servers = servers[:1]
            await servers[1].stop()
            await until(lambda: clients.ready == 1, "one is lost")
            said(clients).clear()
            await told(clients, "leads to server s1 again (3 times)")
            clients.count_leases(1)
            assert not clients.failures, "there is one, and it is connected"
        balancer.stop()
        for server in servers:
            await server.stop()

    run(work())


def test_a_balancer_that_leads_to_a_known_server_now_and_then_hides_nothing(
    certs: Certificates,
) -> None:
    async def work() -> None:
        servers = await started(certs, *(FakeServer(f"s{n}", count=2) for n in range(2)))
        balancer = Balancer([servers[0], servers[0], servers[0], servers[1]])
        await balancer.start()
        async with agent(config_for(certs, balancer.port)) as clients:
            await until(lambda: clients.ready == 2, "both")
            assert not said(clients)
        balancer.stop()
        for server in servers:
            await server.stop()

    run(work())


def test_a_refused_agent_comes_again_and_says_why(certs: Certificates) -> None:
    async def work() -> None:
        server = FakeServer("s1")
        server.refusal = REFUSED
        await started(certs, server)
        async with agent(config_for(certs, server.port)) as clients:
            await until(lambda: len(server.streams) >= 3, "it comes again")
            await told(clients, "Failed to validate authentication token")
            assert clients.connect_failures >= 2
            server.refusal = None
            await until(lambda: clients.ready == 1, "connected")
            assert not clients.failures
        await server.stop()

    run(work())


def test_an_expired_token_is_read_again(certs: Certificates, tmp_path: Path) -> None:
    async def work() -> None:
        token = token_file(tmp_path, "old")
        (server,) = await started(certs, FakeServer("s1"))
        flags = f"--service-account-token-path={token}"
        async with agent(config_for(certs, server.port, flags)) as clients:
            await until(lambda: clients.ready == 1, "connected")
            assert server.streams[0].metadata["authorization"] == "Bearer old"
            token.write_text("new\n")
            server.protocols[0].abort()
            await until(lambda: len(server.streams) == 2, "connected anew")
            assert server.streams[1].metadata["authorization"] == "Bearer new"
            token.write_text("")
            server.protocols[1].abort()
            await told(clients, "it is empty or no token")
            token.write_text("newest")
            await until(lambda: len(server.streams) == 3, "connected again")
        await server.stop()

    run(work())


def test_rotated_certificates_are_used_by_the_next_connection(
    certs: Certificates, tmp_path: Path
) -> None:
    async def work() -> None:
        (server,) = await started(certs, FakeServer("s1"))
        cert, key, ca = tmp_path / "c", tmp_path / "k", tmp_path / "ca"
        # a client certificate of a foreign CA, which the server refuses
        cert.write_bytes(certs.foreign_client.cert.read_bytes())
        key.write_bytes(certs.foreign_client.key.read_bytes())
        ca.write_bytes(certs.foreign_ca.read_bytes())
        flags = (f"--agent-cert={cert}", f"--agent-key={key}", f"--ca-cert={ca}")
        async with agent(config_for(certs, server.port, *flags)) as clients:
            await told(clients, "x509 ")
            await told(clients, "check --ca-cert")
            ca.write_bytes(certs.ca.read_bytes())
            cert.write_bytes(b"half written")
            await told(clients, "cannot use")
            cert.write_bytes(certs.client.cert.read_bytes())
            key.write_bytes(certs.client.key.read_bytes())
            await until(lambda: clients.ready == 1, "connected")
        await server.stop()

    run(work())


def test_a_certificate_for_another_name(certs: Certificates) -> None:
    async def work() -> None:
        (server,) = await started(certs, FakeServer("s1"))
        forward = Balancer([server])
        await forward.start("127.0.0.2")
        config = config_for(certs, forward.port, "--proxy-server-host=127.0.0.2")
        async with agent(config) as clients:
            await told(clients, "presents a certificate that is not for 127.0.0.2; use")
        forward.stop()
        await server.stop()

    run(work())


def test_a_silent_server_costs_its_own_time_only(
    certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_stream, "CONNECT_SECONDS", 0.5)

    async def work() -> None:
        silent, good = FakeServer("silent", count=2), FakeServer("good", count=2)
        silent.silent = True
        await started(certs, silent, good)
        balancer = Balancer([silent, good])
        await balancer.start()
        async with agent(config_for(certs, balancer.port)) as clients:
            await until(lambda: clients.ready == 1, "the other one is found")
            await told(clients, "no answer to Connect within 0.5 s")
            silent.silent = False
            await until(lambda: clients.ready == 2, "both")
        balancer.stop()
        for server in (silent, good):
            await server.stop()

    run(work())


@pytest.mark.parametrize("count", ["", "x", "-1"])
def test_a_server_that_is_none(certs: Certificates, count: str) -> None:
    async def work() -> None:
        server = FakeServer("s1")
        server.count = count
        await started(certs, server)
        async with agent(config_for(certs, server.port)) as clients:
            await told(clients, "not a konnectivity server")
        await server.stop()

    run(work())


def test_nobody_there_and_then_somebody(certs: Certificates) -> None:
    async def work() -> None:
        first = FakeServer("s1")
        await first.start(certs)
        port = first.port
        await first.stop()
        async with agent(config_for(certs, port)) as clients:
            await told(clients, "connection refused")
            second = FakeServer("s2")
            await second.start(certs, port)
            await until(lambda: clients.ready == 1, "connected")
            await second.stop()

    run(work())


def test_leases_raise_and_lower_the_count(certs: Certificates) -> None:
    async def work() -> None:
        servers = await started(certs, FakeServer("a"), FakeServer("b"))
        balancer = Balancer(servers)
        await balancer.start()
        async with agent(config_for(certs, balancer.port)) as clients:
            await until(lambda: clients.ready == 1, "one, as the header says")
            clients.count_leases(2)
            await until(lambda: clients.ready == 2, "two, as the leases say")
            clients.count_leases(1)
            await asyncio.sleep(0.2)
            assert clients.ready == 2, "what is connected stays"
        balancer.stop()
        for server in servers:
            await server.stop()

    run(work())


def test_what_is_behind_a_port_that_speaks_no_tls(certs: Certificates) -> None:
    async def work() -> None:
        async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(rude, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with agent(config_for(certs, port)) as clients:
            await told(clients, "tls")
        server.close()

    run(work())


def test_addresses_that_are_gone_are_forgotten(
    certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that are replaced get new addresses each time, for years."""
    current = [1]

    def look_up(_host: str, port: int, *_rest: int) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{current[-1]}", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def work() -> None:
        nobody = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = nobody.sockets[0].getsockname()[1]
        nobody.close()
        config = config_for(certs, port, "--proxy-server-host=localhost")
        async with agent(config) as clients:
            for number in range(2, 22):
                current.append(number)
                await told(clients, f"127.0.0.{number}:{port}: connection refused")
            await until(
                lambda: [*clients.failures, *clients._by_address] == [f"127.0.0.21:{port}"] * 2,
                "the addresses before it are forgotten",
            )

    run(work())


def test_a_silent_name_server_does_not_keep_from_known_addresses(
    certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    silent: list[str] = []

    def look_up(host: str, port: int, *_rest: int) -> list[object]:
        if silent:
            silent.append(host)
            go.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(agent_set, "RESOLVE_SECONDS", 60.0)

    async def work() -> None:
        (server,) = await started(certs, FakeServer("s1"))
        config = config_for(certs, server.port, "--proxy-server-host=localhost")
        async with agent(config) as clients:
            await until(lambda: clients.ready == 1, "connected")
            silent.append("now")
            await until(lambda: len(silent) > 1, "the name server is silent")
            for protocol in server.protocols:
                protocol.abort()
            await until(lambda: len(server.streams) == 2, "connected again")
            go.set()
        await server.stop()

    run(work())


def test_a_fault_at_one_server_does_not_end_the_agent(
    certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        (server,) = await started(certs, FakeServer("s1"))
        real, broken = agent_tls.context, [True]

        def context(config: AgentConfig) -> Context:
            if broken:
                raise RuntimeError("a fault of ours")
            return real(config)

        monkeypatch.setattr(agent_tls, "context", context)
        async with agent(config_for(certs, server.port)) as clients:
            await told(clients, "internal error: RuntimeError: a fault of ours")
            broken.clear()
            await until(lambda: clients.ready == 1, "connected")
        await server.stop()

    run(work())


def test_only_streams_that_end_badly_are_errors(certs: Certificates) -> None:
    async def work() -> None:
        (server,) = await started(certs, FakeServer("s1"))
        config = config_for(certs, server.port, "--sync-interval=200ms")
        async with agent(config) as clients:
            texts = ("the server has ended the stream", "UNKNOWN: Failed to validate")
            for number, (status, text) in enumerate(zip((OK, REFUSED), texts, strict=True), 1):
                await until(lambda: clients.ready == 1, "connected")
                old = server.protocols[-1]
                server.streams[-1].call.end(status)
                await told(clients, text)
                await until(lambda n=number: len(server.streams) > n, "connected again")  # type: ignore[misc]  # a loop
                await until(lambda p=old: p.connection.over is not None, "no connection is left")  # type: ignore[misc]  # a loop
            assert clients.stream_errors == {"Unknown": 1}
        await server.stop()

    run(work())
