"""Authorization policies by key and by the namespace they hold in.

Source of the rules: ztunnel: src/state/policy.rs. Policies are kept as objects: each connection
that arrives evaluates all that apply, and there are few beside the workloads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from nodenet.mesh.model import Workload
from nodenet.mesh.policy import Policy, Scope

logger = logging.getLogger(__name__)

#: The namespace under which policies of scope GLOBAL are found.
_EVERYWHERE = ""


def _namespace(policy: Policy) -> str | None:
    """Where it holds for every workload; None for one that only workloads refer to."""
    match policy.scope:
        case Scope.GLOBAL:
            return _EVERYWHERE
        case Scope.NAMESPACE:
            return policy.namespace
        case Scope.WORKLOAD_SELECTOR:
            return None


class Policies:
    """All policies."""

    def __init__(self) -> None:
        self._by_key: dict[str, Policy] = {}
        #: keys, in the order of insertion; the values say nothing
        self._by_namespace: dict[str, dict[str, None]] = {}

    def get(self, key: str) -> Policy | None:
        """By ``namespace/name``."""
        return self._by_key.get(key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Policy]:
        return iter(list(self._by_key.values()))

    def insert(self, policy: Policy) -> None:
        """Adds or replaces, also when the scope has become another one."""
        self.remove(policy.key)
        self._by_key[policy.key] = policy
        namespace = _namespace(policy)
        if namespace is not None:
            self._by_namespace.setdefault(namespace, {})[policy.key] = None

    def remove(self, key: str) -> Policy | None:
        """Removes and returns it; None when it is not known."""
        policy = self._by_key.pop(key, None)
        if policy is None:
            return None
        namespace = _namespace(policy)
        if namespace is not None:
            keys = self._by_namespace[namespace]
            del keys[key]
            if not keys:
                del self._by_namespace[namespace]
        return policy

    def applying_to(self, workload: Workload, *, warn: bool = True) -> list[Policy]:
        """Those of its namespace, of the whole mesh, and those it refers to; each once.

        A policy that it refers to and nobody knows is skipped, with a warning unless somebody only
        asks what would be: the control plane sends workloads and policies apart, so one may come
        before the other.
        """
        keys = dict(self._by_namespace.get(workload.namespace, {}))
        keys.update(self._by_namespace.get(_EVERYWHERE, {}))
        for key in workload.authorization_policies:
            if key in self._by_key:
                keys[key] = None
            elif warn:
                logger.warning("skipping unknown policy %s of workload %s", key, workload.uid)
        return [self._by_key[key] for key in keys]
