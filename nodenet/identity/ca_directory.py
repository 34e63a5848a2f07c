"""The embedded CA's directory: who may write it, what a killed writer leaves, how roots change.

Files::

    lock              held (flock) by the one writer
    authority.pem     0600, key and certificate of the root that signs
    intermediate.pem  0600, key and certificate of the intermediate, where one is used
    next.pem          0600, key and certificate of the root that will sign
    roots.pem         0644, every root that is accepted: the bundle given to workloads

Each is replaced in one step. Nothing is signed before `CaDirectory.ensure` came back, which
finishes what a killed writer began; so a root is in ``roots.pem`` before it signs anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodenet.identity.errors import CaStateError, InvalidCertificate, InvalidKey
from nodenet.identity.issuing import Issuer, make_intermediate, make_root
from nodenet.identity.keys import PrivateKey
from nodenet.identity.secret_files import sweep, sync_directory, write_whole
from nodenet.identity.x509 import Certificate

AUTHORITY: Final = "authority.pem"
INTERMEDIATE: Final = "intermediate.pem"
NEXT: Final = "next.pem"
ROOTS: Final = "roots.pem"
LOCK: Final = "lock"

#: Another process creates the CA or changes its roots; either takes milliseconds.
LOCK_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 0.005
#: A bundle of a thousand roots; more is not a bundle.
MAX_FILE_BYTES: Final = 1 << 20

#: Inode, time and size of each file; None for one that is not there.
Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaState:
    """What the directory says: who signs, and whom workloads trust."""

    root: Issuer
    intermediate: Issuer | None
    roots: tuple[Certificate, ...]

    @property
    def signer(self) -> Issuer:
        """Who signs leaves."""
        return self.intermediate or self.root


class CaDirectory:
    """One directory. All methods but `stamp` hold its lock and may block for it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stamp(self) -> Stamp:
        """Changes whenever a file that `read` looks at does."""
        return tuple(_stamp(self.path / name) for name in (AUTHORITY, INTERMEDIATE, ROOTS))

    def ensure(self, now: float, *, intermediate: bool) -> CaState:
        """What is there, made first where it is missing or over. CaStateError.

        ``now`` is Unix time. An intermediate is replaced in the middle of its life.
        """
        with self._locked():
            sweep(self.path)
            root = self._issuer(AUTHORITY)
            if root is None:
                root = make_root(now)
                self._write_issuer(AUTHORITY, root)
            roots = self._roots()
            if root.certificate.der not in {c.der for c in roots}:
                roots = (*roots, root.certificate)
                self._write_roots(roots)
            between = self._intermediate(root, now) if intermediate else None
            return CaState(root=root, intermediate=between, roots=roots)

    def add_root(self, now: float) -> Certificate:
        """Rotation, first step: a new root that workloads trust and that signs nothing yet.

        A second call finishes the first or changes nothing: there is one next root.
        """
        with self._locked():
            following = self._issuer(NEXT)
            if following is None:
                following = make_root(now)
                self._write_issuer(NEXT, following)
            roots = self._roots()
            if following.certificate.der not in {c.der for c in roots}:
                self._write_roots((*roots, following.certificate))
            return following.certificate

    def switch_root(self) -> None:
        """Rotation, second step: the next root signs from now on. CaStateError.

        To be done when every workload has had a certificate since the first step, so that all
        trust the next root.
        """
        with self._locked():
            following = self._issuer(NEXT)
            if following is None:
                raise CaStateError(self.path / NEXT, "no next root", hint="add a root first")
            if following.certificate.der not in {c.der for c in self._roots()}:
                raise CaStateError(self.path / ROOTS, "the next root is not in it; add it again")
            os.replace(self.path / NEXT, self.path / AUTHORITY)
            sync_directory(self.path)

    def retire_roots(self) -> None:
        """Rotation, last step: roots that sign nothing any more are not trusted any more.

        To be done when every certificate of the old root is over.
        """
        with self._locked():
            keep = [i.certificate for i in (self._issuer(AUTHORITY), self._issuer(NEXT)) if i]
            if not keep:
                raise CaStateError(self.path / AUTHORITY, "no root here")
            self._write_roots(tuple(keep))

    def _intermediate(self, root: Issuer, now: float) -> Issuer:
        found = self._issuer(INTERMEDIATE)
        ours = found is not None and found.certificate.issuer == root.certificate.subject
        if found is not None and ours and now < found.certificate.middle:
            return found
        made = make_intermediate(root, now)
        self._write_issuer(INTERMEDIATE, made)
        return made

    def _issuer(self, name: str) -> Issuer | None:
        path = self.path / name
        data = _read(path, secret=True)
        if data is None:
            return None
        try:
            key = PrivateKey.from_pem(data)
            (certificate,) = Certificate.parse_pem(data.decode())
        except (InvalidKey, InvalidCertificate, ValueError) as error:
            # no chaining: a decoder's error holds the bytes it could not decode
            reason = str(error) if isinstance(error, InvalidKey) else "no certificate that fits"
            raise _broken(path, reason) from None
        if certificate.public_key_der != key.public_der():
            raise _broken(path, "its key is not that of its certificate")
        return Issuer(key=key, certificate=certificate)

    def _roots(self) -> tuple[Certificate, ...]:
        path = self.path / ROOTS
        data = _read(path, secret=False)
        try:
            return Certificate.parse_pem((data or b"").decode())
        except (InvalidCertificate, UnicodeDecodeError) as error:
            raise _broken(path, str(error)) from error

    def _write_issuer(self, name: str, issuer: Issuer) -> None:
        write_whole(self.path / name, issuer.key.pem() + issuer.certificate.pem.encode())

    def _write_roots(self, roots: tuple[Certificate, ...]) -> None:
        write_whole(self.path / ROOTS, "".join(c.pem for c in roots).encode(), 0o644)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self.path / LOCK
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            reason = (error.strerror or str(error)).lower().removesuffix(" or directory")
            raise CaStateError(
                f"directory of the CA {self.path}", reason, hint="name one that can be made"
            ) from error
        try:
            end = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise CaStateError(
                            lock, "held by another process", hint="find it with fuser"
                        ) from None
                    # flock has no deadline of its own; another writer holds it for milliseconds
                    time.sleep(_RETRY_SECONDS)
            try:
                yield
            except OSError as error:
                raise CaStateError(
                    error.filename or self.path, error.strerror or str(error)
                ) from error
        finally:
            os.close(fd)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path, *, secret: bool) -> bytes | None:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if secret and stat.S_IMODE(mode) & 0o077:
                raise CaStateError(
                    path, f"mode {stat.S_IMODE(mode):04o}", hint=f"a key: chmod 600 {path}"
                )
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_FILE_BYTES:
        raise CaStateError(path, f"more than {MAX_FILE_BYTES} bytes")
    return data


def _broken(path: Path, reason: str) -> CaStateError:
    return CaStateError(
        path, reason, hint="restore it, or remove the directory and renew every certificate"
    )
