"""Sysctls by name: where they are, what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodenet.errors import NotPermitted
from nodenet.kernel import sysctl


def test_a_name_is_a_path_below_proc_sys() -> None:
    path = Path("/proc/sys/net/ipv4/tcp_fwmark_accept")
    assert sysctl.path_of("net.ipv4.tcp_fwmark_accept") == path


def test_reading_gives_the_number_or_none() -> None:
    assert sysctl.read_int("net.ipv4.ip_default_ttl") in range(1, 256)
    assert sysctl.read_int("net.ipv4.no_such_setting") is None


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(sysctl.SysctlFailed, match="net.ipv4.conf: /proc/sys/net/ipv4/conf: Is a"):
        sysctl.read_int("net.ipv4.conf")


def test_writing_where_nothing_may_be_written() -> None:
    name = "net.ipv4.tcp_available_congestion_control"
    with pytest.raises((sysctl.SysctlFailed, NotPermitted), match=f"cannot set sysctl {name}"):
        sysctl.write_int(name, 1)


def test_settings_of_the_whole_kernel_are_none_of_a_namespace() -> None:
    with pytest.raises(sysctl.SysctlFailed, match="not of a network namespace"):
        sysctl.read_int("kernel.random.poolsize")
