"""`ztunnel explain`: what would happen to one connection, by the code that decides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from nodenet.cli.style import Style
from nodenet.cli.tables import printable
from nodenet.cli.ztunnel_ask import Asked, NoZtunnel, OfItsOwn, fetched, own
from nodenet.endpoint import format_host_port
from nodenet.errors import NodenetError, NotFound, UsageError

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.explanation import End, Explanation, Step

#: Endpoints of one random choice shown in full.
CANDIDATES_SHOWN = 4
#: How a proxy begins to say that SRC is another one's: any other answer says more.
_OTHER_NODE = "cannot explain:"
_LAYERS = {"proxy": "PROXY", "far-side": "FAR SIDE"}


class Unexpected(NodenetError):
    """The answer differs from --expect."""


def answer(asked: Asked, src: str, dst: str, policy_file: str | None) -> Explanation:
    """The explanation by the proxy on whose node SRC runs, or from a dump."""
    policies = None if policy_file is None else _policies(policy_file)
    if not asked.live:
        return _from_dump(asked, src, dst, policies)
    from nodenet.agents.ztunnel.explanation import Explanation

    target = f"/v1/explain?{urlencode({'src': src, 'dst': dst})}"
    method = "GET" if policies is None else "POST"
    elsewhere: NotFound | None = None
    for proxy in asked.proxies():
        try:
            found = own(
                fetched(proxy, target, method=method, body=policies or b""), proxy, Explanation
            )
        except NoZtunnel as error:
            elsewhere = elsewhere or error
            continue
        except NotFound as error:
            # on another node, or a pod only its own proxy knows
            if elsewhere is None or not error.message.startswith(_OTHER_NODE):
                elsewhere = error
            continue
        if found is None:
            raise OfItsOwn("what would happen", f"ztunnel at {proxy.where}")
        return found
    assert elsewhere is not None
    raise elsewhere


def _from_dump(asked: Asked, src: str, dst: str, policies: bytes | None) -> Explanation:
    import random

    from nodenet.agents.ztunnel.explain import Mesh
    from nodenet.agents.ztunnel.explain_question import answer as answered
    from nodenet.cli.ztunnel_dump import decode
    from nodenet.mesh.state import MeshState
    from nodenet.mesh.static_file import from_dump

    _, raw, where = next(iter(asked.raw()))
    dump, static = decode(raw, where), from_dump(raw, file=where)
    state = MeshState(node=dump.node or "")
    state.replace((*static.workloads, *static.services, *static.policies))
    network = dump.config.get("network")
    mesh = Mesh(
        state=state,
        network=network if isinstance(network, str) else "",
        certificates={
            entry.identity: entry.state.partition(":")[0].lower() for entry in dump.certificates
        },
    )
    return answered(mesh, src, dst, rng=random.Random(), policies=policies)


def _policies(path: str) -> bytes:
    """JSON of a file with one policy, a list of them, or a mesh file's ``policies``; also YAML."""
    import msgspec
    import yaml

    try:
        text = Path(path).read_text()
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"--policy {path}: {reason}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--policy {path}: not a text file") from error
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"--policy {path}: neither YAML nor JSON: {error}") from error
    if isinstance(found, dict) and "policies" in found:
        found = found["policies"]
    each = found if isinstance(found, list) else [found]
    if not each or not all(isinstance(one, dict) for one in each):
        raise UsageError(
            f"--policy {path}: no policy in it",
            hint="give one policy, a list of them, or a mesh file with policies",
        )
    return msgspec.json.encode(found)


def render(found: Explanation, _style: Style) -> str:
    """Rows in order; the one that fired in each layer is marked."""
    lines = [f"{_end(found.src)} -> {_end(found.dst)} {found.protocol}", *rows(found)]
    way = outcome(found)
    if found.result != "refused":
        way = f"captured, {way}"
    lines.append(f"Result: {way}. The app sees: {sees(found.app_sees)}.")
    if found.what_if is not None:
        lines += _what_if(found)
    if found.hint:
        lines.append(f"Do: {found.hint}")
    return "\n".join(printable(line) for line in lines)


def rows(found: Explanation) -> list[str]:
    """The walk itself, a headline a layer; then what each endpoint would answer."""
    lines = []
    width = max((len(step.question) for step in found.steps), default=0)
    layer = None
    for step in found.steps:
        if step.layer != layer:
            layer = step.layer
            lines.append(_LAYERS.get(layer, layer.upper()))
        lines += _step(step, width)
    if found.outcomes:
        lines.append("By endpoint")
        for outcome in found.outcomes:
            because = outcome.policy or outcome.error
            why = f": {because}" if because else ""
            lines.append(
                f"  {outcome.probability * 100:3.0f} %  {outcome.endpoint}  {outcome.result}{why}"
            )
        if found.outcomes_left_out:
            lines.append(f"  and {found.outcomes_left_out} more")
    return lines


def _step(step: Step, width: int) -> list[str]:
    head = ">" if step.fired else " "
    line = f"{head} {step.rule:<8} {step.question:<{width}}  {step.answer:<12} {step.why}"
    lines = [line.rstrip()]
    if len(step.candidates) > 1:
        shown = [
            f"{each.name} {each.probability * 100:.0f} %{' (shown)' if each.chosen else ''}"
            for each in step.candidates[:CANDIDATES_SHOWN]
        ]
        more = len(step.candidates) - CANDIDATES_SHOWN
        if more > 0:
            shown.append(f"{more} more")
        lines.append(f"  {'':<8} {'':<{width}}  {'':<12} {', '.join(shown)}")
    return lines


def _end(end: End) -> str:
    address = end.address
    if end.port is not None:
        address = format_host_port(address, end.port)
    return f"{end.name} ({address})" if end.name else address


def outcome(found: Explanation) -> str:
    """What the proxies would make of it: ``mTLS to 10.77.2.2:15008``."""
    if found.result == "refused":
        return f"refused: {found.error}" if found.error else "refused"
    way = "mTLS" if found.security == "mtls" else "plaintext"
    text = f"{way} to {found.next_hop}" if found.next_hop else way
    if found.result == "denied":
        return f"{text}, then REFUSED by policy{f' {found.policy}' if found.policy else ''}"
    return f"{text}, let in by {found.policy}" if found.policy else text


def sees(app_sees: str) -> str:
    """``app_sees`` in words."""
    return {
        "proxied": "the connection, proxied",
        "connect-ok-then-close": "connect ok, then close",
        "connect-ok-then-reset": "connect ok, then reset",
    }[app_sees]


def _what_if(found: Explanation) -> list[str]:
    what_if = found.what_if
    assert what_if is not None
    lines = [f"With {', '.join(what_if.policies)}: {found.result}, now {what_if.result_now}."]
    if what_if.unbound:
        lines.append(f"No workload names {', '.join(what_if.unbound)}: nothing would change.")
    lines.append(f"{len(what_if.cut)} live connections would be cut.")
    for cut in what_if.cut:
        policy = cut.policy or "no policy allows it any more"
        lines.append(f"  {cut.id}  {cut.pod}  from {cut.peer}  {cut.identity or '-'}  {policy}")
    return lines
