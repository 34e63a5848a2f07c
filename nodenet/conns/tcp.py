"""Names for what the kernel says in numbers about a TCP socket: states, ends, errors."""

from __future__ import annotations

import errno as _errno
from enum import IntEnum
from typing import Final, Literal

EndReason = Literal["fin", "rst", "timeout", "refused"]
EndBy = Literal["local", "peer"]


class State(IntEnum):
    """``enum`` of linux/tcp_states.h."""

    ESTABLISHED = 1
    SYN_SENT = 2
    SYN_RECV = 3
    FIN_WAIT_1 = 4
    FIN_WAIT_2 = 5
    TIME_WAIT = 6
    CLOSED = 7
    CLOSE_WAIT = 8
    LAST_ACK = 9
    LISTEN = 10
    CLOSING = 11
    NEW_SYN_RECV = 12


#: State number to the name in JSON and filters; a number this kernel added later has its digits.
STATE_NAMES: Final[dict[int, str]] = {
    **{n: f"state-{n}" for n in range(256)},
    **{s: s.name.lower().replace("_", "-") for s in State},
    State.NEW_SYN_RECV: "syn-recv",
}

#: What a filter accepts, in the order the error message lists them.
STATE_CHOICES: Final = (
    "established",
    "syn-sent",
    "syn-recv",
    "fin-wait-1",
    "fin-wait-2",
    "time-wait",
    "closed",
    "last-ack",
    "listen",
    "closing",
    "close-wait",
)

#: How `ss` abbreviates a state in a table.
STATE_SHORT: Final[dict[str, str]] = {"established": "ESTAB", "closed": "UNCONN"}


def state_short(name: str) -> str:
    """The table's form of a state name: ``ESTAB``, ``CLOSE-WAIT``; at most 10 characters."""
    return STATE_SHORT.get(name) or name.upper()


def errno_name(number: int) -> str | None:
    """``ECONNREFUSED`` for 111, None for 0, digits for a number without a name."""
    return _errno.errorcode.get(number, str(number)) if number else None


_NEVER_OPEN: Final = frozenset({State.SYN_SENT, State.SYN_RECV, State.NEW_SYN_RECV})
_CUT_SHORT: Final = frozenset({State.ESTABLISHED, State.CLOSE_WAIT})
_RESET: Final = frozenset({_errno.ECONNRESET, _errno.EPIPE, _errno.ECONNABORTED})
# A peer that stops answering ends in ETIMEDOUT, or in the last ICMP or ARP error when there was
# one (tcp_write_err takes sk_err_soft first).
_UNREACHABLE: Final = frozenset({_errno.EHOSTUNREACH, _errno.ENETUNREACH})


def end_of(old_state: int, err: int, *, peer_fin: bool) -> tuple[EndReason | None, EndBy | None]:
    """How a connection ended and which side ended it.

    ``old_state`` is the state before CLOSE, ``err`` the socket's errno (positive), ``peer_fin``
    whether the peer's FIN came before ours. (None, None) when the application closed the socket
    before it was established, or an error that is none of the four stopped it.
    """
    if err == _errno.ECONNREFUSED:
        return "refused", "peer"
    if err == _errno.ETIMEDOUT:
        return "timeout", None
    if err in _UNREACHABLE and old_state not in _NEVER_OPEN:
        return "timeout", None
    if err in _RESET:
        # ECONNABORTED is our own side: SOCK_DESTROY, or the last reference of a socket dropped
        return "rst", "local" if err == _errno.ECONNABORTED else "peer"
    if old_state in _NEVER_OPEN:
        return None, None
    if old_state in _CUT_SHORT and not err:
        # straight to CLOSE without a FIN: the application closed with unread data or SO_LINGER 0
        return "rst", "local"
    return "fin", "peer" if peer_fin else "local"
