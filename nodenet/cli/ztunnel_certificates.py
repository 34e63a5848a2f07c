"""`ztunnel certificates`: who this node can prove to be, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from nodenet.agents.ztunnel.views import CertificateView
from nodenet.cli import numbers, ztunnel_dump
from nodenet.cli.prefix import nearest
from nodenet.cli.style import Style
from nodenet.cli.tables import GAP, Column, Elide, render_table
from nodenet.cli.ztunnel_ask import Asked
from nodenet.cli.ztunnel_names import short_identity
from nodenet.cli.ztunnel_ready import known
from nodenet.errors import NodenetError, NotFound
from nodenet.times import parse_rfc3339

#: Least part of its life that a certificate must have left for --check.
LEAST_LEFT = 0.1


class CertificateBad(NodenetError):
    """--check found one that is not there or nearly over."""


class ChainPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One X.509 certificate."""

    kind: Literal["leaf", "intermediate", "root"]
    serial: str
    """Hexadecimal."""
    not_before: str
    not_after: str


class CertificateRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One identity, as ``ztunnel certificates -j`` prints it."""

    identity: str
    state: Literal["available", "initializing", "unavailable"]
    not_before: str | None
    not_after: str | None
    refresh_at: str | None
    """When the next one is asked for; None while that is under way, and of a proxy that does not
    tell."""
    serial: str | None
    """Hexadecimal."""
    last_error: str | None
    attempts: int | None
    """Failures since the last success."""
    chain: list[ChainPart]
    node: str | None
    """Of the proxy that has it; None when there is one only."""


def _seconds(moment: str | None) -> float | None:
    if moment is None:
        return None
    return (parse_rfc3339(moment) - datetime.now(UTC)).total_seconds()


def _valid_for(row: CertificateRow) -> str | None:
    left = _seconds(row.not_after)
    if left is None:
        return None
    return numbers.age(left) if left > 0 else f"expired {numbers.age(-left)} ago"


def _refresh_in(row: CertificateRow) -> str | None:
    left = _seconds(row.refresh_at)
    if left is None:
        return None
    return f"{'in ' if row.state != 'available' else ''}{numbers.age(left)}"


def _error(row: CertificateRow) -> str | None:
    if row.last_error is None:
        return None
    return f"{row.last_error} (attempt {row.attempts})" if row.attempts else row.last_error


_NODE = Column("NODE", "node")
COLUMNS = (
    Column("IDENTITY", "identity", max=64, elide=Elide.MIDDLE, keep=True),
    Column("STATE", "state", state=True),
    Column("VALID-FOR", "not_after", value=_valid_for),
    Column("REFRESH-IN", "refresh_at", value=_refresh_in),
    Column("SERIAL", "serial", max=20, elide=Elide.MIDDLE),
    Column("ERROR", "last_error", max=40, elide=Elide.END, value=_error),
)
_CHAIN = (
    Column("KIND", "kind"),
    Column("SERIAL", "serial"),
    Column("NOT-BEFORE", "not_before"),
    Column("NOT-AFTER", "not_after"),
)


def rows(asked: Asked, identity: str | None) -> list[Any]:
    """Identities by name, of several proxies by node first."""
    if asked.istio:
        return _raw(asked, identity)
    views_of = {str(proxy.where): views for proxy, views in _told(asked)}
    dumps = asked.dumps("certificates")
    found = []
    for proxy, dump in dumps:
        views = views_of.get(str(proxy.where)) if proxy is not None else None
        known_views = {view.identity: view for view in views or ()}
        node = proxy.node if proxy is not None and len(dumps) > 1 else None
        for entry in dump.certificates:
            found.append(_row(entry, known_views.get(entry.identity), node))
    if identity is not None:
        found = [row for row in found if _is(identity, row.identity)]
        if not found:
            _nobody(asked, identity, [e.identity for _, d in dumps for e in d.certificates])
    elif not found:
        known(asked)
    return sorted(found, key=lambda row: (row.identity, row.node or ""))


def check(rows: Iterable[CertificateRow]) -> None:
    """CertificateBad names the first that cannot be relied on."""
    for row in rows:
        if row.state != "available":
            raise CertificateBad(
                f"certificate of {row.identity} is {row.state}: {_error(row) or '-'}"
            )
        assert row.not_before is not None and row.not_after is not None
        life = parse_rfc3339(row.not_after) - parse_rfc3339(row.not_before)
        left = _seconds(row.not_after)
        assert left is not None
        if left < LEAST_LEFT * life.total_seconds():
            raise CertificateBad(f"certificate of {row.identity} has only {_valid_for(row)} left")


def render(found: list[CertificateRow], style: Style) -> str:
    """The table; wide with each chain below its row."""
    columns = (_NODE, *COLUMNS) if any(row.node for row in found) else COLUMNS
    table = render_table(found, columns, style)
    if not style.wide:
        return table
    lines = table.splitlines()
    head, body = (lines[:1], lines[1:]) if style.headers else ([], lines)
    for row, line in zip(found, body, strict=True):
        head.append(line)
        for part in render_table(row.chain, _CHAIN, style).splitlines():
            head.append(f"{GAP}{part}")
    return "".join(f"{line}\n" for line in head)


def _told(asked: Asked) -> list[Any]:
    return asked.told("/v1/certificates", list[CertificateView])


def _row(
    entry: ztunnel_dump.Certificate, view: CertificateView | None, node: str | None
) -> CertificateRow:
    leaf = entry.cert_chain[0] if entry.cert_chain else None
    word, _, error = entry.state.partition(": ")
    return msgspec.convert(
        {
            "identity": entry.identity,
            "state": word.lower(),
            "not_before": leaf.valid_from if leaf else None,
            "not_after": leaf.expiration_time if leaf else None,
            "refresh_at": view.refresh_at if view else None,
            "serial": _hex(leaf.serial_number) if leaf else None,
            "last_error": view.last_error if view else error or None,
            "attempts": view.attempts if view else None,
            "chain": [
                *(_part(c, "leaf" if i == 0 else "intermediate")
                  for i, c in enumerate(entry.cert_chain)),
                *(_part(c, "root") for c in entry.root_certs),
            ],
            "node": node,
        },
        CertificateRow,
    )  # fmt: skip


def _part(
    certificate: ztunnel_dump.CertificateParts, kind: Literal["leaf", "intermediate", "root"]
) -> dict[str, str]:
    return {
        "kind": kind,
        "serial": _hex(certificate.serial_number),
        "not_before": certificate.valid_from,
        "not_after": certificate.expiration_time,
    }


def _hex(serial: str) -> str:
    return f"{int(serial):x}" if serial.isdigit() else serial


def _is(given: str, identity: str) -> bool:
    """In full, as ``NS/sa/NAME``, ``NS/NAME`` or ``NAME``."""
    short = short_identity(identity)
    return given in (identity, short, short.replace("/sa/", "/", 1), short.rpartition("/")[2])


def _nobody(asked: Asked, given: str, names: list[str]) -> None:
    near = nearest(given, names) or nearest(given, [short_identity(name) for name in names])
    hint = f"nearest: {near}" if near else None
    raise NotFound(f"no identity {given} in {len(names)} {known(asked)}", hint=hint)


def _raw(asked: Asked, identity: str | None) -> list[Any]:
    items = [
        item
        for _, raw, where in asked.raw("certificates")
        for item in ztunnel_dump.raw_items(raw, "certificates", where)
    ]
    if identity is None:
        return items
    chosen = [item for item in items if _is(identity, item.get("identity", ""))]
    if not chosen:
        _nobody(asked, identity, [item.get("identity", "") for item in items])
    return chosen
