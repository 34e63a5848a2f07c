"""Starts `recorder` processes in namespaces and talks to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from nodenet import abi
from nodenet.abi import IPAddress
from nodenet.lab.topology import Namespace

_SCRIPT: Final = Path(__file__).with_name("recorder.py")
#: ztunnel's TCP ports in a pod.
PROXY_PORTS: Final = (abi.OUTBOUND_PORT, abi.INBOUND_PORT, abi.HBONE_PORT)
#: ztunnel binds its DNS proxy to loopback, both protocols (ztunnel: src/dns/server.rs).
LOOPBACKS: Final = ("127.0.0.1", "::1")

Address = tuple[IPAddress, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What the accepting side says of one connection or datagram."""

    by: str
    """The recorder's name."""
    listener: int
    """The port it listens on."""
    peer: Address
    local: Address | None
    """What getsockname says; None for datagrams."""
    original: Address | None
    """SO_ORIGINAL_DST; None when the kernel has no answer."""
    level: int | None
    """The socket level that answered SO_ORIGINAL_DST."""
    mark: int
    query: str | None

    @property
    def destination(self) -> Address | None:
        """What ztunnel takes for the destination: the original, else its own address."""
        return self.original or self.local

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """From the JSON of the recorder."""
        return cls(
            by=raw["by"],
            listener=raw["listener"],
            peer=_address(raw["peer"]),
            local=_address(raw["local"]) if "local" in raw else None,
            original=_address(raw["original"]) if raw.get("original") else None,
            level=raw.get("level"),
            mark=raw.get("mark", 0),
            query=raw.get("query"),
        )


def _address(raw: list[Any]) -> Address:
    return ip_address(raw[0]), int(raw[1])


class Recorder:
    """One recorder process; a context manager that ends it."""

    def __init__(self, name: str, namespace: Namespace, cgroup: Path | None = None) -> None:
        self.name = name
        self.loopbacks: tuple[str, ...] = LOOPBACKS
        """Where `listen_as_proxy` opens the DNS listeners."""
        argv = [sys.executable, "-S", "-E", str(_SCRIPT), name]
        if cgroup is not None:
            argv.append(str(cgroup))
        self._process = namespace.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def listen(
        self,
        port: int,
        host: str = "::",
        *,
        udp: bool = False,
        mark: int = 0,
        transparent: bool = False,
    ) -> int:
        """Opens a listener and returns its port."""
        reply = self._ask(
            "listen", port=port, host=host, udp=udp, mark=mark, transparent=transparent
        )
        return int(reply["port"])

    def unlisten(self, port: int, host: str = "::", *, udp: bool = False) -> None:
        """Closes a listener."""
        self._ask("unlisten", port=port, host=host, udp=udp)

    def dial(
        self,
        host: IPAddress,
        port: int,
        *,
        source: IPAddress | None = None,
        source_port: int = 0,
        mark: int = 0,
        udp: bool = False,
        hold: bool = False,
        timeout: float = 15.0,
    ) -> tuple[Address, Greeting]:
        """Connects from this process: its own address and what the other side says.

        ``hold`` keeps the connection, for `echoing`.

        OSError as the connect had it; TimeoutError when it, or the greeting, did not come.
        """
        reply = self._ask(
            "dial",
            host=str(host),
            port=port,
            source=str(source) if source is not None else None,
            source_port=source_port,
            mark=mark,
            udp=udp,
            hold=hold,
            timeout=timeout,
        )
        return _address(reply["local"]), Greeting.read(reply["greeting"])

    def echoing(self, *, let_go: bool = False) -> int:
        """How many held connections still carry data both ways; ``let_go`` closes them after."""
        return int(self._ask("speak", word="still there?", let_go=let_go)["echoing"])

    def accepted(self) -> list[Greeting]:
        """Every connection and datagram taken since this was last asked."""
        return [Greeting.read(raw) for raw in self._ask("accepted_since")["greetings"]]

    def hang_up(self) -> None:
        """Resets every accepted connection."""
        self._ask("hang_up")

    def listen_as_proxy(self, *, dns: bool = True) -> None:
        """Opens ztunnel's listeners, marked and transparent as ztunnel's are."""
        self._each_listener(
            lambda port, host, udp: self.listen(
                port, host, udp=udp, mark=abi.MARK, transparent=not udp
            ),
            dns,
        )

    def unlisten_as_proxy(self, *, dns: bool = True) -> None:
        """The reverse of `listen_as_proxy`: what a client meets when the proxy is gone."""
        self._each_listener(lambda port, host, udp: self.unlisten(port, host, udp=udp), dns)

    def _each_listener(self, do: Callable[[int, str, bool], object], dns: bool) -> None:
        for port in PROXY_PORTS:
            do(port, "::", False)
        for host in self.loopbacks if dns else ():
            do(abi.DNS_PORT, host, False)
            do(abi.DNS_PORT, host, True)

    def close(self) -> None:
        """Ends the process; a second time does nothing."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        if process.returncode is None:
            process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, command: str, **arguments: object) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"recorder {self.name} ended with {process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if reply.get("timed_out"):
            raise TimeoutError(f"{self.name}: {command} {arguments}")
        if "errno" in reply:
            raise OSError(reply["errno"], os.strerror(reply["errno"]))
        return reply
