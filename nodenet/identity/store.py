"""The certificates of the workloads a proxy serves: asked for once, renewed in time, kept.

Source: ztunnel: src/identity/manager.rs. One entry an identity; however many connections wait for
it, the CA is asked once. Everything happens on one loop; only the CA is waited for.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.chain import CaClient
from nodenet.identity.clock import Clock, Timer
from nodenet.identity.csr import make_csr
from nodenet.identity.entry import Answer, Callback, Entry, EntrySnapshot, State, Waiter, call
from nodenet.identity.errors import CaError, CertificateUnavailable, IdentityError
from nodenet.identity.keys import PrivateKey
from nodenet.identity.requests import Priority, RequestQueue
from nodenet.identity.spiffe import Identity
from nodenet.times import rfc3339_ns

logger = logging.getLogger(__name__)

#: Requests that are with the CA at a time (ztunnel: src/identity/manager.rs).
MAX_IN_FLIGHT: Final = 8
#: What a workload asks for (ztunnel: SECRET_TTL).
DEFAULT_TTL_SECONDS: Final = 86_400.0
#: The CA's time for one answer; then the request has failed.
REQUEST_SECONDS: Final = 10.0
#: A connection's time for its certificate; several requests may be before it.
WAIT_SECONDS: Final = 20.0
#: First pause after a failure; it doubles with each, up to the longest one.
BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 150.0
#: Each pause is longer or shorter by up to this part of it.
BACKOFF_JITTER: Final = 0.2
#: A certificate is never renewed sooner than this after it came, however short its life.
MIN_REFRESH_SECONDS: Final = 1.0
#: No timer runs longer: the clock may be set, and a machine that slept does not count the time.
MAX_TIMER_SECONDS: Final = 300.0
#: Identities at a time. A node has some hundred pods; each identity takes about 70 KiB with its
#: two TLS contexts.
MAX_IDENTITIES: Final = 4096
#: Waiters of one identity: as many as a pod may have connections.
MAX_WAITERS: Final = 65_536


class CertificateStore:
    """One certificate an identity. ``run`` must be running for anything to be asked for."""

    def __init__(
        self,
        ca: CaClient,
        clock: Clock,
        rng: random.Random,
        *,
        ttl_seconds: float = DEFAULT_TTL_SECONDS,
        check_name: bool = True,
        max_identities: int = MAX_IDENTITIES,
    ) -> None:
        """``check_name``: see `WorkloadCertificate.from_chain`."""
        self._ca = ca
        self._clock = clock
        self._now = clock.now
        self._rng = rng
        self._ttl = ttl_seconds
        self._check_name = check_name
        self._max_identities = max_identities
        self._entries: dict[Identity, Entry] = {}
        self._queue = RequestQueue()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Asks the CA for what is wanted until `close`, or until it is cancelled, which closes."""
        try:
            async with asyncio.TaskGroup() as group:
                workers = [
                    group.create_task(self._work(), name=f"certificates-{number}")
                    for number in range(MAX_IN_FLIGHT)
                ]
                await self._closing.wait()
                for worker in workers:
                    worker.cancel()
        finally:
            self.close()

    def close(self) -> None:
        """Forgets everything; waiters get an error. A second time does nothing."""
        self._closing.set()
        for identity in list(self._entries):
            self._forget(identity, "the proxy is shutting down")

    def __len__(self) -> int:
        """How many identities there are."""
        return len(self._entries)

    def get(self, identity: Identity) -> WorkloadCertificate | None:
        """The certificate if there is a valid one now. Asks nobody."""
        entry = self._entries.get(identity)
        if entry is None or entry.expires <= self._now():
            return None
        return entry.certificate

    def fetch(self, identity: Identity, callback: Callback) -> Waiter | None:
        """Calls back with the certificate or with why there is none; because a connection waits.

        At once, before this returns None, when the answer is known: a valid certificate, or the
        last error while the CA is not asked again yet. Otherwise later, unless the waiter that is
        returned is cancelled. The caller has the deadline.
        """
        known = self.get(identity) or self._refusal(identity)
        if known is not None:
            call(callback, known)
            return None
        entry = self._entries.get(identity) or self._add(identity)
        waiter = Waiter(entry, callback)
        entry.waiters[waiter] = None
        self._ask(entry, Priority.REAL_TIME)
        return waiter

    async def wait(
        self, identity: Identity, deadline_seconds: float = WAIT_SECONDS
    ) -> WorkloadCertificate:
        """The certificate, as soon as there is one; CertificateUnavailable."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def resolve(answer: Answer) -> None:
            if not future.done():
                future.set_result(answer)

        waiter = self.fetch(identity, resolve)
        late = CertificateUnavailable(identity, f"no certificate within {deadline_seconds:g} s")
        timer = self._clock.call_later(deadline_seconds, lambda: resolve(late))
        try:
            answer = await future
        finally:
            timer.cancel()
            if waiter is not None:
                waiter.cancel()
        if isinstance(answer, CertificateUnavailable):
            # each waiter raises its own: a traceback grows with every raise
            raise CertificateUnavailable(identity, answer.reason) from answer
        return answer

    def prefetch(self, identity: Identity) -> None:
        """Asks for a certificate that will be needed. One that is known already is left alone."""
        if identity in self._entries:
            return
        refusal = self._refusal(identity)
        if refusal is None:
            self._ask(self._add(identity), Priority.WARMUP)
        elif not self._closing.is_set():
            logger.warning("certificate not fetched in advance: %s", refusal)

    def forget(self, identity: Identity) -> None:
        """The identity's last workload has gone: its key too, and what waits for it fails."""
        self._forget(identity, "no workload of this node has it any more")

    def snapshot(self) -> list[EntrySnapshot]:
        """Every identity, in order."""
        return [self._snapshot(self._entries[identity]) for identity in sorted(self._entries)]

    def _snapshot(self, entry: Entry) -> EntrySnapshot:
        certificate = self.get(entry.identity)
        if certificate is not None:
            state = State.AVAILABLE
        else:
            state = State.INITIALIZING if entry.error is None else State.UNAVAILABLE
        return EntrySnapshot(
            identity=entry.identity,
            state=state,
            certificate=certificate,
            error=None if entry.error is None else entry.error.reason,
            attempts=entry.attempts,
            next_request=entry.due,
            waiters=len(entry.waiters),
        )

    def _refusal(self, identity: Identity) -> CertificateUnavailable | None:
        """Why nobody is to wait for this identity's certificate."""
        entry = self._entries.get(identity)
        if self._closing.is_set():
            return CertificateUnavailable(identity, "the proxy is shutting down")
        if entry is None:
            if len(self._entries) < self._max_identities:
                return None
            return CertificateUnavailable(
                identity, f"{self._max_identities} identities are served, no more"
            )
        if entry.error is None and len(entry.waiters) >= MAX_WAITERS:
            return CertificateUnavailable(identity, f"{MAX_WAITERS} connections wait, no more")
        return entry.error

    def _add(self, identity: Identity) -> Entry:
        entry = self._entries[identity] = Entry(identity)
        return entry

    def _forget(self, identity: Identity, reason: str) -> None:
        entry = self._entries.pop(identity, None)
        if entry is None:
            return
        self._queue.discard(identity)
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.scope is not None:
            _expire(entry.scope)
        entry.certificate = None
        self._answer(entry, CertificateUnavailable(identity, reason))

    def _ask(self, entry: Entry, priority: Priority) -> None:
        """Queues a request; one that is with the CA already is enough."""
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        entry.due = None
        if entry.scope is None:
            self._queue.push(entry.identity, priority, self._now())
            self._wake.set()

    def _ask_at(self, entry: Entry, due: float) -> None:
        """Queues a renewal or another attempt at a later time."""
        entry.due = due
        delay = min(max(due - self._now(), 0.0), MAX_TIMER_SECONDS)
        entry.timer = self._clock.call_later(delay, lambda: self._due(entry))

    def _due(self, entry: Entry) -> None:
        entry.timer = None
        if entry.due is not None and entry.due > self._now():
            self._ask_at(entry, entry.due)
        else:
            self._ask(entry, Priority.BACKGROUND)

    async def _work(self) -> None:
        """One of the requests that may be with the CA at a time."""
        task = asyncio.current_task()
        # asked for, because a CA client may turn being cancelled into an error of its own
        while task is not None and not task.cancelling():
            identity = self._queue.pop()
            if identity is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            entry = self._entries[identity]
            try:
                certificate = await self._request(entry)
            except IdentityError as error:
                self._failed(entry, error)
            except Exception as error:
                logger.exception("certificate of %s: the CA client failed", identity)
                self._failed(entry, error)
            else:
                self._came(entry, certificate)

    async def _request(self, entry: Entry) -> WorkloadCertificate:
        identity = entry.identity
        key = PrivateKey.generate()
        csr = make_csr(key, identity)
        timer: Timer | None = None
        try:
            async with asyncio.timeout(None) as scope:
                entry.scope = scope
                timer = self._clock.call_later(REQUEST_SECONDS, lambda: _expire(scope))
                chain = await self._ca.sign(csr, identity, self._ttl)
        except TimeoutError as error:
            raise CaError(f"the CA did not answer within {REQUEST_SECONDS:g} s") from error
        finally:
            entry.scope = None
            if timer is not None:
                timer.cancel()
        return WorkloadCertificate.from_chain(
            identity, key, chain, now=self._now(), check_name=self._check_name
        )

    def _came(self, entry: Entry, certificate: WorkloadCertificate) -> None:
        if self._entries.get(entry.identity) is not entry:
            return  # forgotten meanwhile
        if entry.attempts:
            logger.info("the CA gives certificates of %s again", entry.identity)
        entry.certificate = certificate
        entry.expires = certificate.not_after
        entry.error = None
        entry.attempts = 0
        logger.debug(
            "certificate of %s: serial %s, until %s",
            entry.identity,
            certificate.serial,
            rfc3339_ns(int(certificate.not_after * 1e9)),
        )
        soonest = self._now() + MIN_REFRESH_SECONDS
        self._ask_at(entry, max(certificate.refresh_at(self._rng), soonest))
        self._answer(entry, certificate)

    def _failed(self, entry: Entry, cause: Exception) -> None:
        if self._entries.get(entry.identity) is not entry:
            return
        error = CertificateUnavailable(entry.identity, str(cause) or type(cause).__name__)
        error.__cause__ = cause
        entry.error = error
        pause = self._pause(entry.attempts)
        entry.attempts += 1
        now = self._now()
        due = now + pause
        if entry.expires > now:
            # the old certificate goes on; when it ends there is one attempt more at once
            due = min(due, entry.expires)
        # the first failure is news; a CA that is away for hours is not, for each of many pods
        level = logging.WARNING if entry.attempts == 1 else logging.DEBUG
        logger.log(level, "%s; next attempt in %.1f s", error, due - now)
        self._ask_at(entry, due)
        if entry.expires <= now:
            entry.certificate = None
        self._answer(entry, entry.certificate or error)

    def _pause(self, failures: int) -> float:
        longest = MAX_BACKOFF_SECONDS / (1 + BACKOFF_JITTER)
        doublings = min(failures, 16)  # enough for the longest, and the number stays small
        pause = min(BACKOFF_SECONDS * (1 << doublings), longest)
        return pause * self._rng.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)

    def _answer(self, entry: Entry, answer: Answer) -> None:
        waiters, entry.waiters = entry.waiters, {}
        for waiter in waiters:
            waiter.answer(answer)


def _expire(scope: asyncio.Timeout) -> None:
    """Ends a request at once, as if its time were over."""
    if not scope.expired():
        scope.reschedule(asyncio.get_running_loop().time())
