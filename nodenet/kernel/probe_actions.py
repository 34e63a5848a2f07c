"""What each probe does: one function a feature, tried on a `Scene`.

A function returns normally when the feature works, perhaps with a remark, and raises what the
kernel said when it does not. `Limited` says that there is a way around with a loss.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from nodenet import abi
from nodenet.errors import NodenetError
from nodenet.kernel import btf, cache, cgroups, pins, sock_diag, spec
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.kernel.probe_scene import EXIT, Scene, call, insn, load_map, move
from nodenet.kernel.syscall import Command, address, bpf
from nodenet.paths import BPFFS

Action = Callable[[Scene], str | None]

_SOCK_ADDR, _SOCK_OPS, _SK_LOOKUP, _TRACING = 18, 13, 30, 26
_CONNECT4, _SOCK_OPS_ATTACH, _SK_LOOKUP_ATTACH, _ITER_ATTACH = 10, 3, 36, 28
_SK_STORAGE_GET, _NETNS_COOKIE, _ANCESTOR_CGROUP = 107, 122, 123
_SK_ASSIGN, _SET_RETVAL = 124, 187
#: offsetof(struct bpf_sock_addr, sk), linux/bpf.h.
_SOCK_ADDR_SK: Final = 64
_SK_STORAGE_GET_F_CREATE: Final = 1
_RESTORE_SECONDS: Final = 10.0
#: TCP_LISTEN of linux/tcp_states.h.
_LISTEN: Final = 10


class Limited(Exception):
    """It does not work, but nodenet has a way around: the feature is degraded, not missing."""


def map_created(name: str, entries: int | None = None) -> Action:
    """A map of that type and flags can be made."""

    def act(scene: Scene) -> None:
        with scene.map(name, entries=entries):
            pass

    return act


def program_loads(name: str) -> Action:
    """The verifier takes ``return 1`` as a program of that type and attach type."""

    def act(scene: Scene) -> None:
        defn = abi.PROGRAMS[name]
        with scene.program(defn.type, defn.attach_type, (move(0, 1), EXIT)):
            pass

    return act


def helper_in(kind: int, attach_type: int, *code: bytes) -> Action:
    """The verifier takes a program that calls a helper."""

    def act(scene: Scene) -> None:
        with scene.program(kind, attach_type, (*code, move(0, 1), EXIT)):
            pass

    return act


netns_cookie_helper = helper_in(_SOCK_ADDR, _CONNECT4, call(_NETNS_COOKIE))
netns_cookie_in_sock_ops = helper_in(_SOCK_OPS, _SOCK_OPS_ATTACH, call(_NETNS_COOKIE))
ancestor_cgroup = helper_in(_SOCK_ADDR, _CONNECT4, move(1, 0), call(_ANCESTOR_CGROUP))
set_retval = helper_in(_SOCK_ADDR, _CONNECT4, move(1, -111), call(_SET_RETVAL))
sk_assign = helper_in(_SK_LOOKUP, _SK_LOOKUP_ATTACH, move(2, 0), move(3, 0), call(_SK_ASSIGN))


def bpf_syscall(scene: Scene) -> None:
    """bpf(2) makes a map."""
    with scene.map("live"):
        pass


def cgroup2_mount(_scene: Scene) -> str:
    """The true root of the hierarchy is mounted."""
    return str(cgroups.cgroup2_mount())


def cgroup_link(scene: Scene) -> None:
    """A link attaches to a cgroup."""
    target = scene.cgroup_fd()
    with (
        scene.program(_SOCK_ADDR, _CONNECT4, (move(0, 1), EXIT)) as program,
        scene.link(program, target, _CONNECT4),
    ):
        pass


def sk_lookup_link(scene: Scene) -> None:
    """A link attaches to a network namespace."""
    target = scene.namespace().fd
    with (
        scene.program(_SK_LOOKUP, _SK_LOOKUP_ATTACH, (move(0, 1), EXIT)) as program,
        scene.link(program, target, _SK_LOOKUP_ATTACH),
    ):
        pass


def sk_storage_in_connect(scene: Scene) -> None:
    """connect4 can hang a record on the socket: the map, and the helper on ctx->sk."""
    with scene.map("conns") as storage:
        code = (
            insn(0x79, 2, 1, _SOCK_ADDR_SK),  # r2 = ctx->sk
            insn(0x55, 2, 0, 2, 0),  # if r2: skip the two that follow
            move(0, 1),
            EXIT,
            load_map(1, storage.fd),
            move(3, 0),
            move(4, _SK_STORAGE_GET_F_CREATE),
            call(_SK_STORAGE_GET),
            move(0, 1),
            EXIT,
        )
        with scene.program(_SOCK_ADDR, _CONNECT4, code):
            pass


def netns_cookie_option(_scene: Scene) -> None:
    """User space learns the cookie by SO_NETNS_COOKIE."""
    with NetNs.current() as here:
        here.cookie()


def vmlinux_btf(_scene: Scene) -> None:
    """The kernel describes its types."""
    with open(btf.VMLINUX, "rb") as file:
        file.read(1)


def sk_storage_iterator(scene: Scene) -> None:
    """An iterator over a sk_storage map loads, attaches and reads."""
    facts = _facts(spec.BpfSpec.read().offsets)
    function = facts.functions["bpf_iter_bpf_sk_storage_map"]
    with scene.map("conns") as storage:
        info = struct.pack("<I", storage.fd)
        extra = struct.pack("<QI", address(info), len(info))
        with (
            scene.program(_TRACING, _ITER_ATTACH, (move(0, 0), EXIT), btf_id=function) as program,
            scene.link(program, 0, _ITER_ATTACH, extra) as link,
        ):
            reader = bpf(Command.ITER_CREATE, struct.pack("<II", link, 0))
            try:
                os.read(reader, 4096)
            finally:
                os.close(reader)


def per_cpu_batch(scene: Scene) -> None:
    """A per-CPU hash answers BPF_MAP_LOOKUP_BATCH."""
    with scene.map("agg", entries=16) as counters:
        keys, values, place = bytearray(64), bytearray(8 * counters.value_stride), bytearray(8)
        attr = struct.pack(
            "<QQQQIIQQ", 0, address(place), address(keys), address(values), 8, counters.fd, 0, 0
        )
        try:
            bpf(Command.MAP_LOOKUP_BATCH, attr)
        except FileNotFoundError:
            return  # the end of an empty map


def dump_sockets(scene: Scene) -> None:
    """NETLINK_SOCK_DIAG lists TCP sockets."""
    with _listening(scene) as (diag, port):
        if not any(s.local_port == port for s in diag.dump_tcp({_LISTEN})):
            raise NodenetError("sock_diag: a listening socket is not in the dump")


def destroy_socket(scene: Scene) -> None:
    """SOCK_DESTROY ends a socket."""
    with _listening(scene) as (diag, port):
        listeners = diag.dump_tcp({_LISTEN})
        if not diag.destroy(next(s for s in listeners if s.local_port == port)):
            raise NodenetError("sock_diag: a socket that was just listed is not found")


@contextmanager
def _listening(scene: Scene) -> Iterator[tuple[sock_diag.SockDiag, int]]:
    """A listening socket in the scene's namespace, and sock_diag there."""
    ns = scene.namespace()
    with ns.open_socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        with sock_diag.SockDiag(ns) as diag:
            yield diag, listener.getsockname()[1]


def bcc_importable(_scene: Scene) -> None:
    """The compiler is installed: its module is found and its library, with LLVM, can be loaded."""
    try:
        found = find_spec("bcc")
        if found is None or found.origin is None:  # a bare directory of that name is no module
            raise NodenetError("no Python module bcc")
        # importing the module would pull in far more than what can be missing
        ctypes.CDLL("libbcc.so.0")
    except (OSError, NodenetError) as error:
        if is_warm():
            raise Limited(str(error)) from error
        raise


def header_tree(_scene: Scene) -> None:
    """The private kernel headers came with the installation."""
    tree = spec.bpf_directory() / "include"
    for name in ("linux/kconfig.h", "linux/types.h", "uapi/linux/bpf.h"):
        if not (tree / name).is_file():
            raise NodenetError(f"{tree / name} is not there")


def own_programs(_scene: Scene) -> str:
    """nodenet's own programs load from kept bytecode onto maps of their own, if there is any."""
    if not is_warm():
        return "bytecode cache cold: the first start compiles, about 1 s"
    from nodenet.kernel.loader import load_programs

    with ExitStack() as stack:
        maps = {n: stack.enter_context(Map.create(defn)) for n, defn in abi.MAPS.items()}
        started = time.perf_counter()
        programs = load_programs(maps)
        took = time.perf_counter() - started
        for program in programs.values():
            program.close()
    return f"bytecode cache warm: start in {took * 1000:.0f} ms"


class _ReadOnlyCache(cache.Cache):
    """The loader's cache, looked at only: probing leaves nothing behind."""

    def write(self, name: str, content: bytes) -> None:
        """Keeps nothing."""


def is_warm() -> bool:
    """Whether `loader.load_programs` would find its bytecode."""
    sources = spec.BpfSpec.read()
    # the very flags of loader.load_programs; a privileged test loads and then asks here
    offsets = sorted(_facts(sources.offsets).offsets.items())
    cflags = [f"-DNN_OFF_{name}={value}" for name, value in offsets]
    cflags.append(f"-DNN_PAGE_SIZE={os.sysconf('SC_PAGE_SIZE')}")
    key = cache.bytecode_key(sources.text, cflags, abi.SCHEMA)
    return _ReadOnlyCache(cache.default_directory()).compiled(key) is not None


@functools.cache
def _facts(offsets: tuple[str, ...]) -> btf.KernelFacts:
    """As the loader asks for them, so that its entry of the cache is found; 0.1 s without one."""
    iterators = [
        "bpf_iter_" + p.hook.removeprefix("iter/")
        for p in abi.PROGRAMS.values()
        if p.attach == "iter"
    ]
    return _ReadOnlyCache(cache.default_directory()).facts(offsets, iterators)


def bpffs_writable(scene: Scene) -> None:
    """bpffs is mounted and takes a pin."""
    pins.require_bpffs()
    with tempfile.TemporaryDirectory(prefix="nodenet-probe-", dir=BPFFS) as directory:
        # bpffs takes no dots in names, and mkdtemp makes none
        path = Path(directory) / "pin"
        with scene.map("live") as one:
            pins.pin(one.fd, path)
        pins.unpin(path)


def iptables_usable(family: int) -> Action:
    """The restore command is there and the kernel takes the rules the backend uses."""
    name = "iptables-restore" if family == 4 else "ip6tables-restore"
    rules = (
        "*nat\n-A OUTPUT -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001\nCOMMIT\n"
        "*mangle\n-A PREROUTING -p tcp -j CONNMARK --set-xmark 0x111/0xfff\nCOMMIT\n"
    )

    def act(scene: Scene) -> str:
        search = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
        path = shutil.which(name, path=search)
        if path is None:
            raise FileNotFoundError(2, f"{name} is not installed")
        # a child starts in the namespace of the thread that starts it
        with scene.namespace().entered():
            child = subprocess.Popen(
                [path, "--noflush"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, cwd="/", env={"PATH": search, "LC_ALL": "C"},
            )  # fmt: skip
        with child:
            try:
                said, _ = child.communicate(rules, timeout=_RESTORE_SECONDS)
            except BaseException:
                child.kill()
                raise
        if child.returncode:
            raise NodenetError(" ".join(said.split()) or f"{name} failed")
        return path

    return act
