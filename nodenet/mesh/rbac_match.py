"""Matches and rules of policies as functions: compiled once, asked for every connection.

One test is made of each field that a match has. What reports decisions compiles with the same
functions and asks the same tests, so that nothing is decided in two places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from nodenet.endpoint import IPAddress, unmapped
from nodenet.mesh.model import Endpoint
from nodenet.mesh.policy import Cidr, Match, Rule, ServiceAccountMatch, StringKind, StringMatch

SPIFFE_SCHEME: Final = "spiffe://"
#: Identities whose parts are remembered: those of the clients of one node's pods, 0.5 KB each.
_IDENTITIES_CACHED: Final = 4096


class RbacContext(NamedTuple):
    """What is known of a connection when it asks to be let in.

    ``source`` is the TCP peer's address, never what a header says. ``identity`` is the SPIFFE id
    of the peer's certificate, None for plaintext. ``destination`` is where the connection will be
    made to: after the port of an application tunnel has replaced the one asked for.
    """

    source: IPAddress
    identity: str | None
    destination: Endpoint


class Facts(NamedTuple):
    """A context as the tests take it."""

    principal: str | None
    namespace: str
    account: tuple[str, str] | None
    source: int
    source_version: int
    destination: int
    destination_version: int
    port: int


Test = Callable[[Facts], bool]
#: A match that has fields: all of its tests must hold.
CompiledMatch = tuple[Test, ...]
#: Clauses of a rule, each an OR of matches; a clause that always holds is left out.
CompiledRule = tuple[tuple[CompiledMatch, ...], ...]


class Principal(NamedTuple):
    """A SPIFFE id in the parts that policies name. ``account`` is (namespace, service account)."""

    text: str
    namespace: str
    account: tuple[str, str] | None


@lru_cache(_IDENTITIES_CACHED)
def principal_of(identity: str) -> Principal:
    """The parts of ``spiffe://TD/ns/NS/sa/SA``; only the text of an id in another form."""
    text = identity.removeprefix(SPIFFE_SCHEME)
    match text.split("/"):
        case [_, "ns", namespace, "sa", account]:
            return Principal(text, namespace, (namespace, account))
    return Principal(text, "", None)


def facts_of(context: RbacContext) -> Facts:
    """The context as the tests take it; v4-mapped addresses become IPv4."""
    source, destination = unmapped(context.source), unmapped(context.destination.ip)
    identity = context.identity
    who = _NOBODY if identity is None else principal_of(identity)
    return Facts(
        None if identity is None else who.text,
        who.namespace,
        who.account,
        int(source),
        source.version,
        int(destination),
        destination.version,
        context.destination.port,
    )


_NOBODY: Final = Principal("", "", None)


def holds(rule: CompiledRule, facts: Facts) -> bool:
    """Whether every clause of the rule has a match all of whose tests hold."""
    for clause in rule:
        for match in clause:
            for test in match:
                if not test(facts):
                    break
            else:
                break
        else:
            return False
    return True


def compile_rule(rule: Rule) -> CompiledRule:
    """The clauses that can fail. A match without fields is no way to hold, so it is left out."""
    return tuple(
        tuple(filter(None, map(compile_match, clause.matches)))
        for clause in rule.clauses
        if clause.matches
    )


def compile_match(match: Match) -> CompiledMatch:
    """The tests of the match's fields; without a field none, and then it does not hold."""
    return tuple(test for _, test in tests_of(match))


def tests_of(match: Match) -> list[tuple[str, Test]]:
    """The match's fields that hold something, by name, with their tests.

    Cheap and telling ones come first; their order changes no result.
    """
    found: list[tuple[str, Test]] = []
    for name, compile_field in _FIELDS.items():
        if positive := getattr(match, name):
            found.append((name, compile_field(positive)))
        if negative := getattr(match, f"not_{name}"):
            found.append((f"not_{name}", _negated(compile_field(negative))))
    return found


def _negated(test: Test) -> Test:
    return lambda facts: not test(facts)


def _ports(ports: Sequence[int]) -> Test:
    numbers = frozenset(ports)
    return lambda facts: facts.port in numbers


def _principals(matches: Sequence[StringMatch]) -> Test:
    # nothing is equal to no identity, an empty text neither
    exact = _only_exact(matches)
    if exact is not None:
        return lambda facts: facts.principal in exact
    text_test = _texts(matches)
    return lambda facts: facts.principal is not None and text_test(facts.principal)


def _namespaces(matches: Sequence[StringMatch]) -> Test:
    exact = _only_exact(matches)
    if exact is not None:
        return lambda facts: facts.namespace in exact
    text_test = _texts(matches)
    return lambda facts: text_test(facts.namespace)


def _accounts(matches: Sequence[ServiceAccountMatch]) -> Test:
    accounts = frozenset((m.namespace, m.service_account) for m in matches)
    return lambda facts: facts.account in accounts


def _sources(ranges: Sequence[Cidr]) -> Test:
    inside = _ranges(ranges)
    return lambda facts: inside(facts.source_version, facts.source)


def _destinations(ranges: Sequence[Cidr]) -> Test:
    inside = _ranges(ranges)
    return lambda facts: inside(facts.destination_version, facts.destination)


_FIELDS: Final[dict[str, Callable[..., Test]]] = {
    "destination_ports": _ports,
    "principals": _principals,
    "namespaces": _namespaces,
    "service_accounts": _accounts,
    "source_ips": _sources,
    "destination_ips": _destinations,
}


def _only_exact(matches: Sequence[StringMatch]) -> frozenset[str] | None:
    if any(m.kind is not StringKind.EXACT for m in matches):
        return None
    return frozenset(m.value for m in matches)


def _texts(matches: Sequence[StringMatch]) -> Callable[[str], bool]:
    def values(kind: StringKind) -> tuple[str, ...]:
        return tuple(m.value for m in matches if m.kind is kind)

    exact = frozenset(values(StringKind.EXACT))
    prefixes, suffixes = values(StringKind.PREFIX), values(StringKind.SUFFIX)
    presence = bool(values(StringKind.PRESENCE))

    def test(text: str) -> bool:
        return (
            (presence and text != "")
            or text in exact
            or text.startswith(prefixes)
            or text.endswith(suffixes)
        )

    return test


def _ranges(ranges: Sequence[Cidr]) -> Callable[[int, int], bool]:
    shifts: dict[int, list[tuple[int, int]]] = {4: [], 6: []}
    for cidr in ranges:
        bits = len(cidr.address) * 8
        shift = bits - cidr.length
        start = int.from_bytes(cidr.address) >> shift
        shifts[4 if bits == 32 else 6].append((shift, start))

    def inside(version: int, address: int) -> bool:
        for shift, start in shifts[version]:
            if address >> shift == start:
                return True
        return False

    return inside
