"""Private keys: ECDSA on P-256, PKCS#8, never in a log line.

Source: ztunnel: src/tls/csr.rs for curve and encoding.
"""

from __future__ import annotations

from typing import Final, NoReturn, Self

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nodenet.identity.errors import InvalidKey

#: The hash of every signature made here.
HASH: Final = hashes.SHA256()


class PrivateKey:
    """A private key that can be used but not printed, compared or pickled."""

    __slots__ = ("_key",)

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        if not isinstance(key.curve, ec.SECP256R1):
            raise InvalidKey(f"private key: on {key.curve.name}; want P-256")
        self._key = key

    @classmethod
    def generate(cls) -> Self:
        """A new key."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """The first key in a PEM text; InvalidKey."""
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            key = None  # the library's text may quote the input
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidKey("private key: cannot be read; want PKCS#8 PEM of an EC key on P-256")
        return cls(key)

    @property
    def signer(self) -> ec.EllipticCurvePrivateKey:
        """The key as the library's builders want it."""
        return self._key

    def public(self) -> ec.EllipticCurvePublicKey:
        """The public half."""
        return self._key.public_key()

    def public_der(self) -> bytes:
        """The public half as SubjectPublicKeyInfo."""
        return public_der(self.public())

    def pem(self) -> bytes:
        """PKCS#8 in PEM, not encrypted: a secret."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def __repr__(self) -> str:
        return "PrivateKey(P-256)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("private keys are not pickled")


def public_der(key: object) -> bytes:
    """SubjectPublicKeyInfo of any public key of the library."""
    encode = key.public_bytes  # type: ignore[attr-defined]  # every kind of key has it
    der: bytes = encode(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return der
