"""The table of a Proxy stream, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodenet.konnectivity.errors import MalformedPacket
from nodenet.konnectivity.extensions import OURS
from nodenet.konnectivity.grpc_frontend import CONGESTED_BYTES, MAX_ANSWERS
from nodenet.konnectivity.packets import (
    CloseDial,
    CloseRequest,
    CloseResponse,
    Data,
    DialRequest,
    DialResponse,
    Drain,
    HalfClose,
    Packet,
    Window,
    pull_packet,
    push_packet,
)
from tests.unit.konnectivity.server_scene import Agent, GrpcClient, Scene, halves, payload

DIAL = DialRequest("tcp", "10.0.0.1:80", 5)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def connected(scene: Scene, agent: Agent, connect_id: int = 1, random: int = 5) -> GrpcClient:
    client = GrpcClient(scene, OURS)
    client.send(DialRequest("tcp", "10.0.0.1:80", random))
    agent.accept_dial(connect_id)
    assert client.take() == [DialResponse("", connect_id, random)]
    return client


def test_row_f1_the_dial_is_forwarded_as_it_is_and_answered(scene: Scene) -> None:
    agent, client = Agent(scene), GrpcClient(scene)
    message = push_packet(DIAL)
    client.stream.receive(message, scene.now)
    pieces = agent.backend.pull()
    assert pieces is not None and pieces[0] is message
    agent.send(DialResponse("", 3, 5))
    assert client.take() == [DialResponse("", 3, 5)]


def test_row_f1_without_an_agent_there_is_an_error(scene: Scene) -> None:
    client = GrpcClient(scene)
    client.send(DIAL, Data(1, b"x"), CloseRequest(1), DIAL)
    assert client.take() == [DialResponse("No agent available", 0, 5)]


def test_the_agents_error_is_forwarded(scene: Scene) -> None:
    agent, client = Agent(scene), GrpcClient(scene)
    client.send(DIAL)
    agent.take()
    agent.send(DialResponse("dial tcp: lookup x: no such host", 0, 5))
    assert client.take() == [DialResponse("dial tcp: lookup x: no such host", 0, 5)]
    assert scene.empty()


def test_row_f2_a_second_dial_is_refused_and_the_first_goes_on(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.send(DialRequest("tcp", "10.0.0.2:80", 6))
    (answer,) = client.take()
    assert isinstance(answer, DialResponse) and answer.error and answer.random == 6
    client.send(Data(1, b"on"))
    assert agent.take() == [Data(1, b"on")]


def test_row_f3_data_without_a_dial(scene: Scene) -> None:
    client = GrpcClient(scene)
    client.send(Data(4, b"x"), Data(4, b"y"), DIAL)
    assert client.take() == [CloseResponse("backend not initialized", 4)]


def test_row_f4_data_of_id_0_is_ignored(scene: Scene) -> None:
    agent = Agent(scene)
    fresh, client = GrpcClient(scene), connected(scene, agent)
    for each in (fresh, client):
        each.send(Data(0, b"x"))
        assert each.take() == []
    assert agent.take() == []


def test_row_f5_data_before_the_answer_gives_the_dial_up(scene: Scene) -> None:
    agent, client = Agent(scene), GrpcClient(scene)
    client.send(DIAL)
    agent.take()
    client.send(Data(1, b"early"))
    assert client.take() == [CloseResponse("data before the dial's answer", 1)]
    assert agent.take() == [CloseDial(5)] and scene.empty()


def test_row_f6_data_is_forwarded_both_ways(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.send(Data(1, b"up"))
    assert agent.take() == [Data(1, b"up")]
    agent.send(Data(1, b"down"))
    assert client.take() == [Data(1, b"down")]


def test_data_is_forwarded_without_a_copy(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    message = push_packet(Data(1, b"payload"))
    client.stream.receive(message, scene.now)
    up = agent.backend.pull()
    agent.backend.receive(message, scene.now)
    down = client.stream.pull()
    assert up is not None and up[0] is message and down is not None and down[0] is message


def test_large_data_is_forwarded_in_its_pieces(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    content = bytes(range(256)) * 1000
    client.stream.receive_pieces(halves(Data(1, content)), scene.now)
    pieces = agent.backend.pull()
    assert pieces is not None and len(pieces) == 3, "its prefix, and no copy of the two"
    assert pull_packet(b"".join(pieces)) == Data(1, content)
    assert agent.take() == []
    agent.backend.receive_pieces(halves(Data(1, content)), scene.now)
    down = client.take()
    assert b"".join(packet.payload for packet in down if isinstance(packet, Data)) == content


def test_data_of_nothing_is_not_kept(scene: Scene) -> None:
    """It counts nowhere: a client could send it for ever to a remote that stalls."""
    agent = Agent(scene)
    client = connected(scene, agent)
    for _ in range(10):
        client.send(Data(1, b""))
    assert agent.take() == []


def test_large_data_of_another_id_ends_both(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.stream.receive_pieces(halves(Data(2, bytes(100_000))), scene.now)
    assert [p.connect_id for p in client.take() if isinstance(p, CloseResponse)] == [1, 2]
    assert agent.take() == [CloseRequest(1)]


def test_row_f7_data_of_another_id_ends_both(scene: Scene) -> None:
    agent = Agent(scene)
    victim = connected(scene, agent, 2, random=6)
    client = connected(scene, agent, 1)
    client.send(Data(2, b"not mine"), Data(1, b"mine"))
    assert client.take() == [
        CloseResponse("mismatched connection IDs", 1),
        CloseResponse("mismatched connection IDs", 2),
    ]
    assert agent.take() == [CloseRequest(1)], "the other client's connection is not touched"
    agent.send(Data(2, b"for the other"))
    assert victim.take() == [Data(2, b"for the other")]


def test_row_f8_a_close_without_a_dial(scene: Scene) -> None:
    client = GrpcClient(scene)
    client.send(CloseRequest(4))
    assert client.take() == [CloseResponse("backend uninitialized", 4)]
    client.send(DIAL)
    assert client.take() == [DialResponse("No agent available", 0, 5)], "it continues"


def test_row_f9_a_close_goes_behind_the_data_and_is_answered(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.send(Data(1, b"a"), Data(1, b"b"), CloseRequest(1), Data(1, b"late"))
    assert agent.take() == [Data(1, b"ab"), CloseRequest(1)]
    assert scene.core.established == 1
    agent.send(Data(1, b"still"), CloseResponse("", 1))
    assert client.take() == [Data(1, b"still"), CloseResponse("", 1)] and scene.empty()


def test_row_f9_an_agent_that_does_not_answer_is_not_waited_for_long(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.send(CloseRequest(1))
    agent.take()
    scene.wait(11)
    (answer,) = client.take()
    assert isinstance(answer, CloseResponse) and scene.empty()


def test_row_f9_a_client_that_leaves_does_not_wait_for_the_answer(scene: Scene) -> None:
    agent = Agent(scene)
    one, two = connected(scene, agent, 1), connected(scene, agent, 2)
    one.send(CloseRequest(1))
    assert agent.take() == [CloseRequest(1)]
    two.send(Data(2, b"x"), CloseRequest(2))
    for client in (one, two):
        client.end()
    assert agent.take() == [Data(2, b"x"), CloseRequest(2)] and scene.empty()


def test_row_f10_no_client_closes_anothers_connection(scene: Scene) -> None:
    agent = Agent(scene)
    victim = connected(scene, agent, 2, random=6)
    client = connected(scene, agent, 1)
    client.send(CloseRequest(2))
    assert client.take() == [CloseResponse("unknown connectID", 2)]
    assert agent.take() == [] and victim.take() == []
    client.send(Data(1, b"on"))
    assert agent.take() == [Data(1, b"on")]


def test_row_f11_a_close_of_a_pending_dial_gives_it_up(scene: Scene) -> None:
    agent, client = Agent(scene), GrpcClient(scene)
    client.send(DIAL)
    agent.take()
    client.send(CloseRequest(0))
    assert client.take() == [CloseResponse("", 0)]
    assert agent.take() == [CloseDial(5)] and scene.empty()


def test_row_f12_a_dial_is_cancelled(scene: Scene) -> None:
    agent, client = Agent(scene), GrpcClient(scene)
    client.send(DIAL)
    agent.take()
    client.send(CloseDial(6), CloseDial(5))
    assert agent.take() == [CloseDial(5)] and scene.empty() and client.take() == []


def test_row_f12_a_cancel_that_crosses_the_answer_closes_the_connection(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.send(CloseDial(5))
    assert agent.take() == [CloseRequest(1)] and scene.empty()


def test_row_f13_the_clients_half(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.send(Data(1, b"q"), HalfClose(2), HalfClose(1))
    assert agent.take() == [Data(1, b"q"), HalfClose(1)]
    agent.send(Data(1, b"a"), HalfClose(1))
    assert client.take() == [Data(1, b"a"), HalfClose(1)]


def test_row_f13_an_upstream_client_hears_of_no_half(scene: Scene) -> None:
    agent, client = Agent(scene), GrpcClient(scene)
    client.send(DIAL)
    agent.accept_dial(1)
    client.take()
    client.send(HalfClose(1))
    assert agent.take() == []
    agent.send(Data(1, b"all"), HalfClose(1))
    assert client.take() == [Data(1, b"all"), CloseResponse("", 1)]
    assert agent.take() == [CloseRequest(1)]


def test_row_f14_the_rest_is_ignored(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.send(DialResponse("", 1, 5), CloseResponse("", 1), Drain(), Window(1, 5))
    assert client.take() == [] and agent.take() == [] and not agent.backend.draining


def test_row_f15_the_end_of_the_stream_closes_behind_the_data(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.send(Data(1, b"last words"))
    client.end()
    client.end()
    assert agent.take() == [Data(1, b"last words"), CloseRequest(1)] and scene.empty()


def test_row_f15_the_end_of_the_stream_gives_a_pending_dial_up(scene: Scene) -> None:
    agent, client = Agent(scene), GrpcClient(scene)
    client.send(DIAL)
    agent.take()
    client.end()
    assert agent.take() == [CloseDial(5)] and scene.empty()


def test_agent_loss_answers_a_pending_dial_at_once(scene: Scene) -> None:
    agent, client = Agent(scene), GrpcClient(scene)
    client.send(DIAL)
    agent.take()
    agent.lose("connection lost")
    assert client.take() == [DialResponse("connection lost", 0, 5)]


def test_agent_loss_closes_a_connection_behind_its_data(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    agent.send(Data(1, b"before"))
    agent.lose()
    assert client.take() == [Data(1, b"before"), CloseResponse("", 1)]


def test_two_streams_with_one_dial_id_get_their_own_back(scene: Scene) -> None:
    agent = Agent(scene)
    one, two = GrpcClient(scene), GrpcClient(scene)
    one.send(DIAL)
    two.send(DIAL)
    first, second = agent.take()
    assert isinstance(first, DialRequest) and isinstance(second, DialRequest)
    agent.send(DialResponse("", 2, second.random), DialResponse("", 1, first.random))
    assert one.take() == [DialResponse("", 1, 5)]
    assert two.take() == [DialResponse("", 2, 5)]


def test_a_client_that_does_not_read_is_congested_until_it_does(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    pieces = agent.backend.window // 2 // CONGESTED_BYTES
    for _ in range(pieces):
        agent.send(Data(1, bytes(CONGESTED_BYTES)))
    assert client.stream.congested
    assert agent.take() == []
    scene.wait(1.0)
    assert len(payload(client.take())) == CONGESTED_BYTES * pieces
    assert not client.stream.congested
    assert agent.take() == [Window(1, agent.backend.window // 2)]


def test_a_client_is_held_while_much_waits_for_its_agent(scene: Scene) -> None:
    agent = Agent(scene)
    client = connected(scene, agent)
    client.send(*[Data(1, bytes(200_000))] * 6)
    assert client.paused
    agent.take()
    assert not client.paused


def test_answers_to_nonsense_have_a_bound(scene: Scene) -> None:
    client = GrpcClient(scene)
    client.send(*[CloseRequest(n) for n in range(1, 1000)])
    assert len(client.take()) == MAX_ANSWERS


PACKETS: st.SearchStrategy[Packet] = st.one_of(
    st.just(DIAL),
    st.builds(Data, connect_id=st.integers(0, 2), payload=st.binary(max_size=10)),
    st.builds(CloseRequest, connect_id=st.integers(0, 2)),
    st.builds(CloseDial, random=st.integers(4, 6)),
    st.builds(HalfClose, connect_id=st.integers(0, 2)),
    st.just(Window(1, 1)),
)
FROM_AGENT: st.SearchStrategy[Packet] = st.one_of(
    st.just(DialResponse("", 1, 5)),
    st.just(DialResponse("no", 0, 5)),
    st.just(Data(1, b"data")),
    st.just(CloseResponse("", 1)),
    st.just(HalfClose(1)),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), PACKETS, FROM_AGENT), max_size=25), st.booleans())
def test_whatever_comes_nothing_is_left(
    steps: list[tuple[bool, Packet, Packet]], loses: bool
) -> None:
    scene = Scene()
    agent, client = Agent(scene), GrpcClient(scene, OURS)
    for from_client, ours, theirs in steps:
        if from_client:
            client.send(ours)
        else:
            agent.take()
            agent.send(theirs)
    if loses:
        agent.lose()
    client.end()
    agent.take()
    client.take()
    assert scene.empty()


@given(st.binary(max_size=40))
def test_garbage_of_a_client_is_a_packet_or_the_end_of_its_stream(message: bytes) -> None:
    scene = Scene()
    agent = Agent(scene)
    client = connected(scene, agent)
    try:
        client.stream.receive(message, scene.now)
    except MalformedPacket:
        pass
    client.end()
    agent.take()
    assert scene.empty()
