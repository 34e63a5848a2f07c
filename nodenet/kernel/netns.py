"""Network namespaces: open, enter, make, remove, identify.

A `NetNs` holds a descriptor, so the namespace cannot go away under it, whatever happens to the
path. Entering is per thread: `NetNs.entered` moves the calling thread and moves it back. Sockets
made inside stay in the namespace, so the usual shape is: enter, make the socket, leave, use it.

Never `await` inside `entered`: the event loop would run other tasks in this namespace. Blocks that
interleave on one thread, which is what such a mistake leads to, raise `NetNsInterleaved`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from nodenet.errors import NotFound, NotPermitted, NotSupported, UsageError
from nodenet.kernel import libc
from nodenet.kernel.errors import KernelError
from nodenet.kernel.netlink import NETLINK_ROUTE, NetlinkSocket
from nodenet.kernel.rtnetlink import InterfaceAddress, addresses
from nodenet.kernel.sysctl import Sysctls

T = TypeVar("T")

#: Where `ip netns` keeps named namespaces.
RUN_NETNS: Final = Path("/run/netns")
#: Inode of the initial network namespace since Linux 6.18 (linux/nsfs.h); older kernels number it
#: dynamically, from 0xF0000000 on, so this one never names another namespace.
NET_NS_INIT_INO: Final = 0xEFFFFFF9

_SO_NETNS_COOKIE: Final = 71
_NS_GET_NSTYPE: Final = 0xB703
_THREAD_NS: Final = "/proc/thread-self/ns/net"
_COOKIE: Final = struct.Struct("=Q")


class NetNsGone(NotFound):
    """There is no namespace at that path (any more)."""

    def __init__(self, path: str) -> None:
        if path.startswith("/proc/"):
            hint = "the process has ended; name another one, or netns:PATH"
        else:
            hint = "list the named ones with: ip netns list"
        super().__init__(f"network namespace {path}: not there", hint=hint)
        self.path = path


class NotANetNs(UsageError):
    """The path is something else: an ordinary file, another kind of namespace."""

    def __init__(self, path: str, what: str = "not a network namespace") -> None:
        super().__init__(
            f"network namespace {path}: {what}",
            hint="give a file of /run/netns or /proc/PID/ns/net",
        )
        self.path = path


class NetNsExists(KernelError):
    """A namespace of that name is there already."""

    def __init__(self, path: str) -> None:
        super().__init__(f"network namespace {path}: exists already; ip netns delete removes it")
        self.path = path


class NetNsDenied(NotPermitted):
    """The kernel does not let this process open or enter a namespace."""

    def __init__(self, path: str, doing: str) -> None:
        super().__init__(
            f"network namespace {path}: {doing} is not permitted",
            hint="run with sudo (CAP_SYS_ADMIN, for another process's namespace CAP_SYS_PTRACE)",
        )
        self.path = path


class NetNsInterleaved(KernelError):
    """Two `NetNs.entered` blocks of one thread did not nest; see the module's text."""


class NetNs:
    """An open network namespace. A context manager that closes the descriptor.

    ``path`` is how it was named, ``inode`` its number as in ``net:[4026532811]`` (reused by the
    kernel after the namespace has gone, unlike `cookie`), ``fd`` the descriptor, owned by this
    object.
    """

    __slots__ = ("_cookie", "_sysctls", "fd", "inode", "path")

    def __init__(self, fd: int, path: str) -> None:
        """Takes the descriptor over. NotANetNs when it is something else (and it is closed)."""
        self.fd = fd
        self.path = path
        self._cookie: int | None = None
        self._sysctls: Sysctls | None = None
        try:
            if fcntl.ioctl(fd, _NS_GET_NSTYPE) != libc.CLONE_NEWNET:
                raise NotANetNs(path, "another kind of namespace")
            self.inode = os.fstat(fd).st_ino
        except OSError as error:
            self.close()
            raise NotANetNs(path) from error
        except NotANetNs:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | Path) -> NetNs:
        """By path. NetNsGone, NotANetNs or NetNsDenied."""
        text = os.fspath(path)
        try:
            # O_NONBLOCK: a FIFO given by mistake must not hang
            fd = os.open(text, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError) as error:
            raise NetNsGone(text) from error
        except PermissionError as error:
            raise NetNsDenied(text, "opening it") from error
        except OSError as error:
            raise NotANetNs(text, f"cannot be opened: {error.strerror}") from error
        return cls(fd, text)

    @classmethod
    def of_pid(cls, pid: int) -> NetNs:
        """The namespace a process is in."""
        return cls.open(f"/proc/{pid}/ns/net")

    @classmethod
    def named(cls, name: str) -> NetNs:
        """The one `ip netns` shows under that name."""
        return cls.open(named_path(name))

    @classmethod
    def current(cls) -> NetNs:
        """The one the calling thread is in."""
        return cls.open(_THREAD_NS)

    @classmethod
    def host(cls) -> NetNs:
        """The host's own (see `host_path`)."""
        return cls.open(host_path())

    def close(self) -> None:
        """Closes the descriptor; a second time does nothing."""
        if self._sysctls is not None:
            self._sysctls.close()
            self._sysctls = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> NetNs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"NetNs({self.path!r}, inode={self.inode})"

    def entered(self) -> Entered:
        """A context manager: the calling thread is inside for the block, and back afterwards.

        Nests; right inside a block of the same object it costs nothing. Not across `await` and not
        across threads. NetNsDenied without CAP_SYS_ADMIN.
        """
        return Entered(self)

    def cookie(self) -> int:
        """The kernel's 64-bit id of this namespace, never reused while the machine is up."""
        if self._cookie is None:
            with self.open_socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                try:
                    raw = probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size)
                except OSError as error:
                    raise NotSupported("SO_NETNS_COOKIE", "Linux 5.14") from error
            self._cookie = int(_COOKIE.unpack(raw)[0])
        return self._cookie

    @contextlib.contextmanager
    def sysctls(self) -> Iterator[Sysctls]:
        """The namespace's settings below ``net``; the calling thread is inside for the block."""
        with self.entered():
            if self._sysctls is None:
                self._sysctls = Sysctls()
            yield self._sysctls

    def is_host(self) -> bool:
        """Whether this is the host's own namespace, which is never captured."""
        return self.inode == NET_NS_INIT_INO or self.inode == host_inode()

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket that belongs to this namespace; the calling thread is back when it returns."""
        with self.entered():
            return socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)

    def open_netlink(self, protocol: int) -> NetlinkSocket:
        """A netlink socket that belongs to this namespace."""
        with self.entered():
            return NetlinkSocket(protocol)

    def addresses(self) -> list[InterfaceAddress]:
        """Every address of every interface, loopback included."""
        with self.open_netlink(NETLINK_ROUTE) as netlink:
            return addresses(netlink)


class _Thread(threading.local):
    """Where one thread is."""

    def __init__(self) -> None:
        self.blocks: list[Entered] = []
        """The blocks it is inside of, innermost last."""
        self.ns: NetNs | None = None
        """What it has entered; None outside of all blocks, and when that is not certain."""


_here: Final = _Thread()


class Entered:
    """What `NetNs.entered` returns."""

    __slots__ = ("_back", "_ns", "_outer")

    def __init__(self, ns: NetNs) -> None:
        self._ns = ns
        self._outer: NetNs | None = None
        self._back = -1

    def __enter__(self) -> NetNs:
        if _here.ns is self._ns:
            _here.blocks.append(self)
            return self._ns
        self._outer = _here.ns
        back = os.open(_THREAD_NS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc.setns(self._ns.fd)
            _here.blocks.append(self)
            self._back = back
            _here.ns = self._ns
        except PermissionError as error:
            os.close(back)
            raise NetNsDenied(self._ns.path, "entering it") from error
        except BaseException:
            # KeyboardInterrupt may come between the system call and the return
            with contextlib.suppress(ValueError):
                _here.blocks.remove(self)
            _here.ns = None
            libc.setns(back)
            os.close(back)
            raise
        return self._ns

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        back, self._back = self._back, -1
        if back >= 0:
            _here.ns = None
            try:
                libc.setns(back)
            finally:
                os.close(back)
        blocks = _here.blocks
        if not blocks or blocks[-1] is not self:
            _here.ns = None
            if self in blocks:
                blocks.remove(self)
            raise NetNsInterleaved(
                f"network namespace {self._ns.path}: left before a namespace entered after it; "
                "do not await inside NetNs.entered"
            )
        blocks.pop()
        if back >= 0:
            _here.ns = self._outer


def run_in(ns: NetNs, work: Callable[[], T]) -> T:
    """The result of ``work()`` called inside the namespace."""
    with ns.entered():
        return work()


def host_path() -> str:
    """The path that names the host's namespace.

    Process 1's, by the definition of "host" used here; where a security module hides that from
    root, the first kernel thread's, which is always in the initial namespace; else this process's.
    """
    return _host()[0]


def host_inode() -> int:
    """The inode of the host's namespace (see `host_path`)."""
    return _host()[1]


def _host() -> tuple[str, int]:
    """Path and inode of the host's namespace."""
    for path in ("/proc/1/ns/net", "/proc/2/ns/net"):
        try:
            inode = os.stat(path).st_ino
        except OSError:
            continue
        if path.startswith("/proc/1/") or _is_kernel_thread():
            return path, inode
    path = "/proc/self/ns/net"
    return path, os.stat(path).st_ino


def _is_kernel_thread() -> bool:
    """Whether process 2 is the first kernel thread: in another process namespace it is not."""
    try:
        with open("/proc/2/comm", "rb", buffering=0) as file:
            return file.read() == b"kthreadd\n"
    except OSError:
        return False


def named_path(name: str) -> Path:
    """Where `ip netns` keeps the namespace of that name. UsageError for a name it cannot have."""
    if not name or "/" in name or name in (".", "..") or len(name) > 255:
        raise UsageError(f"network namespace name {name!r}: must be a file name; e.g. nn-test")
    return RUN_NETNS / name


def create(name: str) -> NetNs:
    """Makes a named namespace as `ip netns add` does, its loopback still down.

    A file left by a process that was killed half-way is taken over. NetNsExists when there is a
    namespace of that name.
    """
    path = os.fspath(named_path(name))
    with _directory():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
        if _is_mounted(path):
            raise NetNsExists(path)
        # The new namespace lives by the bind mount alone; a kill before it leaves an empty file.
        with NetNs.current() as here, here.entered():
            libc.unshare(libc.CLONE_NEWNET)
            libc.mount(_THREAD_NS, path, "none", libc.MS_BIND)
    return NetNs.open(path)


def delete(name: str) -> None:
    """Removes the name; the namespace ends with its last process, socket and descriptor.

    NetNsGone when there is none of that name.
    """
    path = os.fspath(named_path(name))
    try:
        while True:  # one mount, or more when several creators were at work
            libc.umount(path, libc.MNT_DETACH)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise NetNsDenied(path, "unmounting it") from error
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise
    try:
        os.unlink(path)
    except FileNotFoundError as error:
        raise NetNsGone(path) from error


def names() -> list[str]:
    """The names `ip netns list` shows, sorted."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(os.listdir(RUN_NETNS))
    return []


@contextlib.contextmanager
def _directory() -> Iterator[None]:
    """/run/netns as a shared mount point, locked against other creators, as iproute2 does it."""
    RUN_NETNS.mkdir(mode=0o755, exist_ok=True)
    path = os.fspath(RUN_NETNS)
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            libc.mount("", path, "none", libc.MS_SHARED | libc.MS_REC)
        except OSError as error:
            if error.errno == errno.EPERM:
                raise NetNsDenied(path, "mounting") from error
            if error.errno != errno.EINVAL:  # EINVAL: no mount point yet
                raise
            libc.mount(path, path, "none", libc.MS_BIND | libc.MS_REC)
            libc.mount("", path, "none", libc.MS_SHARED | libc.MS_REC)
        yield
    finally:
        os.close(lock)


def _is_mounted(path: str) -> bool:
    try:
        NetNs.open(path).close()
    except NotANetNs:
        return False
    return True
