"""Layouts of sock_diag against the kernel's headers, and a dump of the own namespace."""

from __future__ import annotations

import ipaddress
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nodenet.errors import NotPermitted
from nodenet.kernel import sock_diag
from nodenet.kernel.sock_diag import INFO_FIELDS, SockDiag, TcpInfo, TcpSocket


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_tcp_info_offsets_are_those_of_the_kernel_header(tmp_path: Path) -> None:
    size = {"I": 4, "Q": 8}
    checks = "".join(
        f"_Static_assert(offsetof(struct tcp_info, tcpi_{name}) == {offset}"
        f' && sizeof(((struct tcp_info *)0)->tcpi_{name}) == {size[code]}, "{name}");\n'
        for name, offset, code in INFO_FIELDS
    )
    source = tmp_path / "check.c"
    source.write_text(f"#include <stddef.h>\n#include <linux/tcp.h>\n{checks}")
    subprocess.run(["cc", "-fsyntax-only", str(source)], check=True)


def test_a_value_of_tcp_info_has_the_field_of_its_name() -> None:
    renamed = {"rtt": "srtt_us", "min_rtt": "min_rtt_us"}
    assert TcpInfo._fields == tuple(renamed.get(name, name) for name, _, _ in INFO_FIELDS)


def own(sockets: list[TcpSocket], end: socket.socket) -> TcpSocket:
    """The record of one socket of ours, by its cookie (SO_COOKIE)."""
    cookie = int.from_bytes(end.getsockopt(socket.SOL_SOCKET, 57, 8), sys.byteorder)
    (found,) = [s for s in sockets if s.cookie == cookie]
    return found


@pytest.mark.parametrize(
    ("listen", "dial", "family", "socket_family"),
    [
        ("127.0.0.1", "127.0.0.1", 4, socket.AF_INET),
        ("::1", "::1", 6, socket.AF_INET6),
        ("::", "127.0.0.1", 4, socket.AF_INET6),
    ],
)
def test_a_connection_is_found_with_its_numbers(
    listen: str, dial: str, family: int, socket_family: int
) -> None:
    v6 = ":" in listen
    if v6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this host has no IPv6")
    with socket.create_server(
        (listen, 0),
        family=socket.AF_INET6 if v6 else socket.AF_INET,
        dualstack_ipv6=listen == "::",
    ) as server:
        port = server.getsockname()[1]
        with socket.create_connection((dial, port)) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"x" * 777)
                assert len(accepted.recv(777, socket.MSG_WAITALL)) == 777
                with SockDiag() as diag:
                    sockets = diag.dump_tcp()
                    established = diag.dump_tcp(states={1})
                    listening = diag.dump_tcp(states={10})
                near, far, door = own(sockets, client), own(sockets, accepted), own(sockets, server)
                assert own(established, client).cookie == near.cookie
                assert [s.cookie for s in listening if s.cookie == door.cookie] == [door.cookie]
    address = ipaddress.ip_address(dial)
    assert (near.family, far.family) == (family, family)
    assert far.socket_family == socket_family
    assert (near.remote, near.remote_port) == (far.local, far.local_port) == (address, port)
    assert (near.local_port, near.state, door.state) == (far.remote_port, 1, 10)
    assert near.inode and near.uid == far.uid
    assert near.info is not None and far.info is not None
    assert (near.info.bytes_sent, near.info.bytes_retrans, far.info.bytes_received) == (777, 0, 777)
    assert near.info.segs_out >= 2 and near.info.snd_cwnd > 0
    assert near.info.min_rtt_us < sock_diag.NO_MIN_RTT


def test_one_family_can_be_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as four:
        cookie = int.from_bytes(four.getsockopt(socket.SOL_SOCKET, 57, 8), sys.byteorder)
        assert cookie in {s.cookie for s in sock_diag.dump_tcp(families=(4,))}
        assert cookie not in {s.cookie for s in sock_diag.dump_tcp(families=(6,))}


def test_a_socket_that_is_gone_cannot_be_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with SockDiag() as diag:
            found = own(diag.dump_tcp(), server)
    try:
        assert sock_diag.destroy(found) is False
    except NotPermitted as error:
        assert "CAP_NET_ADMIN" in error.line()
