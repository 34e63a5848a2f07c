"""Two ends of TLS back to back, without sockets: ours, or the standard library's."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any, Final, Protocol

from nodenet.tls.context import Context, Side
from nodenet.tls.engine import Engine
from nodenet.tls.errors import TlsError
from tests.interop.certificates import Pair

#: What engines read into, one for all; it outlives what an error keeps of its use.
ROOM: Final = memoryview(bytearray(1 << 20))
TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


class End(Protocol):
    """One of the two."""

    def shake(self) -> bool:
        """Goes on with the handshake; True when it is done."""

    def feed(self, data: bytes) -> None:
        """Takes what the other has sent."""

    def take(self) -> bytes:
        """All that the other is to get."""

    def write(self, data: bytes) -> None:
        """Encrypts data."""

    def read(self) -> bytes:
        """All that has come."""


class Ours:
    """An engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def shake(self) -> bool:
        return self.engine.shake()

    def feed(self, data: bytes) -> None:
        self.engine.feed(data)

    def take(self) -> bytes:
        whole = bytearray()
        while data := self.engine.take():
            whole += data
        return bytes(whole)

    def write(self, data: bytes) -> None:
        self.engine.write(data)

    def read(self) -> bytes:
        got = bytearray()
        while not (self.engine.drained or self.engine.ended):
            got += ROOM[: self.engine.read_into(ROOM)]
        return bytes(got)


class Theirs:
    """An end of `ssl`; ``name`` is the server that a client expects."""

    def __init__(
        self,
        context: ssl.SSLContext,
        name: str | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._in, self._out, name is None, server_hostname=name, session=session
        )
        self.ended = False
        """The other end has said that it sends no more."""

    def shake(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def feed(self, data: bytes) -> None:
        self._in.write(data)

    def take(self) -> bytes:
        return self._out.read()

    def write(self, data: bytes) -> None:
        self.tls.write(data)

    def read(self) -> bytes:
        got = bytearray()
        try:
            while part := self.tls.read(1 << 20):
                got += part
            self.ended = True
        except ssl.SSLZeroReturnError:  # this end has said it too
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        return bytes(got)

    def close(self) -> None:
        """Says that it sends no more."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()


class Stuck(AssertionError):
    """Neither end of a handshake has anything to say, and it is not done."""


def outcome(
    client: End, server: End, piece: int = 1 << 20
) -> tuple[Exception | None, Exception | None]:
    """A handshake, in so large pieces, and what went wrong with it for either. Stuck."""
    errors: dict[End, Exception | None] = {client: None, server: None}
    shaking: list[End] = [client, server]

    def step(end: End) -> None:
        if errors[end] is None:
            try:
                if end in shaking and end.shake():
                    shaking.remove(end)
                if end not in shaking:
                    end.read()  # an alert may come behind its own end
            except (TlsError, ssl.SSLError) as error:
                errors[end] = error

    step(client)
    said = True
    while said:
        said = False
        for me, other in ((client, server), (server, client)):
            whole = me.take()
            said |= bool(whole)
            for at in range(0, len(whole), piece):
                other.feed(whole[at : at + piece])
                step(other)
    if shaking and not any(errors.values()):
        raise Stuck
    return errors[client], errors[server]


def connect(client: End, server: End, piece: int = 1 << 20) -> None:
    """A handshake that comes to something."""
    assert outcome(client, server, piece) == (None, None)


def carry(sender: End, receiver: End, piece: int = 1 << 20) -> None:
    """Moves all that one has for the other, in pieces."""
    whole = sender.take()
    for at in range(0, len(whole), piece):
        receiver.feed(whole[at : at + piece])


def our_server(pair: Pair, ca: Path | None = None, **settings: Any) -> Context:
    """It wants a certificate when there is a CA."""
    made = Context(Side.SERVER, **settings)
    made.load_cert_chain(pair.cert, pair.key)
    if ca is not None:
        made.load_verify_locations(ca)
    return made


def our_client(ca: Path, pair: Pair | None = None, **settings: Any) -> Context:
    """It shows a certificate when there is one."""
    made = Context(Side.CLIENT, **settings)
    made.load_verify_locations(ca)
    if pair is not None:
        made.load_cert_chain(pair.cert, pair.key)
    return made


def their_server(pair: Pair, ca: Path | None = None) -> ssl.SSLContext:
    """As `our_server`, by `ssl`."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(pair.cert, pair.key)
    if ca is not None:
        made.load_verify_locations(ca)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


def their_client(ca: Path, pair: Pair | None = None) -> ssl.SSLContext:
    """As `our_client`, by `ssl`."""
    made = ssl.create_default_context(cafile=ca)
    if pair is not None:
        made.load_cert_chain(pair.cert, pair.key)
    return made
