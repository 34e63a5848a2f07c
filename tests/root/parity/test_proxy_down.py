"""What happens to new connections while no proxy listens: refused, or passed where asked for."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from nodenet import abi
from nodenet.errors import NotSupported
from tests.root.dialling import TIMEOUT_SECONDS
from tests.root.parity.cases import Case, only_ebpf
from tests.root.parity.rows import parity
from tests.root.recording import Recorder
from tests.root.world import APP_PORT, World

pytestmark = [pytest.mark.root, pytest.mark.bpf]

#: Seconds to see that nothing answers.
SHORT_SECONDS = 0.2


@pytest.fixture
def down(world: World) -> Iterator[None]:
    """The proxy has closed its listeners."""
    world.proxy.unlisten_as_proxy()
    yield
    world.proxy.listen_as_proxy()


@parity("P26", "P28", rules=("O7",))
@pytest.mark.usefixtures("down")
def test_a_connect_is_refused_and_never_leaves_in_clear(any_case: Case) -> None:
    case, a = any_case, any_case.a
    # a netfilter redirect does not ask whether somebody listens: redirected, and refused there
    seen = case.connect(a.outside, APP_PORT, explained=None if case.ebpf else "captured O8")
    assert seen.dialled.error == errno.ECONNREFUSED
    assert seen.verdict == ("refused O7" if case.ebpf else "refused O8")
    assert case.world.server.accepted() == []


@parity("P26", "P28", rules=("I9",))
@pytest.mark.usefixtures("down")
def test_an_inbound_connection_is_refused(any_case: Case) -> None:
    case = any_case
    seen = case.arrive(APP_PORT, explained=None if case.ebpf else "captured I10")
    assert seen.dialled.error == errno.ECONNREFUSED
    assert seen.verdict == ("refused I9" if case.ebpf else "refused I10")
    assert case.world.app.accepted() == []


@parity("P28", rules=("O7", "I9"))
@pytest.mark.usefixtures("down")
def test_open_lets_connections_pass(any_case: Case) -> None:
    case, a = any_case, any_case.a
    if not case.ebpf:
        with pytest.raises(NotSupported, match="cannot ask whether somebody listens"):
            case.world.enroll(on_proxy_down="open")
        return
    case.world.enroll(on_proxy_down="open")
    out = case.connect(a.outside, APP_PORT)
    assert out.verdict == "bypassed O7"
    assert out.greeting.by == "server"
    assert out.greeting.peer == out.dialled.local
    inbound = case.arrive(APP_PORT)
    assert inbound.verdict == "bypassed I9"
    assert inbound.greeting.by == "app"


@parity("P28", rules=("O8", "I10"))
@only_ebpf
def test_open_captures_while_the_proxy_listens(case: Case) -> None:
    case.world.enroll(on_proxy_down="open")
    assert case.connect(case.a.outside, APP_PORT).verdict == "captured O8"
    assert case.arrive(APP_PORT).verdict == "captured I10"


@parity("P17", "P28", rules=("O7",))
@pytest.mark.usefixtures("down")
@pytest.mark.parametrize("connect", [False, True], ids=["unconnected", "connected"])
def test_a_dns_query_is_refused(any_case: Case, connect: bool) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(dns=True)
    seen = case.query(
        a.outside,
        connect=connect,
        timeout=TIMEOUT_SECONDS if case.ebpf or connect else SHORT_SECONDS,
        explained=None if case.ebpf else "captured O8",
    )
    if case.ebpf:
        assert seen.verdict == "refused O7"
    else:
        # an unconnected socket is not told of the answer "port unreachable"
        assert seen.dialled.error == (errno.ECONNREFUSED if connect else errno.ETIMEDOUT)
    assert case.world.server.accepted() == []


@parity("P18", "P28", rules=("O7",))
def test_dns_over_tcp_depends_on_the_dns_listener_alone(case: Case) -> None:
    world, a = case.world, case.a
    world.enroll(dns=True)
    world.proxy.unlisten_as_proxy()
    world.proxy.listen(abi.OUTBOUND_PORT, mark=abi.MARK, transparent=True)
    try:
        seen = case.connect(a.outside, 53, explained=None if case.ebpf else "captured O8")
        assert seen.dialled.error == errno.ECONNREFUSED
        assert case.connect(a.outside, APP_PORT).verdict == "captured O8"
    finally:
        world.proxy.unlisten(abi.OUTBOUND_PORT)
        world.proxy.listen_as_proxy()
    assert case.connect(a.outside, 53).verdict == "captured O8"


@parity("P27", "P28", rules=("O7", "O8", "I9", "I10"))
@pytest.mark.usefixtures("down")
def test_killed_and_started_again(case: Case) -> None:
    world, a = case.world, case.a
    with Recorder("proxy", world.pod, world.cgroup) as proxy:
        proxy.listen_as_proxy()
        assert case.connect(a.outside, APP_PORT).verdict == "captured O8"
        assert case.arrive(APP_PORT).verdict == "captured I10"
    # SIGKILL: the kernel closes the listeners, nobody has to notice
    refused = case.connect(a.outside, APP_PORT, explained=None if case.ebpf else "captured O8")
    assert refused.dialled.error == errno.ECONNREFUSED
    with Recorder("proxy", world.pod, world.cgroup) as proxy:
        proxy.listen_as_proxy()
        assert case.connect(a.outside, APP_PORT).verdict == "captured O8"
        assert case.arrive(APP_PORT).verdict == "captured I10"


@parity("P4", "P28", rules=("O7",))
@pytest.mark.usefixtures("down")
def test_an_impostors_listener_is_not_the_proxy(case: Case) -> None:
    # a process of the pod takes the port, and the mark, while the proxy is away
    world, a = case.world, case.a
    world.app.listen(abi.OUTBOUND_PORT, mark=abi.MARK)
    try:
        seen = case.connect(a.outside, APP_PORT, explained=None if case.ebpf else "captured O8")
        if case.ebpf:
            assert seen.verdict == "refused O7"
        else:
            assert seen.greeting.by == "app"
    finally:
        world.app.unlisten(abi.OUTBOUND_PORT)
