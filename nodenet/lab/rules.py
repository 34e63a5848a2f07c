"""How many firewall rules a namespace has: nftables (iptables-nft too) and legacy iptables.

Asked from the kernel itself, so that "no rule" does not depend on which tools are installed.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import Final

from nodenet.kernel.netlink import NetlinkSocket
from nodenet.kernel.netns import NetNs

_NETLINK_NETFILTER: Final = 12
#: NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETRULE (linux/netfilter/nf_tables.h).
_GET_RULE: Final = 10 << 8 | 7
_EVERY_FAMILY: Final = struct.pack("=BBH", socket.AF_UNSPEC, 0, 0)
#: struct ipt_getinfo and ip6t_getinfo: name[32], valid_hooks, hook_entry[5], underflow[5],
#: num_entries, size.
_GET_INFO: Final = struct.Struct("=32sI20s20sII")
_SO_GET_INFO: Final = 64
#: Each file lists the legacy tables in use in the namespace of the thread that reads it.
_LEGACY: Final = (
    (socket.AF_INET, socket.IPPROTO_IP, "ip_tables_names"),
    (socket.AF_INET6, socket.IPPROTO_IPV6, "ip6_tables_names"),
)


def count_rules(namespace: NetNs) -> int:
    """Rules of every table of that namespace; policies are not rules.

    A chain made by hand in a legacy table counts as two; whether there is none is always exact.
    """
    with namespace.entered():
        return _nft_rules() + sum(_legacy_rules(*what) for what in _LEGACY)


def _nft_rules() -> int:
    try:
        with NetlinkSocket(_NETLINK_NETFILTER) as netlink:
            return len(netlink.dump(_GET_RULE, _EVERY_FAMILY))
    except OSError:  # EPROTONOSUPPORT, EINVAL: a kernel without nf_tables has no rule of it
        return 0


def _legacy_rules(family: int, level: int, names: str) -> int:
    try:
        # Only tables that are in use: asking for another one would make the kernel create it.
        tables = Path("/proc/thread-self/net", names).read_text().split()
    except OSError:
        return 0
    return sum(_legacy_table(family, level, table) for table in tables)


def _legacy_table(family: int, level: int, table: str) -> int:
    buffer = ctypes.create_string_buffer(_GET_INFO.pack(table.encode(), 0, b"", b"", 0, 0))
    size = ctypes.c_uint32(_GET_INFO.size)
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        done = libc.getsockopt(sock.fileno(), level, _SO_GET_INFO, buffer, ctypes.byref(size))
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), table)
    _name, hooks, _entry, _underflow, entries, _size = _GET_INFO.unpack_from(buffer.raw)
    # Besides its rules a table has the policy of each built-in chain and an error entry at the end.
    return max(0, int(entries) - int(hooks).bit_count() - 1)
