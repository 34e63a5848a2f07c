"""Peers of the proxies that are not ours: Python's ssl and the h2 package, in both roles.

Their certificates come from the embedded CA of the world, from another one, or are too old.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from nodenet.identity.ca import EmbeddedCa
from nodenet.identity.csr import make_csr
from nodenet.identity.keys import PrivateKey
from nodenet.identity.spiffe import Identity
from nodenet.identity.x509 import Certificate
from nodenet.lab.topology import Namespace
from tests.root.agents.ztunnel.h2_peer import Behaviour, H2Peer
from tests.root.agents.ztunnel.proxied import DEADLINE

HBONE_PORT = 15008
ID_A, ID_B = "spiffe://cluster.local/ns/test/sa/a", "spiffe://cluster.local/ns/test/sa/b"


def tls(
    directory: Path,
    identity: str | None,
    *,
    server: bool,
    age: float = 0.0,
    seconds: float = 3600.0,
    alpn: str | None = "h2",
    roots: Path | None = None,
) -> ssl.SSLContext:
    """Settings with a certificate of the CA in a directory, made ``age`` seconds ago.

    Without ``identity`` there is none. A server wants to see the client's certificate, of the CA
    in ``roots``; a client takes any server.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    if identity is None:
        return context
    authority = EmbeddedCa(directory, now=lambda: time.time() - age)
    key, named = PrivateKey.generate(), Identity.parse(identity)
    chain = authority.sign_now(make_csr(key, named), named, seconds)
    with tempfile.NamedTemporaryFile() as file:
        file.write(key.pem() + chain.leaf.pem.encode())
        file.flush()
        context.load_cert_chain(file.name)
    if server:
        accepted = EmbeddedCa(roots or directory).roots
        context.load_verify_locations(cadata="".join(root.pem for root in accepted))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def read(sock: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer when the stream ends before."""
    got = bytearray()
    while len(got) < count and (piece := sock.recv(count - len(got))):
        got += piece
    return bytes(got)


def dial(
    where: Namespace, host: str, context: ssl.SSLContext, port: int = HBONE_PORT
) -> ssl.SSLSocket:
    """A TLS connection from a namespace; OSError or ssl.SSLError when it is refused."""
    with where.entered():
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.settimeout(DEADLINE)
    try:
        sock.connect((host, port))
        return context.wrap_socket(sock)
    except BaseException:
        sock.close()
        raise


@contextlib.contextmanager
def client(
    where: Namespace,
    host: str,
    context: ssl.SSLContext,
    settings: dict[h2.settings.SettingCodes, int] | None = None,
) -> Iterator[H2Peer]:
    """An HBONE client connected to a pod's proxy."""
    peer = H2Peer(dial(where, host, context), client=True, settings=settings)
    try:
        yield peer
    finally:
        peer.close()


class ForeignProxy:
    """A server on 15008 of a namespace, each connection in a thread. A context manager."""

    def __init__(
        self,
        where: Namespace,
        context: ssl.SSLContext,
        behaviour: Behaviour | None = None,
        settings: dict[h2.settings.SettingCodes, int] | None = None,
        host: str = "0.0.0.0",
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self.settings = settings
        self.peers: list[H2Peer] = []
        self.clients: list[str] = []
        """Who the clients are: URI names of their certificates."""
        self.failures: list[str] = []
        """Handshakes that came to nothing."""
        self._context = context
        self._threads: list[threading.Thread] = []
        self._over = False
        with where.entered():
            self._listener = socket.create_server((host, HBONE_PORT), backlog=128)
        self._listener.settimeout(0.05)

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over = True
        for thread in self._threads:
            thread.join(DEADLINE)
        self._listener.close()

    def peer(self, number: int = 0) -> H2Peer:
        """A connection, the first one at 0; waits for it."""
        end = time.monotonic() + DEADLINE
        while len(self.peers) <= number:
            assert time.monotonic() < end, f"{len(self.peers)} connections, {self.failures}"
            time.sleep(0.005)
        return self.peers[number]

    def wait(self, condition: Callable[[], object], seconds: float = DEADLINE) -> None:
        """Until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come to pass"
            time.sleep(0.005)

    def _begin(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            sock.settimeout(DEADLINE)
            self._begin(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            secured = self._context.wrap_socket(sock, server_side=True)
        except OSError as error:
            self.failures.append(str(error))
            sock.close()
            return
        shown = Certificate.parse(secured.getpeercert(True) or b"")
        self.clients += shown.uris
        peer = H2Peer(secured, client=False, behaviour=self.behaviour, settings=self.settings)
        self.peers.append(peer)
        try:
            peer.flush()
            while not (self._over or peer.lost):
                peer.turn(0.05)
        finally:
            peer.close()
