"""The certificate store, with a clock and a CA in the test's hand.

What is asked of it: ztunnel: src/identity/manager.rs, its tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from nodenet.identity import store as store_module
from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.chain import CertificateChain
from nodenet.identity.entry import Answer, State
from nodenet.identity.errors import CaError, CertificateUnavailable
from nodenet.identity.spiffe import Identity
from nodenet.identity.store import (
    MAX_IN_FLIGHT,
    MAX_TIMER_SECONDS,
    REQUEST_SECONDS,
    CertificateStore,
)
from tests.unit.identity.authority import Authority

NOW = 1_800_000_000.0
TTL = 3600.0
CART = Identity("cluster.local", "shop", "cart")
BANK = Identity("cluster.local", "bank", "vault")


def _many(count: int) -> list[Identity]:
    return [Identity("cluster.local", "shop", f"w{number:04}") for number in range(count)]


class HandClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self._now = NOW
        self._calls: list[tuple[float, int, HandTimer]] = []
        self._made = 0

    def now(self) -> float:
        return self._now

    def call_later(self, seconds: float, call: Callable[[], None]) -> HandTimer:
        assert 0 <= seconds <= MAX_TIMER_SECONDS
        timer = HandTimer(call)
        self._made += 1
        heapq.heappush(self._calls, (self._now + seconds, self._made, timer))
        return timer

    def waiting(self) -> int:
        return sum(not timer.over for *_, timer in self._calls)

    async def advance(self, seconds: float) -> None:
        """Lets time pass; what is due happens in its order, each at its time."""
        end = self._now + seconds
        await _settle()
        while self._calls and self._calls[0][0] <= end:
            when, _, timer = heapq.heappop(self._calls)
            self._now = max(self._now, when)
            timer.fire()
            await _settle()
        self._now = end

    def jump(self, seconds: float) -> None:
        """Somebody sets the clock; timers do not see it."""
        self._now += seconds
        self._calls = [(when + seconds, made, timer) for when, made, timer in self._calls]


class HandTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.over = False

    def cancel(self) -> None:
        self.over = True

    def fire(self) -> None:
        if not self.over:
            self.over = True
            self._call()


async def _settle() -> None:
    """As many turns of the loop as anything here takes."""
    for _ in range(12):
        await asyncio.sleep(0)


class HandCa:
    """A CA that answers when the test says so, or at once while ``willing``."""

    def __init__(self, authority: Authority, clock: HandClock, *, willing: bool = False) -> None:
        self.authority = authority
        self.willing = willing
        self.refusal: Exception | None = None
        self.asked: list[tuple[float, Identity]] = []
        self.open: dict[Identity, asyncio.Future[CertificateChain]] = {}
        self._csrs: dict[Identity, str] = {}
        self._clock = clock
        self.ttl = TTL

    @property
    def names(self) -> list[Identity]:
        return [identity for _, identity in self.asked]

    async def sign(self, csr_pem: str, identity: Identity, ttl: float) -> CertificateChain:
        self.asked.append((self._clock.now(), identity))
        self._csrs[identity] = csr_pem
        if self.refusal is not None:
            raise self.refusal
        if self.willing:
            return self.chain(identity)
        future: asyncio.Future[CertificateChain]
        future = self.open[identity] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            if self.open.get(identity) is future:
                del self.open[identity]

    async def answer(self, identity: Identity) -> None:
        self.open[identity].set_result(self.chain(identity))
        await _settle()

    async def fail(self, identity: Identity, error: Exception | None = None) -> None:
        self.open[identity].set_exception(error or CaError("out of paper"))
        await _settle()

    def chain(self, identity: Identity) -> CertificateChain:
        return self.authority.chain(self._csrs[identity], self.ttl, self._clock.now())


class World:
    """Store, clock and CA."""

    def __init__(self, authority: Authority, *, willing: bool = False, **options: Any) -> None:
        self.clock = HandClock()
        self.ca = HandCa(authority, self.clock, willing=willing)
        self.store = CertificateStore(
            self.ca, self.clock, random.Random(7), ttl_seconds=TTL, **options
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.store.run(), name="store")
            await _settle()
            yield
            self.store.close()
        assert self.clock.waiting() == 0 and not self.ca.open

    def fetch(self, identity: Identity = CART) -> list[Answer]:
        """The answers that come, in a list."""
        answers: list[Answer] = []
        self.store.fetch(identity, answers.append)
        return answers

    def state(self, identity: Identity = CART) -> str:
        (found,) = (e for e in self.store.snapshot() if e.identity == identity)
        return found.state_text


Scenario = Callable[[World], Coroutine[Any, Any, None]]


@pytest.fixture
def play(authority: Authority) -> Callable[..., None]:
    """Runs a scenario against a running store."""

    def run(scenario: Scenario, **options: Any) -> None:
        async def main() -> None:
            world = World(authority, **options)
            async with world.running():
                await scenario(world)

        asyncio.run(main())

    return run


def _good(answer: Answer) -> WorkloadCertificate:
    assert isinstance(answer, WorkloadCertificate)
    return answer


Play = Callable[..., None]


def test_a_certificate_is_asked_for_once_and_kept(play: Play) -> None:
    async def scenario(world: World) -> None:
        assert world.store.get(CART) is None
        answers = world.fetch()
        assert answers == [] and world.state() == "Initializing"
        await _settle()
        assert world.ca.names == [CART]
        await world.ca.answer(CART)
        certificate = _good(answers[0])
        assert certificate.identity == CART
        assert certificate.leaf.public_key_der == certificate.key.public_der()
        assert world.state() == "Available"
        # known: at once, and the same object
        assert world.store.get(CART) is certificate
        assert world.fetch() == [certificate]
        assert await world.store.wait(CART) is certificate
        assert world.ca.names == [CART]

    play(scenario)


def test_waiters_share_one_request(play: Play) -> None:
    async def scenario(world: World) -> None:
        lists = [world.fetch() for _ in range(100)]
        waits = [asyncio.ensure_future(world.store.wait(CART)) for _ in range(10)]
        await _settle()
        assert world.ca.names == [CART]
        lists += [world.fetch() for _ in range(100)]
        assert world.store.snapshot()[0].waiters == 210
        await world.ca.answer(CART)
        certificate = _good(lists[0][0])
        assert all(answers == [certificate] for answers in lists)
        assert [w.result() for w in waits] == [certificate] * 10
        assert world.ca.names == [CART]

    play(scenario)


def test_each_request_has_a_key_of_its_own(play: Play) -> None:
    async def scenario(world: World) -> None:
        one, other = world.fetch(CART), world.fetch(BANK)
        await _settle()
        keys = {_good(answers[0]).key.public_der() for answers in (one, other)}
        await world.clock.advance(TTL / 2 + 200)
        again = world.store.get(CART)
        assert again is not None
        assert len(keys | {again.key.public_der()}) == 3

    play(scenario, willing=True)


def test_a_cancelled_waiter_is_not_called(play: Play) -> None:
    async def scenario(world: World) -> None:
        called: list[Answer] = []
        waiter = world.store.fetch(CART, called.append)
        stays = world.fetch()
        assert waiter is not None
        waiter.cancel()
        waiter.cancel()
        await _settle()
        await world.ca.answer(CART)
        assert called == [] and len(stays) == 1
        waiter.cancel()

    play(scenario)


def test_a_waiter_that_fails_hurts_nobody(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        def bad(answer: Answer) -> None:
            raise ValueError("bad waiter")

        world.store.fetch(CART, bad)
        good = world.fetch()
        await _settle()
        await world.ca.answer(CART)
        assert _good(good[0])
        assert "bad waiter" in caplog.text

    play(scenario)


def test_a_waiter_may_ask_again_from_its_callback(play: Play) -> None:
    async def scenario(world: World) -> None:
        seen: list[Answer] = []

        def first(answer: Answer) -> None:
            world.store.fetch(CART, seen.append)
            world.store.fetch(BANK, seen.append)
            world.store.forget(CART)

        world.store.fetch(CART, first)
        await _settle()
        assert [_good(answer).identity for answer in seen] == [CART, BANK]
        assert len(world.store) == 1

    play(scenario, willing=True)


def test_renewal_is_in_the_middle_of_the_life(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.store.prefetch(CART)
        await _settle()
        for renewals in range(1, 5):
            old = world.store.get(CART)
            assert old is not None and len(world.ca.asked) == renewals
            life = old.not_after - old.not_before
            # from 45 % of its life on, at 55 % for certain
            await world.clock.advance(old.not_before + life * 0.44 - world.clock.now())
            assert len(world.ca.asked) == renewals and world.store.get(CART) is old
            await world.clock.advance(life * 0.12)
            new = world.store.get(CART)
            assert new is not None and new is not old and len(world.ca.asked) == renewals + 1

    play(scenario, willing=True)


def test_renewals_of_many_are_spread(play: Play) -> None:
    async def scenario(world: World) -> None:
        for identity in _many(100):
            world.store.prefetch(identity)
        await _settle()
        assert len(world.ca.asked) == 100
        await world.clock.advance(TTL)
        renewals = [when for when, _ in world.ca.asked[100:200]]
        assert max(renewals) - min(renewals) > TTL * 0.08

    play(scenario, willing=True)


def test_the_old_certificate_is_given_out_while_it_is_renewed(play: Play) -> None:
    async def scenario(world: World) -> None:
        answers = world.fetch()
        await _settle()
        await world.ca.answer(CART)
        await world.clock.advance(TTL * 0.4)
        for _ in range(int(TTL * 0.2)):
            await world.clock.advance(1)
            if world.ca.open:
                break
        assert CART in world.ca.open  # being renewed, not done
        assert world.store.get(CART) is answers[0]
        assert world.state() == "Available"

    play(scenario)


def test_a_short_life_does_not_make_a_busy_loop(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.ca.ttl = 1.0
        world.fetch()
        await world.clock.advance(20)
        assert 10 <= len(world.ca.asked) <= 21

    play(scenario, willing=True)


def test_eight_requests_at_a_time(play: Play) -> None:
    async def scenario(world: World) -> None:
        identities = _many(20)
        for identity in identities:
            world.store.prefetch(identity)
        await _settle()
        assert list(world.ca.open) == identities[:MAX_IN_FLIGHT]
        await world.ca.answer(identities[3])
        assert world.ca.names == identities[: MAX_IN_FLIGHT + 1]
        await world.ca.fail(identities[0])
        assert world.ca.names == identities[: MAX_IN_FLIGHT + 2]

    play(scenario)


def test_the_most_urgent_goes_first_then_the_oldest(play: Play) -> None:
    async def scenario(world: World) -> None:
        busy, rest = _many(40)[:8], _many(40)[8:]
        renewed = rest[0]
        world.store.prefetch(renewed)
        await _settle()
        await world.ca.answer(renewed)
        for identity in busy:
            world.store.prefetch(identity)
        await _settle()
        assert len(world.ca.open) == MAX_IN_FLIGHT
        world.ca.asked.clear()
        # nobody may time out while the renewal comes due
        world.clock.jump(TTL)
        await world.clock.advance(0.5)
        world.store.prefetch(rest[1])
        await world.clock.advance(0.5)
        world.store.prefetch(rest[2])
        world.store.prefetch(rest[3])
        await world.clock.advance(0.5)
        world.fetch(rest[4])
        world.fetch(rest[3])  # was queued for less
        for identity in busy:
            await world.ca.answer(identity)
        # rest[3] keeps its place in time, which is before that of rest[4]
        assert world.ca.names == [rest[3], rest[4], rest[1], rest[2]]

    play(scenario)


def test_a_renewal_comes_last_and_becomes_urgent_when_it_is_late(play: Play) -> None:
    async def scenario(world: World) -> None:
        first, second, *rest = _many(10)
        for identity in (first, second):
            world.store.prefetch(identity)
            await _settle()
            await world.ca.answer(identity)
        await world.clock.advance(TTL * 0.44)
        world.ca.asked.clear()
        for identity in rest:
            world.store.prefetch(identity)
        await _settle()
        assert len(world.ca.open) == MAX_IN_FLIGHT
        world.clock.jump(TTL)  # both are over now
        assert world.store.get(first) is None
        late = world.fetch(second)
        world.store.prefetch(CART)
        await world.ca.answer(rest[0])
        await world.ca.answer(rest[1])
        assert world.ca.names[-2:] == [second, CART]
        await world.ca.answer(second)
        assert _good(late[0]).identity == second

    play(scenario)


def test_a_failure_reaches_everybody_and_then_at_once(play: Play) -> None:
    async def scenario(world: World) -> None:
        first = world.fetch()
        wait = asyncio.ensure_future(world.store.wait(CART))
        await _settle()
        await world.ca.fail(CART)
        text = f"identity error: {CART}: out of paper"
        assert isinstance(first[0], CertificateUnavailable) and str(first[0]) == text
        assert isinstance(first[0].__cause__, CaError)
        with pytest.raises(CertificateUnavailable, match="out of paper"):
            await wait
        assert world.state() == "Unavailable: out of paper"
        # the CA is not asked for each connection
        for _ in range(50):
            assert str(world.fetch()[0]) == text
        world.store.prefetch(CART)
        await _settle()
        assert world.ca.names == [CART]
        await world.clock.advance(1.3)
        assert world.ca.names == [CART, CART]
        assert str(world.fetch()[0]) == text  # until there is a certificate
        await world.ca.answer(CART)
        assert world.state() == "Available" and _good(world.fetch()[0])

    play(scenario)


def test_pauses_double_with_jitter_up_to_a_limit_and_start_again(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.ca.refusal = CaError("closed")
        world.fetch()
        await world.clock.advance(1200)
        times = [when for when, _ in world.ca.asked]
        pauses = [after - before for before, after in zip(times, times[1:], strict=False)]
        wanted = [1, 2, 4, 8, 16, 32, 64, 125, 125]
        for pause, base in zip(pauses, wanted, strict=False):
            assert base * 0.8 <= pause <= base * 1.2
        assert len(pauses) > len(wanted)
        assert all(100 <= pause <= 150 for pause in pauses[7:])
        assert any(abs(p - b) > 0.01 * b for p, b in zip(pauses, wanted, strict=False))
        assert world.store.snapshot()[0].attempts == len(times)
        world.ca.refusal, world.ca.willing = None, True
        await world.clock.advance(150)
        assert world.state() == "Available" and world.store.snapshot()[0].attempts == 0
        world.ca.refusal = CaError("closed")
        count = len(world.ca.asked)
        await world.clock.advance(TTL * 0.56)
        again = [when for when, _ in world.ca.asked[count:]]
        assert 0.8 <= again[1] - again[0] <= 1.2

    play(scenario)


def test_each_identity_has_its_own_pause(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.ca.refusal = CaError("closed")
        world.fetch(CART)
        await world.clock.advance(60)
        world.fetch(BANK)
        await world.clock.advance(1.3)
        assert world.ca.names.count(BANK) == 2

    play(scenario)


def test_a_valid_certificate_outlives_failures(play: Play) -> None:
    async def scenario(world: World) -> None:
        certificate = _good((await _fetched(world))[0])
        world.ca.refusal = CaError("closed")
        await world.clock.advance(certificate.not_after - world.clock.now() - 1)
        assert len(world.ca.asked) > 10
        assert world.store.get(CART) is certificate and world.state() == "Available"
        (entry,) = world.store.snapshot()
        assert entry.error == "closed" and entry.next_request is not None
        # the last attempt is not later than its end
        assert entry.next_request <= certificate.not_after
        before = len(world.ca.asked)
        await world.clock.advance(1)
        assert len(world.ca.asked) == before + 1
        assert world.store.get(CART) is None
        assert world.state() == "Unavailable: closed"
        assert "closed" in str(world.fetch()[0])
        # and no storm after it
        await world.clock.advance(10)
        assert len(world.ca.asked) <= before + 2

    play(scenario, willing=True)


async def _fetched(world: World, identity: Identity = CART) -> list[Answer]:
    answers = world.fetch(identity)
    await _settle()
    return answers


def test_a_failure_is_told_once_and_its_end_too(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        world.ca.refusal = CaError("closed")
        world.fetch()
        await world.clock.advance(100)
        assert len(world.ca.asked) > 5
        world.ca.refusal, world.ca.willing = None, True
        await world.clock.advance(100)

    with caplog.at_level("INFO", "nodenet.identity"):
        play(scenario)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "closed; next attempt in" in told[0] and "again" in told[1]


def test_a_silent_ca_is_a_failed_one(play: Play) -> None:
    async def scenario(world: World) -> None:
        answers = world.fetch()
        await world.clock.advance(REQUEST_SECONDS - 0.1)
        assert answers == []
        await world.clock.advance(0.2)
        assert "did not answer within 10 s" in str(answers[0])
        assert not world.ca.open  # and the request was given up
        await world.clock.advance(1.3)
        await world.ca.answer(CART)
        assert world.state() == "Available"

    play(scenario)


def test_a_ca_client_with_a_fault_is_a_failed_one(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        world.ca.refusal = ZeroDivisionError("fault")
        assert "fault" in str((await _fetched(world))[0])
        world.ca.refusal, world.ca.willing = None, True
        await world.clock.advance(2)
        assert world.state() == "Available"

    play(scenario)
    assert "ZeroDivisionError" in caplog.text


def test_what_does_not_fit_is_a_failure(play: Play, authority: Authority) -> None:
    async def scenario(world: World) -> None:
        answers = world.fetch()
        await _settle()
        stolen = authority.certificate(BANK, now=world.clock.now())
        wrong = CertificateChain(leaf=stolen.leaf, roots=stolen.roots)
        world.ca.open[CART].set_result(wrong)
        await _settle()
        assert "bank/sa/vault" in str(answers[0])
        await world.clock.advance(1.3)
        old = authority.certificate(CART, now=world.clock.now())
        world.ca.open[CART].set_result(CertificateChain(leaf=old.leaf, roots=old.roots))
        await _settle()
        assert "another key" in str(world.fetch()[0])

    play(scenario)


def test_a_certificate_that_is_over_when_it_comes_is_a_failure(
    play: Play,
) -> None:
    async def scenario(world: World) -> None:
        answers = world.fetch()
        await _settle()
        world.clock.jump(-2 * TTL)
        world.ca.open[CART].set_result(world.ca.chain(CART))
        world.clock.jump(2 * TTL)
        await _settle()
        assert "expired" in str(answers[0]) and "clocks" in str(answers[0])

    play(scenario)


@pytest.mark.parametrize("moment", ["queued", "asked", "available", "failed"])
def test_a_forgotten_identity_leaves_nothing(play: Play, moment: str) -> None:
    async def scenario(world: World) -> None:
        waiting: list[Answer] = []
        if moment == "queued":
            for identity in _many(MAX_IN_FLIGHT):
                world.store.prefetch(identity)
            await _settle()
        waiting = world.fetch()
        await _settle()
        if moment == "available":
            await world.ca.answer(CART)
        if moment == "failed":
            await world.ca.fail(CART)
        asked = world.ca.names.count(CART)
        world.store.forget(CART)
        world.store.forget(CART)
        await _settle()
        assert len(waiting) == 1
        if moment in ("queued", "asked"):
            assert "no workload of this node" in str(waiting[0])
        assert CART not in world.ca.open and world.store.get(CART) is None
        assert CART not in [entry.identity for entry in world.store.snapshot()]
        await world.clock.advance(2 * TTL)
        assert world.ca.names.count(CART) == asked
        # and it can come back
        world.ca.willing = True
        answers = world.fetch()
        await world.clock.advance(1)
        assert _good(answers[0]).identity == CART

    play(scenario)


def test_an_identity_that_comes_back_does_not_get_the_old_request(play: Play) -> None:
    async def scenario(world: World) -> None:
        old = world.fetch()
        await _settle()
        world.store.forget(CART)
        new = world.fetch()
        await _settle()
        assert len(old) == 1 and new == [] and world.ca.names == [CART, CART]
        await world.ca.answer(CART)
        assert _good(new[0]) and len(old) == 1

    play(scenario)


def test_the_number_of_identities_has_a_limit(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        a, b, c = _many(3)
        world.fetch(a)
        world.store.prefetch(b)
        world.store.prefetch(c)
        assert "3 identities" not in caplog.text and "2 identities are served" in caplog.text
        assert "2 identities are served" in str(world.fetch(c)[0])
        assert len(world.store) == 2
        world.store.forget(a)
        assert _good((await _fetched(world, c))[0]).identity == c

    play(scenario, willing=True, max_identities=2)


def test_the_number_of_waiters_has_a_limit(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_WAITERS", 3)

    async def scenario(world: World) -> None:
        waiting = [world.fetch() for _ in range(3)]
        assert "3 connections wait" in str(world.fetch()[0])
        await _settle()
        await world.ca.answer(CART)
        assert all(_good(answers[0]) for answers in waiting)

    play(scenario)


def test_a_wait_has_a_deadline(play: Play) -> None:
    async def scenario(world: World) -> None:
        wait = asyncio.ensure_future(world.store.wait(CART, 3.0))
        await world.clock.advance(2.9)
        assert not wait.done()
        await world.clock.advance(0.2)
        with pytest.raises(CertificateUnavailable, match="within 3 s"):
            await wait
        assert world.store.snapshot()[0].waiters == 0
        assert CART in world.ca.open  # it is still wanted

    play(scenario)


def test_a_cancelled_wait_leaves_no_waiter(play: Play) -> None:
    async def scenario(world: World) -> None:
        wait = asyncio.ensure_future(world.store.wait(CART))
        await _settle()
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert world.store.snapshot()[0].waiters == 0

    play(scenario)


def test_a_clock_that_is_set_forward_renews_soon(play: Play) -> None:
    """Also a machine that slept: timers counted nothing of it."""

    async def scenario(world: World) -> None:
        await _fetched(world)
        world.clock.jump(TTL * 0.7)
        await world.clock.advance(MAX_TIMER_SECONDS)
        assert len(world.ca.asked) == 2

    play(scenario, willing=True)


def test_over_and_not_renewed_is_waited_for(play: Play) -> None:
    async def scenario(world: World) -> None:
        await _fetched(world)
        world.ca.willing = False
        world.clock.jump(TTL)
        assert world.store.get(CART) is None and world.state() == "Initializing"
        answers = world.fetch()
        await _settle()
        await world.ca.answer(CART)
        assert _good(answers[0]) is world.store.get(CART)

    play(scenario, willing=True)


def test_before_it_runs_requests_wait(authority: Authority) -> None:
    async def main() -> None:
        world = World(authority, willing=True)
        answers = world.fetch()
        await _settle()
        assert world.ca.asked == []
        async with world.running():
            assert _good(answers[0])

    asyncio.run(main())


def test_a_ca_client_that_does_not_let_itself_be_cancelled(authority: Authority) -> None:
    async def main() -> None:
        world = World(authority)

        async def sign(csr_pem: str, identity: Identity, ttl: float) -> CertificateChain:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                pass
            raise CaError("cancelled")

        world.ca.sign = sign  # type: ignore[method-assign]  # the fault is what is tested
        run = asyncio.ensure_future(world.store.run())
        world.fetch()
        await _settle()
        run.cancel()
        await _settle()
        assert run.done()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_the_end_fails_whoever_waits(authority: Authority, how: str) -> None:
    async def main() -> None:
        world = World(authority)
        run = asyncio.ensure_future(world.store.run())
        answers = world.fetch(CART)
        for identity in _many(20):
            world.store.prefetch(identity)
        await _settle()
        assert len(world.ca.open) == MAX_IN_FLIGHT
        if how == "close":
            world.store.close()
            await run
        else:
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        assert "shutting down" in str(answers[0])
        assert "shutting down" in str(world.fetch(BANK)[0])
        world.store.prefetch(BANK)
        world.store.close()
        assert len(world.store) == 0 and world.clock.waiting() == 0 and not world.ca.open

    asyncio.run(main())


def test_states_of_a_snapshot_are_in_order(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.fetch(CART)
        world.fetch(BANK)
        await _settle()
        await world.ca.answer(BANK)
        bank, cart = world.store.snapshot()
        assert (bank.identity, bank.state, bank.error) == (BANK, State.AVAILABLE, None)
        assert bank.certificate is world.store.get(BANK)
        assert bank.next_request is not None and bank.next_request > world.clock.now()
        assert (cart.identity, cart.state, cart.certificate) == (CART, State.INITIALIZING, None)
        assert cart.next_request is None and cart.waiters == 1

    play(scenario)
