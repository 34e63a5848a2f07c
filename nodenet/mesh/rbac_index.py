"""Rules of many policies, found by what a connection is instead of asked one after the other.

A rule holds only if each of its clauses has a match that holds, and a match only if each of its
fields does. So a clause in which every match names whom it is for (by principals, accounts,
addresses, namespaces or ports) tells for which connections the rule is worth asking. What is named
becomes a key: an exact text, the head of a text of a certain length, the upper bits of an address.
A connection has one key of each such shape, however many rules there are. Rules without such a
clause are always asked. The order stays that of the policies: the first one that holds is named in
the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from nodenet.mesh.policy import Cidr, Clause, Match, Policy, Rule, StringKind, StringMatch
from nodenet.mesh.rbac_match import CompiledRule, Facts, compile_rule, holds

#: Fewer rules than this are asked in turn: looking them up would cost more.
_WORTH_AN_INDEX: Final = 24
#: A clause that names more than this is no use as an index, it would only fill the memory.
_KEYS_MAX: Final = 256
#: More shapes than this are not looked for; rules that need another one are always asked.
_SHAPES_MAX: Final = 48


class Hit(NamedTuple):
    """A rule that holds: the key of its policy, and its index there."""

    policy: str
    rule: int


class _Shape(NamedTuple):
    """What part of a connection a key is: the field of `Facts`, which part, how much of it.

    ``how`` is ``exact``, ``prefix``, ``suffix``, or 4 and 6 for addresses. ``size`` is a length,
    for addresses the bits shifted out.
    """

    field: int
    how: str | int
    size: int = 0


#: A key: the shape, and what stands there.
_Key = tuple[_Shape, Hashable]
_Probe = Callable[[Facts], Hashable]


class RuleIndex:
    """The rules of policies in their order."""

    __slots__ = ("_always", "_by_shape", "_rules")

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._rules: list[tuple[CompiledRule, Hit]] = []
        self._by_shape: list[tuple[_Probe, dict[Hashable, list[int]]]] | None = None
        self._always: list[int] = []
        for policy in policies:
            for index, rule in enumerate(policy.rules):
                self._rules.append((compile_rule(rule), Hit(policy.key, index)))
        if len(self._rules) >= _WORTH_AN_INDEX:
            self._build([rule for policy in policies for rule in policy.rules])

    def first(self, facts: Facts) -> Hit | None:
        """The first rule that holds, None when none does."""
        for rule, hit in self._candidates(facts):
            if holds(rule, facts):
                return hit
        return None

    def each_policy(self, facts: Facts) -> Iterator[Hit]:
        """The first rule that holds of every policy that has one."""
        seen = None
        for rule, hit in self._candidates(facts):
            if hit.policy != seen and holds(rule, facts):
                seen = hit.policy
                yield hit

    def _build(self, rules: Sequence[Rule]) -> None:
        found: dict[_Shape, dict[Hashable, list[int]]] = {}
        for number, rule in enumerate(rules):
            keys = _keys_of_rule(rule)
            if keys is not None:
                shapes = {shape for shape, _ in keys}
                if len(found.keys() | shapes) > _SHAPES_MAX:
                    keys = None
            if keys is None:
                self._always.append(number)
                continue
            for shape, value in keys:
                found.setdefault(shape, {}).setdefault(value, []).append(number)
        self._by_shape = [(_probe(shape), values) for shape, values in found.items()]

    def _candidates(self, facts: Facts) -> Sequence[tuple[CompiledRule, Hit]]:
        if self._by_shape is None:
            return self._rules
        numbers = self._always.copy()
        for probe, values in self._by_shape:
            numbers += values.get(probe(facts), ())
        numbers.sort()
        rules = self._rules
        return [rules[number] for number in numbers]


def _probe(shape: _Shape) -> _Probe:
    """What a connection has at that place; None when it has nothing there."""
    field, how, size = shape
    if how == "exact":
        return lambda facts: facts[field]
    if how == "prefix":
        return lambda facts: None if (text := facts[field]) is None else str(text)[:size]
    if how == "suffix":
        return lambda facts: None if (text := facts[field]) is None else _tail(str(text), size)

    def upper_bits(facts: Facts) -> int | None:
        address, version = facts[field], facts[field + 1]
        return address >> size if version == how and isinstance(address, int) else None

    return upper_bits


def _tail(text: str, size: int) -> str:
    return text[max(0, len(text) - size) :]


def _keys_of_rule(rule: Rule) -> set[_Key] | None:
    """Keys of which a connection must have one for the rule to hold; None: none can be named.

    An empty set means that the rule never holds.
    """
    best: tuple[int, set[_Key]] | None = None
    for clause in rule.clauses:
        if not clause.matches:
            continue
        found = _keys_of_clause(clause)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return None if best is None else best[1]


def _keys_of_clause(clause: Clause) -> tuple[int, set[_Key]] | None:
    """The keys and how telling the least telling of them is, 0 is best."""
    worst, keys = 0, set[_Key]()
    for match in clause.matches:
        if match == _NO_FIELDS:
            continue
        found = _keys_of_match(match)
        if found is None:
            return None
        worst = max(worst, found[0])
        keys |= found[1]
    return (worst, keys) if len(keys) <= _KEYS_MAX else None


def _keys_of_match(match: Match) -> tuple[int, set[_Key]] | None:
    # in the order of how few connections one key stands for
    choices: tuple[set[_Key], ...] = (
        _texts(_PRINCIPAL, match.principals),
        {(_ACCOUNT, (m.namespace, m.service_account)) for m in match.service_accounts},
        _ranges(_SOURCE, match.source_ips),
        _texts(_NAMESPACE, match.namespaces),
        {(_PORT, port) for port in match.destination_ports},
        _ranges(_DESTINATION, match.destination_ips),
    )
    return next(((rank, keys) for rank, keys in enumerate(choices) if keys), None)


_NO_FIELDS: Final = Match()
_PRINCIPAL: Final = Facts._fields.index("principal")
_NAMESPACE: Final = Facts._fields.index("namespace")
_ACCOUNT: Final = _Shape(Facts._fields.index("account"), "exact")
_SOURCE: Final = Facts._fields.index("source")
_DESTINATION: Final = Facts._fields.index("destination")
_PORT: Final = _Shape(Facts._fields.index("port"), "exact")


def _texts(field: int, matches: Sequence[StringMatch]) -> set[_Key]:
    """Nothing when there is none, or one of them is not for any text in particular."""
    keys = set[_Key]()
    for match in matches:
        if match.kind is StringKind.PRESENCE:
            return set()
        how = match.kind.value.lower()
        size = 0 if match.kind is StringKind.EXACT else len(match.value)
        keys.add((_Shape(field, how, size), match.value))
    return keys


def _ranges(field: int, ranges: Sequence[Cidr]) -> set[_Key]:
    keys = set[_Key]()
    for cidr in ranges:
        bits = len(cidr.address) * 8
        shift = bits - cidr.length
        value = int.from_bytes(cidr.address) >> shift
        keys.add((_Shape(field, 4 if bits == 32 else 6, shift), value))
    return keys
