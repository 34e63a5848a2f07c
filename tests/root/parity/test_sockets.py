"""An application cannot tell that it is captured: every use of a socket looks as without it."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.endpoint import format_endpoint
from tests.root.dialling import sockaddr
from tests.root.parity import behaviours
from tests.root.parity.behaviours import Behaviour, View, Where
from tests.root.parity.cases import Case, Family
from tests.root.parity.rows import parity
from tests.root.recording import Greeting
from tests.root.world import APP_PORT, UDP_PORT, World

pytestmark = [pytest.mark.root, pytest.mark.bpf]

UDP = (behaviours.connected_udp, behaviours.unconnected_udp)
Views = Mapping[tuple[Family, str], View]


def where(case: Case, free_port: int) -> Where:
    a = case.a
    return Where(
        namespace=case.world.pod,
        own=a.pod,
        second=a.pod_second,
        host=a.outside,
        other=a.outside_second,
        port=APP_PORT,
        udp_port=UDP_PORT,
        loopback=ip_address("::1" if case.family is Family.V6 else "127.0.0.1"),
        mapped=case.mapped,
        free_port=free_port,
    )


#: Each use of a port bound by hand gets one of its own: the old 4-tuple may be in TIME_WAIT.
_FREE_PORTS = iter(range(20000, 30000))


@pytest.fixture(scope="module")
def without_capture(world: World) -> Views:
    """Every behaviour in every family, the pod not enrolled."""
    world.unenroll()
    views: dict[tuple[Family, str], View] = {}
    for family in Family:
        for behaviour in behaviours.ALL:
            place = where(Case(world, family), next(_FREE_PORTS))
            view, greeting = behaviour(place)
            assert greeting is None or greeting.by == "server"
            views[family, behaviour.__name__] = _plain(view, place.free_port)
    world.enroll()
    return views


def _plain(view: View, free_port: int) -> View:
    return tuple("bound port" if x == free_port else x for x in view)


def expected(case: Case, behaviour: Behaviour, plain: View) -> View:
    """As without capture, but for what docs/parity.md declares."""
    proxied = (0, where(case, 0).loopback, None, (case.a.outside, APP_PORT), True)
    if behaviour is behaviours.bound_loopback and (case.ebpf or case.family is Family.V6):
        # better than without capture: the proxy is reached from there, the destination is not
        return proxied
    if behaviour is behaviours.multipath and case.ebpf:
        # the hooks see the subflow, getpeername the socket above it
        return (*plain[:3], (case.a.pod, abi.OUTBOUND_PORT), *plain[4:])
    if behaviour is behaviours.bound_device and not case.ebpf:
        # redirected to loopback, which is not the device it is bound to
        return (errno.EAGAIN,)
    return plain


@parity("P1", "P3", rules=("O8",))
@pytest.mark.parametrize("behaviour", behaviours.ALL, ids=lambda b: b.__name__)
def test_a_socket_behaves_as_without_capture(
    without_capture: Views, any_case: Case, behaviour: Behaviour
) -> None:
    case = any_case
    plain = without_capture[case.family, behaviour.__name__]
    place = where(case, next(_FREE_PORTS))
    view, greeting = behaviour(place)
    if behaviour is behaviours.bound_device and view == (errno.EHOSTUNREACH,):
        # it need not hang to the end: for some seconds the kernel looks who has the address there
        view = (errno.EAGAIN,)
    assert _plain(view, place.free_port) == expected(case, behaviour, plain)
    if behaviour in UDP:
        assert greeting is not None and greeting.by == "server"
    elif greeting is not None:
        assert greeting.by == "proxy"
        again = behaviour is behaviours.disconnected_and_connected_again
        assert greeting.original == (place.other if again else place.host, APP_PORT)


@pytest.fixture(scope="module")
def static_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that no library can be put under."""
    built = tmp_path_factory.mktemp("client") / "client"
    source = Path(__file__).with_name("client.c")
    subprocess.run(["gcc", "-static", "-O1", "-Wall", "-Werror", "-o", built, source], check=True)
    return built


@parity("P1", "P2", "P3", rules=("O8",))
def test_a_static_program(any_case: Case, static_client: Path) -> None:
    case, a = any_case, any_case.a
    host, port = sockaddr(a.outside, APP_PORT, mapped=case.mapped)
    done = case.world.pod.run(str(static_client), host, str(port))
    peer, local, line = done.stdout.splitlines()
    greeting = Greeting.read(json.loads(line))
    assert peer == f"peer {host} {port}"
    assert local == "local " + " ".join(map(str, sockaddr(*greeting.peer, mapped=case.mapped)))
    assert greeting.by == "proxy"
    assert greeting.original == (a.outside, APP_PORT)


@parity("P1", "P2", "P3", rules=("O8",))
def test_curl(case: Case) -> None:
    a = case.a
    url = f"http://{format_endpoint(a.outside, APP_PORT)}/"
    done = case.world.pod.run(
        "curl", "-s", "--http0.9", "-m", "20", "-w", "%{remote_ip} %{remote_port} %{local_ip}", url
    )
    line, written = done.stdout.splitlines()
    greeting = Greeting.read(json.loads(line))
    assert written == f"{a.outside} {APP_PORT} {a.pod}"
    assert greeting.by == "proxy"
    assert greeting.original == (a.outside, APP_PORT)
