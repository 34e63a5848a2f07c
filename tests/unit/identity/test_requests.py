"""The order of requests to the CA."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodenet.identity.requests import Priority, RequestQueue
from nodenet.identity.spiffe import Identity

IDS = [Identity("td", "ns", f"a{number}") for number in range(8)]


def _all(queue: RequestQueue) -> list[Identity]:
    return list(iter(queue.pop, None))


def test_priority_goes_before_time_and_time_before_order() -> None:
    queue = RequestQueue()
    queue.push(IDS[0], Priority.BACKGROUND, 1.0)
    queue.push(IDS[1], Priority.WARMUP, 3.0)
    queue.push(IDS[2], Priority.REAL_TIME, 5.0)
    queue.push(IDS[3], Priority.WARMUP, 2.0)
    queue.push(IDS[4], Priority.REAL_TIME, 5.0)
    assert len(queue) == 5
    assert _all(queue) == [IDS[2], IDS[4], IDS[3], IDS[1], IDS[0]]
    assert len(queue) == 0 and queue.pop() is None


def test_a_request_becomes_more_urgent_and_never_less() -> None:
    queue = RequestQueue()
    queue.push(IDS[0], Priority.WARMUP, 2.0)
    queue.push(IDS[1], Priority.BACKGROUND, 1.0)
    queue.push(IDS[1], Priority.REAL_TIME, 9.0)
    queue.push(IDS[1], Priority.BACKGROUND, 0.0)
    assert len(queue) == 2 and IDS[1] in queue
    assert _all(queue) == [IDS[1], IDS[0]]


def test_a_discarded_one_does_not_come_and_may_be_queued_again() -> None:
    queue = RequestQueue()
    queue.push(IDS[0], Priority.REAL_TIME, 0.0)
    queue.push(IDS[1], Priority.WARMUP, 1.0)
    queue.discard(IDS[0])
    queue.discard(IDS[0])
    queue.push(IDS[0], Priority.BACKGROUND, 2.0)
    assert _all(queue) == [IDS[1], IDS[0]]


def test_coming_and_going_does_not_grow_it() -> None:
    queue = RequestQueue()
    for number in range(5000):
        queue.push(IDS[number % 3], Priority.BACKGROUND, float(number))
        queue.discard(IDS[number % 3])
    assert len(queue) == 0 and len(queue._heap) <= 64
    assert queue.pop() is None


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("push"), st.sampled_from(IDS), st.sampled_from(Priority), st.floats(0, 9)
            ),
            st.tuples(st.sampled_from(["discard", "pop"]), st.sampled_from(IDS)),
        ),
        max_size=200,
    )
)
def test_it_is_what_sorting_would_be(steps: list[tuple[object, ...]]) -> None:
    queue = RequestQueue()
    model: dict[Identity, tuple[int, float, int]] = {}
    for turn, step in enumerate(steps):
        match step:
            case ("push", Identity() as identity, Priority() as priority, float() as since):
                queue.push(identity, priority, since)
                known = model.get(identity)
                if known is None:
                    model[identity] = (priority, since, turn)
                elif priority < known[0]:
                    model[identity] = (priority, known[1], turn)
            case ("discard", Identity() as identity):
                queue.discard(identity)
                model.pop(identity, None)
            case _:
                first = min(model, key=lambda i: model[i], default=None)
                assert queue.pop() == first
                if first is not None:
                    del model[first]
        assert len(queue) == len(model)
