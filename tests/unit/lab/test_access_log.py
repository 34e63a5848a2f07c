"""Lines of the proxies' access logs, as a proxy writes them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from nodenet.agents.ztunnel.access_log import AccessLog as Writer
from nodenet.agents.ztunnel.access_log import LogFormat
from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.ends import PolicyRejection
from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND, FlowFacts, Security
from nodenet.agents.ztunnel.outbound import HttpStatus
from nodenet.lab.access_log import AccessLine, AccessLog, LogTail, LogUnreadable
from nodenet.mesh.rbac import EXPLICITLY_DENIED

A1, A2 = (f"spiffe://cluster.local/ns/lab/sa/a{n}" for n in (1, 2))


def _out(**changes: object) -> AccessLine:
    fields: dict[str, object] = {
        "message": "connection complete",
        "direction": "outbound",
        "source": "10.77.1.2:4000",
        "src_identity": A1,
        "destination": "10.77.2.2:15008",
        "tunnelled_to": "10.77.2.2:8080",
        "dst_identity": A2,
    }
    return AccessLine(**(fields | changes))  # type: ignore[arg-type]


def _in(**changes: object) -> AccessLine:
    return _out(**({"direction": "inbound", "source": "10.77.1.2:9999"} | changes))


DENIED = EXPLICITLY_DENIED % "lab/only-a1"
REFUSED = HttpStatus(401).message


@pytest.mark.parametrize(
    "line, protocol, decision, status, policy",
    [
        (_out(), "hbone", "allow", None, None),
        (_in(), "hbone", "allow", None, None),
        (_out(error=REFUSED), "hbone", "deny", 401, None),
        (_out(error=HttpStatus(503).message), "hbone", None, 503, None),
        (_out(error="connection timed out"), "hbone", None, None, None),
        (_in(error=PolicyRejection(DENIED).message), "hbone", "deny", None, "lab/only-a1"),
        (_in(tunnelled_to=None, src_identity=None), "tcp", "allow", None, None),
        (_in(tunnelled_to=None, error=DENIED), "tcp", "deny", None, "lab/only-a1"),
        # nobody is asked about plaintext that leaves
        (_out(tunnelled_to=None, src_identity=None), "tcp", None, None, None),
    ],
)
def test_what_a_line_means(
    line: AccessLine, protocol: str, decision: str | None, status: int | None, policy: str | None
) -> None:
    assert (line.protocol, line.decision, line.status, line.policy) == (
        protocol, decision, status, policy,
    )  # fmt: skip


def test_lines_are_found_by_what_both_ends_know() -> None:
    plain = _in(tunnelled_to=None, destination="10.77.2.2:8080", source="10.77.1.3:5")
    v6 = _in(source="[fd77:1::2]:9", tunnelled_to="[fd77:2::2]:8080")
    log = AccessLog([_out(), _in(), _in(), plain, v6])
    assert log.outbound("1", "10.77.1.2:4000") == _out()
    assert log.outbound("1", "10.77.1.2:4001") is None
    by_id = AccessLog([_out(conn_id="3a01")])
    assert by_id.outbound("3a01", "x") == _out(conn_id="3a01")
    assert by_id.outbound("3a02", "10.77.1.2:4000") is None
    assert log.inbound("10.77.1.2", "10.77.2.2:8080") == [_in(), _in()]
    assert log.inbound("10.77.1.3", "10.77.2.2:8080") == [plain]
    assert log.inbound("fd77:1::2", "[fd77:2::2]:8080") == [v6]
    assert log.inbound("10.77.1.2", "10.77.2.2:8081") == []


def _write(path: Path, direction: str = OUTBOUND, error: str | None = None) -> None:
    """A line as a proxy writes it."""
    facts = FlowFacts(
        direction=direction,
        conn_id="3a01",
        pod="lab/a1",
        src=Address("10.77.1.2", 4000),
        dst=Address("10.77.2.2", 15008),
        original_dst=Address("10.77.2.2", 8080),
        hbone_addr="10.77.2.2:8080",
        protocol="HBONE",
        security=Security.MTLS,
        src_identity=A1,
        dst_identity=A2,
    )
    with path.open("ab") as file:
        writer = Writer(LogFormat.JSON, file.write)
        fragment = writer.fragment(facts)
        writer.opened(facts, fragment)
        writer.complete(facts, fragment, 83, 12_702, 0.1, error)


def test_what_a_proxy_writes_is_read(tmp_path: Path) -> None:
    one, other = tmp_path / "n1.log", tmp_path / "n2.log"
    one.write_text("READY ztunnel\n")
    tail = LogTail([one, other, tmp_path / "none.log"])
    _write(one, error=REFUSED)
    _write(other, INBOUND)
    log = tail.read()
    found = log.outbound("3a01", "")
    assert found == _out(error=REFUSED, conn_id="3a01")
    assert log.inbound("10.77.1.2", "10.77.2.2:8080") == [
        _in(source="10.77.1.2:4000", conn_id="3a01"),
    ]


def test_only_what_is_new_and_whole_is_read(tmp_path: Path) -> None:
    path = tmp_path / "n1.log"
    _write(path)
    tail = LogTail([path])
    assert tail.read().outbound("3a01", "") is None
    text = path.read_bytes()
    line = text.splitlines(keepends=True)[-1]
    path.write_bytes(text + line[:-1])
    assert tail.read().outbound("3a01", "") is None
    path.write_bytes(text + line)
    assert tail.read().outbound("3a01", "") is not None


def test_it_waits_until_there_is_enough_and_no_longer_than_told(tmp_path: Path) -> None:
    path = tmp_path / "n1.log"
    tail = LogTail([path])
    timer = threading.Timer(0.05, _write, [path])
    timer.start()
    found = tail.read_until(lambda log: log.outbound("3a01", "") is not None, 10.0)
    timer.join()
    assert found.outbound("3a01", "") is not None
    assert tail.read_until(lambda log: False, 0.02).outbound("3a01", "") is not None


def test_a_line_of_another_kind_is_an_error_and_other_scopes_are_none(tmp_path: Path) -> None:
    path = tmp_path / "n1.log"
    tail = LogTail([path])
    path.write_text(json.dumps({"level": "info", "scope": "nodenet.agents", "message": "x"}) + "\n")
    tail.read()
    path.write_text('{"scope":"access","message":1}\n')
    with pytest.raises(LogUnreadable, match="n1.log"):
        tail.read()
