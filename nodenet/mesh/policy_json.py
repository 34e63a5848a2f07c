"""The JSON form of authorization policies, as ``/config_dump`` prints and mesh files hold them.

``{"name": …, "namespace": …, "scope": "Namespace", "action": "Deny", "rules": [[[match]]]}``, where
the lists are rules, clauses and matches, and texts are ``{"Exact": "a"}``, ``{"Presence": []}``.
It is read from plain Python structures, so that JSON and YAML take one way. Source: ztunnel's
/config_dump, `ztunnel: src/rbac.rs`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

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
E = TypeVar("E", bound=Enum)

_POLICY_KEYS: Final = ("name", "namespace", "scope", "action", "rules", "dryRun")
#: Characters of a value that a message repeats.
_SHOWN: Final = 80
_ACCOUNT_KEYS: Final = ("namespace", "serviceAccount")
#: What a value may be when the member of a StringMatch is Presence: YAML's ``Presence:`` is None.
_NOTHING: Final[tuple[object, ...]] = ([], {}, None)


def policy_from_json(data: bytes | str) -> Policy:
    """Reads one policy from JSON text. PolicyRefused also when it is not JSON."""
    return policy_from_object(_parsed(data))


def policies_from_json(data: bytes | str) -> list[Policy]:
    """Reads one policy, a list of them, or an object that has them under ``policies``."""
    value = _parsed(data)
    if isinstance(value, Mapping) and "policies" in value:
        value = value["policies"]
    return [policy_from_object(each) for each in (value if isinstance(value, list) else [value])]


def policy_to_json(policy: Policy) -> bytes:
    """The policy as JSON text."""
    return msgspec.json.encode(policy_to_object(policy))


def policy_from_object(value: object) -> Policy:
    """Reads one policy from what a JSON or YAML parser made of it.

    ``rules`` must be there, be it empty: a policy that lost them would mean something else.
    PolicyRefused names the policy, as far as it has a name, and the place of the fault.
    """
    try:
        return _policy(value)
    except InvalidPart as fault:
        raise PolicyRefused(_key(value), fault.path, fault.reason) from fault


def policy_to_object(policy: Policy) -> dict[str, Any]:
    """The policy as dicts, lists and scalars; empty fields of a match are left out."""
    return {
        "name": policy.name,
        "namespace": policy.namespace,
        "scope": policy.scope.value,
        "action": policy.action.value,
        "rules": [
            [[match_to_object(m) for m in clause.matches] for clause in rule.clauses]
            for rule in policy.rules
        ],
        "dryRun": policy.dry_run,
    }


def match_to_object(match: Match) -> dict[str, Any]:
    """One match as a dict, only the fields that hold something."""
    fields = ((key, getattr(match, name), write) for key, (name, _, write) in _FIELDS.items())
    return {key: [write(item) for item in items] for key, items, write in fields if items}


def _parsed(data: bytes | str) -> object:
    try:
        value: object = msgspec.json.decode(data)
    # the last two: a text with half a surrogate pair, thousands of brackets
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise PolicyRefused(None, (), f"not JSON: {error}") from error
    return value


def _policy(value: object) -> Policy:
    keys = _object(value, _POLICY_KEYS, ())
    name = _text(_needed(keys, "name", ()), ("name",))
    namespace = _text(_needed(keys, "namespace", ()), ("namespace",))
    scope = _one_of(Scope, _needed(keys, "scope", ()), ("scope",))
    check_naming(name, namespace, scope)
    dry_run = keys.get("dryRun", False)
    if not isinstance(dry_run, bool):
        raise InvalidPart(f"{dry_run!r} is neither true nor false", ("dryRun",))
    return Policy(
        name=name,
        namespace=namespace,
        scope=scope,
        action=_one_of(Action, _needed(keys, "action", ()), ("action",)),
        rules=_each(_needed(keys, "rules", ()), ("rules",), _rule),
        dry_run=dry_run,
    )


def _rule(value: object, path: Path) -> Rule:
    return Rule(_each(value, path, _clause))


def _clause(value: object, path: Path) -> Clause:
    return Clause(_each(value, path, _match))


def _match(value: object, path: Path) -> Match:
    fields: dict[str, Any] = {}
    for key, items in _object(value, _FIELDS, path).items():
        name, read, _ = _FIELDS[key]
        fields[name] = _each(items, (*path, key), read)
    return Match(**fields)


def _string_match(value: object, path: Path) -> StringMatch:
    kinds = [kind.value for kind in StringKind]
    members = _object(value, kinds, path)
    if len(members) != 1:
        raise InvalidPart(f"needs one of {', '.join(kinds)}; it has {len(members)}", path)
    [(member, operand)] = members.items()
    kind = StringKind(member)
    if kind is not StringKind.PRESENCE:
        return StringMatch(kind, _text(operand, (*path, member)))
    if operand not in _NOTHING:
        raise InvalidPart(f"{operand!r} says nothing; write []", (*path, member))
    return StringMatch(kind)


def _account(value: object, path: Path) -> ServiceAccountMatch:
    keys = _object(value, _ACCOUNT_KEYS, path)
    namespace, name = (_text(_needed(keys, key, path), (*path, key)) for key in _ACCOUNT_KEYS)
    return ServiceAccountMatch(namespace, name)


def _cidr(value: object, path: Path) -> Cidr:
    try:
        return Cidr.parse(_text(value, path))
    except InvalidPart as fault:
        raise InvalidPart(fault.reason, path) from None


def _port(value: object, path: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidPart(f"{value!r} is not a port number", path)
    try:
        return checked_port(value)
    except InvalidPart as fault:
        raise InvalidPart(fault.reason, path) from None


def _write_string(match: StringMatch) -> dict[str, Any]:
    return {match.kind.value: [] if match.kind is StringKind.PRESENCE else match.value}


def _write_account(match: ServiceAccountMatch) -> dict[str, str]:
    return {"namespace": match.namespace, "serviceAccount": match.service_account}


def _write_port(port: int) -> int:
    return port


#: JSON key of a match's field: its name in `Match`, how an item is read, how it is written.
_FIELDS: Final[Mapping[str, tuple[str, Callable[[object, Path], Any], Callable[[Any], Any]]]] = {
    "namespaces": ("namespaces", _string_match, _write_string),
    "notNamespaces": ("not_namespaces", _string_match, _write_string),
    "serviceAccounts": ("service_accounts", _account, _write_account),
    "notServiceAccounts": ("not_service_accounts", _account, _write_account),
    "principals": ("principals", _string_match, _write_string),
    "notPrincipals": ("not_principals", _string_match, _write_string),
    "sourceIps": ("source_ips", _cidr, str),
    "notSourceIps": ("not_source_ips", _cidr, str),
    "destinationIps": ("destination_ips", _cidr, str),
    "notDestinationIps": ("not_destination_ips", _cidr, str),
    "destinationPorts": ("destination_ports", _port, _write_port),
    "notDestinationPorts": ("not_destination_ports", _port, _write_port),
}


def _object(value: object, known: Iterable[str], path: Path) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidPart(f"{_kind(value)} where an object is needed", path)
    known = list(known)
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            meant = f"; did you mean {near[0]}" if near else f"; one of: {' '.join(known)}"
            raise InvalidPart(f"unknown key{meant}", (*path, str(key)))
    return value


def _needed(keys: Mapping[str, object], key: str, path: Path) -> object:
    if key not in keys:
        raise InvalidPart("is missing", (*path, key))
    return keys[key]


def _each(value: object, path: Path, read: Callable[[object, Path], T]) -> tuple[T, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidPart(f"{_kind(value)} where a list is needed", path)
    return tuple(read(item, (*path, index)) for index, item in enumerate(value))


def _text(value: object, path: Path) -> str:
    if not isinstance(value, str):
        raise InvalidPart(f"{_kind(value)} where a text is needed", path)
    return value


def _one_of(choices: type[E], value: object, path: Path) -> E:
    try:
        return choices(value)
    except ValueError:
        listed = ", ".join(choice.value for choice in choices)
        raise InvalidPart(f"{value!r} is none of {listed}", path) from None


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    written = repr(value)
    return written if len(written) <= _SHOWN else written[:_SHOWN] + "…"


def _key(value: object) -> str | None:
    """The name of a policy that could not be read, if it has one."""
    if not isinstance(value, Mapping):
        return None
    name, namespace = value.get("name"), value.get("namespace")
    if not (isinstance(name, str) and name):
        return None
    return f"{namespace}/{name}" if isinstance(namespace, str) else name
