"""Whose sockets are exempt: the proxy's, known by its cgroup (ebpf) or its mark (iptables)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from nodenet import abi
from nodenet.abi import Direction
from nodenet.capture.question import answer
from nodenet.endpoint import format_endpoint
from nodenet.kernel.cgroups import Cgroup
from tests.root.dialling import Prepare, wait_for
from tests.root.parity.cases import Case, Family
from tests.root.parity.rows import parity
from tests.root.recording import Recorder
from tests.root.world import APP_PORT, POD_NAME, World

pytestmark = [pytest.mark.root, pytest.mark.bpf]


def marked(mark: int) -> Prepare:
    return lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)


@parity("P4", rules=("O3",))
def test_the_proxys_own_connect_is_not_captured(case: Case) -> None:
    before = case.counted(Direction.OUT)
    local, greeting = case.world.proxy.dial(case.a.outside, APP_PORT, mark=abi.MARK)
    assert greeting.by == "server"
    assert greeting.peer == local
    assert local[0] == case.a.pod
    assert case.fired(Direction.OUT, before) == "O3"
    explained = answer(
        case.world.capture, POD_NAME, format_endpoint(case.a.outside, APP_PORT), proxy=True
    )
    assert (explained.result, explained.rule) == ("bypassed", "O3")


@parity("P4", rules=("O3", "O8"))
@pytest.mark.parametrize("mark", [abi.MARK, 0x1000 | abi.MARK])
def test_a_mark_does_not_make_an_app_the_proxy(any_case: Case, mark: int) -> None:
    # CAP_NET_RAW, which containers have by default, is enough to set it
    case = any_case
    seen = case.connect(case.a.outside, APP_PORT, prepare=marked(mark), explained="captured O8")
    if case.ebpf:
        assert seen.verdict == "captured O8"
        assert seen.greeting.original == (case.a.outside, APP_PORT)
    else:
        assert seen.result == "bypassed"
        assert seen.greeting.by == "server"


@parity("P4", rules=("O8",))
def test_any_other_mark_changes_nothing(any_case: Case) -> None:
    seen = any_case.connect(any_case.a.outside, APP_PORT, prepare=marked(abi.MARK - 1))
    assert seen.verdict == "captured O8"


@parity("P4", rules=("O3",))
def test_the_proxy_needs_no_mark(case: Case) -> None:
    proxy, a = case.world.proxy, case.a
    if case.ebpf:
        _local, greeting = proxy.dial(a.outside, APP_PORT)
        assert greeting.by == "server"
    else:
        # redirected to its own listener, which cannot answer while it waits for the answer
        with pytest.raises(TimeoutError):
            proxy.dial(a.outside, APP_PORT, timeout=0.2)
        caught = wait_for(proxy.accepted, "the proxy catches itself")
        assert [g.original for g in caught] == [(a.outside, APP_PORT)]


@parity("P16", rules=("O8",))
def test_an_app_with_the_mark_of_transparent_connections(any_case: Case) -> None:
    case = any_case
    seen = case.connect(
        case.a.outside, APP_PORT, prepare=marked(abi.TRANSPARENT_MARK), explained="captured O8"
    )
    if case.ebpf:
        assert seen.verdict == "captured O8"
        assert seen.greeting.original == (case.a.outside, APP_PORT)
    else:
        # o1 leaves it alone, and the policy rule sends it to lo: no route in IPv4, the pod's own
        # app in IPv6, never the destination
        assert seen.result == "bypassed"
        assert case.world.server.accepted() == []
        if case.family is Family.V6:
            assert seen.greeting.by == "app"
        else:
            assert seen.dialled.error == errno.ENETUNREACH


@pytest.fixture
def stranger(world: World) -> Iterator[Recorder]:
    """A process of the pod in a cgroup of its own, below that of another service."""
    cgroup = Cgroup.create(world.cgroup.parent / "stranger")
    with Recorder("stranger", world.pod, cgroup.path) as recorder:
        yield recorder
    cgroup.remove()


@parity("P29", rules=("O8",))
def test_the_namespace_decides_not_the_cgroup(case: Case, stranger: Recorder) -> None:
    # as a shell that the runtime starts in the pod's namespace, outside of its cgroup
    local, greeting = stranger.dial(case.a.outside, APP_PORT)
    assert greeting.by == "proxy"
    assert greeting.original == (case.a.outside, APP_PORT)
    assert greeting.peer == local
