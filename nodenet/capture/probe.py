"""``capture verify --probe``: real connections, and what the kernel recorded of them.

Outbound: a connect from inside the pod to its gateway's discard port, where nobody listens.
Captured the proxy accepts, and resets when its own dial is refused; uncaptured it is refused.
Nothing leaves the node. From the node: a connect of this process to a listener of ours inside the
pod, as kubelet probes it; it must arrive with the node's address.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Mapping
from typing import Final

from nodenet import abi
from nodenet.abi import EventKind, Reason, Via
from nodenet.capture.records import PodRecord
from nodenet.capture.verify import Check
from nodenet.kernel.links import read_iter
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.paths import Instance

_SO_COOKIE: Final = 57
_DISCARD: Final = 9


def probe(
    instance: Instance, maps: Mapping[str, Map], ns: NetNs, record: PodRecord, timeout: float
) -> list[Check]:
    """The checks ``probe_out`` and ``probe_node``; skipped where there is nothing to connect to."""
    return [
        _outbound(instance, maps, ns, record, timeout),
        _from_node(ns, record, timeout),
    ]


def _outbound(
    instance: Instance, maps: Mapping[str, Map], ns: NetNs, record: PodRecord, timeout: float
) -> Check:
    if record.direction == "in":
        return Check(id="probe_out", state="skip", found="outbound capture is off")
    gateway = _gateway(ns)
    if gateway is None:
        return Check(id="probe_out", state="skip", found="the pod has no gateway to connect to")
    with ns.open_socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        (cookie,) = struct.unpack("<Q", client.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))
        client.settimeout(timeout)
        try:
            client.connect((str(gateway), _DISCARD))
            outcome = "accepted"
        except ConnectionResetError:
            outcome = "accepted"  # and reset before connect() had looked: the proxy's dial failed
        except OSError as error:
            outcome = (error.strerror or str(error)).lower()
        via, reason = _recorded(instance, maps, cookie)
    where = f"{gateway}:{_DISCARD}"
    if outcome == "accepted" and via is Via.EBPF:
        return Check(
            id="probe_out",
            state="ok",
            found=f"connect to {where} went to the proxy",
            rule="O8",
            parity=("P1",),
        )
    return Check(
        id="probe_out",
        state="fail",
        found=f"connect to {where}: {outcome}, {'not captured' if reason is None else reason.text}",
        rule="O8",
        parity=("P1",),
        means="a real connection of this pod does not reach the proxy",
        do=f"nodenet capture explain {record.name} {where}",
    )


def _recorded(
    instance: Instance, maps: Mapping[str, Map], cookie: int
) -> tuple[Via, Reason | None]:
    """What the kernel says about that socket: live, closed, or nothing."""
    pin = instance.links / abi.PROGRAMS["nn_iter_conns"].pin
    size = abi.EVENT.size
    live = read_iter(pin)
    for source in (live, bytes(maps["closed"].read_all().values)):
        for at in range(0, len(source), size):
            event = abi.EVENT.unpack(source[at : at + size])
            if event["cookie"] == cookie and event["kind"] in (EventKind.LIVE, EventKind.CLOSED):
                return Via(int(event["via"])), Reason(int(event["reason"]))
    return Via.NONE, None


def _from_node(ns: NetNs, record: PodRecord, timeout: float) -> Check:
    if record.node is not None:
        return Check(
            id="probe_node", state="skip", found=f"the pod's node is {record.node}, not this host"
        )
    address = next((ip for ip in record.ips if ipaddress.ip_address(ip).version == 4), None)
    if address is None:
        return Check(id="probe_node", state="skip", found="the pod has no IPv4 address")
    with ns.open_socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(1)
        listener.settimeout(timeout)
        port = listener.getsockname()[1]
        try:
            with socket.create_connection((address, port), timeout=timeout) as client:
                accepted, peer = listener.accept()
                accepted.close()
                own = client.getsockname()[0]
        except TimeoutError:
            return Check(
                id="probe_node",
                state="fail",
                found=f"{address}:{port}: the connection did not reach the app",
                rule="I8",
                parity=("P12",),
                means="probes of this node (kubelet) do not reach the pod's apps uncaptured",
                do="run it on the node whose pod this is; nodenet map dump byp",
            )
        except OSError as error:
            return Check(
                id="probe_node",
                state="skip",
                found=f"no way from here to {address}: {(error.strerror or str(error)).lower()}",
            )
    if peer[0] == own:
        return Check(
            id="probe_node",
            state="ok",
            found=f"this node's connection reached the app as {own}",
            rule="I8",
            parity=("P12",),
        )
    return Check(
        id="probe_node",
        state="fail",
        found=f"the app saw {peer[0]} instead of {own}",
        rule="I8",
        parity=("P12",),
        means="something translates addresses between this node and the pod",
        do="iptables -t nat -S POSTROUTING",
    )


def _gateway(ns: NetNs) -> ipaddress.IPv4Address | None:
    """The next hop of the namespace's IPv4 default route, from the kernel's text table."""
    with ns.entered():
        # /proc/net is the thread leader's namespace; thread-self is this thread's
        with open("/proc/thread-self/net/route", encoding="ascii") as table:
            lines = table.read().splitlines()[1:]
    for line in lines:
        fields = line.split()
        if fields[1] == "00000000" and fields[2] != "00000000":
            return ipaddress.IPv4Address(bytes.fromhex(fields[2])[::-1])
    return None
