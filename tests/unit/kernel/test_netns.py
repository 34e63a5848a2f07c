"""What is a namespace and what is not, without entering one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nodenet.errors import NotFound, UsageError
from nodenet.kernel import netns
from nodenet.kernel.netns import NetNs, NetNsGone, NotANetNs


def test_the_own_namespace_can_be_opened_and_has_its_inode() -> None:
    with NetNs.open("/proc/self/ns/net") as ns, NetNs.of_pid(os.getpid()) as same:
        assert ns.inode == same.inode == os.stat("/proc/self/ns/net").st_ino
        with NetNs.current() as current:
            assert current.inode == ns.inode
    assert ns.fd == -1
    ns.close()


def test_what_is_gone_says_where_to_look() -> None:
    with pytest.raises(NetNsGone) as raised:
        NetNs.open("/run/netns/nn-no-such")
    line = "network namespace /run/netns/nn-no-such: not there; list the named ones with: "
    assert raised.value.line() == line + "ip netns list"
    assert raised.value.exit_code == 4
    with pytest.raises(NetNsGone, match="not there"):
        NetNs.of_pid(2**22 + 1)


@pytest.mark.parametrize("path", ["/proc/self/ns/mnt", "/dev/null", "/proc/self/maps", "/"])
def test_what_is_something_else_is_refused_and_not_left_open(path: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotANetNs, match=path):
        NetNs.open(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(NotANetNs):
        NetNs.open(fifo)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 256])
def test_names_that_are_no_file_names(name: str) -> None:
    with pytest.raises(UsageError, match="must be a file name"):
        netns.named_path(name)
    assert netns.named_path("web") == Path("/run/netns/web")


def test_the_hosts_namespace_is_found_and_recognised() -> None:
    with NetNs.host() as host:
        assert host.is_host()
        assert host.inode == netns.host_inode()


def test_blocks_that_interleave_are_reported() -> None:
    """What an await inside a block leads to, without having to be in another namespace."""
    raised: list[BaseException] = []

    def interleave(ns: NetNs) -> None:
        first, second = ns.entered(), ns.entered()
        try:
            first.__enter__()
            second.__enter__()
        except netns.NetNsDenied:
            return
        try:
            first.__exit__(None, None, None)
        except netns.NetNsInterleaved as error:
            raised.append(error)
        second.__exit__(None, None, None)

    with NetNs.open("/proc/self/ns/net") as ns:
        thread = threading.Thread(target=interleave, args=(ns,))
        thread.start()
        thread.join()
    assert len(raised) == (1 if os.geteuid() == 0 else 0)


def test_entering_without_the_right_is_a_typed_error() -> None:
    with NetNs.open("/proc/self/ns/net") as ns:
        if os.geteuid() == 0:
            assert netns.run_in(ns, lambda: os.stat("/proc/thread-self/ns/net").st_ino) == ns.inode
        else:
            with pytest.raises(netns.NetNsDenied, match="entering it is not permitted"):
                netns.run_in(ns, os.getpid)


def test_names_is_a_sorted_list() -> None:
    assert netns.names() == sorted(netns.names())


def test_deleting_a_name_that_is_not_there() -> None:
    with pytest.raises((NotFound, netns.NetNsDenied)):
        netns.delete("nn-no-such")
