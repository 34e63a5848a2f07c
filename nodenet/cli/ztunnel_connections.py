"""`ztunnel connections`: what the proxy carries now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from nodenet.agents.ztunnel.views import ProxyConnection
from nodenet.cli import numbers
from nodenet.cli.tables import Column, Elide
from nodenet.cli.ztunnel_ask import Asked, OfItsOwn
from nodenet.cli.ztunnel_dump import Dump, Flow
from nodenet.cli.ztunnel_names import choose, short_identity
from nodenet.cli.ztunnel_ready import check_namespace
from nodenet.times import parse_rfc3339


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One live connection, as ``ztunnel connections -j`` prints it.

    Of a dump, or of another ztunnel, only the ends are known; the rest is None.
    """

    id: str | None
    """Cookie of the accepted socket, hex: ``conn.id`` in the access log. The tunnels of one HBONE
    connection that arrived share it."""
    pod: str
    dir: Literal["out", "in"]
    local: str
    peer: str
    """ENDPOINT."""
    peer_name: str | None
    """``NS/NAME`` of its workload."""
    security: Literal["mtls", "plain"]
    peer_identity: str | None
    upstream: str
    """ENDPOINT the proxy dialled; inbound that of the application."""
    policy: str | None
    bytes_sent: int | None
    bytes_received: int | None
    start: str | None
    row: str | None
    protocol: str
    hbone_conn: str | None
    stream_id: int | None
    src: str
    original_dst: str | None
    actual_dst: str
    service: str | None
    dialled_from: str | None
    node: str | None
    """Of the proxy that has it; None when there is one only."""

    @property
    def key(self) -> str:
        """Tells it from all others, for -o name and --watch."""
        if self.id is None:
            return f"{self.src}>{self.actual_dst}"
        if self.dir == "out" or self.stream_id is None:
            return self.id
        return f"{self.id}/{self.stream_id}"


#: What a row has of what a proxy tells; all of these connections are open.
_SHARED = tuple(key for key in ConnectionRow.__struct_fields__ if key != "node")


def _peer(row: ConnectionRow) -> str:
    if row.peer_name is None:
        return row.peer
    return f"{row.peer_name}:{row.peer.rpartition(':')[2]}"


def _upstream(row: ConnectionRow) -> str:
    return row.upstream if row.dir == "out" else "app"


def _policy(row: ConnectionRow) -> str | None:
    if row.dir == "out" or row.id is None:
        return row.policy
    return row.policy or "no policies"


def _age(row: ConnectionRow) -> float | None:
    if row.start is None:
        return None
    return (datetime.now(UTC) - parse_rfc3339(row.start)).total_seconds()


def columns(*, raw: bool, nodes: bool) -> tuple[Column, ...]:
    """``raw``: peers by address; ``nodes``: of several proxies."""
    return (
        Column("ID", "id", value=lambda row: row.id or "?"),
        *((Column("NODE", "node"),) if nodes else ()),
        Column("POD", "pod", max=32, elide=Elide.MIDDLE),
        Column("DIR", "dir"),
        Column("LOCAL", "local"),
        Column("PEER", "peer", keep=True, value=None if raw else _peer),
        Column("SECURITY", "security", max=6),
        Column("PEER-IDENTITY", "peer_identity", lambda value, _: short_identity(value), max=40,
               elide=Elide.MIDDLE),
        Column("UPSTREAM", "upstream", max=47, value=_upstream),
        Column("POLICY", "policy", max=24, elide=Elide.MIDDLE, value=_policy),
        Column("SENT", "bytes_sent", numbers.size, right=True),
        Column("RECV", "bytes_received", numbers.size, right=True),
        Column("AGE", "start", numbers.age, right=True, value=_age),
        Column("ROW", "row", wide=True),
        Column("HBONE", "hbone_conn", wide=True),
        Column("STREAM", "stream_id", wide=True),
        Column("ORIGINAL-DST", "original_dst", wide=True),
        Column("SERVICE", "service", wide=True),
    )  # fmt: skip


def rows(asked: Asked, namespace: str | None, pod: str | None) -> list[Any]:
    """Live connections by pod, then by start."""
    if asked.istio:
        return _raw(asked)
    found = _told(asked) if asked.live else _dumped(asked)
    if pod is not None:
        wanted = choose(
            pod, {row.pod for row in found} | _served(asked), what="pod", known="served"
        )
        found = [row for row in found if row.pod == wanted]
    if namespace is not None:
        found = [row for row in found if row.pod.rpartition("/")[0] == namespace]
        if not found:
            check_namespace(asked, namespace)
    return sorted(found, key=lambda row: (row.pod, row.start or "", row.src))


def _told(asked: Asked) -> list[ConnectionRow]:
    answers = asked.told("/v1/connections", list[ProxyConnection])
    if any(connections is None for _, connections in answers):
        return _dumped(asked)
    several = len(answers) > 1
    return [
        ConnectionRow(
            **{key: getattr(each, key) for key in _SHARED}, node=proxy.node if several else None
        )
        for proxy, connections in answers
        for each in connections or ()
    ]


def _dumped(asked: Asked) -> list[ConnectionRow]:
    dumps = asked.dumps("workloadState", "config")
    several = len(dumps) > 1
    return [
        row
        for proxy, dump in dumps
        for row in _of_dump(dump, proxy.node if proxy is not None and several else None)
    ]


def _of_dump(dump: Dump, node: str | None) -> list[ConnectionRow]:
    return [
        _row(state.name, direction, flow, node)
        for state in dump.workload_state.values()
        for direction, flows in (
            ("out", state.connections.outbound),
            ("in", state.connections.inbound),
        )
        for flow in flows
    ]


def _row(pod: str, direction: str, flow: Flow, node: str | None) -> ConnectionRow:
    out = direction == "out"
    return ConnectionRow(
        id=None,
        pod=pod,
        dir="out" if out else "in",
        local=flow.src if out else flow.actual_dst,
        peer=(flow.original_dst or flow.actual_dst) if out else flow.src,
        peer_name=None,
        security="plain" if flow.protocol == "TCP" else "mtls",
        peer_identity=None,
        upstream=flow.actual_dst,
        policy=None,
        bytes_sent=None,
        bytes_received=None,
        start=None,
        row=None,
        protocol=flow.protocol,
        hbone_conn=None,
        stream_id=None,
        src=flow.src,
        original_dst=flow.original_dst,
        actual_dst=flow.actual_dst,
        service=None,
        dialled_from=None,
        node=node,
    )


def _served(asked: Asked) -> set[str]:
    return {
        state.name
        for _, dump in asked.dumps("workloadState")
        for state in dump.workload_state.values()
    }


def _raw(asked: Asked) -> list[Any]:
    """As istioctl gets them: the pods with their connections."""
    found = []
    for _, raw, where in asked.raw("workloadState"):
        try:
            state = msgspec.json.decode(raw).get("workloadState", {})
        except msgspec.DecodeError as error:
            raise OfItsOwn("connections", where) from error
        found += list(state.values())
    return found
