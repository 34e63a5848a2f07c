"""TLS that follows its files, and sockets that are given back."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from nodenet.agents.konnectivity import server_listeners
from nodenet.agents.konnectivity.server_config import TlsFiles
from nodenet.agents.konnectivity.server_listeners import (
    Listener,
    make_context,
    open_frontend_socket,
    open_listening,
)
from nodenet.agents.ztunnel.poller import Poller
from nodenet.httpd.sockets import BindError, PortInUse
from nodenet.konnectivity.tls_files import TlsUnusable
from tests.interop.certificates import DAY, MINUTES, Authority
from tests.unit.agents.konnectivity.agent_scene import run, until


class Files:
    """A listener's files, written anew for each authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls = TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")

    def write(
        self,
        authority: Authority,
        name: str,
        valid: tuple[datetime.timedelta, datetime.timedelta] = (-MINUTES, DAY),
    ) -> None:
        """A certificate of that authority, and itself as the CA."""
        source = self.folder / name
        source.mkdir()
        pair = authority.issue(source, "server", "localhost", "127.0.0.1", valid=valid)
        shutil.copy(pair.cert, self.tls.cert)
        shutil.copy(pair.key, self.tls.key)
        assert self.tls.ca is not None
        authority.write(self.tls.ca)

    def client(self, authority: Authority, name: str) -> ssl.SSLContext:
        """A client of that authority, which trusts the listener's current CA."""
        source = self.folder / name
        source.mkdir()
        pair = authority.issue(source, "client")
        made = ssl.create_default_context(cafile=self.tls.ca)
        made.load_cert_chain(pair.cert, pair.key)
        return made


class Hello(asyncio.BufferedProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.buffer = bytearray(64 << 10)
        self.transport.write(b"hello")

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self.buffer[:nbytes]))


async def greeted(port: int, context: ssl.SSLContext) -> bool:
    """Whether a listener serves a client."""
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
    except OSError:
        return False
    try:
        return await reader.read(5) == b"hello"
    except OSError:
        return False  # TLS 1.3 tells a client of its refusal after the handshake
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def listening(files: Files, **settings: Any) -> AsyncIterator[Listener]:
    poller = Poller(asyncio.get_running_loop())
    sockets = open_listening("127.0.0.1", 0, "x")
    listener = Listener("test", sockets, Hello, poller, tls=files.tls, **settings)
    await listener.prepare()
    await listener.start()
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(listener.follow_files())
        try:
            yield listener
        finally:
            work.cancel()
            listener.close()
    await until(lambda: not len(poller), "every connection is over")
    poller.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_listeners, "RELOAD_SECONDS", 0.02)


def test_a_rotated_ca_and_certificate_are_used_and_open_connections_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        files, old, new = Files(tmp_path), Authority("old"), Authority("new")
        files.write(old, "one")
        async with listening(files) as listener:
            old_client = files.client(old, "old client")
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=old_client, server_hostname="localhost"
            )
            assert await reader.readexactly(5) == b"hello"
            files.write(new, "two")
            new_client = files.client(new, "new client")
            async with asyncio.timeout(30):
                while not await greeted(listener.port, new_client):
                    await asyncio.sleep(0.02)
            assert not await greeted(listener.port, old_client)
            writer.write(b"still")
            assert await reader.readexactly(5) == b"still"
            writer.close()
            await writer.wait_closed()

    run(test())


@pytest.mark.parametrize(
    ("valid", "words"),
    [
        ((-DAY, -MINUTES), "certificate has expired (20"),
        ((MINUTES, DAY), "certificate is not yet valid (20"),
    ],
)
def test_a_certificate_that_peers_refuse_now_is_said_and_shown_all_the_same(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    valid: tuple[datetime.timedelta, datetime.timedelta],
    words: str,
) -> None:
    async def test() -> None:
        files, authority = Files(tmp_path), Authority("ca")
        expected = f"test: {files.tls.cert}: {words}"
        files.write(authority, "one", valid)
        async with listening(files) as listener:
            assert [m.startswith(expected) for m in caplog.messages] == [True]
            assert caplog.records[0].levelname == "WARNING"
            caplog.clear()
            files.write(authority, "two")
            client = files.client(authority, "client")
            async with asyncio.timeout(30):
                while not await greeted(listener.port, client):
                    await asyncio.sleep(0.02)
            assert caplog.messages == []
            files.write(authority, "three", valid)
            await until(lambda: len(caplog.messages) > 0, "it is said of the new one")
            assert caplog.messages[0].startswith(expected)
            client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
            assert await greeted(listener.port, client)
            await asyncio.sleep(0.1)
            assert len(caplog.messages) == 1, "once"

    run(test())


def test_files_that_cannot_be_used_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        files, authority = Files(tmp_path), Authority("ca")
        files.write(authority, "one")
        async with listening(files) as listener:
            client = files.client(authority, "client")
            kept = files.tls.key.read_bytes()
            files.tls.key.write_text("rubbish")
            await until(lambda: "the old one stays in use" in caplog.text, "it is said")
            assert await greeted(listener.port, client)
            files.tls.key.unlink()
            await until(lambda: "no such file" in caplog.text.lower(), "it is said again")
            files.tls.key.write_bytes(kept)
            assert await greeted(listener.port, client)
            assert caplog.text.count("rubbish") == 0

    run(test())


def test_a_rotation_without_a_free_descriptor_is_done_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends nobody: the old certificate stays in use until there is one."""

    async def test() -> None:
        files, old, new = Files(tmp_path), Authority("old"), Authority("new")
        files.write(old, "one")
        async with listening(files) as listener:
            with monkeypatch.context() as patched:
                patched.setattr(socket.socket, "dup", no_descriptor)
                files.write(new, "two")
                await until(lambda: "cannot take new certificates" in caplog.text, "it is said")
            assert listener.port, "it listens"
            new_client = files.client(new, "new client")
            async with asyncio.timeout(30):
                while not await greeted(listener.port, new_client):
                    await asyncio.sleep(0.02)

    run(test())


def no_descriptor(_sock: socket.socket) -> socket.socket:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_rotation_that_crosses_the_end_accepts_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        files, authority = Files(tmp_path), Authority("ca")
        files.write(authority, "one")
        poller = Poller(asyncio.get_running_loop())
        sockets = open_listening("127.0.0.1", 0, "x")
        listener = Listener("test", sockets, Hello, poller, tls=files.tls)
        await listener.prepare()
        await listener.start()
        port, client = listener.port, files.client(authority, "client")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(listener._serve(listener._context))
            await asyncio.sleep(0)  # it waits for the loop to take its socket
            listener.close()
        assert not await greeted(port, client)
        await asyncio.sleep(0.02)

    run(test())


def test_a_foreign_client_is_not_served(tmp_path: Path) -> None:
    async def test() -> None:
        files, authority = Files(tmp_path), Authority("ca")
        files.write(authority, "one")
        async with listening(files) as listener:
            assert not await greeted(listener.port, files.client(Authority("x"), "foreign"))
            no_certificate = ssl.create_default_context(cafile=files.tls.ca)
            assert not await greeted(listener.port, no_certificate)

    run(test())


@pytest.mark.parametrize("broken", ["cert", "key", "ca"])
def test_what_cannot_be_used_at_start_is_named(tmp_path: Path, broken: str) -> None:
    files = Files(tmp_path)
    files.write(Authority("ca"), "one")
    getattr(files.tls, broken).write_text("rubbish")
    with pytest.raises(TlsUnusable, match="cannot use") as caught:
        make_context(files.tls, alpn=["h2"], ciphers=(), least=ssl.TLSVersion.TLSv1_2)
    assert caught.value.path == getattr(files.tls, broken)


@pytest.mark.parametrize(
    ("least", "ciphers", "expected"),
    [
        (ssl.TLSVersion.TLSv1_2, ("ECDHE-ECDSA-AES128-GCM-SHA256",), "TLSv1.2"),
        (ssl.TLSVersion.TLSv1_2, ("ECDHE-ECDSA-AES256-GCM-SHA384",), None),
        (ssl.TLSVersion.TLSv1_3, ("ECDHE-ECDSA-AES128-GCM-SHA256",), None),
    ],
)
def test_ciphers_and_the_least_version_are_kept(
    tmp_path: Path, least: ssl.TLSVersion, ciphers: tuple[str, ...], expected: str | None
) -> None:
    """Asked by a client of TLS 1.2 with the first of the two ciphers."""

    async def test() -> None:
        files, authority = Files(tmp_path), Authority("ca")
        files.write(authority, "one")
        client = files.client(authority, "client")
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        client.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        async with listening(files, least=least, ciphers=ciphers) as listener:
            if expected is None:
                assert not await greeted(listener.port, client)
                return
            _, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=client, server_hostname="localhost"
            )
            found = writer.get_extra_info("cipher")
            assert found[:2] == (ciphers[0], expected)
            writer.close()
            await writer.wait_closed()

    run(test())


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} is in use by pid {os.getpid()}"):
            open_listening("127.0.0.1", port, "--agent-port")


def test_accepted_connections_are_asked_for_a_sign_of_life() -> None:
    (listener,) = open_listening("127.0.0.1", 0, "x")
    with listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


@pytest.mark.parametrize("where", ["x" * 120, "x" * 300, "file/x", "file"])
def test_where_no_socket_can_be_is_said(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("somebody's")
    with pytest.raises(BindError) as caught:
        open_frontend_socket(tmp_path / where, delete=True)
    assert str(tmp_path / where) in caught.value.message
    assert "--uds-name" in (caught.value.hint or "")
    assert (tmp_path / "file").read_text() == "somebody's"


def test_a_directory_that_is_missing_is_not_made(tmp_path: Path) -> None:
    """As by upstream's: --uds-name may be mistyped, and nobody would come."""
    path = tmp_path / "konectivity" / "f"
    with pytest.raises(BindError) as caught:
        open_frontend_socket(path, delete=True)
    assert caught.value.line() == (
        f"cannot make socket {path}: no such file or directory; "
        f"make the directory {path.parent}, or give another --uds-name"
    )
    assert not path.parent.exists()


@pytest.mark.parametrize("alive", [False, True])
def test_an_existing_socket_is_kept_when_that_is_asked_for(tmp_path: Path, alive: bool) -> None:
    path = tmp_path / "f"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        if alive:
            left.listen()
        with pytest.raises(BindError) as caught:
            open_frontend_socket(path, delete=False)
    assert str(path) in caught.value.message
    assert "--delete-existing-uds-file" in caught.value.line()
    path.unlink()
    found = open_frontend_socket(path, delete=False)
    found.remove()
    found.sock.close()


def test_two_servers_at_one_socket_both_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "f"

    async def test() -> None:
        poller = Poller(asyncio.get_running_loop())

        async def server(name: str) -> Listener:
            made = Listener(name, open_frontend_socket(path, delete=True), Hello, poller)
            await made.start()
            return made

        first = await server("first")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(first.follow_files())
            await asyncio.sleep(0.1)
            assert caplog.messages == [], "it is its own"
            second = await server("second")
            late = tasks.create_task(second.follow_files())
            taken = f"socket {path} was served by pid {os.getpid()}; new frontends come here now"
            lost = f"first: {path} is not ours any more"
            await until(lambda: len(caplog.messages) == 2, "both have said it")
            assert caplog.messages[0] == taken and caplog.messages[1].startswith(lost)
            assert {record.levelname for record in caplog.records} == {"WARNING"}
            await asyncio.sleep(0.1)
            assert len(caplog.messages) == 2, "once"
            reader, writer = await asyncio.open_unix_connection(str(path))
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            await writer.wait_closed()
            first.close()
            assert path.exists(), "it is the second one's"
            second.close()
            assert not path.exists()
            await late
        assert len(caplog.messages) == 2, "an end is no news"
        await until(lambda: not len(poller), "every connection is over")
        poller.close()

    run(test())


def test_the_socket_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
        found = open_frontend_socket(path, delete=True)
        try:
            assert path.stat().st_mode & 0o777 == 0o660
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                found.sock.accept()[0].close()
        finally:
            found.remove()
            found.sock.close()
        assert not path.exists()
