"""`capture explain`: the kernel's rows, then the proxy's for what it captures."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Literal

import msgspec

from nodenet.agents.ztunnel import explanation as ztunnel
from nodenet.capture import explain as kernel
from nodenet.errors import NodenetError

if TYPE_CHECKING:
    from nodenet.capture.session import Capture
    from nodenet.cli.globals import Globals
    from nodenet.cli.style import Style
    from nodenet.endpoint import IPAddress

#: Answers that only the proxy gives.
OF_THE_PROXY = ("mtls", "plain", "denied")


class ConnectionExplanation(kernel.Explanation, frozen=True, kw_only=True):
    """What ``capture explain -j`` prints: the kernel's answer, and the proxy's.

    ``app_sees`` is what comes of both.
    """

    ztunnel: ztunnel.Explanation | None
    """None: it does not come to the proxy, comes from outside, or no ztunnel answers."""


class Unexpected(NodenetError):
    """The answer differs from --expect."""


def explained(
    g: Globals,
    capture: Capture,
    src: str,
    dst: str,
    *,
    inbound: bool,
    protocol: Literal["tcp", "udp"],
    proxy: bool,
) -> ConnectionExplanation:
    """Asks the kernel, and the proxy where the connection comes to it."""
    from nodenet.capture.question import answer
    from nodenet.endpoint import format_endpoint
    from nodenet.lab.state import pod_places

    def service(name: str, port: int) -> IPAddress | None:
        """The address of a service, as the mesh has it."""
        half = None if inbound else _asked(g, src, f"{name}:{port}", quiet=True)
        return None if half is None else ipaddress.ip_address(half.dst.address)

    found = answer(
        capture,
        src,
        dst,
        inbound=inbound,
        protocol=protocol,
        proxy=proxy,
        places={place.name: place.netns for place in pod_places(g.instance)},
        service=service,
    )
    half = None
    if found.result == "captured" and found.dir == "out" and protocol == "tcp":
        assert found.dst.port is not None
        to = format_endpoint(ipaddress.ip_address(found.dst.address), found.dst.port)
        half = _asked(g, found.src.address, to)
    facts = msgspec.structs.asdict(found)
    if half is not None:
        facts["app_sees"] = half.app_sees
        facts["hint"] = found.hint or half.hint
        if found.dst.name is None:
            facts["dst"] = msgspec.structs.replace(found.dst, name=half.dst.name)
    return ConnectionExplanation(**facts, ztunnel=half)


def _asked(g: Globals, src: str, dst: str, *, quiet: bool = False) -> ztunnel.Explanation | None:
    """The proxy's answer; None with a notice when there is none."""
    from nodenet.cli.ztunnel_ask import Asked, NoZtunnel
    from nodenet.cli.ztunnel_explain import answer

    try:
        return answer(Asked(g, {"node": None, "file": None, "admin": None}), src, dst, None)
    except NoZtunnel:
        missing = "no ztunnel answers: what it would do is not shown"
    except NodenetError as error:
        missing = f"what ztunnel would do is not shown: {error.message}"
    if not quiet:
        g.notice(missing)
    return None


def check(found: ConnectionExplanation, src: str, dst: str, expected: str) -> None:
    """Raises Unexpected when neither the kernel nor the proxy answers so."""
    half = found.ztunnel
    answers = [found.result, *([half.result] if half else [])]
    if expected in answers:
        return
    by = half.rule if half else f"{found.rule} {found.reason}"
    text = f"{src} to {dst} is {answers[-1]}, not {expected}: row {by}"
    if expected in OF_THE_PROXY and half is None and found.result == "captured":
        text = f"{src} to {dst} is captured; whether {expected} no ztunnel tells"
    raise Unexpected(text)


def render(found: ConnectionExplanation, _style: Style) -> str:
    """Rows in order; the one that fired in each layer is marked."""
    from nodenet.cli import ztunnel_explain

    lines = [f"{_end(found.src)} -> {_end(found.dst)} {found.protocol}"]
    lines.append(f"KERNEL, {'outbound' if found.dir == 'out' else 'inbound'}")
    width = max(len(step.question) for step in found.steps)
    for step in found.steps:
        head = ">" if step.fired else " "
        answer = step.answer if step.fired else "no"
        line = f"{head} {step.rule:<3} {step.question:<{width}}  {answer:<8}  {step.why or ''}"
        lines.append(line.rstrip())
    outcome = f"Result: {found.result}, row {found.rule} ({found.reason})"
    if found.listener:
        outcome += f", to {found.listener}"
    seen: str = found.app_sees
    if found.ztunnel is not None:
        lines += ztunnel_explain.rows(found.ztunnel)
        outcome += f"; there {ztunnel_explain.outcome(found.ztunnel)}"
        seen = ztunnel_explain.sees(found.app_sees)
    lines.append(f"{outcome}. The app sees: {seen}.")
    if found.hint:
        lines.append(f"Do: {found.hint}")
    return "\n".join(lines)


def _end(end: kernel.Endpoint) -> str:
    at = f"{end.address}:{end.port}" if end.port else end.address
    if ":" in end.address and end.port:
        at = f"[{end.address}]:{end.port}"
    return f"{end.name} ({at})" if end.name else at
