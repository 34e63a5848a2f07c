"""Compiled policies of the workloads of a node, kept until a policy changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from nodenet.mesh.model import Workload
from nodenet.mesh.policy import Policy
from nodenet.mesh.rbac import PolicySet

#: Sets kept; the pods of a node need a few dozen, only a flood of odd policy lists needs more.
_SETS_MAX: Final = 1024


class PolicySource(Protocol):
    """What is used of `nodenet.mesh.state.MeshState`."""

    @property
    def policy_version(self) -> int:
        """Another number after any policy was inserted or removed."""

    def policies_of(self, workload: Workload) -> Iterable[Policy]:
        """Those of its namespace, of the whole mesh, and those it refers to."""


class PolicySets:
    """The `PolicySet` of a workload, compiled once for each version of the policies.

    Workloads of one namespace that name the same policies share a set, so a node has few of them.
    """

    __slots__ = ("_sets", "_source", "_version")

    def __init__(self, source: PolicySource) -> None:
        self._source = source
        self._sets: dict[tuple[str, tuple[str, ...]], PolicySet] = {}
        self._version: int | None = None

    def of(self, workload: Workload) -> PolicySet:
        """The set in force for a workload.

        An open connection is judged by the workload it had when it began (ztunnel keeps that too),
        so it need not be the one that the source knows now.
        """
        if self._version != self._source.policy_version:
            self._sets.clear()
            self._version = self._source.policy_version
        key = (workload.namespace, workload.authorization_policies)
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= _SETS_MAX:
                self._sets.clear()
            found = self._sets[key] = PolicySet(self._source.policies_of(workload))
        return found
