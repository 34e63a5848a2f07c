"""Which connections a caller wants: repeat is OR, different is AND, ``!`` in front is not.

A `Filter` holds what the user wrote. `compile_filter` checks every value (an unknown one is an
error, never an empty list) and makes one test of it, which pods are resolved to namespaces so that
the decoder can leave out the rest before it builds a row.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from nodenet.abi import Reason
from nodenet.conns.connection import Connection
from nodenet.conns.names import Names
from nodenet.conns.pods import find_pod
from nodenet.conns.tcp import STATE_CHOICES
from nodenet.errors import UsageError
from nodenet.times import rfc3339_ns

Test = Callable[[Connection], bool]

#: What is meant as a network, also where it is none: ``10.0.0.0/40``.
_NETWORK: Final = re.compile(r"\[?(\d+\.[\d.]*|[\da-fA-F]*:[\da-fA-F:.]*)(/\w*)?\]?")

DIRECTIONS: Final = ("in", "out")
VIAS: Final = ("ebpf", "iptables", "none")
REASONS: Final = tuple(r.text for r in Reason if r is not Reason.NONE)
#: Spellings of other tools that mean one of ours.
_STATE_ALIASES: Final = {
    "listening": "listen",
    "estab": "established",
    "unconn": "closed",
    "close": "closed",
    "fin-wait1": "fin-wait-1",
    "fin-wait2": "fin-wait-2",
}


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asked for, as text; everything by default."""

    pod: Sequence[str] = ()
    peer: Sequence[str] = ()
    port: Sequence[str] = ()
    state: Sequence[str] = ()
    dir: Sequence[str] = ()
    via: Sequence[str] = ()
    reason: Sequence[str] = ()
    process: Sequence[str] = ()
    since_seconds: float | None = None
    """Open connections that began, closed ones that ended within the last so many seconds."""
    families: Collection[int] = ()
    """4, 6; empty or both: either."""


class Compiled(NamedTuple):
    """A checked filter. ``netns``: cookies to keep, None for all; ``test`` None passes all."""

    netns: frozenset[int] | None
    test: Test | None
    may_be_older: bool = True
    """Whether a connection from before the enrolment could pass, so that looking is worth it."""

    def keep(self, rows: list[Connection]) -> list[Connection]:
        """The rows that pass; ``netns`` is not looked at, the reader has applied it."""
        return rows if self.test is None else [row for row in rows if self.test(row)]


def compile_filter(wanted: Filter, names: Names, now_ns: int) -> Compiled:
    """Checks and combines. UsageError for a value that cannot be, NotFound for a pod not here.

    ``now_ns`` is the Unix time ``since_seconds`` counts from.
    """
    netns, tests = _pods(wanted.pod, names)
    for attribute, values, known in (
        ("state", [_state(v) for v in wanted.state], STATE_CHOICES),
        ("dir", wanted.dir, DIRECTIONS),
        ("captured_by", wanted.via, VIAS),
        ("reason", wanted.reason, REASONS),
    ):
        option = "via" if attribute == "captured_by" else attribute
        tests += _words(attribute, option, values, known)
    tests += _either([_negatable(v, lambda text: _peer(text, names)) for v in wanted.peer])
    tests += _either([_negatable(v, _port) for v in wanted.port])
    tests += _either([_negatable(v, _process) for v in wanted.process])
    families = set(wanted.families)
    if len(families) == 1:
        family = families.pop()
        tests.append(lambda c: c.family == family)
    if wanted.since_seconds is not None:
        tests.append(since_test(now_ns - int(wanted.since_seconds * 1e9)))
    return Compiled(netns, _all(tests), _may_be_older(wanted))


def _may_be_older(wanted: Filter) -> bool:
    def passes(values: Sequence[str], text: str) -> bool:
        positive = [v for v in values if not v.startswith("!")]
        return f"!{text}" not in values and (not positive or text in positive)

    return (
        wanted.since_seconds is None
        and passes(wanted.reason, Reason.PRE_ENROLMENT.text)
        and passes(wanted.via, "none")
    )


def since_test(unix_ns: int) -> Test:
    """Open ones that began, closed ones that ended at that moment or later."""
    # our times have one fixed form, so text compares as time does
    earliest = rfc3339_ns(unix_ns)
    return lambda c: (c.end or c.start or "") >= earliest


def _all(tests: list[Test]) -> Test | None:
    if len(tests) <= 1:
        return tests[0] if tests else None
    return lambda c: all(test(c) for test in tests)


def _split(value: str) -> tuple[bool, str]:
    return (False, value[1:]) if value.startswith("!") else (True, value)


def _negatable(value: str, make: Callable[[str], Test]) -> tuple[bool, Test]:
    positive, text = _split(value)
    return positive, make(text)


def _either(parts: Iterable[tuple[bool, Test]]) -> list[Test]:
    """One test per kind of part: some positive one holds, and no negated one does."""
    parts = list(parts)
    positive = [test for is_positive, test in parts if is_positive]
    negative = [test for is_positive, test in parts if not is_positive]
    tests: list[Test] = []
    if positive:
        tests.append(lambda c: any(test(c) for test in positive))
    if negative:
        tests.append(lambda c: not any(test(c) for test in negative))
    return tests


def _words(
    attribute: str, option: str, values: Sequence[str], known: Collection[str]
) -> list[Test]:
    if not values:
        return []
    wanted, unwanted = set[str](), set[str]()
    for value in values:
        positive, text = _split(value)
        if text not in known:
            raise UsageError(
                f"unknown {option} {text} in --{option}", hint=f"one of: {' '.join(known)}"
            )
        (wanted if positive else unwanted).add(text)
    if not wanted:
        return [lambda c: getattr(c, attribute) not in unwanted]
    wanted -= unwanted
    return [lambda c: getattr(c, attribute) in wanted]


def _state(value: str) -> str:
    """Our spelling: lower case and hyphens, ``!`` kept; unknown ones as they were written."""
    positive, text = _split(value)
    name = text.lower().replace("_", "-")
    name = _STATE_ALIASES.get(name, name)
    return ("" if positive else "!") + (name if name in STATE_CHOICES else text)


def _pods(values: Sequence[str], names: Names) -> tuple[frozenset[int] | None, list[Test]]:
    if not values:
        return None, []
    wanted, unwanted = set[int](), set[int]()
    for value in values:
        positive, text = _split(value)
        (wanted if positive else unwanted).add(find_pod(text, names))
    if wanted:
        return frozenset(wanted - unwanted), []
    hidden = {str(cookie) for cookie in unwanted}
    return None, [lambda c: c.netns_cookie not in hidden]


def _peer(text: str, names: Names) -> Test:
    try:
        network = ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError as error:
        if _NETWORK.fullmatch(text):
            raise UsageError(f"--peer {text}: no network", hint="write e.g. 10.0.0.0/8") from error
        return _peer_name(text, names)

    @lru_cache(maxsize=65_536)
    def inside(address: str) -> bool:
        return ipaddress.ip_address(address) in network

    return lambda c: inside(c.peer.rpartition(":")[0].strip("[]"))


def _peer_name(text: str, names: Names) -> Test:
    record = names.by_netns.get(find_pod(text, names, what="peer"))
    if record is None:
        raise UsageError(f"--peer {text}: no pod of this node has it", hint="give an address")
    return lambda c: c.peer_name == record.name


def _port(text: str) -> Test:
    from nodenet.endpoint import parse_port  # a millisecond that a plain list does not pay

    ending = f":{parse_port(text, f'--port {text}')}"
    return lambda c: (
        c.local.endswith(ending)
        or c.remote.endswith(ending)
        or (c.orig_dst is not None and c.orig_dst.endswith(ending))
    )


def _process(text: str) -> Test:
    if text.isdigit():
        pid = int(text)
        return lambda c: c.pid == pid
    if text.endswith("]"):
        return lambda c: c.process == text
    return lambda c: c.comm == text
