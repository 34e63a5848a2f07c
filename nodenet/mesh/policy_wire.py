"""Policies from protobuf messages of package ``istio.security``, whatever generated their classes.

The messages are taken by the attributes that every protobuf runtime gives them, so the pure model
needs no protobuf. Enumerations of proto3 are open: a number that this version does not know arrives
as it is and refuses the policy, as does an address of five bytes. Source: `ztunnel:
proto/authorization.proto`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from nodenet.mesh.policy import (
    Action,
    Cidr,
    Clause,
    InvalidPart,
    Match,
    Path,
    Policy,
    PolicyRefused,
    Rule,
    Scope,
    ServiceAccountMatch,
    StringKind,
    StringMatch,
    check_naming,
    checked_port,
)

T = TypeVar("T")
C = TypeVar("C")

_SCOPES: Final = {0: Scope.GLOBAL, 1: Scope.NAMESPACE, 2: Scope.WORKLOAD_SELECTOR}
_ACTIONS: Final = {0: Action.ALLOW, 1: Action.DENY}


class AuthorizationMessage(Protocol):
    """What is used of ``istio.security.Authorization``; its extensions are for others."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def scope(self) -> int: ...
    @property
    def action(self) -> int: ...
    @property
    def rules(self) -> Iterable[Any]: ...
    @property
    def dry_run(self) -> bool: ...


def policy_from_message(message: AuthorizationMessage) -> Policy:
    """Reads one Authorization. PolicyRefused when a part of it cannot be understood."""
    try:
        scope = _number(_SCOPES, message.scope, ("scope",))
        check_naming(message.name, message.namespace, scope)
        return Policy(
            name=message.name,
            namespace=message.namespace,
            scope=scope,
            action=_number(_ACTIONS, message.action, ("action",)),
            rules=_each(message.rules, ("rules",), _rule),
            dry_run=message.dry_run,
        )
    except InvalidPart as fault:
        name = f"{message.namespace}/{message.name}" if message.name else None
        raise PolicyRefused(name, fault.path, fault.reason) from fault


def _rule(message: Any, path: Path) -> Rule:
    return Rule(_each(message.clauses, (*path, "clauses"), _clause))


def _clause(message: Any, path: Path) -> Clause:
    return Clause(_each(message.matches, (*path, "matches"), _match))


def _match(message: Any, path: Path) -> Match:
    # what an extension of a match asks is not known, and without it the match holds more often
    if message.extensions:
        raise InvalidPart("asks for something unknown", (*path, "extensions"))
    return Match(
        **{
            name: _each(getattr(message, name), (*path, name), read)
            for name, read in _FIELDS.items()
        }
    )


def _string_match(message: Any, path: Path) -> StringMatch:
    for kind in StringKind:
        member = kind.value.lower()
        if message.HasField(member):
            presence = kind is StringKind.PRESENCE
            return StringMatch(kind) if presence else StringMatch(kind, getattr(message, member))
    raise InvalidPart("has none of exact, prefix, suffix, presence", path)


def _account(message: Any, path: Path) -> ServiceAccountMatch:
    return ServiceAccountMatch(message.namespace, message.serviceAccount)


def _address(message: Any, path: Path) -> Cidr:
    return Cidr.of(message.address, message.length)


def _port(number: int, path: Path) -> int:
    return checked_port(number)


_FIELDS: Final[Mapping[str, Callable[[Any, Path], Any]]] = {
    "namespaces": _string_match,
    "not_namespaces": _string_match,
    "principals": _string_match,
    "not_principals": _string_match,
    "service_accounts": _account,
    "not_service_accounts": _account,
    "source_ips": _address,
    "not_source_ips": _address,
    "destination_ips": _address,
    "not_destination_ips": _address,
    "destination_ports": _port,
    "not_destination_ports": _port,
}


def _each(items: Iterable[Any], path: Path, read: Callable[[Any, Path], T]) -> tuple[T, ...]:
    found = []
    for index, item in enumerate(items):
        place = (*path, index)
        try:
            found.append(read(item, place))
        except InvalidPart as fault:
            raise InvalidPart(fault.reason, fault.path or place) from None
    return tuple(found)


def _number(choices: Mapping[int, C], number: int, path: Path) -> C:
    try:
        return choices[number]
    except KeyError:
        raise InvalidPart(f"unknown number {number}", path) from None
