"""Listening sockets of admin surfaces: TCP on loopback or everywhere, and Unix sockets."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
import struct
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from nodenet.errors import NodenetError, NotPermitted, UsageError
from nodenet.httpd.messages import Peer

BACKLOG: Final = 128
#: Owner and group may use it (docs/cli.md, admin surfaces).
UNIX_MODE: Final = 0o660
#: Bytes of a path in struct sockaddr_un, the terminating zero left out.
MAX_UNIX_PATH: Final = 107
#: For the process behind an existing Unix socket to take a connection; it is on this host.
_PROBE_SECONDS: Final = 1.0
_UCRED: Final = struct.Struct("3i")

#: Host names of `open_tcp` beside addresses.
LOCALHOST: Final = "localhost"
ANYWHERE: Final = "*"


class BindError(NodenetError):
    """A listening socket cannot be opened."""


class PortInUse(BindError):
    """Somebody else listens there. ``pid`` and ``comm`` are None when it cannot be told who."""

    def __init__(self, port: int, option: str, pid: int | None, comm: str | None) -> None:
        by = f" by pid {pid} ({comm})" if pid is not None else ""
        super().__init__(f"port {port} is in use{by}", hint=f"stop it or {option}")
        self.port = port
        self.option = option
        self.pid = pid
        self.comm = comm


class AddressNotHere(BindError):
    """This host does not have the address. The port is what tells the listener from others."""

    def __init__(self, address: str, port: int, hint: str | None = None) -> None:
        super().__init__(
            f"cannot listen on {address} port {port}: cannot assign requested address",
            hint=hint or "give an address of this host: ip address",
        )
        self.address = address
        self.port = port


class SocketInUse(BindError):
    """Another process answers at a Unix socket."""

    def __init__(self, path: Path, pid: int, option: str) -> None:
        super().__init__(f"socket {path} is in use by pid {pid}", hint=f"stop it or {option}")
        self.path = path
        self.pid = pid
        self.option = option


def open_tcp(host: str, port: int, option: str) -> list[socket.socket]:
    """Listeners at a port of an address, of `LOCALHOST` (both families) or `ANYWHERE`.

    ``port`` 0 takes any free one, the same for both families of `LOCALHOST` is not promised then.
    ``option`` is what the user would change, for the error's hint. Raises BindError (PortInUse,
    AddressNotHere), UsageError.
    """
    opened: list[socket.socket] = []
    try:
        for address in _addresses(host):
            opened.append(_listening(address, port, option, both=host == ANYWHERE))
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    return opened


def has_ipv6(interface: str = "lo") -> bool:
    """Whether sockets of IPv6 can be opened and the interface has it (ztunnel: src/config.rs)."""
    try:
        setting = Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").read_text()
    except OSError:  # a kernel without IPv6
        return False
    return socket.has_ipv6 and setting.strip() == "0"


def _addresses(host: str) -> list[str]:
    if host == LOCALHOST:
        return ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"]
    if host == ANYWHERE:
        # one socket takes both families; "all" is what a new interface gets as well
        return ["::"] if has_ipv6("all") else ["0.0.0.0"]
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        raise UsageError(f"{host} is not an address", hint="e.g. 127.0.0.1, localhost, *") from None


def _listening(address: str, port: int, option: str, *, both: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    # named, because asyncio switches Nagle's algorithm off for sockets that say TCP only
    sock = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both else 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            from nodenet.httpd.port_holder import holder_of

            found = holder_of(port)
            pid, comm = found if found else (None, None)
            raise PortInUse(port, option, pid, comm) from error
        if error.errno == errno.EACCES:
            raise NotPermitted(
                f"cannot listen on port {port}", hint=f"run as root or {option}"
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise AddressNotHere(address, port) from error
        raise BindError(
            f"cannot listen on {address} port {port}: {_words(error)}", hint=option
        ) from error
    return sock


@dataclass(frozen=True, slots=True)
class UnixListener:
    """A listening Unix socket and the file it is."""

    sock: socket.socket
    path: Path
    inode: int
    displaced: int | None = None
    """The pid of who was answering there; 0: one that cannot be told, as in another container."""

    def in_place(self) -> bool:
        """Whether the file is there, and still ours."""
        try:
            # no other one can have the number while the socket is open
            return self.path.lstat().st_ino == self.inode
        except OSError:
            return False

    def remove(self) -> None:
        """Removes the file, unless another process has put its own there."""
        if self.in_place():
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()


class Take(Enum):
    """Which sockets `open_unix` may put its own in place of."""

    NOTHING = "nothing"
    LEFT = "what nobody answers at any more"
    ANY = "somebody's, too"


def open_unix(
    path: Path,
    option: str,
    *,
    mode: int = UNIX_MODE,
    group: int | None = None,
    take: Take = Take.LEFT,
    make_directory: bool = True,
) -> UnixListener:
    """A listener at ``path``, in place of a socket that ``take`` allows to replace.

    ``option`` as in `open_tcp`. ``group`` is a group id. Raises SocketInUse, BindError,
    NotPermitted.
    """
    if len(os.fsencode(path)) + len(_suffix()) > MAX_UNIX_PATH:
        raise BindError(f"socket {path}: path of more than {MAX_UNIX_PATH} bytes", hint=option)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # made beside and moved: whoever finds it, finds it with its mode and listening
    fresh = Path(f"{path}{_suffix()}")
    try:
        if make_directory:
            path.parent.mkdir(parents=True, exist_ok=True)
        displaced = _check_free(path, option, take)
        fresh.unlink(missing_ok=True)
        sock.bind(str(fresh))
        if group is not None:
            os.chown(fresh, -1, group)
        fresh.chmod(mode)
        sock.listen(BACKLOG)
        inode = fresh.lstat().st_ino
        fresh.rename(path)
    except BaseException as error:
        sock.close()
        # its directory may be what is wrong
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        if isinstance(error, PermissionError):
            raise NotPermitted(
                f"cannot make socket {path}", hint=f"run as root or {option}"
            ) from error
        if isinstance(error, OSError):
            missing = isinstance(error, FileNotFoundError)
            hint = f"make the directory {path.parent}, or {option}" if missing else option
            raise BindError(f"cannot make socket {path}: {_words(error)}", hint=hint) from error
        raise
    return UnixListener(sock, path, inode, displaced)


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _suffix() -> str:
    return f".{os.getpid()}"


def _check_free(path: Path, option: str, take: Take) -> int | None:
    """The pid of who answers at ``path`` and is to be displaced, 0: it cannot be told.

    SocketInUse when somebody answers there, BindError when there is something else.
    """
    try:
        # a link to a socket is somebody's choice, which only who may take all undoes
        kind = (path.stat() if take is Take.ANY else path.lstat()).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(kind):
        raise BindError(f"socket {path}: something else is there", hint=f"remove it or {option}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            if take is Take.NOTHING:
                raise BindError(
                    f"socket {path}: left by a process that is gone", hint=f"remove it or {option}"
                ) from None
            return None
        except (TimeoutError, BlockingIOError):
            pass  # its backlog is full: somebody is there
        except PermissionError:
            if take is not Take.ANY:
                raise
            return 0
        if take is Take.ANY:
            return _credentials(probe)[0]
        raise SocketInUse(path, _credentials(probe)[0], option)


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, gid


def peer_of(sock: socket.socket) -> Peer:
    """Who is at the other end of an accepted connection."""
    if sock.family == socket.AF_UNIX:
        pid, uid, gid = _credentials(sock)
        return Peer(pid=pid, uid=uid, gid=gid)
    try:
        host, port = sock.getpeername()[:2]
    except OSError:  # gone already
        return Peer()
    return Peer(host=host.removeprefix("::ffff:"), port=port)
