"""The sequence of one enrolment, and its reverse.

Order: the record, marked pending; addresses; the pod's entry without LIVE (now the proxy's
listeners register); the namespace's side (inbound link and policy routes, or rules); exclusions;
and last the entry with LIVE, one write. A kill before that leaves the pod as it was, but for
exclusions of a change, which the next enrolment removes; the record says that there is something to
finish. A change of the backend puts the new side in, flips the entry, and takes the old side out:
at no moment does neither redirect. Un-enrolling goes backwards.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from nodenet import abi
from nodenet.abi import PodFlag
from nodenet.capture import iptables, pod_maps, pod_routes, port_reuse, programs, reaping
from nodenet.capture.errors import AlreadyEnrolled, NoAddress
from nodenet.capture.listeners import OWN_PORTS, register_listeners
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import (
    Backend,
    PodRecord,
    read_record,
    record_path,
    remove_record,
    write_record,
)
from nodenet.capture.result import EnrolResult, UnenrolResult
from nodenet.capture.targets import refuse_host
from nodenet.errors import NodenetError, NotFound, NotSupported
from nodenet.kernel.links import read_iter
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.kernel.sock_diag import SockDiag, TcpSocket, tcp_sockets
from nodenet.paths import Instance
from nodenet.times import now_rfc3339

_POLL_SECONDS = 0.002
#: Established, and closing on one side: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT.
_CONNECTED = (1, 4, 5, 8)
_SYN_SENT = 2
#: The ids at the head of each `nn_event`.
_IDS = struct.Struct(f"<QQ{abi.EVENT.size - 16}x")


def connections_with_others(
    ns: NetNs, addresses: pod_maps.PodAddresses, states: tuple[int, ...] = _CONNECTED
) -> list[TcpSocket]:
    """Open connections of the pod, without those with itself."""
    own = set(addresses.owned)
    found = tcp_sockets(ns, states)
    return [s for s in found if not s.remote.is_loopback and s.remote not in own]


@dataclass(frozen=True, slots=True)
class Enroller:
    """Enrols and un-enrols on one instance. The caller holds the instance's lock."""

    instance: Instance
    maps: Mapping[str, Map] | None

    def enroll(
        self,
        netns: Path,
        *,
        name: str,
        options: EnrolOptions,
        node: str | None,
        node_id: int,
        uid: str | None,
        wait_seconds: float,
    ) -> EnrolResult:
        started = time.monotonic()
        # inside for all of it: each step that needs the namespace finds the thread there
        with NetNs.open(netns) as ns, ns.entered():
            refuse_host(ns, name)
            cookie = ns.cookie()
            old = read_record(record_path(self.instance, cookie))
            backend = self._backend(options, old)
            if old is not None and old.name != name:
                raise AlreadyEnrolled(
                    f"cannot enroll {name}: its network namespace is enrolled as {old.name} "
                    f"(cookie {cookie}); run: nodenet capture unenroll {old.name}"
                )
            addresses = pod_maps.PodAddresses.choose(i.interface.ip for i in ns.addresses())
            ips = tuple(str(a) for a in addresses.owned)
            live = self._is_live(cookie)
            same = (
                old is not None
                and options.matches(old, backend)
                and (old.ips, old.node, old.node_id, old.uid) == (ips, node, node_id, uid)
            )
            if old is not None and live and same and not old.pending and self._is_whole(ns, old):
                reset = self._reset_older(ns, addresses, cookie, options)
                return EnrolResult(
                    record=old,
                    outcome="unchanged",
                    existing=reset,
                    existing_reset=reset,
                    listeners=self._listening(cookie),
                    seconds=time.monotonic() - started,
                )
            if not (addresses.ip4 or addresses.ip6):
                raise NoAddress(
                    f"cannot enroll {name}: {netns} has no address but loopback and link-local; "
                    "give it one first, e.g. run the CNI plugin"
                )
            record = options.record(
                name=name,
                uid=uid,
                node=node,
                node_id=node_id,
                netns=str(netns),
                netns_inode=ns.inode,
                netns_cookie=cookie,
                ips=ips,
                backend=backend,
                enrolled_at=old.enrolled_at if old and live else now_rfc3339(),
                tw_reuse_before=port_reuse.value_before(
                    ns, old, needed=backend == "ebpf" and options.direction != "in"
                ),
            )
            existing = 0 if live else len(connections_with_others(ns, addresses))
            listeners = self._put_in(
                ns, record, addresses, old if live else None, old, wait_seconds
            )
            # only now: what connected while the proxy was waited for is older than the capture too
            reset = self._reset_older(ns, addresses, cookie, options)
            return EnrolResult(
                record=record,
                outcome="changed" if live else "enrolled",
                existing=max(existing, reset),
                existing_reset=reset,
                listeners=listeners,
                seconds=time.monotonic() - started,
            )

    def unenroll(
        self, netns_cookie: int, *, existing: Literal["keep", "reset"] = "keep"
    ) -> UnenrolResult:
        record = read_record(record_path(self.instance, netns_cookie))
        if record is None:
            raise NotFound(
                f"netns cookie {netns_cookie} is not enrolled: no record in {self.instance.pods}; "
                "see: nodenet capture show"
            )
        alive, reset, kept = 0, 0, False
        ns = reaping.open_namespace(record)
        if ns is None:
            reaping.forget(self.instance, self.maps, record)
        else:
            with ns, ns.entered():
                self._switch_off(record)
                addresses = pod_maps.PodAddresses.choose(i.interface.ip for i in ns.addresses())
                live = self._captured(ns, addresses)
                # both ends of a local leg are here
                alive = len(
                    {frozenset(((s.local, s.local_port), (s.remote, s.remote_port))) for s in live}
                )
                if existing == "reset":
                    with SockDiag(ns) as diag:
                        reset = sum(1 for s in live if diag.destroy(s))
                kept = (
                    existing == "keep"
                    and record.backend == "ebpf"
                    and bool(reaping.proxied_inbound(ns, set(addresses.owned)))
                )
                if kept:
                    reaping.remember_routes(self.instance, ns, record)
                self._take_out(ns, record, keep_routes=kept)
        return UnenrolResult(
            name=record.name,
            netns_cookie=netns_cookie,
            existing=alive,
            existing_reset=reset,
            routes_kept=kept,
        )

    # -- steps

    def _backend(self, options: EnrolOptions, old: PodRecord | None) -> Backend:
        if options.backend == "auto":
            if old is not None:
                return old.backend  # only asked for by name does it change
            return "iptables" if self.maps is None else "ebpf"
        if options.backend == "ebpf" and self.maps is None:
            raise NotSupported("ebpf", "the capture loaded; see: nodenet doctor")
        if options.backend == "iptables" and options.on_proxy_down == "open":
            raise NotSupported(
                "iptables backend with --on-proxy-down open",
                "the ebpf backend: a netfilter redirect cannot ask whether somebody listens",
            )
        return options.backend

    def _is_live(self, cookie: int) -> bool:
        if self.maps is None:
            return record_path(self.instance, cookie).exists()
        found = self.maps["pods"].lookup(pod_maps.netns_key(cookie))
        return found is not None and bool(
            PodFlag(int(abi.POD.unpack(found)["flags"])) & PodFlag.LIVE
        )

    def _is_whole(self, ns: NetNs, record: PodRecord) -> bool:
        """Whether the namespace still has what the enrolment put there (details: `verify`)."""
        if record.backend == "iptables":
            return iptables.state(ns, record).ok
        if not programs.pod_link_alive(self.instance, record.netns_cookie):
            return False
        return record.direction == "out" or not pod_routes.check(ns)

    def _listening(self, cookie: int) -> tuple[int, ...]:
        if self.maps is None:
            return ()
        return pod_maps.listening(self.maps, cookie, OWN_PORTS)

    def _put_in(
        self,
        ns: NetNs,
        record: PodRecord,
        addresses: pod_maps.PodAddresses,
        live: PodRecord | None,
        old: PodRecord | None,
        wait_seconds: float,
    ) -> tuple[int, ...]:
        """``live`` is what the pod is captured with now; ``old`` what was recorded, live or not."""
        cookie = record.netns_cookie
        write_record(self.instance, replace(record, pending=True))
        try:
            if self.maps is not None:
                pod_maps.write_addresses(self.maps, addresses, cookie, record.node_id)
                if live is None:
                    self._write_pod(addresses, cookie, PodFlag(0))
            self._enter(ns, record)
            if self.maps is not None and live is None:
                register_listeners(self.maps, ns, cookie)
            listeners = self._await_listeners(record, wait_seconds)
            if self.maps is not None:
                pod_maps.write_exclusions(self.maps, record)
                self._write_pod(addresses, cookie, pod_maps.flags_of(record))
        except BaseException:
            with contextlib.suppress(OSError, NodenetError):  # the first error is the one to tell
                if live is None:
                    self._take_out(ns, record)
                else:
                    self._change_back(ns, record, live)
            raise
        if self.maps is not None and old is not None:
            pod_maps.remove_exclusions(self.maps, old, record)
            gone = [ip for ip in old.ips if ip not in record.ips]
            pod_maps.remove_addresses(self.maps, gone, cookie)
        if live is not None:
            self._leave_for(ns, live, record)
        write_record(self.instance, record)
        return listeners

    def _enter(self, ns: NetNs, record: PodRecord) -> None:
        """Puts the namespace's side of a backend in place; what is there already stays."""
        if record.backend == "iptables":
            iptables.apply(ns, record)
            return
        if record.direction != "out":
            pod_routes.install(ns)
        port_reuse.allow(ns, record)
        # also without inbound capture: the proxy's own ports are closed to the outside
        assert self.maps is not None
        programs.attach_pod(self.instance, self.maps, record.netns_cookie, ns.fd)

    def _leave_for(self, ns: NetNs, old: PodRecord, new: PodRecord) -> None:
        """Takes out of the namespace what ``old`` needed and ``new`` does not."""
        if port_reuse.wanted(old) and not port_reuse.wanted(new):
            port_reuse.put_back(ns, old)
        if old.backend != new.backend:
            if old.backend == "ebpf":
                programs.detach_pod(self.instance, old.netns_cookie)
            else:
                iptables.remove(ns)
                self._enter(ns, new)  # the routes went with the rules
        elif (old.backend, new.direction) == ("ebpf", "out") and old.direction != "out":
            if reaping.proxied_inbound(ns, reaping.own_addresses(ns)):
                reaping.remember_routes(self.instance, ns, new)
            else:
                pod_routes.remove(ns)

    def _change_back(self, ns: NetNs, record: PodRecord, live: PodRecord) -> None:
        """After a change that failed: what the pod was captured with stays in force."""
        if self.maps is not None:
            pod_maps.remove_exclusions(self.maps, record, live)
            fresh = [ip for ip in record.ips if ip not in live.ips]
            pod_maps.remove_addresses(self.maps, fresh, record.netns_cookie)
        write_record(self.instance, live)
        self._leave_for(ns, record, live)

    def _write_pod(self, addresses: pod_maps.PodAddresses, cookie: int, flags: PodFlag) -> None:
        assert self.maps is not None
        self.maps["pods"].update(
            pod_maps.netns_key(cookie),
            pod_maps.pod_value(addresses, cookie, flags, pod_maps.boot_ns()),
        )

    def _await_listeners(self, record: PodRecord, wait_seconds: float) -> tuple[int, ...]:
        wanted = set()
        if record.direction != "in":
            wanted.add(abi.OUTBOUND_PORT)
        if record.direction != "out" and record.mode == "pod":
            wanted.add(abi.INBOUND_PORT)
        if record.dns:
            wanted.add(abi.DNS_PORT)
        end = time.monotonic() + wait_seconds
        while True:
            found = self._listening(record.netns_cookie)
            if wanted <= set(found) or self.maps is None or time.monotonic() >= end:
                return found
            # the kernel offers no event for a map entry; the proxy listens within milliseconds
            time.sleep(_POLL_SECONDS)

    def _reset_older(
        self, ns: NetNs, addresses: pod_maps.PodAddresses, cookie: int, options: EnrolOptions
    ) -> int:
        """With ``--existing reset``: ends every connection that the kernel has no record of."""
        if options.existing != "reset":
            return 0
        recorded = self._recorded(cookie)
        agent = programs.read_config(self.maps)["agent_cgroup"] if self.maps is not None else None
        older = connections_with_others(ns, addresses, (*_CONNECTED, _SYN_SENT))
        with SockDiag(ns) as diag:
            return sum(
                1
                for s in older
                # the proxy's own connections go on, whenever they were made
                if s.cookie not in recorded
                and not (agent and s.cgroup_id == agent)
                and diag.destroy(s)
            )

    def _recorded(self, netns_cookie: int) -> set[int]:
        if self.maps is None:
            return set()
        raw = read_iter(self.instance.links / abi.PROGRAMS["nn_iter_conns"].pin)
        return {cookie for cookie, netns in _IDS.iter_unpack(raw) if netns == netns_cookie}

    def _captured(self, ns: NetNs, addresses: pod_maps.PodAddresses) -> list[TcpSocket]:
        """Sockets of connections that go through the proxy: its own, and the app's end of a leg."""
        found = tcp_sockets(ns, _CONNECTED)
        own = set(addresses.owned)
        ports = {abi.OUTBOUND_PORT, abi.INBOUND_PORT, abi.DNS_PORT}
        # what it accepted for the app has the app's address and port: known by its cgroup
        agent = programs.read_config(self.maps)["agent_cgroup"] if self.maps is not None else None
        return [
            s
            for s in found
            if s.remote_port in ports
            or s.local_port in ports
            or (s.local not in own and not s.local.is_loopback)
            or (agent and s.cgroup_id == agent)
        ]

    def _switch_off(self, record: PodRecord) -> None:
        if self.maps is not None:
            self.maps["pods"].delete(pod_maps.netns_key(record.netns_cookie))

    def _forget_maps(self, record: PodRecord) -> None:
        if self.maps is None:
            return
        self._switch_off(record)
        pod_maps.remove_exclusions(self.maps, record)
        pod_maps.remove_addresses(self.maps, record.ips, record.netns_cookie)

    def _take_out(self, ns: NetNs, record: PodRecord, *, keep_routes: bool = False) -> None:
        self._switch_off(record)
        programs.detach_pod(self.instance, record.netns_cookie)
        port_reuse.put_back(ns, record)
        if record.backend == "iptables":
            iptables.remove(ns)
        elif not keep_routes:
            pod_routes.remove(ns)
        self._forget_maps(record)
        if self.maps is not None:
            pod_maps.remove_totals(self.maps, record.netns_cookie)
        remove_record(self.instance, record.netns_cookie)
