"""One TLS connection between two memory BIOs. No I/O.

The owner feeds what the peer sent, reads what that means, writes what the peer is to get, and takes
what is to be sent; after each of the first three there may be something to take.

What pyOpenSSL documents is used for all that is rare. Records, and the names a client expects, go
through OpenSSL's own functions: pyOpenSSL's methods copy what is read and what is taken once more,
and it has none for names. It has these functions for its own use and promises nothing about them,
so this module looks for them when it is imported (NotSupported).
"""

from __future__ import annotations

import ipaddress
import threading
from typing import Any, Final

from OpenSSL import SSL, version

from nodenet.endpoint import unmapped
from nodenet.errors import NotSupported
from nodenet.tls.context import Context, Side, Verdict, reason
from nodenet.tls.errors import HandshakeFailed, PeerLeft, RecordsBroken

#: The most one record carries (RFC 8446 section 5.1).
RECORD_BYTES: Final = 16 << 10
#: Of one `Engine.write`: larger ones drive each other out of the processor's second cache.
WRITE_BYTES: Final = 256 << 10
#: What a record is longer than its content, and some: header, type, tag (RFC 8446 section 5.2).
_RECORD_SPARE: Final = 64
#: What one `Engine.take` gives.
TAKE_BYTES: Final = WRITE_BYTES + (WRITE_BYTES // RECORD_BYTES + 1) * _RECORD_SPARE
#: SSL_get_error (ssl.h).
_WANT_READ: Final = 2
_ZERO_RETURN: Final = 6
#: X509_CHECK_FLAG_* (x509v3.h): a wildcard is a whole label, and the common name is none, as to Go.
_NO_PARTIAL_WILDCARDS: Final = 0x4
_NEVER_CHECK_SUBJECT: Final = 0x20
_FUNCTIONS: Final = (
    "BIO_read",
    "BIO_write",
    "SSL_get0_param",
    "SSL_get_error",
    "SSL_read",
    "SSL_write",
    "X509_VERIFY_PARAM_set1_host",
    "X509_VERIFY_PARAM_set1_ip",
    "X509_VERIFY_PARAM_set_hostflags",
)
_PARTS: Final = ("_from_ssl", "_into_ssl", "_raise_ssl_error", "_ssl")


def _openssl() -> tuple[Any, Any]:
    """OpenSSL's functions and cffi. NotSupported when one is missing."""
    lib, ffi = getattr(SSL, "_lib", None), getattr(SSL, "_ffi", None)
    missing = [name for name in _FUNCTIONS if not hasattr(lib, name)]
    if ffi is None:
        missing.append("_ffi")
    connection = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD))
    missing += [name for name in _PARTS if not hasattr(connection, name)]
    if missing:
        raise NotSupported(
            f"TLS by pyOpenSSL {version.__version__}",
            f"one that has {', '.join(missing)}",
            hint="install pyOpenSSL 26",
        )
    return lib, ffi


_lib, _ffi = _openssl()


class _Scratch(threading.local):
    """Where ciphertext is taken to, one for all connections of a thread."""

    def __init__(self) -> None:
        buffer = bytearray(TAKE_BYTES)
        self.view = memoryview(buffer)
        self.pointer = _ffi.from_buffer(buffer)


_SCRATCH: Final = _Scratch()


class Engine:
    """See the module. ``server_name`` is whom a client expects; it has to be given then."""

    def __init__(self, context: Context, server_name: str | None = None) -> None:
        """HandshakeFailed when ``server_name`` can be nobody's name."""
        self.drained = True
        """Nothing can be read before more is fed."""
        self.ended = False
        """The peer has said that it sends no more (close_notify)."""
        self._broken: str | None = None
        """Why nothing can be read or written any more."""
        self._verdict = Verdict(server_name)
        self._connection = connection = SSL.Connection(context.openssl)
        connection.set_app_data(self._verdict)
        inner: Any = connection
        self._ssl, self._into, self._from = inner._ssl, inner._into_ssl, inner._from_ssl
        if context.side is Side.SERVER:
            connection.set_accept_state()
        else:
            assert server_name is not None, "a client must know whom it talks to"
            self._expect(server_name)
            connection.set_connect_state()

    def _expect(self, name: str) -> None:
        """Whom the peer's certificate must name (RFC 9525)."""
        param = _lib.SSL_get0_param(self._ssl)
        try:
            address = unmapped(ipaddress.ip_address(name)).packed
        except ValueError:
            host = _ascii(name)
            flags = _NO_PARTIAL_WILDCARDS | _NEVER_CHECK_SUBJECT
            _lib.X509_VERIFY_PARAM_set_hostflags(param, flags)
            if _lib.X509_VERIFY_PARAM_set1_host(param, host, len(host)) != 1:
                raise HandshakeFailed(f"{name!r} is no server's name") from None
            self._connection.set_tlsext_host_name(host)
        else:
            if _lib.X509_VERIFY_PARAM_set1_ip(param, address, len(address)) != 1:
                raise HandshakeFailed(f"{name!r} is no server's address")

    # -- handshake --------------------------------------------------------------------------------

    def shake(self) -> bool:
        """Goes on with the handshake; True when it is done. HandshakeFailed, with an alert to take.

        PeerUntrusted and WrongName say what is wrong with the peer's certificate.
        """
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            return False
        except (SSL.SysCallError, SSL.ZeroReturnError) as error:
            raise PeerLeft("the peer closed the connection") from error
        except SSL.Error as error:
            raise self._verdict.error(reason(error)) from error
        self.drained = False  # records may have come behind the handshake
        return True

    @property
    def alpn(self) -> str:
        """What both sides agreed on, empty for nothing."""
        return self._connection.get_alpn_proto_negotiated().decode("ascii", "replace")

    @property
    def version(self) -> str:
        """``TLSv1.3``."""
        return self._connection.get_protocol_version_name()

    @property
    def cipher(self) -> str:
        """OpenSSL's name of what encrypts."""
        return self._connection.get_cipher_name() or ""

    # -- records ----------------------------------------------------------------------------------

    def feed(self, data: bytes | memoryview) -> None:
        """Takes ciphertext of the peer's."""
        size = len(data)
        if _lib.BIO_write(self._into, _ffi.from_buffer(data), size) != size:
            raise MemoryError("no memory for what the peer sent")
        self.drained = False

    def read_into(self, room: memoryview, fed: memoryview | None = None) -> int:
        """Decrypts what was fed, up to ``room`` less a record; how many bytes it is.

        ``fed`` is fed before. Call it again unless `drained` or `ended`. RecordsBroken, behind what
        came before.
        """
        assert len(room) >= RECORD_BYTES, "there is no room for a record"
        if self._broken is not None:
            raise RecordsBroken(self._broken)
        if fed is not None:
            self.feed(fed)
        read, ssl, size, last = _lib.SSL_read, self._ssl, 0, len(room) - RECORD_BYTES
        start = _ffi.from_buffer(room)
        while size <= last:
            count = read(ssl, start + size, RECORD_BYTES)
            if count <= 0:
                code = _lib.SSL_get_error(ssl, count)
                if code == _WANT_READ:
                    self.drained = True
                elif code == _ZERO_RETURN:
                    self.ended = True
                else:
                    self._break(count)
                    if not size:
                        raise RecordsBroken(self._broken or "")
                break
            size += count
        return size

    def write(self, data: bytes | memoryview) -> bool:
        """Encrypts at most `WRITE_BYTES`. RecordsBroken once the connection is.

        False when nothing can be written before more was read: the peer has sent a part of a
        message of the handshake (RFC 8446 section 5.1), and OpenSSL wants the rest of it first.
        """
        size = len(data)
        count = _lib.SSL_write(self._ssl, _ffi.from_buffer(data), size)
        if count == size:
            return True
        # a memory BIO takes everything, so it is not that
        if _lib.SSL_get_error(self._ssl, count) == _WANT_READ:
            return False
        self._break(count)
        raise RecordsBroken(self._broken or "")

    def take(self) -> memoryview:
        """Ciphertext for the peer, `TAKE_BYTES` at most; empty when there is none.

        Valid until the next call, also of another engine of this thread.
        """
        scratch = _SCRATCH
        count = _lib.BIO_read(self._from, scratch.pointer, TAKE_BYTES)
        return scratch.view[: count if count > 0 else 0]

    def close(self) -> None:
        """Says that we send no more (close_notify)."""
        try:
            self._connection.shutdown()
        except SSL.Error:
            pass  # in the middle of a handshake, or broken: there is nobody to say it to

    def _break(self, count: int) -> None:
        """OpenSSL has returned an error: takes it out of its queue, and remembers it."""
        connection: Any = self._connection
        found = f"OpenSSL returned {count}"
        try:
            connection._raise_ssl_error(self._ssl, count)
        except SSL.Error as error:
            found = reason(error)
        # the text alone: an error holds the frames it came through, and they this object
        self._broken = self._broken or found


def _ascii(name: str) -> bytes:
    """A host's name as certificates and the handshake have it. HandshakeFailed."""
    name = name.removesuffix(".")  # that of an absolute one, which neither has (RFC 6066 section 3)
    try:
        host = name.encode("ascii" if name.isascii() else "idna")
    except UnicodeError as error:
        raise HandshakeFailed(f"{name!r} is no server's name") from error
    # to OpenSSL an empty one means everybody's, and one with a dot ahead all names below it
    if not host or host.startswith(b".") or not name.isprintable() or " " in name:
        raise HandshakeFailed(f"{name!r} is no server's name")
    return host
