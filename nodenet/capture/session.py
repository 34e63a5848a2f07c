"""One instance of the capture, opened: its maps, and what may be done with pods.

    with Capture.open_or_load(Instance()) as capture:
        capture.enroll("/run/netns/web", name="shop/web", options=EnrolOptions(dns=True))

Everything it makes is pinned, so closing it, or being killed, changes nothing in the kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from nodenet import abi
from nodenet.capture import programs, reaping
from nodenet.capture.enrolment import Enroller
from nodenet.capture.errors import NotLoaded
from nodenet.capture.lock import instance_lock
from nodenet.capture.options import EnrolOptions
from nodenet.capture.pod_maps import PodAddresses, netns_key, pod_value
from nodenet.capture.records import PodRecord, read_record, read_records, record_path
from nodenet.capture.result import EnrolResult, UnenrolResult
from nodenet.errors import NotSupported
from nodenet.kernel.cgroups import Cgroup, cgroup2_mount
from nodenet.kernel.loader import open_maps, open_or_create_maps
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs, host_path
from nodenet.paths import Instance

logger = logging.getLogger(__name__)

#: The node id of the host itself; a lab numbers its nodes from one.
HOST_NODE_ID: Final = 0


def agent_cgroup_path(instance: Instance) -> Path:
    """The proxy's cgroup of an instance, unless the operator names another."""
    return cgroup2_mount() / instance.name / "ztunnel"


class Capture:
    """An opened instance. Use `open_or_load` or `open`; a context manager."""

    def __init__(self, instance: Instance, maps: Mapping[str, Map] | None) -> None:
        self.instance = instance
        self._maps = maps

    @classmethod
    def open_or_load(
        cls, instance: Instance, *, agent_cgroup: Path | None = None, use_cache: bool = True
    ) -> Self:
        """Opens the instance; loads and attaches what is not there or not this version's.

        Raises NotSupported when the kernel lacks something, SchemaMismatch when other pins are
        there, NotPermitted without the rights. Takes milliseconds when nothing is to do.
        """
        with instance_lock(instance):
            root = Cgroup.open(cgroup2_mount())
            agent = Cgroup.create(agent_cgroup) if agent_cgroup else None
            maps = open_or_create_maps(instance)
            capture = cls(instance, maps)
            try:
                # the agent's cgroup is chosen once; who opens later takes it as it is
                agent = agent or programs.agent_cgroup(maps)
                agent = agent or Cgroup.create(agent_cgroup_path(instance))
                programs.ensure_attached(instance, maps, root, agent, use_cache=use_cache)
                # probes of this host's own processes (kubelet) are not captured
                capture.add_host(host_path(), HOST_NODE_ID)
            except BaseException:
                capture.close()
                raise
            return capture

    @classmethod
    def open(cls, instance: Instance) -> Self:
        """Opens what is loaded; NotLoaded when nothing is."""
        if not instance.exists():
            raise NotLoaded(
                f"capture is not loaded: {instance.maps} is not there; "
                "start it: nodenet capture enroll POD, or nodenet lab up"
            )
        return cls(instance, open_maps(instance))

    @classmethod
    def without_bpf(cls, instance: Instance) -> Self:
        """An instance that has only the iptables backend: no maps, no statistics."""
        return cls(instance, None)

    @property
    def maps(self) -> Mapping[str, Map]:
        """The instance's maps by name; NotSupported on an instance without BPF."""
        if self._maps is None:
            raise NotSupported("ebpf", "the capture loaded; see: nodenet doctor")
        return self._maps

    @property
    def has_bpf(self) -> bool:
        """Whether maps are there (False: iptables only)."""
        return self._maps is not None

    def close(self) -> None:
        """Closes the descriptors; the kernel objects stay."""
        for table in (self._maps or {}).values():
            table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def enroll(
        self,
        netns: str | Path,
        *,
        name: str,
        options: EnrolOptions | None = None,
        node: str | None = None,
        node_id: int = 0,
        uid: str | None = None,
        wait: float = 0.0,
    ) -> EnrolResult:
        """Captures one pod; changes its options when it is captured already.

        ``wait`` is how many seconds to wait for the proxy's listeners before the pod goes live;
        it goes live either way, and without listeners its connects are refused (or pass, as
        ``on_proxy_down`` says). ``node_id`` says whose own processes may probe the pod.
        """
        with instance_lock(self.instance):
            return Enroller(self.instance, self._maps).enroll(
                Path(netns),
                name=name,
                options=options or EnrolOptions(),
                node=node,
                node_id=node_id,
                uid=uid,
                wait_seconds=wait,
            )

    def unenroll(
        self, netns_cookie: int, *, existing: Literal["keep", "reset"] = "keep"
    ) -> UnenrolResult:
        """Takes one pod out: its next connection is not captured. NotFound when it is not in."""
        with instance_lock(self.instance):
            return Enroller(self.instance, self._maps).unenroll(netns_cookie, existing=existing)

    def add_host(self, netns: str | Path, node_id: int) -> None:
        """Makes a namespace the node's own: its processes reach the node's pods uncaptured."""
        with NetNs.open(netns) as ns:
            cookie = ns.cookie()
        value = bytearray(pod_value(PodAddresses((), None, None), cookie, abi.PodFlag.HOST, 0))
        fields = abi.POD.unpack(bytes(value)) | {"id": node_id}
        self.maps["pods"].update(netns_key(cookie), abi.POD.pack(**fields))

    def records(self) -> Iterator[PodRecord]:
        """Every enrolment of this instance, by name."""
        return read_records(self.instance)

    def record(self, netns_cookie: int) -> PodRecord | None:
        """One enrolment, or None."""
        return read_record(record_path(self.instance, netns_cookie))

    def reap(self) -> list[PodRecord]:
        """Removes what namespaces that are gone left behind; the pods it removed."""
        with instance_lock(self.instance):
            return reaping.reap(self.instance, self._maps)

    def remove_all(self) -> list[PodRecord]:
        """Un-enrolls every pod and detaches everything; leaves no pin, record or cgroup."""
        with instance_lock(self.instance):
            removed = reaping.remove_everything(self.instance, self._maps)
        self.close()
        self._maps = None
        return removed


def remove_instance(instance: Instance) -> list[PodRecord]:
    """As `Capture.remove_all`, also for pins of another version or a half-made instance."""
    with instance_lock(instance):
        return reaping.remove_everything(instance, None)
