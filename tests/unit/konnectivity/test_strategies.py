"""Which agent carries a dial."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.konnectivity.identifiers import NO_IDENTIFIERS, Identifiers
from nodenet.konnectivity.strategies import Backends, NoAgent, Strategy

DEFAULT, HOST, ROUTE = Strategy.DEFAULT, Strategy.DEST_HOST, Strategy.DEFAULT_ROUTE


@dataclass(eq=False)
class Agent:
    agent_id: str
    identifiers: Identifiers = NO_IDENTIFIERS
    draining: bool = False
    seen: list[str] = field(default_factory=list)


def backends(*agents: Agent, by: tuple[Strategy, ...] = (DEFAULT,)) -> Backends[Agent]:
    made = Backends[Agent](by)
    for agent in agents:
        made.add(agent)
    return made


def pick(made: Backends[Agent], address: str = "10.0.0.1:80", seed: int = 1) -> str:
    return made.pick(address, random.Random(seed)).agent_id


def test_without_agents_there_is_none() -> None:
    made = backends()
    assert not made.ready()
    with pytest.raises(NoAgent, match="No agent available"):
        pick(made)


def test_default_spreads_dials_over_the_agents() -> None:
    made = backends(*(Agent(f"a{n}") for n in range(4)))
    rng = random.Random(7)
    seen = Counter(made.pick("x:1", rng).agent_id for _ in range(4000))
    assert set(seen) == {"a0", "a1", "a2", "a3"} and min(seen.values()) > 800


def test_the_first_stream_of_an_agent_is_taken() -> None:
    first, second = Agent("a"), Agent("a")
    made = backends(first, second)
    assert made.pick("x:1", random.Random(1)) is first
    made.remove(first)
    assert made.pick("x:1", random.Random(1)) is second
    assert made.ready()
    made.remove(second)
    assert not made.ready()


def test_draining_agents_are_passed_over_while_there_are_others() -> None:
    draining, other = Agent("a", draining=True), Agent("b")
    made = backends(draining, other)
    assert all(made.pick("x:1", random.Random(n)) is other for n in range(50))
    made.remove(other)
    assert made.pick("x:1", random.Random(1)) is draining


@pytest.mark.parametrize("strategy", [DEFAULT, ROUTE])
def test_an_agent_that_is_replaced_under_its_id_gets_no_dials_at_its_old_stream(
    strategy: Strategy,
) -> None:
    """A DaemonSet whose ids are the nodes' names: the old pod drains, the new one is up."""
    route = Identifiers(default_route=True)
    old, new = Agent("node1", route, draining=True), Agent("node1", route)
    made = backends(old, new, by=(strategy,))
    assert all(made.pick("x:1", random.Random(n)) is new for n in range(20))
    (step,) = made.explain("x:1")
    assert step.candidates == (new,)


def test_dest_host_takes_the_identifier_that_is_the_host() -> None:
    one = Agent("a", Identifiers(ipv4=("10.0.0.1",), host=("Node1",), ipv6=("FD00::1",)))
    two = Agent("b", Identifiers(ipv4=("10.0.0.2",)))
    made = backends(one, two, by=(HOST,))
    assert pick(made, "10.0.0.1:80") == pick(made, "node1:10250") == "a"
    assert pick(made, "[fd00:0::1]:80") == "a" and pick(made, "10.0.0.2:1") == "b"
    with pytest.raises(NoAgent):
        pick(made, "10.0.0.3:80")


def test_dest_host_prefers_what_does_not_drain_then_the_oldest() -> None:
    here = Identifiers(host=("h",))
    one, two, three = Agent("a", here, draining=True), Agent("b", here), Agent("c", here)
    made = backends(one, two, three, by=(HOST,))
    assert pick(made, "h:1") == "b"
    two.draining = three.draining = True
    assert pick(made, "h:1") == "a"


def test_the_default_route_is_only_for_those_that_offer_it() -> None:
    made = backends(Agent("a"), Agent("b", Identifiers(default_route=True)), by=(ROUTE,))
    assert {pick(made, seed=n) for n in range(20)} == {"b"}


def test_strategies_are_tried_in_their_order() -> None:
    one = Agent("a", Identifiers(host=("h",)))
    two = Agent("b", Identifiers(default_route=True))
    made = backends(one, two, by=(HOST, ROUTE))
    assert pick(made, "h:1") == "a" and pick(made, "elsewhere:1") == "b"
    made.remove(two)
    with pytest.raises(NoAgent):
        pick(made, "elsewhere:1")


def test_readiness_is_that_of_the_first_strategy() -> None:
    made = backends(Agent("a"), by=(HOST, DEFAULT))
    assert not made.ready() and pick(made, "x:1") == "a"
    assert [len(s) for s in made.storages] == [0, 1]


def test_explaining_says_why_and_why_not() -> None:
    one = Agent("a", Identifiers(host=("h",)))
    made = backends(one, by=(HOST, ROUTE, DEFAULT))
    steps = made.explain("h:1")
    assert [(s.strategy, s.fired) for s in steps] == [
        (HOST, True),
        (ROUTE, False),
        (DEFAULT, False),
    ]
    steps = made.explain("other:1")
    assert [s.fired for s in steps] == [False, False, True]
    assert [s.why for s in steps] == [
        "none of 1 identifiers is other",
        "no agent has default-route=true",
        "any of 1 agents",
    ]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.booleans()), max_size=60))
def test_what_is_removed_is_gone_and_the_rest_is_found(
    moves: list[tuple[bool, int, bool]],
) -> None:
    made = backends(by=(DEFAULT, HOST))
    alive: list[Agent] = []
    for add, number, first in moves:
        if add or not alive:
            agent = Agent(f"a{number}", Identifiers(host=(f"h{number}", "shared")))
            made.add(agent)
            alive.append(agent)
        else:
            made.remove(alive.pop(0 if first else number % len(alive)))
    assert {id(a) for a in made} == {id(a) for a in alive} and len(made) == len(alive)
    assert len(made.storages[0]) == len({a.agent_id for a in alive})
    rng = random.Random(3)
    for agent in alive:
        own = f"h{agent.agent_id[1:]}"
        assert made.pick(f"{own}:1", rng).agent_id in {a.agent_id for a in alive}
        assert made.storages[1].pick(own, rng) is next(
            a for a in alive if a.agent_id == agent.agent_id
        )
    if not alive:
        with pytest.raises(NoAgent):
            made.pick("shared:1", rng)
