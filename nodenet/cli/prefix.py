"""Finding the object or verb that a user means: exact, plural or unique prefix.

Pure: names in, a name or an error out. ``nodenet conns li`` is ``conn list``; ``nodenet c l``
is refused with the candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nodenet.errors import UsageError


class UnknownName(UsageError):
    """No name fits; ``nearest`` is the one that was perhaps meant."""

    def __init__(self, what: str, token: str, names: Collection[str]) -> None:
        self.nearest = nearest(token, names)
        do = f"did you mean {self.nearest}" if self.nearest else f"one of: {' '.join(names)}"
        super().__init__(f"unknown {what} {token}", hint=do)


class AmbiguousName(UsageError):
    """Several names fit."""

    def __init__(self, what: str, token: str, candidates: Collection[str]) -> None:
        self.candidates = tuple(candidates)
        super().__init__(f"ambiguous {what} {token}: {', '.join(candidates)}", hint="write one")


def singular(word: str) -> str:
    """``conns`` and ``conn``, ``policies`` and ``policy`` compare equal by this."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def nearest(token: str, names: Collection[str]) -> str | None:
    """The name that looks most like ``token``, None when none does."""
    from difflib import get_close_matches  # only on the error path

    return next(iter(get_close_matches(token, names, n=1)), None)


def match(
    token: str,
    names: Collection[str],
    *,
    what: str,
    aliases: Mapping[str, str] | None = None,
    yielding: Collection[str] = (),
) -> str:
    """The one of ``names`` that ``token`` means.

    ``aliases`` maps further spellings to names. Names in ``yielding`` are found by a prefix only
    when no other name is: `completion` must not make `co` ambiguous. Raises `AmbiguousName` or
    `UnknownName`; ``what`` ("object", "verb of conn") is for their text.
    """
    spellings = {**(aliases or {}), **{name: name for name in names}}
    if token in spellings:
        return spellings[token]
    stem = singular(token)
    same = {name for spelling, name in spellings.items() if singular(spelling) == stem}
    if len(same) == 1:
        return same.pop()
    found = {name for spelling, name in spellings.items() if token and spelling.startswith(token)}
    found = (found - set(yielding)) or found
    if len(found) == 1:
        return found.pop()
    if found:
        raise AmbiguousName(what, token, [name for name in names if name in found])
    raise UnknownName(what, token, names)
