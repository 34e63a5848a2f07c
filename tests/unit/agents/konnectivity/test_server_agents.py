"""Agents at the server's door, and what they may send inside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from nodenet.agents.konnectivity import server, server_agents
from nodenet.agents.konnectivity.server_agents import Refused
from nodenet.agents.konnectivity.server_config import Mode
from nodenet.konnectivity import extensions
from nodenet.konnectivity.packets import (
    AGENT_METHOD,
    Data,
    DialRequest,
    DialResponse,
    Drain,
    push_packet,
)
from nodenet.rpc.status import Code, Status
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity.agent_scene import run, until
from tests.unit.agents.konnectivity.server_wire import (
    Wire,
    client_context,
    connect_socket,
    connected,
    fake_agent,
    nothing_left,
    proxy_stream,
    server_tls,
    serving,
)


def test_an_agent_is_told_the_server_and_the_count(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, server_count=3) as server, fake_agent(server) as agent:
            told = dict(agent.answer.result())
            assert told["serverid"] == "s1" and told["servercount"] == "3"
            assert extensions.parse(told[extensions.KEY]) == extensions.OURS

    run(test())


def test_who_comes_and_goes_is_in_the_log_in_upstreams_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def test() -> None:
        async with serving(tmp_path) as server:
            async with fake_agent(server) as agent:
                agent.send(Drain())
                await until(lambda: "agent is draining" in caplog.text, "it drains")
            await until(lambda: not server.agents.streams, "it has gone")

    run(test())
    words = (
        "Agent connected: agentID=",
        "Register backend for agent: agentID=",
        "agent is draining: agentID=",
        "Remove connection for agent: agentID=",
    )
    found = [m for m in caplog.messages if "agentID=" in m]
    assert len(found) == len(words)
    assert all(message.startswith(word) for message, word in zip(found, words, strict=True))


def test_identifiers_are_read(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server, identifiers="host=node1&ipv4=10.0.0.1&default-route=true"),
        ):
            (backend,) = server.core.backends
            assert backend.identifiers.host == ("node1",) and backend.identifiers.default_route
            assert backend.address.startswith("127.0.0.1:")

    run(test())


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ((), "expected one agent ID in the context, got []"),
        (
            (("agentid", "a"), ("agentid", "b")),
            "expected one agent ID in the context, got [a b]",
        ),
        (
            (("agentid", "a"), ("agentidentifiers", "x"), ("agentidentifiers", "y")),
            "expected at most one set of agent identifiers in the context, got [x y]",
        ),
        (
            (("agentid", "a"), ("agentidentifiers", "host=a;host=b")),
            "fail to parse url encoded string: invalid semicolon separator in query",
        ),
    ],
)
def test_who_does_not_say_who_it_is_is_refused_in_upstreams_words(
    tmp_path: Path, metadata: tuple[tuple[str, str], ...], text: str
) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server:
            target = f"127.0.0.1:{server.agent_port}"
            async with grpc.aio.insecure_channel(target) as channel:
                call = channel.stream_stream(AGENT_METHOD)(metadata=metadata)
                assert await call.code() is grpc.StatusCode.UNKNOWN
                assert await call.details() == text
            assert len(server.core.backends) == 0 and not server.agents.streams

    run(test())


def test_an_empty_id_is_legal(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server, ""):
            assert [b.agent_id for b in server.core.backends] == [""]

    run(test())


def test_garbage_ends_the_stream_of_its_agent_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server, "good"),
            fake_agent(server, "bad") as bad,
        ):
            bad.call.send(b"\xff\xff\xff")
            status = await bad.status
            assert status.code is Code.INTERNAL and "malformed packet" in status.text
            await until(lambda: len(server.core.backends) == 1, "the bad one is gone")
            assert [b.agent_id for b in server.core.backends] == ["good"]
            errors = server.core.counts.stream_errors
            assert ("from_agent", "Internal", "Unknown") in errors

    run(test())


def test_a_message_of_a_gibibyte_ends_its_stream_before_it_comes(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            agent.protocol.transport.write(
                # a DATA frame of 5 bytes on stream 1: a gRPC message that announces 1 GiB
                b"\x00\x00\x05\x00\x00\x00\x00\x00\x01" + b"\x00\x40\x00\x00\x00"
            )
            status = await agent.status
            assert status.code is Code.RESOURCE_EXHAUSTED
            await until(lambda: len(server.core.backends) == 0, "the agent is gone")

    run(test())


def test_agent_loss_answers_pending_dials_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server:
            async with fake_agent(server) as agent, connect_socket(tmp_path / "f") as client:
                await client.ask()
                assert isinstance(await agent.next(), DialRequest)
                await agent.hang_up()
                answer = await client.rest()
                assert answer.startswith(b"HTTP/1.1 502 ") and b"Backend context error" in answer
            await nothing_left(server)

    run(test())


def test_an_agent_that_leaves_in_order_is_told_to_those_who_dial(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path, Mode.GRPC) as server,
            fake_agent(server) as agent,
            proxy_stream(tmp_path / "f") as client,
        ):
            client.send(DialRequest("tcp", "x:1", 7))
            await agent.next()
            agent.call.end()
            assert await client.next() == DialResponse("the agent has left", 0, 7)

    run(test())


def test_losing_an_agent_resets_its_connections(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server:
            async with fake_agent(server) as agent, connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()
                await agent.hang_up()
                assert await client.rest() == b""
            await nothing_left(server)

    run(test())


def test_two_streams_of_one_id_do_not_disturb_each_other(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server, "same") as first,
            connect_socket(tmp_path / "f") as client,
        ):
            await client.ask()
            await first.accept_dial()
            await client.established()
            async with fake_agent(server, "same") as second:
                second.send(Data(1, b"not its connection"))
                await second.hang_up()
            first.send(Data(1, b"its connection"))
            assert await client.reader.readexactly(14) == b"its connection"

    run(test())


def test_a_draining_agent_gets_no_new_dials(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server, "old") as old,
            fake_agent(server, "new") as new,
        ):
            old.send(Drain())
            await until(lambda: any(b.draining for b in server.core.backends), "it drains")
            for _ in range(8):
                async with connect_socket(tmp_path / "f") as client:
                    await client.ask()
                    assert isinstance(await new.next(), DialRequest)
                await new.next()  # its DIAL_CLS
            assert old.packets.empty()

    run(test())


def test_an_agent_that_takes_no_dials_is_retired(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path, dial_timeout=0.3) as server,
            fake_agent(server) as agent,
            connect_socket(tmp_path / "f") as client,
        ):
            # what is sent stays with us: its window is shut
            (stream,) = server.agents.streams
            stream.call._send_window = 0
            await client.ask()
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 504 ")
            await agent.status
            assert len(server.core.backends) == 0

    run(test())


def test_an_agent_without_the_right_certificate_is_not_served(
    tmp_path: Path, certs: Certificates
) -> None:
    async def test() -> None:
        async with serving(tmp_path, agent_tls=server_tls(certs)) as server:
            async with fake_agent(server, context=client_context(certs)):
                pass
            foreign = client_context(certs, foreign=True)
            async with connected(server.agent_port, context=foreign) as protocol:
                wire = Wire()
                wire.open(protocol, AGENT_METHOD, (("agentid", "a"),))
                assert (await wire.status).code is Code.UNAVAILABLE
            await until(lambda: not server.agents.streams, "the first one is gone")

    run(test())


class Door:
    """Lets the token ``good`` in, and only when it was told to answer."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def check(self, metadata: Sequence[tuple[str, str]]) -> None:
        await self.open.wait()
        if dict(metadata).get("authorization") != "Bearer good":
            raise Refused("Failed to validate authentication token, err:no")


def test_an_agent_waits_for_the_review_of_its_token(tmp_path: Path) -> None:
    async def test() -> None:
        door = Door()
        async with (
            serving(tmp_path, authenticator=door) as server,
            connected(server.agent_port) as protocol,
        ):
            wire = Wire()
            wire.open(protocol, AGENT_METHOD, (("agentid", "a"), ("authorization", "Bearer good")))
            await until(lambda: bool(server.agents.streams), "it is there")
            assert not wire.answer.done() and len(server.core.backends) == 0
            door.open.set()
            assert dict(await wire.answer)["serverid"] == "s1"
            assert len(server.core.backends) == 1

    run(test())


def test_an_agent_with_a_bad_token_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        door = Door()
        door.open.set()
        async with (
            serving(tmp_path, authenticator=door) as server,
            connected(server.agent_port) as protocol,
        ):
            wire = Wire()
            wire.open(protocol, AGENT_METHOD, (("agentid", "a"), ("authorization", "Bearer bad")))
            status = Status(Code.UNKNOWN, "Failed to validate authentication token, err:no")
            assert await wire.status == status
            assert len(server.core.backends) == 0

    run(test())


def test_a_review_that_takes_too_long_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_agents, "AUTHENTICATE_SECONDS", 0.05)

    async def test() -> None:
        async with (
            serving(tmp_path, authenticator=Door()) as server,
            connected(server.agent_port) as protocol,
        ):
            wire = Wire()
            wire.open(protocol, AGENT_METHOD, (("agentid", "a"),))
            assert "no answer within" in (await wire.status).text

    run(test())


def test_a_fault_in_a_review_ends_nobody_else(tmp_path: Path) -> None:
    class Broken:
        async def check(self, metadata: Sequence[tuple[str, str]]) -> None:
            if ("authorization", "Bearer good") not in metadata:
                raise RuntimeError("a fault of ours")

    async def test() -> None:
        async with (
            serving(tmp_path, authenticator=Broken()) as server,
            fake_agent(server, token="good") as agent,
            connected(server.agent_port) as protocol,
        ):
            wire = Wire()
            wire.open(protocol, AGENT_METHOD, (("agentid", "a"),))
            assert "internal error" in (await wire.status).text
            assert "RuntimeError" not in (await wire.status).text
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()

    run(test())


def test_an_agent_that_leaves_during_the_review_is_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, authenticator=Door()) as server:
            async with connected(server.agent_port) as protocol:
                wire = Wire()
                wire.open(protocol, AGENT_METHOD, (("agentid", "a"),))
                await until(lambda: bool(server.agents.streams), "it is there")
            await until(lambda: not server.agents.streams, "it is gone")

    run(test())


def test_a_connection_without_an_agent_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers pings, so nothing else would end it; with tokens anybody may connect."""
    monkeypatch.setattr(server, "STRANGER_SECONDS", 0.1)

    async def test() -> None:
        async with (
            serving(tmp_path, authenticator=Door()) as here,
            connected(here.agent_port) as stranger,
            connected(here.agent_port) as waiting,
        ):
            wire = Wire()
            wire.open(waiting, AGENT_METHOD, (("agentid", "a"),))
            for protocol in (stranger, waiting):
                await until(lambda p=protocol: p.connection.over, "it is closed")  # type: ignore[misc]  # a loop
            assert not here.connections and not here._looked_at
        monkeypatch.undo()
        async with serving(tmp_path) as here, fake_agent(here) as agent:
            monkeypatch.setattr(server, "STRANGER_SECONDS", 0.1)
            (protocol,) = here.connections
            here._look_at(protocol, here.loop.time())
            due = here._looked_at[protocol]
            await until(lambda: here._looked_at.get(protocol, due) > due, "it was looked at")
            assert len(here.core.backends) == 1, "an agent stays"
            agent.call.end()
            await until(lambda: bool(agent.protocol.connection.over), "it is no agent any more")

    run(test())


def test_another_method_is_unknown_on_the_agents_port(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, connected(server.agent_port) as protocol:
            wire = Wire()
            wire.open(protocol, "/ProxyService/Proxy", ())
            assert (await wire.status).code is Code.UNIMPLEMENTED

    run(test())


def test_a_packet_before_the_id_is_known_is_not_lost_on_the_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, connected(server.agent_port) as protocol:
            wire = Wire()
            wire.open(protocol, AGENT_METHOD, (("agentid", "a"),))
            wire.call.send(push_packet(Data(9, b"early")))
            await wire.answer
            assert len(server.core.backends) == 1

    run(test())
