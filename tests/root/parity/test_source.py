"""The proxy dials the app as the remote client, and the answers find back to the proxy."""

from __future__ import annotations

import time

import pytest

from nodenet import abi
from nodenet.abi import Direction
from tests.root.dialling import TIMEOUT_SECONDS, connected, is_alive
from tests.root.parity.cases import Case
from tests.root.parity.rows import parity
from tests.root.world import APP_PORT

pytestmark = [pytest.mark.root, pytest.mark.bpf]

CLOSED_PORT = 81


@parity("P15", rules=("I8",))
@pytest.mark.parametrize("options", [{}, {"mode": "ingress"}], ids=["pod", "ingress"])
def test_the_app_sees_the_remote_client(case: Case, options: dict[str, str]) -> None:
    case.world.enroll(**options)
    before = case.counted(Direction.IN)
    local, greeting = case.world.proxy.dial(
        case.a.pod, APP_PORT, source=case.a.outside, mark=abi.MARK
    )
    assert greeting.by == "app"
    assert greeting.peer == local
    assert local[0] == case.a.outside
    inbound = "I3" if options else "I8"
    foretold = case.foretold_inbound(case.a.outside, case.a.pod, APP_PORT, proxy=True)
    assert foretold == f"bypassed {inbound}"
    assert case.fired(Direction.IN, before) == (inbound if case.ebpf else None)


@parity("P15", rules=("I8", "I10"))
def test_the_relay_of_a_captured_connection(case: Case) -> None:
    # what the proxy does for real: the client's address is in use by the connection it accepted
    with connected(case.world.outside, case.a.pod, APP_PORT) as (client, accepted):
        assert accepted.by == "proxy"
        _local, greeting = case.world.proxy.dial(
            case.a.pod, APP_PORT, source=accepted.peer[0], mark=abi.MARK
        )
        assert greeting.by == "app"
        assert greeting.peer[0] == case.a.outside
        assert is_alive(client)


@parity("P15", rules=("I8",))
def test_a_closed_port_refuses_the_proxy_at_once(case: Case) -> None:
    started = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        case.world.proxy.dial(case.a.pod, CLOSED_PORT, source=case.a.outside, mark=abi.MARK)
    assert time.monotonic() - started < TIMEOUT_SECONDS / 3


@parity("P15", "P16", rules=("I8",))
@pytest.mark.parametrize("mark", [0, abi.TRANSPARENT_MARK], ids=["none", "0x111"])
def test_a_proxy_with_another_mark(case: Case, mark: int) -> None:
    proxy, a = case.world.proxy, case.a
    if case.ebpf:
        # the proxy's leg gets the mark that routes it to lo, whatever it had
        local, greeting = proxy.dial(a.pod, APP_PORT, source=a.outside, mark=mark)
        assert (greeting.by, greeting.peer) == ("app", local)
        assert greeting.mark == abi.TRANSPARENT_MARK
    else:
        # rule m1 knows the proxy by its mark alone, so the answers leave by the pod's link
        with pytest.raises(TimeoutError):
            proxy.dial(a.pod, APP_PORT, source=a.outside, mark=mark, timeout=0.2)


@parity("P5", "P15", rules=("O5", "I2"))
def test_the_apps_own_sockets_get_no_mark(case: Case) -> None:
    seen = case.connect(case.a.pod, APP_PORT)
    assert seen.verdict == "bypassed O5"
    assert (seen.greeting.by, seen.greeting.mark) == ("app", 0)
