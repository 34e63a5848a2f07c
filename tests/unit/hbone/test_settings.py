"""SETTINGS: what is announced, and what a peer may say."""

from __future__ import annotations

import pytest

from nodenet.hbone.errors import BadSetting, ErrorCode, H2Error
from nodenet.hbone.settings import LocalSettings, Role, Setting, parse
from tests.unit.hbone.scripted import PREFACE, settings, window_update

MIB = 1 << 20


def test_a_server_announces_what_ztunnel_does() -> None:
    assert LocalSettings().opening(Role.SERVER) == (
        settings((4, 4 * MIB), (5, MIB), (6, 65536), (3, 200)) + window_update(0, 16 * MIB - 65535)
    )


def test_a_client_announces_what_ztunnel_does() -> None:
    assert LocalSettings().opening(Role.CLIENT) == (
        PREFACE
        + settings((2, 0), (4, 4 * MIB), (5, MIB), (6, 16384))
        + window_update(0, 16 * MIB - 65535)
    )


def test_a_connection_window_of_the_protocols_default_is_not_announced() -> None:
    local = LocalSettings(connection_window=65535, max_header_list=2048)
    assert local.opening(Role.SERVER) == settings((4, 4 * MIB), (5, MIB), (6, 2048), (3, 200))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", 0),
        ("window", 1 << 31),
        ("connection_window", 65534),
        ("connection_window", 1 << 31),
        ("max_frame", 16383),
        ("max_frame", 1 << 24),
        ("max_header_list", 1023),
        ("max_streams", -1),
        ("backlog", 16 * MIB - 1),
    ],
)
def test_settings_that_cannot_work(name: str, value: int) -> None:
    with pytest.raises(BadSetting, match=f"{name}={value}: must be") as raised:
        LocalSettings(**{name: value})
    assert (raised.value.name, raised.value.value) == (name, value)


def test_unknown_settings_are_left_out() -> None:
    payload = memoryview(settings((0, 1), (1, 0), (7, 5), (3, 10), (0xFFFF, 1))[9:])
    assert list(parse(payload, Role.CLIENT)) == [(1, 0), (3, 10)]


@pytest.mark.parametrize(
    ("sender", "pair", "code"),
    [
        (Role.CLIENT, (Setting.ENABLE_PUSH, 2), ErrorCode.PROTOCOL_ERROR),
        (Role.SERVER, (Setting.ENABLE_PUSH, 1), ErrorCode.PROTOCOL_ERROR),
        (Role.CLIENT, (Setting.INITIAL_WINDOW_SIZE, 1 << 31), ErrorCode.FLOW_CONTROL_ERROR),
        (Role.CLIENT, (Setting.MAX_FRAME_SIZE, 16383), ErrorCode.PROTOCOL_ERROR),
        (Role.CLIENT, (Setting.MAX_FRAME_SIZE, 1 << 24), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_values_that_are_refused(sender: Role, pair: tuple[int, int], code: ErrorCode) -> None:
    with pytest.raises(H2Error) as raised:
        list(parse(memoryview(settings(pair)[9:]), sender))
    assert raised.value.code is code


@pytest.mark.parametrize(
    "pair",
    [(2, 0), (2, 1), (4, 0), (4, (1 << 31) - 1), (5, 16384), (5, (1 << 24) - 1), (3, 0), (6, 0)],
)
def test_values_at_the_edge(pair: tuple[int, int]) -> None:
    assert list(parse(memoryview(settings(pair)[9:]), Role.CLIENT)) == [pair]
