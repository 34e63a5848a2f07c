"""The embedded CA: signs for the workloads of one host, without a control plane.

Several proxies of a host may share its directory; each signs by itself with the same key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodenet.identity.ca_directory import CaDirectory, CaState, Stamp
from nodenet.identity.chain import CaClient, CertificateChain
from nodenet.identity.csr import read_csr
from nodenet.identity.errors import CaError
from nodenet.identity.issuing import DAY_SECONDS, MAX_LEAF_SECONDS, MIN_LEAF_SECONDS, make_leaf
from nodenet.identity.spiffe import Identity
from nodenet.identity.x509 import Certificate

logger = logging.getLogger(__name__)

__all__ = ["CaClient", "EmbeddedCa"]

#: An authority that dies sooner than this is complained about.
SOON_SECONDS: Final = 90 * DAY_SECONDS


class EmbeddedCa:
    """A `CaClient` that signs in this process. CaStateError when its directory cannot be used.

    ``now`` gives Unix time. Root rotation by another process is seen at the next signature.
    """

    def __init__(
        self,
        directory: Path,
        *,
        intermediate: bool = False,
        max_ttl_seconds: float = MAX_LEAF_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._directory = CaDirectory(directory)
        self._intermediate = intermediate
        self._max_ttl = max_ttl_seconds
        self._now = now
        self._stamp, self._state = self._read()

    @property
    def roots(self) -> tuple[Certificate, ...]:
        """Every accepted root, as of the last signature."""
        return self._state.roots

    async def sign(self, csr_pem: str, identity: Identity, ttl: float) -> CertificateChain:
        """See `CaClient`. Signing is done at once: it costs a third of a millisecond."""
        if self._is_stale():
            # its lock may be held by a process that is slow
            self._stamp, self._state = await asyncio.to_thread(self._read)
        return self._sign(csr_pem, identity, ttl)

    def sign_now(self, csr_pem: str, identity: Identity, ttl: float) -> CertificateChain:
        """The same, for callers without a loop; may block for the directory's lock."""
        if self._is_stale():
            self._stamp, self._state = self._read()
        return self._sign(csr_pem, identity, ttl)

    def add_root(self) -> Certificate:
        """Rotation, first step; see `CaDirectory.add_root`."""
        return self._directory.add_root(self._now())

    def switch_root(self) -> None:
        """Rotation, second step; see `CaDirectory.switch_root`."""
        self._directory.switch_root()

    def retire_roots(self) -> None:
        """Rotation, last step; see `CaDirectory.retire_roots`."""
        self._directory.retire_roots()

    def _sign(self, csr_pem: str, identity: Identity, ttl: float) -> CertificateChain:
        request = read_csr(csr_pem)
        if request.identity != identity:
            raise CaError(f"signing request: for {request.identity}, sent as one for {identity}")
        if not ttl >= MIN_LEAF_SECONDS:
            raise CaError(f"signing request: {ttl:g} s of life for {identity}; at least 1 s")
        now, state = self._now(), self._state
        if state.signer.certificate.not_after < now + MIN_LEAF_SECONDS:
            raise CaError(
                f"certificate for {identity}: the CA's own is over; rotate the root in "
                f"{self._directory.path}, or remove that directory"
            )
        leaf = make_leaf(state.signer, request, min(ttl, self._max_ttl), now)
        between = (state.intermediate.certificate,) if state.intermediate else ()
        return CertificateChain(leaf=leaf, intermediates=between, roots=state.roots)

    def _is_stale(self) -> bool:
        between = self._state.intermediate
        return self._directory.stamp() != self._stamp or (
            between is not None and self._now() >= between.certificate.middle
        )

    def _read(self) -> tuple[Stamp, CaState]:
        # taken first: what changes while it is read is read again
        stamp = self._directory.stamp()
        now = self._now()
        state = self._directory.ensure(now, intermediate=self._intermediate)
        left = state.root.certificate.not_after - now
        if left < SOON_SECONDS:
            logger.warning(
                "root of the embedded CA ends in %d days: %s; rotate it",
                max(left, 0) // DAY_SECONDS,
                self._directory.path,
            )
        return stamp, state
