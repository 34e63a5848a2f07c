"""Where an instance of nodenet keeps its kernel objects and its run-time files.

An instance is one set of pinned programs and maps. The host's has no id; a lab or a test has one,
so that any number of them live side by side on one kernel.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from nodenet.errors import UsageError

BPFFS = Path("/sys/fs/bpf")
RUN = Path("/run")
#: The id of the instance that `nodenet lab up` makes when it is given none.
LAB_ID = "lab"
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


@dataclass(frozen=True, slots=True)
class Instance:
    """One set of kernel objects. ``id`` None is the host's own."""

    id: str | None = None

    def __post_init__(self) -> None:
        if self.id is not None and not _ID.fullmatch(self.id):
            raise UsageError(
                f"instance id {self.id!r}: not of the form [a-z0-9-]{{1,31}}; use e.g. --id lab"
            )

    @property
    def name(self) -> str:
        """``nodenet`` or ``nodenet-ID``: the directory name everywhere."""
        return f"nodenet-{self.id}" if self.id else "nodenet"

    @property
    def pins(self) -> Path:
        """Directory of all pins."""
        return _below(BPFFS, self.name)

    @property
    def maps(self) -> Path:
        """Directory of the pinned maps, one file a map, named as in `nodenet.abi.MAPS`."""
        return _below(BPFFS, self.name, "maps")

    @property
    def links(self) -> Path:
        """Directory of the pinned links; those of pods are in `pod_links`."""
        return _below(BPFFS, self.name, "links")

    @property
    def pod_links(self) -> Path:
        """Directory of the pinned links of pods, named after the pod's netns cookie."""
        return _below(BPFFS, self.name, "links", "sk_lookup")

    @property
    def progs(self) -> Path:
        """Directory of pinned programs that have no link of their own at the root."""
        return _below(BPFFS, self.name, "progs")

    @property
    def run(self) -> Path:
        """Directory of sockets, locks and records; gone after a reboot, as the pins are."""
        return _below(RUN, self.name)

    @property
    def pods(self) -> Path:
        """Directory of the enrolment records, ``<netns cookie>.json``."""
        return _below(RUN, self.name, "pods")

    def exists(self) -> bool:
        """Whether this instance has pinned maps."""
        return self.maps.is_dir()


@functools.lru_cache(maxsize=64)
def _below(root: Path, *parts: str) -> Path:
    """Making a Path takes ten times as long as finding it again, and these are asked for often."""
    return root.joinpath(*parts)


def choose_instance(wanted: str | None, environ: dict[str, str] | None = None) -> Instance:
    """The instance a command works on.

    ``--id`` wins, then ``NODENET_ID``; without either the host's own when it exists, else the
    default lab's when that one exists, else the host's own (so that errors name its paths).
    """
    env = os.environ if environ is None else environ
    chosen = wanted or env.get("NODENET_ID")
    if chosen:
        return Instance(chosen)
    host, lab = Instance(), Instance(LAB_ID)
    return lab if not host.exists() and lab.exists() else host
