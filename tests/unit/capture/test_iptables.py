"""Errors and summaries of the iptables backend; the rules themselves need root."""

from __future__ import annotations

from nodenet.capture.iptables import IptablesFailed, IptablesMissing, IptablesState


def test_a_host_without_iptables_is_told_how_to_get_it() -> None:
    error = IptablesMissing("ip6tables-restore")
    assert error.exit_code == 3
    assert error.line() == (
        "ip6tables-restore: not installed; apt install iptables, or use the ebpf backend"
    )


def test_a_refusal_is_the_first_line_that_says_something() -> None:
    stderr = (
        "# Warning: iptables-legacy tables present\n"
        "Warning: Extension CT revision 0 not supported, missing kernel module?\n"
        "iptables-restore v1.8.9 (nf_tables): line 5: RULE_APPEND failed\n"
    )
    error = IptablesFailed("iptables-restore", "/run/netns/web", stderr)
    assert error.line() == (
        "iptables-restore in /run/netns/web: Warning: Extension CT revision 0 not supported, "
        "missing kernel module?; this kernel lacks a netfilter module; see: nodenet doctor"
    )
    assert IptablesFailed("iptables-restore", "x", "").line() == "iptables-restore in x: failed"


def test_the_state_in_one_line() -> None:
    damaged = IptablesState("damaged", ("IPv4 a", "IPv6 b"), {})
    assert (damaged.ok, damaged.text) == (False, "IPv4 a; IPv6 b")
    assert IptablesState("present", (), {}).text == "redirect rules present"
