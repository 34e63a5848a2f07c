"""What can be wrong with a call, whichever side it is seen from: a sentence each.

Pure. What the applications saw, what the kernel counted, what could be read between the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodenet.abi import HBONE_PORT
from nodenet.conns.connection import Connection
from nodenet.lab.access_log import host_of
from nodenet.lab.flows import Call, Row
from nodenet.lab.witnesses import Expectation, Witnesses, crossed
from nodenet.lab.workload import REQUEST_BYTES, RESPONSE_BYTES


def call_failed(call: Call) -> Iterator[str]:
    """The request itself: answered in full, and the right number of bytes both ways."""
    if call.error is not None:
        yield call.error.lower()
    elif call.seen is None:
        yield "the answer does not come from the lab's workload"
    elif (call.bytes_sent, call.bytes_received) != (REQUEST_BYTES, RESPONSE_BYTES):
        yield f"{call.bytes_sent} bytes sent and {call.bytes_received} received"
    elif call.seen.received != REQUEST_BYTES:
        yield f"the server received {call.seen.received} of {REQUEST_BYTES} bytes"


def not_refused(row: Row, call: Call) -> Iterator[str]:
    """A denied request: taken, and ended by the proxy without an answer."""
    if call.seen is not None or call.bytes_received:
        yield f"{row.server.full_name} answered, although {row.pair.source.full_name} is denied"
    if call.saw not in ("reset", "close"):
        yield f"the app saw no end of its connection: {(call.error or call.saw).lower()}"
    # a reset that comes before connect() is back leaves nobody to ask
    if call.peer not in (None, row.pair.destination):
        yield f"getpeername said {call.peer}, not {row.pair.destination}"


def app_fooled(row: Row, call: Call) -> Iterator[str]:
    """Both applications must see each other, and nobody else."""
    pair = row.pair
    if call.peer != pair.destination:
        yield f"getpeername said {call.peer}, not {pair.destination}"
    source = str(pair.source.address(pair.family))
    if call.seen is not None:
        if call.seen.pod != row.server.full_name:
            yield f"{call.seen.pod} answered"
        if host_of(call.seen.peer) != source:
            yield f"the server saw {call.seen.peer}, not {source}"


def miscounted(record: Connection, sent: int, received: int) -> Iterator[str]:
    """The kernel's statistics against the application's own count."""
    if (record.bytes_sent, record.bytes_received) != (sent, received):
        yield (
            f"the kernel counted {record.bytes_sent} sent and {record.bytes_received} received, "
            f"the app {sent} and {received}"
        )


def wire_says(
    row: Row, expectation: Expectation, witnesses: Witnesses, calls: int
) -> Iterator[str]:
    """What the capture between the nodes has against a row of that many calls."""
    wire, seen = witnesses.wire, crossed(row, witnesses)
    if wire is None or seen is None:
        return
    secret = expectation.in_mesh or expectation.protocol == "hbone"
    if secret and seen.plaintext_seen:
        yield "plaintext crossed between pods of the mesh"
    if not secret and not expectation.denied:
        # one in each request and one in its answer
        marks, wanted = wire.marks[witnesses.marks[row.pair]], 2 * calls
        if marks < wanted:
            yield f"the capture between the nodes has {marks} of {wanted} marks: it proves nothing"
    if expectation.protocol == "hbone" and seen.ports != (HBONE_PORT,):
        ports = ", ".join(map(str, seen.ports)) or "none"
        yield f"ports connected to between the nodes: {ports}, expected {HBONE_PORT} alone"
    if expectation.in_mesh:
        pair = row.pair
        ends = (str(pod.address(pair.family)) for pod in (pair.source, row.server))
        fault = wire.fault_between(*ends)
        if fault is not None:
            yield f"not TLS to {HBONE_PORT}: {fault}"
