"""The running kernel's BTF, against bpftool."""

from __future__ import annotations

import re
import subprocess

import pytest

from nodenet.kernel.btf import MEMBERS, VMLINUX, read_facts

pytestmark = [pytest.mark.root, pytest.mark.bpf]

FUNCTION = "bpf_iter_bpf_sk_storage_map"


def test_direct_members_and_the_function_are_where_bpftool_sees_them() -> None:
    dump = subprocess.run(
        ["bpftool", "btf", "dump", "file", str(VMLINUX)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    facts = read_facts(list(MEMBERS), [FUNCTION])
    found = re.search(rf"^\[(\d+)\] FUNC '{FUNCTION}' ", dump, re.MULTILINE)
    assert found and facts.functions[FUNCTION] == int(found[1])
    checked = 0
    for owner in ("tcp_sock", "sock", "sock_common"):
        body = re.search(rf"^\[\d+\] STRUCT '{owner}' size=.*\n((?:\t.*\n)+)", dump, re.MULTILINE)
        assert body
        for name, (_, path) in MEMBERS.items():
            last = path.rpartition(".")[2]
            bits = re.search(rf"'{last}' type_id=\d+ bits_offset=(\d+)", body[1])
            if bits and MEMBERS[name][0] in (owner, "sock"):
                assert facts.offsets[name] == int(bits[1]) // 8, name
                checked += 1
    # one lies in an array, one in an anonymous union: bpftool has them elsewhere
    assert checked >= len(MEMBERS) - 2
