"""How a connection ended, from the last state and the errno."""

from __future__ import annotations

import errno

import pytest

from nodenet.conns.tcp import STATE_CHOICES, STATE_NAMES, State, end_of, errno_name, state_short


@pytest.mark.parametrize(
    ("old_state", "err", "peer_fin", "expected"),
    [
        (State.FIN_WAIT_2, 0, False, ("fin", "local")),
        (State.LAST_ACK, 0, True, ("fin", "peer")),
        (State.CLOSING, 0, False, ("fin", "local")),
        (State.ESTABLISHED, 0, False, ("rst", "local")),
        (State.CLOSE_WAIT, 0, True, ("rst", "local")),
        (State.ESTABLISHED, errno.ECONNRESET, False, ("rst", "peer")),
        (State.CLOSE_WAIT, errno.EPIPE, True, ("rst", "peer")),
        (State.ESTABLISHED, errno.ECONNABORTED, False, ("rst", "local")),
        (State.SYN_SENT, errno.ECONNREFUSED, False, ("refused", "peer")),
        (State.SYN_SENT, errno.ETIMEDOUT, False, ("timeout", None)),
        (State.ESTABLISHED, errno.ETIMEDOUT, False, ("timeout", None)),
        (State.ESTABLISHED, errno.EHOSTUNREACH, False, ("timeout", None)),
        (State.SYN_SENT, errno.EHOSTUNREACH, False, (None, None)),
        (State.SYN_SENT, 0, False, (None, None)),
        (State.SYN_RECV, 0, False, (None, None)),
    ],
)
def test_ends(
    old_state: State, err: int, peer_fin: bool, expected: tuple[str | None, str | None]
) -> None:
    assert end_of(old_state, err, peer_fin=peer_fin) == expected


def test_states_have_the_names_of_ss() -> None:
    assert STATE_NAMES[1] == "established" and STATE_NAMES[4] == "fin-wait-1"
    assert STATE_NAMES[12] == "syn-recv"
    assert set(STATE_CHOICES) == {STATE_NAMES[s] for s in State}
    assert state_short("established") == "ESTAB"
    assert all(len(state_short(name)) <= 10 for name in STATE_CHOICES)


def test_errno_names() -> None:
    assert errno_name(111) == "ECONNREFUSED"
    assert errno_name(0) is None
    assert errno_name(9999) == "9999"
