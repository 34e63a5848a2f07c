"""Finding what a person named among what a proxy knows, and how names are shown."""

from __future__ import annotations

from collections.abc import Collection

from nodenet.cli.prefix import nearest
from nodenet.errors import NotFound, UsageError


def choose(given: str, names: Collection[str], *, what: str, known: str = "known") -> str:
    """The one of ``NS/NAME`` names that is meant: in full, by NAME, or by a unique prefix of NAME.

    UsageError when several fit, NotFound (``no workload shop/crat in 812 known``) when none does.
    """
    if given in names:
        return given
    namespace, slash, name = given.rpartition("/")
    same = [each for each in names if not slash or each.rpartition("/")[0] == namespace]
    for test in (
        [each for each in same if each.rpartition("/")[2] == name],
        [each for each in same if name and each.rpartition("/")[2].startswith(name)],
    ):
        if len(test) > 1:
            shown = ", ".join(sorted(test)[:8]) + (", …" if len(test) > 8 else "")
            raise UsageError(f"{given} may be several: {shown}", hint="write one in full")
        if test:
            return test[0]
    near = nearest(given, names) or nearest(given, {n.rpartition("/")[2]: n for n in names})
    hint = f"nearest: {near}" if near else None
    raise NotFound(f"no {what} {given} in {len(names)} {known}", hint=hint)


def short_identity(identity: str) -> str:
    """``shop/sa/db`` for ``spiffe://cluster.local/ns/shop/sa/db``; anything else as it is."""
    parts = identity.removeprefix("spiffe://").split("/")
    if identity.startswith("spiffe://") and len(parts) == 5:
        return f"{parts[2]}/{parts[3]}/{parts[4]}"
    return identity


def short_destination(destination: str) -> str:
    """A waypoint as tables show it: ``shop/waypoint``, or the address without its network."""
    head, _, tail = destination.partition("/")
    if tail[:1].isdigit() or ":" in tail:
        return tail
    return f"{head}/{tail.partition('.')[0]}"
