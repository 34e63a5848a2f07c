"""Who may listen where, and what is said when somebody else does."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from nodenet.errors import UsageError
from nodenet.httpd.sockets import (
    MAX_UNIX_PATH,
    AddressNotHere,
    BindError,
    PortInUse,
    SocketInUse,
    Take,
    has_ipv6,
    open_tcp,
    open_unix,
)


def _close(*sockets: socket.socket) -> None:
    for sock in sockets:
        sock.close()


def test_localhost_is_every_family_there_is() -> None:
    listeners = open_tcp("localhost", 0, "--port")
    hosts = [sock.getsockname()[0] for sock in listeners]
    _close(*listeners)
    assert hosts == (["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"])


def test_anywhere_is_one_socket_for_all_families() -> None:
    (listener,) = open_tcp("*", 0, "--port")
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), 1):
        pass
    if listener.family == socket.AF_INET6:
        with socket.create_connection(("::1", port), 1):
            pass
    _close(listener)


def test_a_name_is_no_address() -> None:
    with pytest.raises(UsageError, match=r"^example\.com is not an address"):
        open_tcp("example.com", 0, "--port")


def test_who_has_the_port_is_named() -> None:
    (first,) = open_tcp("127.0.0.1", 0, "--port")
    port = first.getsockname()[1]
    with pytest.raises(PortInUse) as caught:
        open_tcp("127.0.0.1", port, "give --admin-port")
    _close(first)
    comm = Path("/proc/self/comm").read_text().strip()
    assert caught.value.line() == (
        f"port {port} is in use by pid {os.getpid()} ({comm}); stop it or give --admin-port"
    )


def test_an_address_of_another_host() -> None:
    with pytest.raises(AddressNotHere) as caught:
        open_tcp("192.0.2.1", 8080, "give --listen")
    assert caught.value.line() == (
        "cannot listen on 192.0.2.1 port 8080: cannot assign requested address; "
        "give an address of this host: ip address"
    ), "another port would not help"


def test_a_unix_socket_has_its_mode_and_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "run" / "admin.sock"
    listener = open_unix(path, "--id")
    assert stat.S_IMODE(path.lstat().st_mode) == 0o660
    assert [p.name for p in path.parent.iterdir()] == ["admin.sock"]
    listener.remove()
    listener.sock.close()
    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listener = open_unix(path, "--id")
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
    listener.sock.close()


def test_a_socket_with_somebody_behind_it_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    listener = open_unix(path, "--id")
    inode = path.lstat().st_ino
    with pytest.raises(SocketInUse) as caught:
        open_unix(path, "give --id or --node")
    assert caught.value.line() == (
        f"socket {path} is in use by pid {os.getpid()}; stop it or give --id or --node"
    )
    assert path.lstat().st_ino == inode
    listener.sock.close()


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    path.write_text("somebody's")
    with pytest.raises(BindError, match="something else is there"):
        open_unix(path, "--id")
    assert path.read_text() == "somebody's"


def test_what_another_process_put_there_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    first = open_unix(path, "--id")
    first.sock.close()
    second = open_unix(path, "--id")
    first.remove()
    assert path.exists()
    second.remove()
    second.sock.close()


def test_a_stale_socket_is_left_alone_where_nothing_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    inode = path.lstat().st_ino
    with pytest.raises(BindError) as caught:
        open_unix(path, "give --id", take=Take.NOTHING)
    assert caught.value.line() == (
        f"socket {path}: left by a process that is gone; remove it or give --id"
    )
    assert path.lstat().st_ino == inode and [p.name for p in tmp_path.iterdir()] == ["admin.sock"]


def test_a_socket_is_taken_from_somebody_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "f"
    first = open_unix(path, "--id", take=Take.ANY)
    assert first.displaced is None and first.in_place()
    second = open_unix(path, "--id", take=Take.ANY)
    assert second.displaced == os.getpid()
    assert second.in_place() and not first.in_place()
    first.remove()
    second.remove()
    assert not path.exists() and not second.in_place()
    for listener in (first, second):
        listener.sock.close()


def test_a_directory_that_is_missing_is_not_made_where_it_may_be_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "f"
    with pytest.raises(BindError) as caught:
        open_unix(path, "give --id", make_directory=False)
    assert caught.value.line() == (
        f"cannot make socket {path}: no such file or directory; "
        f"make the directory {path.parent}, or give --id"
    )
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(BindError, match=f"more than {MAX_UNIX_PATH} bytes"):
        open_unix(tmp_path / ("x" * 110), "--id")
