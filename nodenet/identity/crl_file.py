"""The file of revocation lists (CRL_PATH), kept up to date while it changes.

Source: ztunnel: src/tls/crl.rs. A file that is missing revokes nothing; one that cannot be read,
or that vanishes, leaves what was read before: an update must not open a door for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from nodenet.identity.crl import MAX_CRL_BYTES, CrlInvalid, RevocationList, Revocations, read_lists
from nodenet.identity.x509 import Certificate
from nodenet.kernel.inotify import NAMES, Inotify, WatchFailed

logger = logging.getLogger(__name__)

#: From the first change to reading: whoever writes has time to finish (ztunnel: src/tls/crl.rs).
DEBOUNCE_SECONDS: Final = 2.0
#: Changes that nobody tells of are seen after this: a link's target elsewhere, a lost watch.
POLL_SECONDS: Final = 30.0
#: inotify(7): a file was written and closed.
_CLOSE_WRITE: Final = 0x8

T = TypeVar("T")


class CrlFile:
    """The lists in a file now. It is read when made, and again by `run` when it changes."""

    def __init__(
        self,
        path: Path,
        *,
        issuers: Callable[[], Iterable[Certificate]] = tuple,
        debounce_seconds: float = DEBOUNCE_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """``issuers`` gives the roots and intermediates known now: those of our certificates."""
        self.path = path
        self._issuers = issuers
        self._debounce = debounce_seconds
        self._poll = poll_seconds
        self._watchers: list[Callable[[], None]] = []
        self._stamp: tuple[int, int, int] | None = None
        self._revocations = Revocations()
        self._told_missing = False
        if self._changed():
            self._take(*self._read(list(self._issuers())))

    def check(self, chain: Sequence[Certificate]) -> None:
        """CertificateRevoked when a peer's chain has a revoked leaf or intermediate.

        ``chain`` is as `peer.peer_chain` gives it.
        """
        self._revocations.check(chain, self._issuers())

    def is_revoked(self, chain: Sequence[Certificate]) -> bool:
        """The same as an answer."""
        return self._revocations.revoked(chain, self._issuers()) is not None

    def revoked_among(self, peers: Iterable[tuple[T, Sequence[Certificate]]]) -> list[T]:
        """Which of the live connections have to end: of ``(connection, chain)``, after a change."""
        return [connection for connection, chain in peers if self.is_revoked(chain)]

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` after each change of the lists, on the loop of `run`."""
        self._watchers.append(changed)

    async def run(self) -> None:
        """Watches the file until it is cancelled."""
        hint = asyncio.Event()
        with _watching(hint) as watch:
            while True:
                watch(self.path.parent)
                # also what changed since it was read, before it was watched
                if self._changed():
                    known = list(self._issuers())
                    self._take(*await asyncio.to_thread(self._read, known))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll):
                        await hint.wait()
                if hint.is_set():
                    await asyncio.sleep(self._debounce)
                    hint.clear()

    def _changed(self) -> bool:
        """Whether there is a file, and another one than was read last."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            if not self._told_missing:
                self._told_missing = True
                logger.warning(
                    "CRL file %s: %s; %s",
                    self.path,
                    error.strerror,
                    "what was read before still counts" if self._stamp else "nothing is revoked",
                )
            return False
        self._told_missing = False
        stamp = found.st_ino, found.st_ctime_ns, found.st_size
        changed = stamp != self._stamp
        self._stamp = stamp
        return changed

    def _read(self, known: list[Certificate]) -> tuple[Revocations | None, list[RevocationList]]:
        """The file's lists, and which of them none of these issuers signed; in any thread.

        None, and a warning, when they cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                revocations = Revocations(read_lists(file.read(MAX_CRL_BYTES + 1)))
            # also saves the loop the work: signatures are verified once an issuer
            return revocations, revocations.unsigned(known) if known else []
        except (OSError, CrlInvalid) as error:
            logger.warning("CRL file %s: %s; what was read before still counts", self.path, error)
            return None, []

    def _take(self, revocations: Revocations | None, unsigned: list[RevocationList]) -> None:
        if revocations is None:
            return
        self._revocations = revocations
        logger.info(
            "CRL file %s: %d lists, %d certificates revoked",
            self.path,
            len(revocations.lists),
            sum(len(one.serials) for one in revocations.lists),
        )
        for one in unsigned:
            logger.warning(
                "CRL file %s: the list of %s is signed by none of our roots and intermediates "
                "and ignored, but for peers that show its issuer",
                self.path,
                one.issuer,
            )
        for changed in self._watchers:
            try:
                changed()
            except Exception:
                logger.exception("a change of the CRL could not be followed")


@contextlib.contextmanager
def _watching(hint: asyncio.Event) -> Iterator[Callable[[Path], None]]:
    """Sets ``hint`` when something happens in a directory; gives what takes the directory.

    Without inotify, and while the directory is not there, nothing sets it: then there is the poll.
    """
    try:
        inotify = Inotify()
    except WatchFailed as error:
        logger.warning("CRL file is looked at now and then only: %s", error)
        yield lambda directory: None
        return

    def happened() -> None:
        if inotify.read():
            hint.set()

    def watch(directory: Path) -> None:
        with contextlib.suppress(WatchFailed):
            inotify.watch(directory, NAMES | _CLOSE_WRITE)

    loop = asyncio.get_running_loop()
    with inotify:
        loop.add_reader(inotify.fileno(), happened)
        try:
            yield watch
        finally:
            loop.remove_reader(inotify.fileno())
