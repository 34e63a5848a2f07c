"""Is a connection what it must be? Witnesses, and a verdict.

Pure: the facts come as arguments. The application (`Call`) says what its socket says of itself and
what it counted; the serving application says, in its answer, who it was talking to; the others are
in `nodenet.lab.witnesses`. A row is ok only when all of them agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nodenet.lab.flows import Call, Flow, Row
from nodenet.lab.looks import Facts, In, Out, Untouched
from nodenet.lab.witnesses import Told, Witnesses, calls_of, crossed, expect

_NO_CALL: Final = Call(
    cookie="", local=None, peer=None, bytes_sent=0, bytes_received=0, seen=None, error=None,
    saw="failure",
)  # fmt: skip


def judge(row: Row, calls: Sequence[Call], witnesses: Witnesses) -> Flow:
    """The row with its verdict; facts shown are those of the first call that is wrong, or the last.

    ``calls`` are all requests of the pair; every one must be as expected.
    """
    expectation = expect(row, witnesses.plan, witnesses.enrolled)
    mine = calls_of(row, calls)
    look = {"out": Out, "in": In, None: Untouched}[row.side]
    call, facts, why, said = _NO_CALL, Facts(), "no request was made", Told()
    if calls and not mine:
        why = f"{row.server.full_name} answered none of {len(calls)} requests"
    for number, call in enumerate(mine, start=1):
        looking = look(row, expectation, call, len(mine), witnesses)
        facts, said = looking.facts(), looking.said
        why = next(looking.wrong(), "")
        if why:
            why = why if number == 1 else f"{why} (request {number} of {len(mine)})"
            break
    pair = row.pair
    return Flow(
        from_=pair.source.full_name,
        to=pair.target.full_name,
        to_port=pair.port,
        server=row.server.full_name,
        family=pair.family,
        side=row.side,
        protocol=said.protocol,
        src_identity=said.src_identity,
        dst_identity=said.dst_identity,
        decision=said.decision,
        policy=said.policy,
        status=said.status,
        app_saw=call.saw,
        wire=crossed(row, witnesses),
        expected=expectation.text,
        ok=not why,
        why=why or None,
        **facts._asdict(),
    )
