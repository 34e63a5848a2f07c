"""System calls by ctypes: a failure is an OSError with the errno and the path."""

from __future__ import annotations

import errno
import os

import pytest

from nodenet.kernel import libc


def test_the_file_system_type_of_proc() -> None:
    assert libc.fs_magic("/proc") == 0x9FA0


def test_failures_carry_errno_and_path() -> None:
    with pytest.raises(FileNotFoundError) as raised:
        libc.fs_magic("/no/such/place")
    assert raised.value.filename == "/no/such/place"
    with pytest.raises(OSError) as bad:
        libc.setns(-1)
    assert bad.value.errno == errno.EBADF


def test_a_handle_that_is_none_is_refused() -> None:
    root = os.open("/", os.O_RDONLY)
    try:
        with pytest.raises(OSError):
            libc.open_by_kernfs_id(root, 1)
    finally:
        os.close(root)
