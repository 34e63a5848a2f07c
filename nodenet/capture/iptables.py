"""The iptables backend: one pod's redirect rules in its own namespace, put in, checked, removed.

For kernels that cannot run the programs, and to compare with. Each address family is one call of
``iptables-restore --noflush`` inside the namespace; what is there already is read first with
``iptables-save``, so a second call changes nothing and half of a set is completed. The policy
routes of `pod_routes` belong to it, but not its sysctls: here the mark of an answer comes from the
connection mark.

The proxy must mark every socket of its own 0x539, also the one that carries a client's address.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from nodenet.abi import IPAddress
from nodenet.capture import pod_routes
from nodenet.capture.errors import CaptureError
from nodenet.capture.iptables_rules import (
    HOST_CHAINS,
    POD_CHAINS,
    Family,
    Redirect,
    Rule,
    host_rules,
    pod_rules,
)
from nodenet.capture.iptables_text import (
    Chains,
    Saved,
    counters,
    install_text,
    is_absent,
    parse_saved,
    problems,
    removal_text,
)
from nodenet.capture.records import PodRecord
from nodenet.errors import NodenetError, NotSupported
from nodenet.kernel import sysctl
from nodenet.kernel.netns import NetNs, run_in

#: Seconds one call may take, the wait for another writer's lock included.
TIMEOUT_SECONDS: Final = 10.0
_LOCK_SECONDS: Final = 5
_PREFIX: Final[dict[Family, str]] = {4: "iptables", 6: "ip6tables"}
#: A shell of a service has often no sbin in its PATH.
_SBIN: Final = "/usr/local/sbin:/usr/sbin:/sbin"


class IptablesMissing(NotSupported):
    """The host has no iptables (exit 3)."""

    def __init__(self, program: str) -> None:
        hint = "apt install iptables, or use the ebpf backend"
        NodenetError.__init__(self, f"{program}: not installed", hint=hint)
        self.feature = program
        self.needs = hint


class IptablesFailed(CaptureError):
    """iptables refused; ``stderr`` is all it said."""

    def __init__(self, program: str, where: str, stderr: str) -> None:
        said = [x for x in stderr.splitlines() if x.strip() and not x.startswith("#")]
        hint = None
        if "missing kernel module" in stderr:
            hint = "this kernel lacks a netfilter module; see: nodenet doctor"
        super().__init__(f"{program} in {where}: {said[0] if said else 'failed'}", hint=hint)
        self.program = program
        self.stderr = stderr


@dataclass(frozen=True, slots=True)
class IptablesState:
    """What a namespace has of our rules."""

    status: Literal["present", "absent", "damaged"]
    problems: tuple[str, ...]
    """What differs from the enrolment, one phrase each."""
    counters: Mapping[tuple[Family, str], tuple[int, int]]
    """Packets and bytes by family and rule id. nat rules see the first packet of a connection."""

    @property
    def ok(self) -> bool:
        """Whether all is as the enrolment asks."""
        return self.status == "present"

    @property
    def text(self) -> str:
        """One line for a person."""
        return "; ".join(self.problems) if self.problems else f"redirect rules {self.status}"


def apply(ns: NetNs, record: PodRecord) -> bool:
    """Makes the namespace's rules those of the record; whether anything had to be changed.

    IptablesMissing, IptablesFailed, PodRoutesFailed; then some of the rules may be in place, and
    calling again or `remove` ends that.
    """
    pod_routes.install(ns, fwmark_accept=False)
    redirect = Redirect.of(record)
    changed = False
    for family in _families(ns):
        changed |= _converge(ns, family, pod_rules(family, redirect), POD_CHAINS)
    return changed


def remove(ns: NetNs) -> None:
    """Removes rules, chains and routes; nothing happens when there are none."""
    _remove(ns, POD_CHAINS)
    pod_routes.remove(ns)


def state(ns: NetNs, record: PodRecord) -> IptablesState:
    """Compares the namespace with what the record asks for."""
    found: list[str] = []
    counted: dict[tuple[Family, str], tuple[int, int]] = {}
    absent = True
    redirect = Redirect.of(record)
    for family in _families(ns):
        saved = _save(ns, family)
        absent &= is_absent(saved, POD_CHAINS)
        wrong = problems(saved, pod_rules(family, redirect), POD_CHAINS)
        found += [f"IPv{family} {phrase}" for phrase in wrong]
        counted |= {(family, rule): value for rule, value in counters(saved).items()}
    if absent:
        return IptablesState("absent", ("no redirect rules of nodenet are there",), counted)
    found += pod_routes.check(ns, fwmark_accept=False)
    return IptablesState("damaged" if found else "present", tuple(found), counted)


def apply_host_probe_rules(ns: NetNs, pods: Iterable[IPAddress]) -> bool:
    """The reference's node side, for comparing: the node's own connections to these pods show as
    coming from the probe address. ``ns`` is the node's namespace; `True` when something changed.
    """
    addresses = list(pods)
    changed = False
    for family in _families(ns):
        rules = host_rules(family, addresses)
        changed |= _converge(ns, family, rules, HOST_CHAINS)
    return changed


def remove_host_probe_rules(ns: NetNs) -> None:
    """The reverse of `apply_host_probe_rules`."""
    _remove(ns, HOST_CHAINS)


def _families(ns: NetNs) -> tuple[Family, ...]:
    return (4, 6) if run_in(ns, sysctl.ipv6_on_loopback) else (4,)


def _converge(ns: NetNs, family: Family, rules: Sequence[Rule], chains: Chains) -> bool:
    saved = _save(ns, family)
    if not problems(saved, rules, chains):
        return False
    _restore(ns, family, install_text(saved, rules, chains))
    return True


def _remove(ns: NetNs, chains: Chains) -> None:
    # IPv6 rules may be left from before IPv6 was switched off; a kernel without it has none
    families: tuple[Family, ...] = (4, 6) if sysctl.path_of("net.ipv6").is_dir() else (4,)
    for family in families:
        text = removal_text(_save(ns, family), chains)
        if text:
            _restore(ns, family, text)


def _save(ns: NetNs, family: Family) -> Saved:
    return parse_saved(_run(ns, [f"{_PREFIX[family]}-save", "-c"], ""))


def _restore(ns: NetNs, family: Family, text: str) -> None:
    _run(ns, [f"{_PREFIX[family]}-restore", "--noflush", "-w", str(_LOCK_SECONDS)], text)


def _run(ns: NetNs, command: list[str], stdin: str) -> str:
    """Standard output of a command started inside the namespace."""
    program = command[0]
    search = os.environ.get("PATH", "") + ":" + _SBIN
    path = shutil.which(program, path=search)
    if path is None:
        raise IptablesMissing(program)
    # A child starts in the namespace of the thread that starts it; only that happens inside.
    with ns.entered():
        child = subprocess.Popen(
            [path, *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env={"PATH": search, "LC_ALL": "C"},
        )
    with child:
        try:
            output, stderr = child.communicate(stdin, timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            child.kill()
            said = f"no end after {TIMEOUT_SECONDS:.0f} s; is another program holding the lock?"
            raise IptablesFailed(program, ns.path, said) from error
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise IptablesFailed(program, ns.path, stderr)
    return output
