"""`ztunnel policies`: who may connect to whom, and what that came to."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from nodenet.agents.ztunnel.views import PolicyView
from nodenet.cli import numbers, ztunnel_dump
from nodenet.cli.tables import Column, Elide
from nodenet.cli.ztunnel_ask import Asked
from nodenet.cli.ztunnel_dump import Dump
from nodenet.cli.ztunnel_ready import select


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One policy, as ``ztunnel policies -j`` prints it."""

    namespace: str
    name: str
    action: Literal["allow", "deny"]
    scope: Literal["global", "namespace", "workload-selector"]
    rules: list[Any]
    """As in the dump: an OR of rules, each an AND of clauses, each an OR of matches."""
    hits_allow: int | None
    """Connections it let in; None of a proxy that does not count them."""
    hits_deny: int | None
    applies_to: list[str]
    """Pods served by the proxies asked; of a dump the workloads of its node."""
    dry_run: bool

    @property
    def key(self) -> str:
        """``NS/NAME``, for -o name and --watch."""
        return f"{self.namespace}/{self.name}"


def _hits(row: PolicyRow) -> int | None:
    if row.hits_allow is None or row.hits_deny is None:
        return None
    return row.hits_allow + row.hits_deny


COLUMNS = (
    Column("NAMESPACE", "namespace", value=lambda row: row.namespace or None),
    Column("NAME", "name", max=40, elide=Elide.MIDDLE, keep=True),
    Column("ACTION", "action"),
    Column("SCOPE", "scope"),
    Column("RULES", "rules", right=True, value=lambda row: len(row.rules)),
    Column("PODS", "applies_to", right=True, value=lambda row: len(row.applies_to)),
    Column("HITS", "hits_deny", numbers.count, right=True, value=_hits),
    Column("DRY-RUN", "dry_run"),
)
_SCOPES = {"Global": "global", "Namespace": "namespace", "WorkloadSelector": "workload-selector"}


def rows(asked: Asked, namespace: str | None, name: str | None) -> list[Any]:
    """Policies by namespace and name; the hits of several proxies together."""
    if asked.istio:
        return _raw(asked, namespace, name)
    hits = _counted(asked)
    found: dict[str, PolicyRow] = {}
    for proxy, dump in asked.dumps("policies", "workloads", "config"):
        node = (proxy.node if proxy else None) or dump.node
        for policy in dump.policies:
            if policy.key not in found:
                found[policy.key] = _row(policy, dump, node, hits)
    chosen = select(
        asked,
        found.values(),
        lambda row: f"{row.namespace}/{row.name}",
        what="policy",
        given=name,
        namespace=namespace,
    )
    return sorted(chosen, key=lambda row: (row.namespace, row.name))


def _counted(asked: Asked) -> dict[str, PolicyView] | None:
    """What the proxies counted, summed up; None when none of them counts."""
    found: dict[str, PolicyView] = {}
    counting = False
    for _, views in asked.told("/v1/policies", list[PolicyView]):
        counting |= views is not None
        for view in views or ():
            before = found.get(view.key)
            found[view.key] = view if before is None else _sum(before, view)
    return found if counting else None


def _sum(one: PolicyView, other: PolicyView) -> PolicyView:
    return PolicyView(
        key=one.key,
        hits_allow=one.hits_allow + other.hits_allow,
        hits_deny=one.hits_deny + other.hits_deny,
        applies_to=tuple(sorted({*one.applies_to, *other.applies_to})),
    )


def _row(
    policy: ztunnel_dump.Policy,
    dump: Dump,
    node: str | None,
    hits: dict[str, PolicyView] | None,
) -> PolicyRow:
    counted = None if hits is None else hits.get(policy.key)
    return msgspec.convert(
        {
            "namespace": policy.namespace,
            "name": policy.name,
            "action": policy.action.lower(),
            "scope": _SCOPES.get(policy.scope, policy.scope.lower()),
            "rules": policy.rules,
            "hits_allow": None if counted is None else counted.hits_allow,
            "hits_deny": None if counted is None else counted.hits_deny,
            "applies_to": (
                _applies_to(policy, dump, node) if counted is None else list(counted.applies_to)
            ),
            "dry_run": policy.dry_run,
        },
        PolicyRow,
    )


def _applies_to(policy: ztunnel_dump.Policy, dump: Dump, node: str | None) -> list[str]:
    def is_of(workload: ztunnel_dump.Workload) -> bool:
        if policy.scope == "WorkloadSelector":
            return policy.key in workload.authorization_policies
        return policy.scope == "Global" or workload.namespace == policy.namespace

    return sorted(
        workload.full_name
        for workload in dump.workloads
        if (node is None or workload.node == node) and is_of(workload)
    )


def _raw(asked: Asked, namespace: str | None, name: str | None) -> list[Any]:
    every: dict[str, Any] = {}
    for _, raw, where in asked.raw("policies"):
        for item in ztunnel_dump.raw_items(raw, "policies", where):
            every.setdefault(f"{item.get('namespace')}/{item.get('name')}", item)
    return select(
        asked,
        every.values(),
        lambda item: f"{item.get('namespace')}/{item.get('name')}",
        what="policy",
        given=name,
        namespace=namespace,
    )
