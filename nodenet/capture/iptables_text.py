"""Reads ``iptables-save``, writes what ``iptables-restore --noflush`` needs to get from there on.

Pure. Rules are compared by their options, not as text: versions of iptables differ in order,
quoting and in which matches (``-m tcp``) they name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodenet.capture.iptables_rules import COMMENT, POSTROUTING, Rule

#: The order of putting in; nat is last, so nothing is redirected before its answers find back.
TABLES: Final = ("mangle", "raw", "nat")
_COUNTED: Final = re.compile(r"\[(\d+):(\d+)\] (.*)")

Chains = Mapping[str, str]
"""Our chains to the built-in ones that jump to them."""


@dataclass(frozen=True, slots=True)
class SavedRule:
    """One rule of the kernel, with its counters."""

    chain: str
    words: tuple[str, ...]
    packets: int
    octets: int

    @property
    def id(self) -> str | None:
        """The id of a rule of ours."""
        for option, value in zip(self.words, self.words[1:], strict=False):
            if option == "--comment" and value.startswith(COMMENT):
                return value.removeprefix(COMMENT)
        return None


@dataclass(slots=True)
class SavedTable:
    """One table of the kernel: chain to policy (``-`` for chains somebody made), and rules."""

    policies: dict[str, str] = field(default_factory=dict)
    rules: list[SavedRule] = field(default_factory=list)

    def of_chain(self, chain: str) -> list[SavedRule]:
        """The rules of one chain, in order."""
        return [r for r in self.rules if r.chain == chain]

    def jumps(self, base: str, chain: str) -> int:
        """How many jumps the built-in chain has to ours."""
        return sum(1 for r in self.of_chain(base) if r.words == ("-j", chain))

    def holds_only(self, chains: Chains) -> bool:
        """Whether everything in the table belongs to these chains of ours."""
        policies = self.policies.items()
        jumps = {(base, ("-j", chain)) for chain, base in chains.items()}
        return all(policy == "ACCEPT" or chain in chains for chain, policy in policies) and all(
            r.chain in chains or (r.chain, r.words) in jumps for r in self.rules
        )


Saved = Mapping[str, SavedTable]


def parse_saved(text: str) -> Saved:
    """The tables in the output of ``iptables-save``, with or without ``-c``."""
    tables: dict[str, SavedTable] = {}
    table = SavedTable()
    for line in text.splitlines():
        packets = octets = 0
        if counted := _COUNTED.fullmatch(line):
            packets, octets, line = int(counted[1]), int(counted[2]), counted[3]
        if line.startswith("*"):
            table = tables.setdefault(line[1:].strip(), SavedTable())
        elif line.startswith(":"):
            chain, policy, *_counters = line[1:].split()
            table.policies[chain] = policy
        elif line.startswith("-A "):
            _append, chain, *words = shlex.split(line)
            table.rules.append(SavedRule(chain, tuple(words), packets, octets))
    return tables


def is_absent(saved: Saved, chains: Chains) -> bool:
    """Whether the kernel has neither chains of ours nor jumps to them."""
    return not any(_is_touched(table, chains) for table in saved.values())


def problems(saved: Saved, rules: Sequence[Rule], chains: Chains) -> list[str]:
    """How the kernel differs from these rules, one phrase each; empty when it does not."""
    found: list[str] = []
    for name in TABLES:
        table = saved.get(name, SavedTable())
        for chain, base in chains.items():
            wanted = [r for r in rules if (r.table, r.chain) == (name, chain)]
            there = table.of_chain(chain)
            if not wanted and not there and chain not in table.policies:
                continue
            found += _chain_problems(f"{name} {chain}", wanted, there)
            count = table.jumps(base, chain)
            if wanted and not count:
                found.append(f"{name} {base}: no jump to {chain}")
            elif count > 1 or (count and not wanted):
                found.append(f"{name} {base}: {count} jumps to {chain}")
    return found


def install_text(saved: Saved, rules: Sequence[Rule], chains: Chains) -> str:
    """Input of ``iptables-restore --noflush``: afterwards the kernel has exactly these rules.

    One table is changed in one step, and none keeps rules of ours that are not wanted.
    """
    parts: list[str] = []
    for name in TABLES:
        table = saved.get(name, SavedTable())
        lines: list[str] = []
        for chain, base in chains.items():
            wanted = [r.text for r in rules if (r.table, r.chain) == (name, chain)]
            if not wanted:
                continue
            # the declaration makes the chain or empties it, in the same step as the rules
            lines.append(f":{chain} - [0:0]")
            jumps = table.jumps(base, chain)
            lines += [f"-D {base} -j {chain}"] * (jumps - 1)
            if not jumps:
                # the reference's place: first in the node's POSTROUTING, else last
                lines.append(f"-I {base} 1" if chain == POSTROUTING else f"-A {base}")
                lines[-1] += f" -j {chain}"
            lines += wanted
        unwanted = {c: b for c, b in chains.items() if f":{c} - [0:0]" not in lines}
        if unwanted == dict(chains):
            lines = _emptying(table, chains)
        else:
            lines += _removal(table, unwanted)
        if lines:
            parts += [f"*{name}", *lines, "COMMIT"]
    return _joined(parts)


def removal_text(saved: Saved, chains: Chains) -> str:
    """Input of ``iptables-restore --noflush`` that removes all of ours; empty: nothing is there."""
    parts: list[str] = []
    for name in reversed(TABLES):
        lines = _emptying(saved.get(name, SavedTable()), chains)
        if lines:
            parts += [f"*{name}", *lines, "COMMIT"]
    return _joined(parts)


def counters(saved: Saved) -> dict[str, tuple[int, int]]:
    """Packets and bytes by the id of our rules; rules with the same id are added up."""
    found: dict[str, tuple[int, int]] = {}
    for table in saved.values():
        for rule in table.rules:
            if rule.id is not None:
                packets, octets = found.get(rule.id, (0, 0))
                found[rule.id] = (packets + rule.packets, octets + rule.octets)
    return found


def _is_touched(table: SavedTable, chains: Chains) -> bool:
    return any(c in table.policies or table.jumps(base, c) for c, base in chains.items())


def _emptying(table: SavedTable, chains: Chains) -> list[str]:
    """Removes our chains from a table, and what else of it then serves nobody.

    A table that held nothing else also loses its built-in chains: in the nft variant they are
    hooks, and those of nat keep connection tracking switched on.
    """
    lines = _removal(table, chains)
    return [*lines, "-X"] if lines and table.holds_only(chains) else lines


def _removal(table: SavedTable, chains: Chains) -> list[str]:
    lines: list[str] = []
    for chain, base in chains.items():
        lines += [f"-D {base} -j {chain}"] * table.jumps(base, chain)
    made = [chain for chain in chains if chain in table.policies]
    return lines + [f"-F {chain}" for chain in made] + [f"-X {chain}" for chain in made]


def _chain_problems(where: str, wanted: Sequence[Rule], there: Sequence[SavedRule]) -> list[str]:
    expected = [(r.id, _options(tuple(shlex.split(r.text)[2:]))) for r in wanted]
    actual = [(r.id, _options(r.words)) for r in there]
    if expected == actual:
        return []
    missing = [identity for identity, options in expected if (identity, options) not in actual]
    extra = [r for r, pair in zip(there, actual, strict=True) if pair not in expected]
    found = [f"{where}: rule {identity} is missing or changed" for identity in missing]
    found += [f"{where}: rule not ours: {shlex.join(r.words)}" for r in extra if r.id is None]
    found += [
        f"{where}: rule {r.id} should not be there" for r in extra if r.id not in (None, *missing)
    ]
    return found or [f"{where}: the rules are not in their order"]


def _options(words: Iterable[str]) -> frozenset[tuple[str, ...]]:
    """The options with their values and negation; loading of matches left out."""
    groups: list[list[str]] = []
    negated = False
    for word in words:
        if word == "!":
            negated = True
        elif word.startswith("-"):
            groups.append(["!", word] if negated else [word])
            negated = False
        elif groups:
            groups[-1].append(word)
    return frozenset(tuple(g) for g in groups if g[0] != "-m")


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n" if lines else ""
