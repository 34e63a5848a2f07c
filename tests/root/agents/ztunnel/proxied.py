"""A pod and an outside joined by a veth pair, redirected without BPF, and a proxy process.

Outbound goes through nat REDIRECT, as with the iptables backend. Inbound goes through REDIRECT
(`backend` "iptables") or, for the eBPF backend's way, through TPROXY of the SYN: the accepted
socket then has the destination as its own address, exactly as after `bpf_sk_assign`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from nodenet.capture.records import Backend, PodRecord, record_path, remove_record, write_record
from nodenet.kernel.cgroups import Cgroup
from nodenet.kernel.netns import NetNs
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import Instance

#: Seconds anything here may take on a busy machine; never waited for in full when all is well.
DEADLINE = 30.0
POD4, OUT4, POD6, OUT6 = "10.99.0.1", "10.99.0.2", "fd99::1", "fd99::2"

_OUTBOUND = """
*nat
-A OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A OUTPUT -o lo -j ACCEPT
-A OUTPUT -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
COMMIT
"""
_INBOUND = {
    "iptables": """
*mangle
-A PREROUTING -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark
COMMIT
*nat
-A PREROUTING -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
COMMIT
""",
    "ebpf": """
*mangle
-A PREROUTING -i eth0 -p tcp --syn -j TPROXY --on-port 15006
COMMIT
""",
}


class ProxyProcess:
    """``python -m nodenet.agents.ztunnel run`` as a child. Its log is in ``log``."""

    def __init__(
        self,
        instance: Instance,
        cgroup: Cgroup,
        log: Path,
        *options: str,
        prefix: Sequence[str] = (),
    ) -> None:
        """``prefix``: a command that sets something and then executes the rest."""
        self.log = log
        with log.open("xb") as out:
            self.process = subprocess.Popen(
                [
                    *prefix,
                    sys.executable,
                    "-m",
                    "nodenet.agents.ztunnel",
                    "run",
                    f"--id={instance.id}",
                    f"--cgroup={cgroup.path}",
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={"PYTHONASYNCIODEBUG": "1", **os.environ, "PYTHONWARNINGS": "error"},
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def text(self) -> str:
        """What this process has written."""
        return self.log.read_text()

    def wait_for(self, pattern: str, seconds: float = DEADLINE) -> re.Match[str]:
        """Waits until the log has a match; AssertionError with the log when it has none."""
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.text())) is None:
            assert self.process.poll() is None or re.search(pattern, self.text()), (
                f"the proxy ended with {self.process.poll()}: {self.text()}"
            )
            assert time.monotonic() < end, f"no {pattern!r} in: {self.text()}"
            time.sleep(0.01)
        return found

    def wait_for_lines(self, text: str, count: int, seconds: float = DEADLINE) -> None:
        """Waits until so many lines of the log have a text in them."""
        end = time.monotonic() + seconds
        while (found := self.text().count(text)) < count:
            assert time.monotonic() < end, f"{found} lines with {text!r}, not {count}"
            time.sleep(0.01)

    def ready(self) -> Self:
        """Waits until it serves."""
        self.wait_for(r"(?m)^READY ztunnel .*$")
        return self

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends it and returns its status; twice is no harm."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def fds(self) -> int:
        """How many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss_kib(self) -> int:
        """Its resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])

    def cpu_seconds(self) -> float:
        """CPU time it has used, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Proxied:
    """The world of one test. A context manager; everything is removed at its end."""

    def __init__(self, backend: Backend, directory: Path) -> None:
        self.backend: Backend = backend
        self.directory = directory
        self.instance = Instance(f"t-{secrets.token_hex(4)}")
        self._stack = contextlib.ExitStack()
        self._proxies: list[ProxyProcess] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(_remove_tree, self.instance.run)
            # a level above it, as the real one has, so that the parent is removed too
            parent = Cgroup.create(Path(self.instance.name))
            stack.callback(parent.remove)
            self.cgroup = Cgroup.create(Path(self.instance.name) / "ztunnel")
            self.topology = stack.enter_context(Topology())
            stack.callback(self._stop_proxies)
            self.pod, self.out = self.topology.pair("pod", "out")
            redirect(self.pod, self.backend)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def record(self, pod: Namespace | None = None, **changes: object) -> PodRecord:
        """The record of a pod, by default the one there is."""
        pod = pod or self.pod
        with NetNs.open(pod.path) as ns:
            facts: dict[str, object] = {
                "name": pod.name,
                "netns": str(pod.path),
                "netns_inode": ns.inode,
                "netns_cookie": ns.cookie(),
                "pod_id": 1,
                "ips": tuple(str(ip) for ip in (pod.ip4, pod.ip6) if ip is not None),
                "backend": self.backend,
                "enrolled_at": "2026-01-01T00:00:00.000000Z",
            }
        return PodRecord(**(facts | changes))  # type: ignore[arg-type]  # checked by msgspec

    def enroll(self, pod: Namespace | None = None, **changes: object) -> PodRecord:
        """Writes a pod's record."""
        record = self.record(pod, **changes)
        write_record(self.instance, record)
        return record

    def unenroll(self, record: PodRecord) -> None:
        """Removes a record."""
        remove_record(self.instance, record.netns_cookie)
        assert not record_path(self.instance, record.netns_cookie).exists()

    def start(self, *options: str, prefix: Sequence[str] = ()) -> ProxyProcess:
        """Starts a proxy; it may not be ready yet."""
        log = self.directory / f"proxy-{len(self._proxies)}.log"
        proxy = ProxyProcess(self.instance, self.cgroup, log, *options, prefix=prefix)
        self._proxies.append(proxy)
        return proxy

    def proxy(self, *options: str) -> ProxyProcess:
        """Enrols the pod, starts a proxy and waits until it serves."""
        self.enroll()
        return self.start(*options).ready()

    def listen(self, where: Namespace, port: int = 0) -> socket.socket:
        """A listening socket for both families; its timeout is set."""
        with where.entered():
            listener = socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
        listener.settimeout(DEADLINE)
        return listener

    def connect(
        self, where: Namespace, host: str, port: int, source_port: int = 0
    ) -> socket.socket:
        """A connection from a namespace; its timeout is set."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with where.entered():
            sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(DEADLINE)
            if source_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", source_port))
            sock.connect((host, port))
        except BaseException:
            sock.close()
            raise
        return sock

    @contextlib.contextmanager
    def outbound(self, host: str = OUT4) -> Iterator[tuple[socket.socket, socket.socket]]:
        """A connection from the pod to the outside: (client, server)."""
        with self.listen(self.out) as listener:
            with self.connect(self.pod, host, listener.getsockname()[1]) as client:
                with accept(listener) as server:
                    yield client, server

    @contextlib.contextmanager
    def inbound(self, host: str = POD4) -> Iterator[tuple[socket.socket, socket.socket]]:
        """A connection from the outside to an application of the pod: (client, server)."""
        with self.listen(self.pod) as listener:
            with self.connect(self.out, host, listener.getsockname()[1]) as client:
                with accept(listener) as server:
                    yield client, server

    def _stop_proxies(self) -> None:
        for proxy in self._proxies:
            proxy.stop(signal.SIGKILL)
        for proxy in self._proxies:
            fault = re.search(
                r"(?s)(Traceback|Exception ignored|\berror\t|never awaited).*", proxy.text()
            )
            assert fault is None, f"in the log of the proxy: {fault[0]}"


def is_reset(where: Namespace, host: str, port: int) -> bool:
    """Whether a connection from a namespace is made and then reset, and does not just end."""
    with where.entered():
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.settimeout(DEADLINE)
    with sock:
        try:
            sock.connect((host, port))
        except ConnectionResetError:  # it came before connect() had returned
            return True
        return ends_in_reset(sock)


def accept(listener: socket.socket) -> socket.socket:
    """The next connection, with a timeout."""
    sock, _ = listener.accept()
    sock.settimeout(DEADLINE)
    return sock


def redirect(pod: Namespace, backend: str) -> None:
    """What the capture would do to a pod's namespace, by other means."""
    pod.sysctl({"net.ipv4.fwmark_reflect": 1, "net.ipv6.fwmark_reflect": 1})
    if backend == "ebpf":
        pod.sysctl({"net.ipv4.tcp_fwmark_accept": 1})
    for family, everything in (("-4", "0.0.0.0/0"), ("-6", "::/0")):
        rule = ["rule", "add", "fwmark", "0x111/0xfff", "pref", "32764", "lookup", "100"]
        pod.run("ip", family, *rule)
        pod.run("ip", family, "route", "add", "local", everything, "dev", "lo", "table", "100")
    for command in ("iptables-restore", "ip6tables-restore"):
        for rules in (_OUTBOUND, _INBOUND[backend]):
            pod.run(command, "--noflush", input=rules)


def ends_in_reset(sock: socket.socket) -> bool:
    """Whether the stream ends by a reset and not by its end; waits for either."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return False


def _remove_tree(path: Path) -> None:
    for directory, _names, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)
