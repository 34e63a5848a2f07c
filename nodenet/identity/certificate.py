"""Certificates: what is read from one, and one with its key and its chain."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final, Self

from nodenet.identity.chain import CertificateChain
from nodenet.identity.errors import CaResponseInvalid, SanMismatch
from nodenet.identity.keys import PrivateKey
from nodenet.identity.spiffe import Identity
from nodenet.identity.x509 import Certificate

#: A certificate is renewed in the middle of its life, give or take this part of it: identities
#: that came together do not go to the CA together.
REFRESH_JITTER: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class WorkloadCertificate:
    """What a workload proves its identity with, and whom it trusts.

    Two are never equal: a renewed certificate is another object, which is what caches go by.
    """

    identity: Identity
    key: PrivateKey = field(repr=False)
    leaf: Certificate
    intermediates: tuple[Certificate, ...] = ()
    roots: tuple[Certificate, ...]

    @classmethod
    def from_chain(
        cls,
        identity: Identity,
        key: PrivateKey,
        chain: CertificateChain,
        *,
        now: float,
        check_name: bool = True,
    ) -> Self:
        """The key and what the CA answered for it; CaResponseInvalid when they do not fit.

        ``now`` is Unix time. ``check_name`` is off where the CA decides on the name: a proxy that
        has one workload sends no wanted identity (ztunnel: src/identity/caclient.rs).
        """
        if check_name and chain.leaf.uris != (str(identity),):
            raise SanMismatch(identity, chain.leaf.uris)
        if chain.leaf.public_key_der != key.public_der():
            raise CaResponseInvalid(f"certificate for {identity}: made for another key")
        made = cls(
            identity=identity,
            key=key,
            leaf=chain.leaf,
            intermediates=chain.intermediates,
            roots=chain.roots,
        )
        if made.not_after <= now:
            raise CaResponseInvalid(
                f"certificate for {identity}: expired {now - made.not_after:.0f} s before it came; "
                "compare the clocks of this node and the CA"
            )
        return made

    @property
    def not_before(self) -> float:
        """Start of its life, Unix time."""
        return self.leaf.not_before

    @property
    def not_after(self) -> float:
        """End of its life, Unix time: its own, or that of an intermediate that dies earlier."""
        return min(self.leaf.not_after, *(c.not_after for c in self.intermediates), float("inf"))

    @property
    def serial(self) -> str:
        """The serial number, decimal."""
        return str(self.leaf.serial)

    @property
    def chain_pem(self) -> str:
        """Leaf and intermediates, PEM: what a peer is sent."""
        return self.leaf.pem + "".join(c.pem for c in self.intermediates)

    @property
    def roots_pem(self) -> str:
        """The roots, PEM: what a peer's chain must end in."""
        return "".join(c.pem for c in self.roots)

    def refresh_at(self, rng: random.Random) -> float:
        """When to ask for the next one, Unix time: half of its life, with jitter."""
        life = self.not_after - self.not_before
        return self.not_before + life * (0.5 + rng.uniform(-REFRESH_JITTER, REFRESH_JITTER))
