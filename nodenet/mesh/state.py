"""All that the proxy knows of the mesh, changed in batches, each of which is seen whole or not.

One thread owns a state: `MeshState.apply` and the look-ups run on the proxy's loop and never wait,
so nobody sees half a batch. Who must act on changes subscribes.

Resources are kept encoded and decoded when a connection needs them, through bounded caches
(`nodenet.mesh.workloads`): 100,000 workloads take less than 150 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from nodenet.endpoint import IPAddress
from nodenet.mesh.model import (
    NamespacedHostname,
    NetworkAddress,
    Service,
    ServiceEndpoint,
    Workload,
)
from nodenet.mesh.policies import Policies
from nodenet.mesh.policy import Policy
from nodenet.mesh.services import EndpointChanges, Services, endpoint_of, may_serve
from nodenet.mesh.workloads import Workloads

Resource = Workload | Service | Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one message of a control plane, or one file, changes.

    Upserts come first, in their order, then the removals. What happens to the endpoints of a
    service is gathered and done last, so a workload that moves is never missing in between.
    """

    upserts: Sequence[Resource] = ()
    removals: Sequence[str] = ()
    """Names of workloads (uid) and services (``namespace/hostname``)."""
    policy_removals: Sequence[str] = ()
    """Keys ``namespace/name`` of policies; they are another type, so names may coincide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a batch has changed; resources that came as they were are not mentioned."""

    version: int
    workloads: tuple[Workload, ...] = ()
    """Added or replaced."""
    removed_workloads: tuple[str, ...] = ()
    """Their uids."""
    services: tuple[str, ...] = ()
    """Keys of services added, replaced or removed."""
    policies: bool = False
    """Any policy was inserted or removed: whoever is connected is to be judged again."""
    forgotten_identities: tuple[str, ...] = ()
    """SPIFFE ids that no workload of this node has any more."""


Subscriber = Callable[[Change], None]


@dataclass(slots=True)
class _Changes:
    """What `MeshState.apply` gathers."""

    workloads: dict[str, Workload] = field(default_factory=dict)
    removed: dict[str, None] = field(default_factory=dict)
    services: dict[str, None] = field(default_factory=dict)
    endpoints: dict[str, EndpointChanges] = field(default_factory=dict)
    identities: dict[str, None] = field(default_factory=dict)
    policies: bool = False


class MeshState:
    """Workloads, services and policies, with every look-up that the decisions need.

    ``node`` is the name of this node, for workloads that run here (certificates in advance).
    ``version`` counts batches, ``policy_version`` those that touched a policy.
    """

    def __init__(self, *, node: str = "") -> None:
        self.workloads = Workloads(node)
        self.services = Services()
        self.policies = Policies()
        self.version = 0
        self.policy_version = 0
        self._subscribers: list[Subscriber] = []
        self._encode = msgspec.msgpack.Encoder().encode

    # look-ups of decisions

    def workload(self, uid: str) -> Workload | None:
        """By key."""
        return self.workloads.get(uid)

    def workload_at(self, network: str, ip: IPAddress) -> Workload | None:
        """Who owns the address; host-network workloads are never found."""
        return self.workloads.by_address(network, ip.packed)

    def workload_named(self, namespace: str, name: str, service_account: str) -> Workload | None:
        """The workload of a pod of this node, as its agent named it."""
        return self.workloads.by_name(namespace, name, service_account)

    def service(self, key: str) -> Service | None:
        """By ``namespace/hostname``."""
        return self.services.get(key)

    def service_at(self, network: str, ip: IPAddress, namespace: str | None) -> Service | None:
        """The service that clients of the namespace reach at a virtual address."""
        return self.services.best_by_vip(network, ip.packed, namespace)

    def service_named(self, hostname: str, namespace: str | None) -> Service | None:
        """The service that clients of the namespace mean by a hostname."""
        return self.services.best_by_hostname(hostname, namespace)

    def address(
        self, network: str, ip: IPAddress, namespace: str | None
    ) -> Workload | Service | None:
        """Who has the address, a workload before a service (a decision's step 3, not its 5)."""
        return self.workload_at(network, ip) or self.service_at(network, ip, namespace)

    def destination(
        self, reference: NetworkAddress | NamespacedHostname, namespace: str | None = None
    ) -> Workload | Service | None:
        """What a waypoint or gateway reference stands for; a hostname's service comes first."""
        if isinstance(reference, NetworkAddress):
            return self.address(reference.network, reference.ip, namespace)
        return self.services.get(str(reference)) or self.workloads.by_hostname(
            reference.namespace, reference.hostname
        )

    def endpoints(self, service: Service) -> dict[str, ServiceEndpoint]:
        """Its endpoints by uid, without those that its health policy excludes."""
        return {
            uid: endpoint
            for uid, endpoint in self.services.endpoints(service.key).items()
            if may_serve(service, endpoint)
        }

    def staged(self) -> Mapping[str, Mapping[str, ServiceEndpoint]]:
        """Endpoints whose service is not known, by its key and their uid."""
        return self.services.staged

    def policies_of(self, workload: Workload) -> list[Policy]:
        """Those of its namespace, of the whole mesh, and those it refers to."""
        return self.policies.applying_to(workload)

    # changes

    def subscribe(self, callback: Subscriber, *, policies_only: bool = False) -> Callable[[], None]:
        """Calls back after each batch that changed something; returns what ends that.

        ``policies_only``: only when a policy was inserted or removed. The state is complete when
        the callback runs; it may read, but not apply.
        """

        def subscriber(change: Change) -> None:
            if change.policies or not policies_only:
                callback(change)

        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    def apply(self, batch: Batch) -> None:
        """Makes a batch visible as a whole, then tells the subscribers.

        Every subscriber is told; what they raise comes out as one ExceptionGroup afterwards.
        """
        # whatever cannot be encoded fails here, before anything has changed
        upserts = [
            (each, b"" if isinstance(each, Policy) else self._encode(each))
            for each in batch.upserts
        ]
        changes = _Changes()
        for resource, encoded in upserts:
            match resource:
                case Workload():
                    self._insert_workload(resource, encoded, changes)
                case Service():
                    self._insert_service(resource, encoded, changes)
                case Policy():
                    self.policies.insert(resource)
                    changes.policies = True
        for name in batch.removals:
            self._remove(name, changes)
        for key in batch.policy_removals:
            if self.policies.remove(key) is not None:
                changes.policies = True
        for key, endpoints in changes.endpoints.items():
            self.services.change_endpoints(key, endpoints)
        self.version += 1
        self.policy_version += changes.policies
        self._tell(self._change(changes))

    def replace(self, resources: Iterable[Resource]) -> None:
        """Makes these all there is, as one batch: what is not among them is removed."""
        upserts = tuple(resources)
        uids = {each.uid for each in upserts if isinstance(each, Workload)}
        services = {each.key for each in upserts if isinstance(each, Service)}
        policies = {each.key for each in upserts if isinstance(each, Policy)}
        gone = [each.uid for each in self.workloads if each.uid not in uids]
        gone += [each.key for each in self.services if each.key not in services]
        self.apply(
            Batch(
                upserts=upserts,
                removals=gone,
                policy_removals=[each.key for each in self.policies if each.key not in policies],
            )
        )

    def _insert_workload(self, workload: Workload, encoded: bytes, changes: _Changes) -> None:
        uid = workload.uid
        if self.workloads.encoded(uid) == encoded:
            return
        self._remove_workload(uid, changes)
        self.workloads.insert(workload, encoded)
        for membership in workload.services:
            changed = changes.endpoints.setdefault(membership.service, {})
            changed[uid] = endpoint_of(workload, membership.ports)
        changes.workloads[uid] = workload
        changes.removed.pop(uid, None)

    def _insert_service(self, service: Service, encoded: bytes, changes: _Changes) -> None:
        if self.services.encoded(service.key) != encoded:
            self.services.insert(service, encoded)
            changes.services[service.key] = None

    def _remove(self, name: str, changes: _Changes) -> None:
        if name in self.workloads:
            self._remove_workload(name, changes)
            return
        _, slash, hostname = name.partition("/")
        if slash and "/" not in hostname and self.services.remove(name) is not None:
            changes.services[name] = None

    def _remove_workload(self, uid: str, changes: _Changes) -> None:
        removed = self.workloads.remove(uid)
        if removed is None:
            return
        for membership in removed.services:
            changes.endpoints.setdefault(membership.service, {})[uid] = None
        changes.workloads.pop(uid, None)
        changes.removed[uid] = None
        if self.workloads.is_local(removed):
            changes.identities[removed.identity] = None

    def _change(self, changes: _Changes) -> Change:
        return Change(
            version=self.version,
            workloads=tuple(changes.workloads.values()),
            removed_workloads=tuple(changes.removed),
            services=tuple(changes.services),
            policies=changes.policies,
            forgotten_identities=tuple(
                identity
                for identity in changes.identities
                if not self.workloads.has_local_identity(identity)
            ),
        )

    def _tell(self, change: Change) -> None:
        if not (change.workloads or change.removed_workloads or change.services or change.policies):
            return
        failures: list[Exception] = []
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(change)
            except Exception as error:  # the next one may be closing forbidden connections
                failures.append(error)
        if failures:
            raise ExceptionGroup("subscribers of the mesh state failed", failures)
