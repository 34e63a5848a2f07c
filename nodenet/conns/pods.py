"""Finding the enrolled pod a user means by a name, a prefix of it, or another way to say it."""

from __future__ import annotations

import os

from nodenet.capture.records import PodRecord
from nodenet.conns.names import Names
from nodenet.errors import NotFound, UsageError


class UnknownPod(NotFound):
    """No enrolled pod of that name on this node."""


class AmbiguousPod(UsageError):
    """Several enrolled pods fit; ``candidates`` are their names."""

    def __init__(self, what: str, text: str, candidates: list[str]) -> None:
        super().__init__(f"ambiguous {what} {text}: {', '.join(candidates)}", hint="write one")
        self.candidates = candidates


def find_pod(text: str, names: Names, *, what: str = "pod") -> int:
    """The netns cookie of the pod that ``text`` means.

    ``NS/NAME`` or ``NAME`` (a unique prefix of NAME is enough), ``uid:U``, ``pid:N``,
    ``netns:PATH``, ``netns:COOKIE`` (as tables show a namespace without a name). Raises
    `UnknownPod` naming the nearest, or `AmbiguousPod`.
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "netns" and rest.isdigit():
        return int(rest)
    if colon and scheme in ("uid", "pid", "netns"):
        found = _by_scheme(scheme, rest, names.records)
    else:
        found = _by_name(text, names.records)
    if len(found) == 1:
        return found[0].netns_cookie
    if found:
        raise AmbiguousPod(what, text, [record.name for record in found])
    from difflib import get_close_matches  # only on the way to an error

    near = get_close_matches(text, [record.name for record in names.records], n=1, cutoff=0.5)
    raise UnknownPod(
        f"unknown {what} {text}: not enrolled on this node",
        hint=f"nearest: {near[0]}" if near else "list them: nodenet capture show",
    )


def _by_scheme(scheme: str, rest: str, records: tuple[PodRecord, ...]) -> list[PodRecord]:
    if scheme == "uid":
        return [r for r in records if r.uid == rest]
    path = f"/proc/{rest}/ns/net" if scheme == "pid" else rest
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return []
    return [r for r in records if r.netns_inode == inode]


def _by_name(text: str, records: tuple[PodRecord, ...]) -> list[PodRecord]:
    exact = [r for r in records if r.name == text]
    if exact:
        return exact
    with_namespace = "/" in text
    short = [(r.name if with_namespace else r.name.rpartition("/")[2], r) for r in records]
    return [r for name, r in short if name == text] or [
        r for name, r in short if text and name.startswith(text)
    ]
