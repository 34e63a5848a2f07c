"""Whom `nodenet ztunnel` asks: the proxies of this host, one that is named, or a saved dump."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from urllib.parse import unquote

import click
import msgspec

from nodenet.cli import ztunnel_dump
from nodenet.cli.globals import Format, Globals, of
from nodenet.cli.ztunnel_dump import Dump
from nodenet.errors import NodenetError, NotFound, NotPermitted, UsageError

if TYPE_CHECKING:
    from nodenet.httpd.client import Answer, TcpAddress
    from nodenet.paths import Instance

T = TypeVar("T")
_F = TypeVar("_F", bound=Callable[..., Any])
#: For a dump of a large mesh.
ANSWER_SECONDS = 60.0
_ISTIO = "istio"
_META = "nodenet.ztunnel.istio"


class AskOptions(TypedDict):
    """What `asking` leaves in a verb's keyword arguments."""

    node: str | None
    file: str | None
    admin: str | None


class NoZtunnel(NotFound):
    """Nobody answers where a proxy would."""

    def __init__(self, where: object, reason: str) -> None:
        left = isinstance(where, Path) and reason == "connection refused"
        super().__init__(
            f"no ztunnel here: connect {where}: {reason}"
            f"{' (left by one that was killed)' if left else ''}",
            hint="start it: nodenet ztunnel run, or name one: --admin 127.0.0.1:15000",
        )


class Refused(NodenetError):
    """A proxy answered with an error."""


class OfItsOwn(NodenetError):
    """Only nodenet's proxy can tell, and this is a dump or another one."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{where} does not tell {what}", hint="ask nodenet's own ztunnel")


@dataclass(frozen=True, slots=True)
class Proxy:
    """One proxy to ask."""

    where: TcpAddress | Path
    node: str | None = None


class Asked:
    """The answers of the proxies, or of the file, that the options name."""

    def __init__(self, g: Globals, options: AskOptions) -> None:
        self.g = g
        self.istio = bool(click.get_current_context().meta.get(_META))
        """Whether ``-o istio`` was given: the objects of the dump as they are."""
        if self.istio and g.watch is not None:
            raise UsageError("-o istio and --watch do not go together; use -j --watch")
        self._file = options["file"]
        self._admin = options["admin"]
        self._node = options["node"]
        if self._file is not None and (self._admin is not None or self._node is not None):
            raise UsageError(
                "-f: a saved dump is asked instead of a proxy; leave out --admin, --node"
            )
        self._saved: bytes | None = None

    @property
    def live(self) -> bool:
        """Whether proxies are asked, not a file."""
        return self._file is None

    def dumps(self, *keys: str) -> list[tuple[Proxy | None, Dump]]:
        """Each proxy's dump, of which at least ``keys`` are there; of the file None's."""
        return [(proxy, ztunnel_dump.decode(raw, where)) for proxy, raw, where in self.raw(*keys)]

    def raw(self, *keys: str) -> Iterator[tuple[Proxy | None, bytes, str]]:
        """Each dump as it came, and where from. Raises NoZtunnel when nobody answers."""
        if self._file is not None:
            yield None, self._read(), self._file
            return
        target = f"/config_dump?only={','.join(keys)}" if keys else "/config_dump"
        for proxy, answer in self.ask(target):
            yield proxy, checked(answer, proxy).body, str(proxy.where)

    def ask(self, target: str) -> Iterator[tuple[Proxy, Answer]]:
        """Each proxy's answer. Those that are gone are told of, unless all are."""
        gone: list[NoZtunnel] = []
        answered = False
        for proxy in self.proxies():
            try:
                answer = fetched(proxy, target)
            except NoZtunnel as error:
                gone.append(error)
            else:
                answered = True
                yield proxy, answer
        if gone and not answered:
            raise gone[0]
        for absent in gone:
            self.g.notice(absent.message)

    def told(self, target: str, kind: type[T]) -> list[tuple[Proxy, T | None]]:
        """Each proxy's answer to one of nodenet's own paths; None of one that has no such path."""
        if self._file is not None:
            return []
        return [(proxy, own(answer, proxy, kind)) for proxy, answer in self.ask(target)]

    def proxies(self) -> list[Proxy]:
        """Whom to ask; NoZtunnel when there is no socket."""
        if self._admin is not None:
            return [Proxy(_address(self._admin), self._node)]
        from nodenet.agents.ztunnel.admin_socket import admin_socket

        if self._node is not None:
            return [Proxy(admin_socket(self.g.instance, self._node), self._node)]
        return local_proxies(self.g.instance) or [Proxy(admin_socket(self.g.instance, None))]

    def one(self) -> Proxy:
        """The only proxy; UsageError when there are several to choose from."""
        found = self.proxies()
        if len(found) > 1:
            names = ", ".join(proxy.node or str(proxy.where) for proxy in found)
            raise UsageError(f"several ztunnels here: {names}", hint="choose one: --node NAME")
        return found[0]

    def _read(self) -> bytes:
        if self._saved is None:
            assert self._file is not None
            try:
                if self._file == "-":
                    self._saved = sys.stdin.buffer.read()
                else:
                    self._saved = Path(self._file).read_bytes()
            except FileNotFoundError as error:
                raise NotFound(f"no such file: {self._file}") from error
            except IsADirectoryError as error:
                raise UsageError(
                    f"{self._file} is a directory", hint="give a saved dump"
                ) from error
        return self._saved


def local_proxies(instance: Instance) -> list[Proxy]:
    """Those whose sockets are there, which may be left behind by one that was killed."""
    from nodenet.agents.ztunnel.admin_socket import admin_socket

    own = admin_socket(instance, None)
    found = [Proxy(own)] if own.exists() else []
    for path in sorted(instance.run.glob("ztunnel-*.sock")):
        found.append(Proxy(path, unquote(path.stem.removeprefix("ztunnel-"))))
    return found


def fetched(
    proxy: Proxy,
    target: str,
    *,
    method: str = "GET",
    body: bytes = b"",
    answer_seconds: float = ANSWER_SECONDS,
) -> Answer:
    """One answer; NoZtunnel, NotPermitted."""
    from nodenet.httpd.client import NobodyThere, fetch

    try:
        return fetch(proxy.where, target, method=method, body=body, answer_seconds=answer_seconds)
    except NobodyThere as error:
        reason = error.reason.removesuffix(" or directory")
        raise NoZtunnel(proxy.where, reason) from error
    except PermissionError as error:
        raise NotPermitted(
            f"not permitted: connect {proxy.where}: permission denied",
            hint="run with sudo, or as a member of the group nodenet",
        ) from error


def checked(answer: Answer, proxy: Proxy) -> Answer:
    """The answer, if it is one. Errors keep the kind the proxy meant."""
    if answer.status == 200:
        return answer
    text = answer.text or f"status {answer.status}"
    kind = {400: UsageError, 404: NotFound}.get(answer.status)
    if kind is not None and not is_unknown_path(answer):
        raise kind(text)
    raise Refused(f"ztunnel at {proxy.where}: {text}")


def is_unknown_path(answer: Answer) -> bool:
    """Whether the proxy does not know the path at all: Istio's, or an older one."""
    return answer.status in (404, 405) and answer.text in ("", "not found", "Not Found")


def own(answer: Answer, proxy: Proxy, kind: type[T]) -> T | None:
    """The answer to one of nodenet's own paths, decoded; None when the proxy has no such path."""
    if is_unknown_path(answer):
        return None
    try:
        return msgspec.json.decode(checked(answer, proxy).body, type=kind)
    except msgspec.DecodeError as error:
        raise Refused(
            f"ztunnel at {proxy.where}: another version's answer: {error}",
            hint="compare: nodenet version",
        ) from error


def _address(text: str) -> TcpAddress | Path:
    from nodenet.httpd.client import TcpAddress

    if "/" in text:
        return Path(text)
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = (text, "15000") if not text.isdigit() else ("127.0.0.1", text)
    if not port.isdigit() or not 0 < int(port) < 65536 or not host:
        raise UsageError(f"{text} is no address in --admin", hint="e.g. --admin 127.0.0.1:15000")
    return TcpAddress(host.strip("[]"), int(port))


def _keep_output(ctx: click.Context, _param: click.Parameter, given: str | None) -> None:
    if given == _ISTIO:
        of(ctx).output, of(ctx).pretty = Format.JSON, True
        ctx.meta[_META] = True
    elif given is not None:
        of(ctx).output = Format(given)


def asking(*, istio: bool = False) -> Callable[[_F], _F]:
    """Decorator with the options --node, -f, --admin; with ``istio`` also -o istio."""
    options = [
        click.option("--node", metavar="NAME", help="Of several proxies the one of this node."),
        click.option("-f", "--file", metavar="FILE", help="A saved dump instead; - is stdin."),
        click.option(
            "--admin", metavar="HOST:PORT", help="Another ztunnel, Istio's too; or a socket's path."
        ),
    ]
    if istio:
        formats = [*(each.value for each in Format), _ISTIO]
        options.append(
            click.option(
                "-o",
                "--output",
                "_output",
                type=click.Choice(formats),
                expose_value=False,
                callback=_keep_output,
                help="Form of the answer; istio: the objects that istioctl prints.",
            )
        )

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
