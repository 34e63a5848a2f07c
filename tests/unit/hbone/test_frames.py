"""Bytes of what is sent, against a frame library by others."""

from __future__ import annotations

from hyperframe.frame import (
    Frame,
    GoAwayFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from nodenet.hbone import frames


def parsed(raw: bytes) -> Frame:
    frame, length = Frame.parse_frame_header(memoryview(raw[:9]))
    assert length == len(raw) - 9
    frame.parse_body(memoryview(raw[9:]))
    return frame


def test_frames() -> None:
    update = parsed(frames.window_update(7, 123456))
    assert isinstance(update, WindowUpdateFrame)
    assert (update.stream_id, update.window_increment) == (7, 123456)
    reset = parsed(frames.rst_stream(9, 8))
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code) == (9, 8)
    for ack in (False, True):
        ping = parsed(frames.ping(b"12345678", ack=ack))
        assert isinstance(ping, PingFrame)
        assert (ping.opaque_data, "ACK" in ping.flags) == (b"12345678", ack)
    goaway = parsed(frames.goaway(5, 11, b"why"))
    assert isinstance(goaway, GoAwayFrame)
    assert (goaway.last_stream_id, goaway.error_code) == (5, 11)
    assert goaway.additional_data == b"why"
    settings = parsed(frames.settings([(4, 100), (5, 20000)]))
    assert isinstance(settings, SettingsFrame)
    assert settings.settings == {4: 100, 5: 20000}
    ack_frame = parsed(frames.SETTINGS_ACK)
    assert isinstance(ack_frame, SettingsFrame) and "ACK" in ack_frame.flags


def test_header() -> None:
    assert frames.header(1, 5, 3, 0x12345) == bytes.fromhex("012345 01 05 00000003")
    assert len(frames.NAMES) == frames.KNOWN_TYPES
