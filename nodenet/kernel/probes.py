"""What this kernel and host can do, found by trying: the checks behind ``nodenet doctor``.

Each probe does the smallest real thing that needs the feature, in a `Scene` of its own: load a
program of two instructions, make a map, attach to an empty cgroup. Kernel versions are never
compared, distributions backport. Nothing is left behind.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from nodenet.errors import NodenetError, NotPermitted
from nodenet.kernel import pins
from nodenet.kernel import probe_actions as act
from nodenet.kernel.host_facts import lockdown
from nodenet.kernel.probe_scene import Scene, error_name, error_number


class State(Enum):
    """How a feature was found."""

    OK = "ok"
    MISSING = "missing"
    DEGRADED = "degraded"
    """nodenet works without it, with the loss that the check names."""
    UNKNOWN = "unknown"
    """Not allowed to look, or what the probe needs is itself missing."""


class Group(Enum):
    """What features are for."""

    CAPTURE = "capture"
    STATISTICS = "statistics"
    BUILD = "build"
    IPTABLES = "iptables"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one probe. ``id`` is stable across versions."""

    id: str
    group: Group
    feature: str
    """What people call it."""
    state: State
    required_for: tuple[str, ...]
    """Objects of the command line that do not work without it."""
    probed_by: str
    errno: str | None
    """``EPERM``; None when it worked or failed otherwise."""
    means: str
    """What the state means to a user; for ``ok`` a remark, or empty."""
    fix: str | None
    """How to get it; None when it is there."""
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One thing to try."""

    id: str
    group: Group
    feature: str
    run: act.Action
    probed_by: str
    loss: str
    """What a user loses without it."""
    fix: str
    required_for: tuple[str, ...] = ()
    failing: State = State.MISSING
    limited: str = ""
    """The loss when the action says `Limited`."""
    says_why: bool = False
    """Whether the message of the failure says more than ``loss``."""


_CAPTURE: Final = ("capture",)


def _hook(ident: str, program: str, feature: str, loss: str, since: str) -> Probe:
    return Probe(
        id=ident, group=Group.CAPTURE, feature=feature, run=act.program_loads(program),
        probed_by="BPF_PROG_LOAD", loss=loss, fix=since, required_for=_CAPTURE,
    )  # fmt: skip


def _capture(ident: str, feature: str, run: act.Action, by: str, loss: str, fix: str) -> Probe:
    return Probe(
        id=ident, group=Group.CAPTURE, feature=feature, run=run, probed_by=by, loss=loss, fix=fix,
        required_for=_CAPTURE,
    )  # fmt: skip


#: Every probe, in the order of the output. All programs are loaded together, so that each hook is
#: required although some lose less than others.
PROBES: Final[tuple[Probe, ...]] = (
    _capture("bpf_syscall", "bpf(2)", act.bpf_syscall, "BPF_MAP_CREATE(ARRAY)",
             "nothing works", "kernel with CONFIG_BPF_SYSCALL"),
    _capture("cgroup2_mount", "cgroup2 mount", act.cgroup2_mount, "/proc/mounts",
             "no place to attach", "mount -t cgroup2 none /sys/fs/cgroup"),
    _hook("connect4", "nn_connect4", "cgroup/connect4", "no outbound capture", "Linux 4.17"),
    _hook("connect6", "nn_connect6", "cgroup/connect6", "no outbound capture (IPv6)", "Linux 4.17"),
    _hook("getpeername4", "nn_peername4", "cgroup/getpeername4",
          "apps would see the proxy as peer", "Linux 5.8"),
    _hook("getpeername6", "nn_peername6", "cgroup/getpeername6",
          "apps would see the proxy as peer (IPv6)", "Linux 5.8"),
    _hook("sendmsg4", "nn_sendmsg4", "cgroup/sendmsg4", "no DNS capture", "Linux 4.18"),
    _hook("sendmsg6", "nn_sendmsg6", "cgroup/sendmsg6", "no DNS capture (IPv6)", "Linux 4.18"),
    _hook("recvmsg4", "nn_recvmsg4", "cgroup/recvmsg4", "no DNS capture", "Linux 5.2"),
    _hook("recvmsg6", "nn_recvmsg6", "cgroup/recvmsg6", "no DNS capture (IPv6)", "Linux 5.2"),
    _hook("sock_ops", "nn_sockops", "sock_ops", "no records, no original address", "Linux 4.13"),
    _hook("getsockopt", "nn_getsockopt", "cgroup/getsockopt",
          "foreign proxies get no original address", "Linux 5.3"),
    _hook("sk_lookup", "nn_sk_lookup", "sk_lookup", "no inbound capture", "Linux 5.9"),
    _capture("cgroup_link", "link to a cgroup", act.cgroup_link, "BPF_LINK_CREATE(CGROUP)",
             "programs cannot be attached", "Linux 5.7; no exclusive program at the root"),
    _capture("sk_lookup_link", "link to a namespace", act.sk_lookup_link, "BPF_LINK_CREATE(NETNS)",
             "no inbound capture", "Linux 5.9"),
    _capture("netns_cookie", "SO_NETNS_COOKIE", act.netns_cookie_option, "getsockopt",
             "pods cannot be told apart", "Linux 5.14"),
    _capture("helper_netns_cookie", "netns cookie in connect", act.netns_cookie_helper,
             "BPF_PROG_LOAD(get_netns_cookie)", "pods cannot be told apart", "Linux 5.8"),
    _capture("helper_netns_cookie_sock_ops", "netns cookie in sock_ops",
             act.netns_cookie_in_sock_ops, "BPF_PROG_LOAD(get_netns_cookie)",
             "pods cannot be told apart", "Linux 5.15"),
    _capture("helper_ancestor_cgroup", "ancestor cgroup id", act.ancestor_cgroup,
             "BPF_PROG_LOAD(get_current_ancestor_cgroup_id)", "the proxy is not recognised",
             "Linux 5.7"),
    _capture("helper_set_retval", "set_retval", act.set_retval, "BPF_PROG_LOAD(set_retval)",
             "refused connects have the wrong errno", "Linux 5.18"),
    _capture("helper_sk_assign", "sk_assign in sk_lookup", act.sk_assign,
             "BPF_PROG_LOAD(sk_assign)", "no inbound capture", "Linux 5.9"),
    _capture("sk_storage", "sk_storage in connect", act.sk_storage_in_connect,
             "BPF_MAP_CREATE(SK_STORAGE), BPF_PROG_LOAD(sk_storage_get)",
             "no original address, no records", "Linux 5.9"),
    _capture("sockhash", "sockhash", act.map_created("lsn", 16), "BPF_MAP_CREATE(SOCKHASH)",
             "the proxy's listeners are not found", "Linux 4.18, CONFIG_BPF_STREAM_PARSER"),
    _capture("lpm_trie", "prefix map", act.map_created("cidrs", 16), "BPF_MAP_CREATE(LPM_TRIE)",
             "no excluded CIDRs", "Linux 4.11"),
    Probe(id="ring_buffer", group=Group.STATISTICS, feature="ring buffer",
          run=act.map_created("evs"), probed_by="BPF_MAP_CREATE(RINGBUF)",
          loss="no events of connections", fix="Linux 5.8", required_for=("capture", "conn")),
    Probe(id="btf_vmlinux", group=Group.STATISTICS, feature="BTF of the kernel",
          run=act.vmlinux_btf, probed_by="/sys/kernel/btf/vmlinux",
          loss="TCP statistics cannot be read", fix="kernel with CONFIG_DEBUG_INFO_BTF",
          required_for=("capture", "conn")),
    Probe(id="iter_sk_storage", group=Group.STATISTICS, feature="iterator over sk_storage",
          run=act.sk_storage_iterator, probed_by="BPF_LINK_CREATE(ITER)",
          loss="no live statistics", fix="Linux 5.9 and lockdown below confidentiality",
          required_for=("capture", "conn")),
    Probe(id="percpu_batch", group=Group.STATISTICS, feature="batches of per-CPU maps",
          run=act.per_cpu_batch, probed_by="BPF_MAP_LOOKUP_BATCH",
          loss="counters are read one by one", fix="Linux 5.6", required_for=("conn",),
          failing=State.DEGRADED),
    Probe(id="sock_diag", group=Group.STATISTICS, feature="sock_diag",
          run=act.dump_sockets, probed_by="NETLINK_SOCK_DIAG",
          loss="conn list --all shows less", fix="kernel with CONFIG_INET_DIAG",
          required_for=("conn",), failing=State.DEGRADED),
    Probe(id="sock_destroy", group=Group.STATISTICS, feature="ending sockets",
          run=act.destroy_socket, probed_by="SOCK_DESTROY",
          loss="--existing reset cannot reset", fix="kernel with CONFIG_INET_DIAG_DESTROY",
          failing=State.DEGRADED),
    Probe(id="bcc", group=Group.BUILD, feature="bcc", run=act.bcc_importable,
          probed_by="dlopen(libbcc.so.0)", loss="programs cannot be compiled",
          limited="runs from kept bytecode until an upgrade",
          fix="apt install python3-bpfcc", required_for=_CAPTURE),
    Probe(id="header_tree", group=Group.BUILD, feature="private kernel headers",
          run=act.header_tree, probed_by="open", loss="programs cannot be compiled",
          fix="reinstall nodenet", required_for=_CAPTURE),
    Probe(id="programs", group=Group.BUILD, feature="nodenet's programs",
          run=act.own_programs, probed_by="BPF_PROG_LOAD of every program",
          loss="the kernel refuses a program", fix="please report, with uname -a and the message",
          required_for=_CAPTURE, says_why=True),
    Probe(id="bpffs", group=Group.BUILD, feature="bpffs", run=act.bpffs_writable,
          probed_by="BPF_OBJ_PIN", loss="capture would end with its process",
          fix="mount -t bpf none /sys/fs/bpf", required_for=_CAPTURE),
    Probe(id="iptables", group=Group.IPTABLES, feature="iptables-restore",
          run=act.iptables_usable(4), probed_by="iptables-restore in a new namespace",
          loss="no --backend iptables",
          fix="apt install iptables; nf_nat, xt_REDIRECT, xt_CONNMARK", failing=State.DEGRADED),
    Probe(id="ip6tables", group=Group.IPTABLES, feature="ip6tables-restore",
          run=act.iptables_usable(6), probed_by="ip6tables-restore in a new namespace",
          loss="no --backend iptables (IPv6)",
          fix="apt install iptables; nf_nat, xt_REDIRECT, xt_CONNMARK", failing=State.DEGRADED),
)  # fmt: skip


def run_probes(groups: Collection[Group] = tuple(Group)) -> list[Check]:
    """Tries everything in the groups, in the order of `PROBES`; about 0.2 s in all.

    A probe never raises: what goes wrong is its result.
    """
    with Scene() as scene:
        return [run_probe(probe, scene) for probe in PROBES if probe.group in groups]


def run_probe(probe: Probe, scene: Scene) -> Check:
    """Tries one thing."""
    started = time.perf_counter()
    state, means, fix, number = State.OK, "", None, None
    try:
        means = probe.run(scene) or ""
    except act.Limited as error:
        state, means, fix = State.DEGRADED, probe.limited or probe.loss, probe.fix
        number = error_number(error)
    except (OSError, NodenetError) as error:
        number = error_number(error)
        state, means, fix = _judged(probe, error, number)
    return Check(
        id=probe.id,
        group=probe.group,
        feature=probe.feature,
        state=state,
        required_for=probe.required_for,
        probed_by=probe.probed_by,
        errno=error_name(number),
        means=means,
        fix=fix,
        ms=round((time.perf_counter() - started) * 1000, 3),
    )


def _judged(probe: Probe, error: Exception, number: int | None) -> tuple[State, str, str]:
    """What a failure says about the feature: EPERM may be about us, or about the kernel."""
    if number not in (errno.EPERM, errno.EACCES) and not isinstance(error, NotPermitted):
        return probe.failing, str(error) if probe.says_why else probe.loss, probe.fix
    if isinstance(error, NotPermitted) or isinstance(pins.refused("", ""), NotPermitted):
        return State.UNKNOWN, "not allowed to look", "run with sudo, outside of containers"
    mode = lockdown()
    if mode == "confidentiality":
        return probe.failing, probe.loss, "boot with lockdown=integrity"
    return probe.failing, probe.loss, f"{probe.fix}; no policy against it (lockdown={mode})"


def obstacles(checks: Collection[Check]) -> list[Check]:
    """The missing features without which the eBPF capture does not work."""
    return [c for c in checks if c.state is State.MISSING and "capture" in c.required_for]
