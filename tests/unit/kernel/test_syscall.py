"""bpf(2) by ctypes: buffers and errors."""

from __future__ import annotations

import ctypes
import errno

import pytest

from nodenet.kernel.syscall import Command, address, bpf


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_address_points_at_the_content(kind: type[bytes] | type[bytearray]) -> None:
    buffer = kind(b"0123456789")
    assert ctypes.string_at(address(buffer), 10) == b"0123456789"
    assert ctypes.string_at(address(buffer, 4), 3) == b"456"


def test_no_buffer_is_a_null_pointer() -> None:
    assert address(None) == 0


def test_the_kernels_errno_is_raised() -> None:
    with pytest.raises(OSError) as caught:
        bpf(Command.MAP_CREATE, b"\xff" * 4)
    assert caught.value.errno in (errno.EINVAL, errno.EPERM)
