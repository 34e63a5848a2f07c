"""Socket dumps of another namespace, and ending connections there."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator

import pytest

from nodenet.kernel import sock_diag
from nodenet.kernel.netns import NetNs
from nodenet.kernel.sock_diag import OPEN_STATES, SockDiag, TcpSocket
from nodenet.lab.topology import Namespace, Topology
from tests.root.dialling import wait_for

pytestmark = [pytest.mark.root]


@pytest.fixture
def pair() -> Iterator[tuple[Namespace, Namespace]]:
    with Topology() as topology:
        yield topology.pair()


@contextlib.contextmanager
def connection(
    server: Namespace, client: Namespace, listen: str, dial: str
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """An established connection: (accepted, dialled)."""
    with contextlib.ExitStack() as stack:
        with server.entered():
            family = socket.AF_INET6 if ":" in listen else socket.AF_INET
            listener = stack.enter_context(
                socket.create_server((listen, 8080), family=family, dualstack_ipv6=listen == "::")
            )
        with client.entered():
            dialled = stack.enter_context(socket.create_connection((dial, 8080), timeout=20))
        listener.settimeout(20)
        accepted = stack.enter_context(listener.accept()[0])
        yield accepted, dialled


def cookie(sock: socket.socket) -> int:
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, 57, 8), sys.byteorder)


def one(sockets: list[TcpSocket], sock: socket.socket) -> TcpSocket:
    (found,) = [s for s in sockets if s.cookie == cookie(sock)]
    return found


CASES = [("0.0.0.0", "10.99.0.1"), ("fd99::1", "fd99::1"), ("::", "10.99.0.1")]


@pytest.mark.parametrize(("listen", "dial"), CASES)
def test_the_dump_is_of_the_namespace_and_ending_resets_the_peer(
    pair: tuple[Namespace, Namespace], listen: str, dial: str
) -> None:
    left, right = pair
    with connection(left, right, listen, dial) as (accepted, dialled):
        with NetNs.open(left.path) as ns, SockDiag(ns) as diag:
            sockets = diag.dump_tcp(OPEN_STATES)
            assert {s.cookie for s in sockets} == {cookie(accepted)}
            assert {s.state for s in diag.dump_tcp()} == {1, 10}
            target = one(sockets, accepted)
            assert str(target.local) == dial
            assert diag.destroy(target) is True
            assert diag.destroy(target) is False
        with pytest.raises(ConnectionAbortedError):
            accepted.recv(1)
        dialled.settimeout(20)
        with pytest.raises(ConnectionResetError):
            dialled.recv(1)


def test_mark_and_cgroup_of_a_socket_are_reported(pair: tuple[Namespace, Namespace]) -> None:
    left, right = pair
    with connection(left, right, "0.0.0.0", "10.99.0.1") as (accepted, dialled):
        dialled.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x539)
        with right.entered():
            found = one(sock_diag.dump_tcp(), dialled)
        assert found.mark == 0x539
        assert found.cgroup_id
        assert one_of(left, accepted).mark == 0


def one_of(where: Namespace, sock: socket.socket) -> TcpSocket:
    with where.entered():
        return one(sock_diag.dump_tcp(), sock)


def test_the_numbers_are_those_of_ss(pair: tuple[Namespace, Namespace]) -> None:
    left, right = pair
    with connection(left, right, "0.0.0.0", "10.99.0.1") as (accepted, dialled):
        for _ in range(5):
            dialled.sendall(b"x" * 10_000)
            assert len(accepted.recv(10_000, socket.MSG_WAITALL)) == 10_000
        accepted.sendall(b"y" * 321)
        assert len(dialled.recv(321, socket.MSG_WAITALL)) == 321
        # the acknowledgement of the last bytes may be under way still
        info = one_of(right, dialled).info
        text = right.run("ss", "-tinHO").stdout
    assert info is not None
    numbers = dict(word.split(":", 1) for word in text.split() if word.count(":") == 1)
    assert info.bytes_sent == int(numbers["bytes_sent"]) == 50_000
    assert info.bytes_received == int(numbers["bytes_received"]) == 321
    assert info.bytes_acked == int(numbers["bytes_acked"]) == 50_001
    assert info.segs_out <= int(numbers["segs_out"]) <= info.segs_out + 1
    assert info.snd_cwnd == int(numbers["cwnd"])
    assert info.min_rtt_us == round(float(numbers["minrtt"]) * 1000)
    assert info.srtt_us == pytest.approx(float(numbers["rtt"].split("/")[0]) * 1000, abs=1)


def test_time_wait_has_an_address_but_no_numbers(pair: tuple[Namespace, Namespace]) -> None:
    left, right = pair
    with connection(left, right, "0.0.0.0", "10.99.0.1") as (accepted, dialled):
        port = dialled.getsockname()[1]
        dialled.shutdown(socket.SHUT_WR)
        assert accepted.recv(1) == b""
        accepted.close()
        assert dialled.recv(1) == b""
    with right.entered():
        (found,) = sock_diag.dump_tcp(states={6})
    assert (found.local_port, found.info, found.inode) == (port, None, 0)


def test_many_sockets_come_back_once_each(pair: tuple[Namespace, Namespace]) -> None:
    left, _right = pair
    with contextlib.ExitStack() as stack:
        wanted = set()
        with left.entered():
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=8))
            for _ in range(400):
                client = stack.enter_context(socket.create_connection(listener.getsockname()))
                accepted = stack.enter_context(listener.accept()[0])
                wanted |= {cookie(client), cookie(accepted)}
            found = [s.cookie for s in sock_diag.dump_tcp(OPEN_STATES)]
    assert sorted(found) == sorted(wanted)


def check_found(where: Namespace, state: int) -> None:
    """`tcp_sockets` finds what a dump finds, with a socket in that state among it."""
    with NetNs.open(where.path) as ns, SockDiag(ns) as diag:
        found = sock_diag.tcp_sockets(ns)
        assert {s.cookie for s in found} == {s.cookie for s in diag.dump_tcp()}
        assert state in {s.state for s in found}
        assert {s.state for s in sock_diag.tcp_sockets(ns, (state,))} == {state}


@pytest.mark.parametrize("listen", ["0.0.0.0", "::1"])
def test_any_socket_of_a_namespace_is_a_reason_to_look(
    pair: tuple[Namespace, Namespace], listen: str
) -> None:
    left, _right = pair
    with NetNs.open(left.path) as ns:
        assert sock_diag.tcp_sockets(ns) == []
        with left.entered():
            family = socket.AF_INET6 if ":" in listen else socket.AF_INET
            server = socket.create_server((listen, 0), family=family)
        with server:
            check_found(left, 10)
        assert sock_diag.tcp_sockets(ns) == []


def test_one_that_waits_for_an_answer_is_too(pair: tuple[Namespace, Namespace]) -> None:
    left, _right = pair
    with left.entered(), socket.socket() as sock:
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.connect(("10.99.0.77", 80))
        check_found(left, 2)


def test_what_is_left_in_time_wait_is_too(pair: tuple[Namespace, Namespace]) -> None:
    left, right = pair
    with connection(left, right, "fd99::1", "fd99::1") as (accepted, dialled):
        dialled.shutdown(socket.SHUT_WR)
        assert accepted.recv(1) == b""
        accepted.close()
        assert dialled.recv(1) == b""
    check_found(right, 6)


def test_one_that_waits_for_the_peers_end_is_too(pair: tuple[Namespace, Namespace]) -> None:
    left, right = pair
    with connection(left, right, "0.0.0.0", "10.99.0.1") as (accepted, dialled):
        dialled.close()
        assert accepted.recv(1) == b""
        with NetNs.open(right.path) as ns, SockDiag(ns) as diag:
            # until the acknowledgement is here; then the kernel keeps it as it keeps time-wait
            wait_for(lambda: diag.dump_tcp((5,)), "FIN_WAIT2")
        check_found(right, 5)
