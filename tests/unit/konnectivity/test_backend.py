"""The table of an agent's stream, row by row, and what its clients may do to each other."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodenet.konnectivity import backend as module
from nodenet.konnectivity.backend import (
    GATHER_BYTES,
    GATHER_UPSTREAM_BYTES,
    HELD_BYTES,
    STALL_SECONDS,
)
from nodenet.konnectivity.errors import MalformedPacket
from nodenet.konnectivity.extensions import NONE, OURS, Extensions
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
    PacketType,
    UnknownPacket,
    Window,
    push_packet,
)
from nodenet.konnectivity.server_counts import DialFailure, Reset
from nodenet.konnectivity.server_tunnel import (
    HALF_CLOSED_IDLE_SECONDS,
    HOLD_ALL_BYTES,
    HOLD_BYTES,
    LINGER_SECONDS,
    Refusal,
    State,
)
from tests.unit.konnectivity.server_scene import (
    Agent,
    Client,
    GrpcClient,
    Scene,
    halves,
    payload,
)

WINDOW = OURS.window


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_row_b1_a_dial_that_is_answered_opens_the_tunnel(scene: Scene) -> None:
    agent, client = Agent(scene), Client(scene)
    tunnel = client.dial("node1:10250", dial_id=77)
    assert scene.core.pending == 1
    assert agent.take() == [DialRequest("tcp", "node1:10250", 77)]
    scene.now += 0.02
    agent.send(DialResponse("", 9, 77))
    assert client.told == ["connected"] and tunnel.state is State.OPEN and tunnel.connect_id == 9
    assert scene.core.established == 1 and scene.core.pending == 0
    assert scene.core.counts.dial_seconds.sum == pytest.approx(0.02)


def test_row_b2_the_agents_error_is_told(scene: Scene) -> None:
    agent, client = Agent(scene), Client(scene)
    client.dial(dial_id=5)
    agent.take()
    text = "dial tcp 10.0.0.1:80: connect: connection refused"
    agent.send(DialResponse(text, 0, 5))
    assert client.told == [Refusal(DialFailure.ERROR_RESPONSE, text)]
    assert scene.empty() and agent.backend.failed == 1 and agent.backend.last_error == text
    assert scene.core.counts.dial_failures[DialFailure.ERROR_RESPONSE] == 1


def test_of_a_long_error_the_beginning_is_kept(scene: Scene) -> None:
    agent, client = Agent(scene), Client(scene)
    client.dial(dial_id=5)
    agent.take()
    agent.send(DialResponse("x" * 1_000_000, 0, 5))
    assert agent.backend.last_error == "x" * 1024


@pytest.mark.parametrize("connect_id", [0, -3])
def test_an_answer_without_an_id_is_an_error(scene: Scene, connect_id: int) -> None:
    agent, client = Agent(scene), Client(scene)
    client.dial(dial_id=5)
    agent.take()
    agent.send(DialResponse("", connect_id, 5))
    assert isinstance(client.told[0], Refusal) and scene.empty()


def test_an_id_that_is_in_use_is_an_error_for_the_new_one_only(scene: Scene) -> None:
    agent = Agent(scene)
    first = scene.connect(agent, 1)
    second = Client(scene)
    second.dial(dial_id=5)
    agent.take()
    agent.send(DialResponse("", 1, 5), Data(1, b"still the first one's"))
    assert isinstance(second.told[0], Refusal)
    assert first.received == b"still the first one's"


def test_row_b3_an_answer_that_nobody_waits_for_closes_the_connection(scene: Scene) -> None:
    agent = Agent(scene)
    agent.send(DialResponse("", 4, 12345), DialResponse("failed", 0, 12346))
    assert agent.take() == [CloseRequest(4)]
    assert scene.core.counts.dial_failures[DialFailure.UNRECOGNIZED_RESPONSE] == 2


def test_an_answer_of_another_agent_is_not_believed(scene: Scene) -> None:
    first, client = Agent(scene, "a1"), Client(scene)
    client.dial(dial_id=5)
    first.take()
    Agent(scene, "a2").send(DialResponse("", 1, 5))
    assert client.told == []
    first.send(DialResponse("", 1, 5))
    assert client.told == ["connected"]


def test_row_b4_the_agent_may_give_a_dial_up(scene: Scene) -> None:
    agent, client = Agent(scene), Client(scene)
    client.dial(dial_id=5)
    agent.take()
    agent.send(CloseDial(5), CloseDial(6))
    assert client.told == [Refusal(DialFailure.BACKEND_CLOSE, "the agent gave the dial up")]
    assert scene.empty()


def test_row_b5_data_of_id_0_is_ignored(scene: Scene) -> None:
    agent = Agent(scene)
    agent.send(Data(0, b"x"))
    assert agent.take() == []


def test_row_b6_data_goes_to_its_client(scene: Scene) -> None:
    agent = Agent(scene)
    one, two = scene.connect(agent, 1), scene.connect(agent, 2)
    agent.send(Data(2, b"two"), Data(1, b"one"), Data(1, b""))
    assert one.told == [b"one"] and two.told == [b"two"]


def test_data_that_no_known_encoder_writes_goes_there_too(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    # the fields of Data in the other order
    agent.backend.receive(b"\x08\x04\x22\x07\x1a\x03abc\x08\x01", scene.now)
    assert client.received == b"abc"


def test_row_b7_data_of_an_unknown_id_is_answered_once(scene: Scene) -> None:
    agent = Agent(scene)
    agent.send(Data(7, b"x"), Data(7, b"y"), Data(8, b"z"))
    assert agent.take() == [CloseRequest(7), CloseRequest(8)]


def test_data_behind_a_close_is_not_answered(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    client.close()
    assert agent.take() == [CloseRequest(1)]
    agent.send(Data(1, b"late"), CloseResponse("", 1))
    assert agent.take() == [] and scene.empty()


def test_row_b8_the_agents_close_ends_the_tunnel(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    agent.send(Data(1, b"last"), CloseResponse("reset", 1), CloseResponse("", 1))
    assert client.told == [b"last", ("closed", "reset", False)]
    assert scene.empty() and agent.take() == []


def test_row_b9_the_remotes_end_leaves_the_other_direction(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    agent.send(Data(1, b"all of it"), HalfClose(1), HalfClose(1), HalfClose(99))
    assert client.told == [b"all of it", "remote ended"]
    client.write(b"more")
    assert agent.take() == [Data(1, b"more")]
    assert client.tunnel is not None
    client.tunnel.end_of_data(scene.now)
    assert agent.take() == [CloseRequest(1)] and scene.empty()


def test_row_b9_the_remotes_end_is_the_end_for_who_knows_no_half(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1, half_close=False)
    client.write(b"on its way")
    agent.send(HalfClose(1))
    assert client.told == [("closed", "", False)]
    assert agent.take() == [Data(1, b"on its way"), CloseRequest(1)] and scene.empty()


def test_the_clients_end_leaves_the_other_direction(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    client.write(b"question")
    assert client.tunnel is not None
    client.tunnel.end_of_data(scene.now)
    client.write(b"too late")
    assert agent.take() == [Data(1, b"question"), HalfClose(1)]
    agent.send(Data(1, b"answer"), CloseResponse("", 1))
    assert client.told == [b"answer", ("closed", "", False)] and scene.empty()


def test_an_upstream_agent_hears_the_clients_end_as_a_close(scene: Scene) -> None:
    agent = Agent(scene, peer=NONE)
    client = scene.connect(agent, 1)
    client.write(b"question")
    assert client.tunnel is not None
    client.tunnel.end_of_data(scene.now)
    assert agent.take() == [Data(1, b"question"), CloseRequest(1)] and scene.empty()


def test_row_b10_a_window_lets_more_through(scene: Scene) -> None:
    agent = Agent(scene, peer=Extensions(half_close=True, window=65536))
    client = scene.connect(agent, 1)
    client.write(bytes(50_000))
    client.write(bytes(50_000))
    assert len(payload(agent.take())) == 65536
    agent.send(Window(1, 10_000), Window(1, -5), Window(1, 0), Window(99, 5))
    assert len(payload(agent.take())) == 10_000
    agent.send(Window(1, 1 << 40))
    assert len(payload(agent.take())) == 24_464


def test_row_b11_a_draining_agent_gets_no_new_dials_while_there_is_another(scene: Scene) -> None:
    old, new = Agent(scene, "a1"), Agent(scene, "a2")
    old.send(Drain())
    for _ in range(20):
        Client(scene).dial()
    assert old.take() == [] and len(new.take()) == 20


def test_row_b12_everything_else_is_ignored(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    agent.send(DialRequest("tcp", "x:1", 3), CloseRequest(1), UnknownPacket(77))
    assert agent.take() == [] and client.told == []
    with pytest.raises(MalformedPacket):
        agent.backend.receive(b"\xff\xff", scene.now)


def test_row_b13_agent_loss_answers_pending_dials_at_once(scene: Scene) -> None:
    agent = Agent(scene)
    open_one = scene.connect(agent, 1)
    pending = [Client(scene) for _ in range(3)]
    for client in pending:
        client.dial()
    agent.take(2)  # one of them never left
    agent.lose("connection lost: reset by peer")
    for client in pending:
        refusal = Refusal(DialFailure.BACKEND_CLOSE, "connection lost: reset by peer")
        assert client.told == [refusal]
    assert open_one.told == [("closed", "", True)]
    assert scene.empty() and len(scene.core.backends) == 0


def test_losing_one_of_two_streams_of_an_agent_leaves_the_other(scene: Scene) -> None:
    first = Agent(scene, "same")
    client = scene.connect(first, 1)
    second = Agent(scene, "same")
    first_again = Client(scene)
    first_again.dial()
    assert second.take() == [], "the older stream is taken"
    first.take()
    second.lose()
    assert client.told == [] and scene.core.established == 1
    third = Agent(scene, "same")
    first.lose()
    assert client.told == [("closed", "", True)]
    on_third = scene.connect(third, 1)
    agent_of = on_third.tunnel
    assert agent_of is not None and agent_of.backend is third.backend


# -- dials -----------------------------------------------------------------------------------------


def test_two_clients_with_one_dial_id_get_each_their_own_answer(scene: Scene) -> None:
    agent = Agent(scene)
    one, two = Client(scene), Client(scene)
    one.dial(dial_id=5)
    two.dial(dial_id=5)
    first, second = agent.take()
    assert isinstance(first, DialRequest) and isinstance(second, DialRequest)
    assert first.random == 5 and second.random != 5
    agent.send(DialResponse("no", 0, second.random), DialResponse("", 1, 5))
    assert one.told == ["connected"] and isinstance(two.told[0], Refusal)


def test_a_dial_that_is_given_up_is_told_to_the_agent(scene: Scene) -> None:
    agent, client = Agent(scene), Client(scene)
    client.dial(dial_id=5)
    agent.take()
    client.close()
    assert agent.take() == [CloseDial(5)] and client.told == [] and scene.empty()
    agent.send(DialResponse("", 3, 5))
    assert agent.take() == [CloseRequest(3)], "it crossed"
    assert scene.core.counts.dial_failures[DialFailure.FRONTEND_CLOSE] == 1


def test_a_dial_that_never_left_is_taken_back_without_a_word(scene: Scene) -> None:
    agent, client = Agent(scene), Client(scene)
    client.dial()
    client.close()
    assert agent.take() == [] and scene.empty()


def test_a_dial_without_an_answer_is_given_up(scene: Scene) -> None:
    agent, client = Agent(scene), Client(scene)
    client.dial(dial_id=5)
    agent.take()
    scene.wait(59)
    assert client.told == []
    scene.wait(2)
    text = "timed out waiting for backend dial"
    assert client.told == [Refusal(DialFailure.BACKEND_DIAL_TIMEOUT, text)]
    assert agent.take() == [CloseDial(5)] and agent.retired is None


def test_an_agent_that_does_not_take_a_dial_is_retired() -> None:
    scene = Scene(dial_timeout=2.0)
    agent, client = Agent(scene), Client(scene)
    client.dial()
    scene.wait(2.5)
    assert isinstance(client.told[0], Refusal) and agent.retired is not None
    assert not scene.core.backends.ready()
    refusal = scene.core.dial(client, "x:1", scene.now)
    assert refusal == Refusal(DialFailure.NO_AGENT, "No agent available")


def test_the_number_of_waiting_dials_has_a_bound(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodenet.konnectivity.server_core.MAX_DIALS", 3)
    agent = Agent(scene)
    for _ in range(3):
        Client(scene).dial()
    refusal = scene.core.dial(Client(scene), "x:1", scene.now)
    assert isinstance(refusal, Refusal) and refusal.reason is DialFailure.TOO_MANY_DIALS
    assert len(agent.take()) == 3


def test_a_new_dial_does_not_wait_behind_uploads(scene: Scene) -> None:
    agent = Agent(scene)
    for number in range(1, 5):
        client = scene.connect(agent, number)
        for _ in range(8):
            client.write(bytes(60_000))
    Client(scene).dial(dial_id=5)
    assert agent.take(1) == [DialRequest("tcp", "10.0.0.1:80", 5)]


# -- payload ---------------------------------------------------------------------------------------


def test_uploads_take_turns(scene: Scene) -> None:
    agent = Agent(scene)
    clients = [scene.connect(agent, number) for number in (1, 2, 3)]
    for client in clients:
        for _ in range(3):
            client.write(bytes(GATHER_BYTES))
    ids = [p.connect_id for p in agent.take() if isinstance(p, Data)]
    assert ids == [1, 2, 3] * 3


def test_small_writes_that_gather_leave_as_one(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    for number in range(50):
        client.write(b"%02d" % number)
    (packet,) = agent.take()
    assert packet == Data(1, b"".join(b"%02d" % n for n in range(50)))


def test_an_upstream_agent_gets_no_larger_packets_than_it_can_queue(scene: Scene) -> None:
    agent = Agent(scene, peer=NONE)
    client = scene.connect(agent, 1)
    for _ in range(40):
        client.write(bytes(10_000))
    sizes = [len(p.payload) for p in agent.take() if isinstance(p, Data)]
    assert sum(sizes) == 400_000 and max(sizes) <= GATHER_UPSTREAM_BYTES


def test_a_client_is_held_while_much_waits_for_its_agent(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    client.write(bytes(HOLD_BYTES - 1))
    assert not client.held
    client.write(b"x")
    assert client.held
    agent.take()
    assert not client.held


def test_many_tunnels_share_what_may_wait_for_their_agent(scene: Scene) -> None:
    agent = Agent(scene)
    count = 2 * HOLD_ALL_BYTES // HOLD_BYTES
    clients = [scene.connect(agent, number) for number in range(1, count + 1)]
    clients[0].write(bytes(HOLD_BYTES // 2 - 1))
    assert not clients[0].held
    clients[0].write(b"x")
    assert clients[0].held
    for client in clients[2:]:
        client.close()
    agent.take()
    clients[1].write(bytes(HOLD_BYTES - 1))
    assert not clients[1].held, "the others are gone"


def test_write_then_close_delivers_everything(scene: Scene) -> None:
    agent = Agent(scene, peer=Extensions(half_close=True, window=65536))
    client = scene.connect(agent, 1)
    for _ in range(16):
        client.write(b"u" * 65536)
    client.close()
    got = b""
    for _ in range(30):
        packets = agent.take()
        got += payload(packets)
        if CloseRequest(1) in packets:
            break
        agent.send(Window(1, 65536))
    assert len(got) == 1 << 20 and scene.empty()


def test_what_a_closed_client_has_left_does_not_stay_for_ever(scene: Scene) -> None:
    agent = Agent(scene, peer=Extensions(half_close=True, window=65536))
    client = scene.connect(agent, 1)
    client.write(bytes(100_000))
    client.close()
    assert len(payload(agent.take())) == 65536
    scene.wait(LINGER_SECONDS - 1)
    agent.send(Window(1, 1000))
    assert len(payload(agent.take())) == 1000, "a byte taken is a reason to wait on"
    scene.wait(LINGER_SECONDS - 1)
    assert not scene.empty()
    scene.wait(2)
    assert scene.empty() and agent.take() == [CloseRequest(1)]
    assert scene.core.counts.resets[Reset.LINGER] == 1


def test_a_half_closed_tunnel_that_is_silent_is_cut(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    assert client.tunnel is not None
    client.tunnel.end_of_data(scene.now)
    agent.take()
    scene.wait(HALF_CLOSED_IDLE_SECONDS - 1)
    agent.send(Data(1, b"slow"))
    scene.wait(HALF_CLOSED_IDLE_SECONDS - 1)
    assert client.told == [b"slow"]
    scene.wait(2)
    assert client.told[-1] == ("closed", "no answer of the remote", True)
    assert agent.take() == [CloseRequest(1)]


def test_what_a_client_takes_is_given_back(scene: Scene) -> None:
    agent = Agent(scene)
    scene.connect(agent, 1)
    scene.now += 1.0
    agent.send(*[Data(1, bytes(WINDOW // 8))] * 4)
    assert agent.take() == [Window(1, WINDOW // 2)]


def test_a_client_that_takes_fast_gives_its_tunnel_a_wider_window(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    agent.send(*[Data(1, bytes(WINDOW // 8))] * 4)
    assert agent.take() == [Window(1, WINDOW // 2 + WINDOW)]
    client.stall()
    agent.send(*[Data(1, bytes(WINDOW))] * 2)  # it may send so much now
    assert agent.take() == [] and len(client.received) == WINDOW // 2 + 2 * WINDOW
    agent.send(Data(1, b"x"))
    assert agent.take() == [CloseRequest(1)]


def test_a_stalled_client_costs_its_own_window_only(scene: Scene) -> None:
    agent = Agent(scene)
    slow, quick = scene.connect(agent, 1), scene.connect(agent, 2)
    slow.stall()
    agent.send(*[Data(1, bytes(WINDOW // 8))] * 8)
    assert agent.take() == [] and not agent.paused
    scene.now += 1.0
    agent.send(*[Data(2, bytes(WINDOW // 8))] * 4)
    assert agent.take() == [Window(2, WINDOW // 2)]
    dialled = Client(scene)
    dialled.dial()
    agent.accept_dial(3)
    assert dialled.told == ["connected"]
    assert len(quick.received) == WINDOW // 2
    scene.now += 2
    slow.drain()
    assert agent.take() == [Window(1, WINDOW)]
    assert scene.core.counts.write_seconds.sum == pytest.approx(3.0)


def test_an_agent_that_exceeds_the_window_loses_that_tunnel(scene: Scene) -> None:
    agent = Agent(scene)
    client, other = scene.connect(agent, 1), scene.connect(agent, 2)
    client.stall()
    agent.send(*[Data(1, bytes(WINDOW // 4))] * 4)
    agent.send(Data(1, b"x"))
    assert client.told[-1] == ("closed", "the agent sent more than the window", True)
    assert agent.take() == [CloseRequest(1)]
    assert other.told == [] and scene.core.counts.resets[Reset.WINDOW] == 1


def test_a_gone_client_does_not_stop_its_remote(scene: Scene) -> None:
    """A remote that writes before it reads: its bytes are thrown away, so that it reads."""
    agent = Agent(scene, peer=Extensions(half_close=True, window=65536))
    client = scene.connect(agent, 1)
    client.write(bytes(100_000))
    client.close()
    agent.take()
    scene.now += 1.0
    agent.send(Data(1, bytes(WINDOW // 2)))
    assert agent.take() == [Window(1, WINDOW // 2)] and client.told == []


# -- an upstream agent, which knows no windows -----------------------------------------------------


def fill(agent: Agent, client: Client, connect_id: int = 1) -> None:
    """Sends until the client's backlog is over what is kept."""
    while client.waiting <= HELD_BYTES:
        agent.send(Data(connect_id, bytes(1 << 20)))


def test_a_stalled_client_of_an_upstream_agent_is_cut_and_the_others_go_on(scene: Scene) -> None:
    agent = Agent(scene, peer=NONE)
    slow, quick = scene.connect(agent, 1), scene.connect(agent, 2)
    slow.stall()
    fill(agent, slow)
    assert agent.paused, "the stream is held while the client may still take something"
    scene.wait(STALL_SECONDS + 0.5)
    last = slow.told[-1]
    assert isinstance(last, tuple) and last[0] == "closed" and last[2] is True
    assert not agent.paused and agent.take() == [CloseRequest(1)]
    assert scene.core.counts.resets[Reset.STALLED] == 1
    agent.send(Data(2, b"on"))
    assert quick.told == [b"on"]


def test_a_slow_client_of_an_upstream_agent_is_not_cut(scene: Scene) -> None:
    agent = Agent(scene, peer=NONE)
    slow = scene.connect(agent, 1)
    slow.stall()
    fill(agent, slow)
    for _ in range(20):
        slow.waiting -= 10_000
        scene.wait(0.5)
        agent.send(Data(1, bytes(10_000)))
    assert agent.paused and len(slow.told) > 16
    slow.drain()
    assert not agent.paused


def test_an_upstream_agent_is_let_go_when_the_backlog_is_below_the_limit(scene: Scene) -> None:
    agent = Agent(scene, peer=NONE)
    slow = scene.connect(agent, 1)
    slow.stall()
    fill(agent, slow)
    slow.waiting = HELD_BYTES - 1
    scene.wait(0.25)
    assert not agent.paused and isinstance(slow.told[-1], bytes)


def test_a_client_that_leaves_lets_an_upstream_agent_go(scene: Scene) -> None:
    agent = Agent(scene, peer=NONE)
    slow = scene.connect(agent, 1)
    slow.stall()
    fill(agent, slow)
    agent.send(CloseResponse("", 1))
    assert not agent.paused and scene.empty()


def test_a_client_over_its_limit_that_closes_is_not_asked_any_more(scene: Scene) -> None:
    agent = Agent(scene, peer=NONE)
    slow = scene.connect(agent, 1)
    slow.stall()
    fill(agent, slow)
    slow.close()
    scene.wait(STALL_SECONDS * 3)
    assert not agent.paused


def test_an_agent_whose_answers_pile_up_is_held(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONTROL", 10)
    agent = Agent(scene)
    for number in range(1, 13):
        agent.send(Data(number, b"x"))
    assert agent.paused
    assert len(agent.take()) == 12 and not agent.paused


# -- whatever comes --------------------------------------------------------------------------------

SMALL = st.integers(0, 4)
FROM_AGENT: st.SearchStrategy[Packet] = st.one_of(
    st.builds(DialResponse, error=st.sampled_from(["", "no"]), connect_id=SMALL, random=SMALL),
    st.builds(Data, connect_id=SMALL, payload=st.binary(max_size=10)),
    st.builds(CloseResponse, error=st.just(""), connect_id=SMALL),
    st.builds(CloseDial, random=SMALL),
    st.builds(HalfClose, connect_id=SMALL),
    st.builds(Window, connect_id=SMALL, increment=st.integers(-10, 1 << 40)),
    st.just(Drain()),
    st.builds(CloseRequest, connect_id=SMALL),
    st.builds(UnknownPacket, type=st.integers(200, 300)),
)
STEPS = st.one_of(
    FROM_AGENT,
    st.tuples(
        st.sampled_from(["dial", "write", "end", "close", "stall", "drain", "take", "wait"]),
        st.integers(0, 9),
    ),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=40), st.booleans(), st.booleans())
def test_whatever_comes_every_client_is_told_one_end_and_nothing_is_left(
    steps: list[Packet | tuple[str, int]], ours: bool, half_close: bool
) -> None:
    scene = Scene()
    agent = Agent(scene, peer=OURS if ours else NONE)
    clients: list[Client] = []
    gone: set[int] = set()
    for step in steps:
        if not isinstance(step, tuple):
            agent.send(step)
            continue
        word, number = step
        if word == "dial":
            clients.append(Client(scene, half_close=half_close))
            clients[-1].dial(dial_id=number % 5)
        elif word == "wait":
            scene.wait(number * 8.0)
        elif word == "take":
            agent.take(number)
        elif clients:
            at = number % len(clients)
            tunnel = clients[at].tunnel
            assert tunnel is not None
            match word:
                case "write":
                    clients[at].write(b"abc")
                case "end":
                    tunnel.end_of_data(scene.now)
                case "close":
                    clients[at].close()
                case "stall":
                    clients[at].stall()
                case "drain":
                    clients[at].drain()
            if tunnel.frontend is None:
                gone.add(at)
    agent.take()
    agent.lose()
    assert scene.empty()
    for at, client in enumerate(clients):
        ends = [t for t in client.told if isinstance(t, Refusal | tuple)]
        assert len(ends) == (0 if at in gone and not ends else 1), client.told
        assert not ends or client.told[-1] is ends[0]


@given(st.binary(max_size=40))
def test_garbage_of_an_agent_is_a_packet_or_the_end_of_its_stream(message: bytes) -> None:
    scene = Scene()
    agent = Agent(scene)
    scene.connect(agent, 1)
    try:
        agent.backend.receive(message, scene.now)
    except MalformedPacket:
        pass
    agent.lose()
    assert scene.empty()


def test_large_data_goes_on_in_its_pieces(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    content = bytes(range(256)) * 400
    agent.backend.receive_pieces(halves(Data(1, content)), scene.now)
    assert client.received == content
    assert len([t for t in client.told if isinstance(t, bytes)]) == 2
    assert agent.backend.tunnels[1].received == len(content)
    assert scene.core.counts.from_agent.by_type[PacketType.DATA] == 1


def test_large_data_of_nobody_is_answered_once(scene: Scene) -> None:
    agent = Agent(scene)
    for _ in range(2):
        agent.backend.receive_pieces(halves(Data(9, bytes(100_000))), scene.now)
    assert agent.take() == [CloseRequest(9)]


def test_large_data_over_the_window_ends_the_tunnel_once(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    client.stall()
    agent.backend.receive_pieces(halves(Data(1, bytes(agent.backend.window - 10))), scene.now)
    agent.backend.receive_pieces(halves(Data(1, bytes(100))), scene.now)
    assert client.told[-1] == ("closed", "the agent sent more than the window", True)
    assert agent.take() == [CloseRequest(1)] and scene.core.counts.resets[Reset.WINDOW] == 1


def test_the_same_message_is_forwarded_without_a_copy(scene: Scene) -> None:
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    assert client.tunnel is not None
    message = push_packet(Data(1, b"payload"))
    client.tunnel.send(message, len(message) - 7, len(message))
    pieces = agent.backend.pull()
    assert pieces is not None and len(pieces) == 1 and pieces[0] is message


def test_how_long_a_connection_lasted_is_exact_however_it_ends(scene: Scene) -> None:
    """The clock's last tick is up to a quarter of a second old, and may be before its beginning."""
    agent = Agent(scene)
    lasted = scene.core.counts.connection_seconds

    def opened(connect_id: int) -> Client:
        client = Client(scene)
        client.dial()
        scene.now += 0.06  # of the dial, and no tick
        agent.accept_dial(connect_id)
        return client

    def end_by_close_rsp(client: Client) -> None:
        agent.send(CloseResponse("", 1))

    def end_by_the_client(client: Client) -> None:
        client.close()
        agent.take()

    def end_by_two_halves(client: Client) -> None:
        agent.send(HalfClose(1))
        assert client.tunnel is not None
        client.tunnel.end_of_data(scene.now)
        agent.take()

    def end_without_an_answer(client: Client) -> None:
        assert client.tunnel is not None
        client.tunnel.close(scene.now, answer=True)
        agent.take()
        client.close()

    def end_by_the_window(client: Client) -> None:
        agent.send(Data(1, bytes(WINDOW + 1)))

    def end_of_the_agent(client: Client) -> None:
        agent.lose()

    ends = (
        end_by_close_rsp,
        end_by_the_client,
        end_by_two_halves,
        end_without_an_answer,
        end_by_the_window,
        end_of_the_agent,
    )
    for end in ends:
        before = lasted.sum
        client = opened(1)
        scene.now += 0.03
        end(client)
        assert scene.empty()
        assert lasted.sum - before == pytest.approx(0.03), end.__name__
    assert sum(lasted.counts) == len(ends)


def test_the_wait_of_a_client_is_never_negative(scene: Scene) -> None:
    agent, client = Agent(scene), GrpcClient(scene)
    client.send(DialRequest("tcp", "10.0.0.1:80", 5))
    agent.accept_dial(1)
    scene.now += 0.1  # and no tick
    agent.send(*(Data(1, bytes(100_000)) for _ in range(10)))
    assert client.stream.congested
    client.take()
    waits = scene.core.counts.write_seconds
    assert sum(waits.counts) == 1 and waits.sum >= 0.0


def test_when_a_dial_failed_is_exact(scene: Scene) -> None:
    agent, client = Agent(scene), Client(scene)
    client.dial(dial_id=5)
    agent.take()
    scene.now += 0.1  # and no tick
    agent.send(DialResponse("no such host", 0, 5))
    assert agent.backend.last_error_at == scene.now
    client.dial(dial_id=6)
    scene.now += 0.1
    agent.send(CloseDial(6))
    assert agent.backend.last_error_at == scene.now


def test_the_log_has_the_words_that_operators_look_for(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Who comes and goes is always said, what one dial comes to where somebody asks for it."""

    def said(level: int) -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.levelno == level]
        caplog.clear()
        return found

    caplog.set_level(logging.DEBUG)
    client, who = Client(scene), "agentID=a1 address=10.0.0.9:4000"
    scene.core.dial(client, "10.0.0.1:80", scene.now)
    assert said(logging.DEBUG) == [
        "Failed to get a backend: No agent available dialAddress=10.0.0.1:80"
    ]
    agent = Agent(scene)
    client.dial(dial_id=5)
    agent.take()
    agent.send(DialResponse("no route\nto host", 0, 5), DialResponse("", 3, 6), Data(9, b"x"))
    assert said(logging.DEBUG) == [
        f"DIAL_RSP contains failure: {who} dialAddress=10.0.0.1:80: 'no route\\nto host'",
        f"DIAL_RSP not recognized; dropped: {who} dialID=6",
        f"could not get frontend client; closing connection: {who} connectionID=9",
    ]
    client.dial(dial_id=7)
    client.close()
    assert said(logging.DEBUG) == [
        f"Dial cancelled (DIAL_CLS) by frontend: {who} dialAddress=10.0.0.1:80"
    ]
    agent.send(Drain(), Drain())
    assert said(logging.INFO) == [f"agent is draining: {who}"]


def test_a_tunnel_that_goes_well_is_no_line_of_the_log(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    agent = Agent(scene)
    client = scene.connect(agent, 1)
    client.write(b"ask")
    agent.send(Data(1, b"answer"))
    client.close()
    agent.take()
    agent.send(CloseResponse("", 1))
    assert scene.empty() and caplog.messages == []
