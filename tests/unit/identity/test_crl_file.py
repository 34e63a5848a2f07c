"""The file of revocation lists while it is written, replaced, broken and removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodenet.identity.crl_file import CrlFile
from nodenet.identity.errors import CertificateRevoked
from nodenet.identity.spiffe import Identity
from nodenet.identity.x509 import Certificate
from nodenet.kernel import inotify
from tests.unit.identity.authority import Authority, crl_pem

CART = Identity("cluster.local", "shop", "cart")
#: A test that hangs is ended by this; nothing takes so long.
_LONG = 20.0


@pytest.fixture
def chain(authority: Authority) -> tuple[Certificate, ...]:
    own = authority.certificate(CART)
    return (own.leaf, *own.roots)


class Watched:
    """A file that is being watched, and its changes."""

    def __init__(self, path: Path, *, debounce: float = 0.02, poll: float = _LONG) -> None:
        self.file = CrlFile(path, debounce_seconds=debounce, poll_seconds=poll)
        self._changes: asyncio.Queue[None] = asyncio.Queue()
        self.file.subscribe(lambda: self._changes.put_nowait(None))

    async def change(self) -> None:
        """Returns after the next change."""
        async with asyncio.timeout(_LONG):
            await self._changes.get()

    @property
    def changes(self) -> int:
        return self._changes.qsize()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        run = asyncio.ensure_future(self.file.run())
        for _ in range(5):  # until it watches
            await asyncio.sleep(0)
        yield
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run


def test_it_is_read_when_made(
    authority: Authority, chain: tuple[Certificate, ...], tmp_path: Path
) -> None:
    path = tmp_path / "crl.pem"
    path.write_bytes(crl_pem(authority.root, chain[0].serial))
    crl = CrlFile(path)
    with pytest.raises(CertificateRevoked):
        crl.check(chain)
    assert crl.is_revoked(chain)
    own = authority.certificate(CART)
    fine = (own.leaf, *own.roots)
    crl.check(fine)
    assert crl.revoked_among([("a", fine), ("b", chain), ("c", ())]) == ["b"]


def test_a_missing_file_revokes_nothing_and_may_come(
    authority: Authority,
    chain: tuple[Certificate, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        path = tmp_path / "crl.pem"
        watched = Watched(path)
        watched.file.check(chain)
        async with watched.running():
            path.write_bytes(crl_pem(authority.root, chain[0].serial))
            await watched.change()
            assert watched.file.is_revoked(chain)

    asyncio.run(main())
    assert "nothing is revoked" in caplog.text and len(caplog.records) == 1


@pytest.mark.parametrize("how", ["written", "renamed", "link switched"])
def test_a_change_is_seen(
    authority: Authority, chain: tuple[Certificate, ...], tmp_path: Path, how: str
) -> None:
    """The last is how Kubernetes updates what it mounts."""

    async def main() -> None:
        old, new = crl_pem(authority.root, 1), crl_pem(authority.root, chain[0].serial)
        path = tmp_path / "crl.pem"
        if how == "link switched":
            for name, data in (("v1", old), ("v2", new)):
                (tmp_path / name).mkdir()
                (tmp_path / name / "crl.pem").write_bytes(data)
            (tmp_path / "..data").symlink_to("v1")
            path.symlink_to("..data/crl.pem")
        else:
            path.write_bytes(old)
        watched = Watched(path)
        async with watched.running():
            assert not watched.file.is_revoked(chain)
            if how == "written":
                path.write_bytes(new)
            elif how == "renamed":
                (tmp_path / "new").write_bytes(new)
                (tmp_path / "new").rename(path)
            else:
                (tmp_path / "..next").symlink_to("v2")
                (tmp_path / "..next").rename(tmp_path / "..data")
            await watched.change()
            assert watched.file.is_revoked(chain)
            # and back again: what is lifted is lifted
            (tmp_path / "again").write_bytes(b"")
            (tmp_path / "again").rename(path)
            await watched.change()
            assert not watched.file.is_revoked(chain)

    asyncio.run(main())


def test_a_writer_has_time_to_finish(
    authority: Authority,
    chain: tuple[Certificate, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        path = tmp_path / "crl.pem"
        path.write_bytes(crl_pem(authority.root, 1))
        watched = Watched(path, debounce=0.3)
        new = crl_pem(authority.root, chain[0].serial)
        async with watched.running():
            for end in (1, 50, 200, len(new)):
                path.write_bytes(new[:end])
                await asyncio.sleep(0)
            await watched.change()
            assert watched.file.is_revoked(chain) and watched.changes == 0

    asyncio.run(main())
    assert "no CRL" not in caplog.text


def test_what_is_broken_or_gone_changes_nothing(
    authority: Authority,
    chain: tuple[Certificate, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        path = tmp_path / "crl.pem"
        path.write_bytes(crl_pem(authority.root, chain[0].serial))
        watched = Watched(path, debounce=0.0, poll=0.01)
        async with watched.running():
            path.write_bytes(b"not a list")
            await _until(lambda: "no CRL" in caplog.text)
            assert watched.file.is_revoked(chain)
            path.unlink()
            await _until(lambda: "No such file" in caplog.text)
            assert watched.file.is_revoked(chain) and watched.changes == 0
            path.write_bytes(crl_pem(authority.root, 1))
            await watched.change()
            assert not watched.file.is_revoked(chain)

    asyncio.run(main())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all("what was read before still counts" in line for line in told)


async def _until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(_LONG):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_directory_that_comes_later_is_found(
    authority: Authority, chain: tuple[Certificate, ...], tmp_path: Path
) -> None:
    async def main() -> None:
        path = tmp_path / "later" / "crl.pem"
        watched = Watched(path, poll=0.01)
        async with watched.running():
            path.parent.mkdir()
            path.write_bytes(crl_pem(authority.root, chain[0].serial))
            await watched.change()
            assert watched.file.is_revoked(chain)

    asyncio.run(main())


def test_without_inotify_the_file_is_polled(
    authority: Authority,
    chain: tuple[Certificate, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(self: inotify.Inotify) -> None:
        self._fd = -1
        raise inotify.WatchFailed("inotify: Too many open files")

    monkeypatch.setattr(inotify.Inotify, "__init__", refused)

    async def main() -> None:
        path = tmp_path / "crl.pem"
        path.write_bytes(b"")
        watched = Watched(path, poll=0.01)
        async with watched.running():
            path.write_bytes(crl_pem(authority.root, chain[0].serial))
            await watched.change()
            assert watched.file.is_revoked(chain)

    asyncio.run(main())
    assert "now and then only" in caplog.text


def test_a_file_that_becomes_readable_is_read(
    authority: Authority, chain: tuple[Certificate, ...], tmp_path: Path
) -> None:
    """A directory in its place stands for no permission, which root always has."""

    async def main() -> None:
        path = tmp_path / "crl.pem"
        path.mkdir()
        watched = Watched(path, poll=0.01)
        assert not watched.file.is_revoked(chain)
        async with watched.running():
            os.rmdir(path)
            path.write_bytes(crl_pem(authority.root, chain[0].serial))
            await watched.change()
            assert watched.file.is_revoked(chain)

    asyncio.run(main())


def test_a_list_that_none_of_ours_signed_is_told_of(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "crl.pem"
    path.write_bytes(crl_pem(Authority().root, 1) + crl_pem(authority.root, 2))
    CrlFile(path, issuers=lambda: [authority.root.certificate])
    assert sum("signed by none of our" in record.getMessage() for record in caplog.records) == 1
    caplog.clear()
    CrlFile(path)  # before the first certificate nobody is known, which is no news
    assert not caplog.records


def test_a_subscriber_that_fails_does_not_stop_the_others(
    authority: Authority,
    chain: tuple[Certificate, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        path = tmp_path / "crl.pem"
        path.write_bytes(b"")
        file = CrlFile(path, debounce_seconds=0.0)

        def bad() -> None:
            raise ValueError("bad subscriber")

        file.subscribe(bad)
        seen = asyncio.Event()
        file.subscribe(seen.set)
        run = asyncio.ensure_future(file.run())
        await asyncio.sleep(0)
        path.write_bytes(crl_pem(authority.root, chain[0].serial))
        async with asyncio.timeout(_LONG):
            await seen.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())
    assert "bad subscriber" in caplog.text
