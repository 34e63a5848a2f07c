"""Counting firewall rules, whichever tool made them."""

from __future__ import annotations

import shutil

import pytest

from nodenet.kernel.netns import NetNs
from nodenet.lab.rules import count_rules
from nodenet.lab.topology import Namespace, Topology

pytestmark = [pytest.mark.root]


def _count(namespace: Namespace) -> int:
    with NetNs.open(namespace.path) as ns:
        return count_rules(ns)


@pytest.mark.parametrize(
    "tool", ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"]
)
def test_rules_of_every_tool_are_counted(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    with Topology() as net:
        here, other = net.namespace("here"), net.namespace("other")
        assert _count(here) == 0
        done = here.run(tool, "-A", "OUTPUT", "-p", "tcp", "-j", "ACCEPT", check=False)
        if done.returncode != 0:
            pytest.skip(f"{tool} does not work on this kernel: {done.stderr.strip()}")
        assert _count(here) == 1
        here.run(tool, "-P", "INPUT", "DROP")
        assert _count(here) == 1
        here.run(tool, "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-j", "ACCEPT", check=False)
        assert _count(here) in (1, 2)
        assert _count(other) == 0
        here.run(tool, "-F")
        here.run(tool, "-t", "nat", "-F", check=False)
        assert _count(here) == 0
