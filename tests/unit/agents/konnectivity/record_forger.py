"""Records that no library writes, under the keys of a connection that one has made."""

from __future__ import annotations

import hmac

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand


class Forger:
    """Writes records of TLS 1.3 (RFC 8446 sections 5.2 and 7.1) that `ssl` does not write.

    ``secret`` is that of a direction's first application traffic, with AES-256-GCM and SHA-384, of
    which there was none yet.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._new_keys()

    def record(self, content: bytes, kind: int) -> bytes:
        """One record; a ContentType is 21 for an alert, 22 for a handshake, 23 for data."""
        inner = content + bytes([kind])
        head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        nonce = int.from_bytes(self._iv, "big") ^ self._sent
        self._sent += 1
        return head + self._key.encrypt(nonce.to_bytes(12, "big"), inner, head)

    def key_update(self) -> bytes:
        """Takes new keys and asks the other end for new ones of its own."""
        return self._updated(self.record(b"\x18\0\0\1\1", 22))

    def key_update_in_two(self) -> tuple[bytes, bytes]:
        """The same, in two records."""
        return self.record(b"\x18\0\0\1", 22), self._updated(self.record(b"\1", 22))

    def _updated(self, made: bytes) -> bytes:
        self._secret = self._derive(b"traffic upd", 48)
        self._new_keys()
        return made

    def _new_keys(self) -> None:
        self._key, self._iv = AESGCM(self._derive(b"key", 32)), self._derive(b"iv", 12)
        self._sent = 0

    def _derive(self, label: bytes, size: int) -> bytes:
        name = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
        return HKDFExpand(SHA384(), size, info).derive(self._secret)


class OldForger:
    """Writes records of TLS 1.2 (RFC 5246 section 6.3, RFC 5288) that `ssl` does not write.

    Those of a client with AES-256-GCM and SHA-384, which has sent one, Finished.
    """

    def __init__(self, secret: bytes, server_random: bytes, client_random: bytes) -> None:
        seed = b"key expansion" + server_random + client_random
        block, a = b"", seed
        while len(block) < 2 * 32 + 2 * 4:
            a = hmac.digest(secret, a, "sha384")
            block += hmac.digest(secret, a + seed, "sha384")
        self._key, self._salt = AESGCM(block[:32]), block[64:68]
        self._sent = 1

    def record(self, content: bytes, kind: int) -> bytes:
        """One record, as `Forger.record`."""
        number = self._sent.to_bytes(8, "big")
        self._sent += 1
        version = b"\x03\x03"
        head = number + bytes([kind]) + version + len(content).to_bytes(2, "big")
        sealed = self._key.encrypt(self._salt + number, content, head)
        size = len(number) + len(sealed)
        return bytes([kind]) + version + size.to_bytes(2, "big") + number + sealed
