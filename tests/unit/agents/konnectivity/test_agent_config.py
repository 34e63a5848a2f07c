"""The agent's flags: upstream's defaults and refusals, and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nodenet.agents.konnectivity.agent_config import FLAGS, AgentConfig, load
from nodenet.errors import UsageError
from nodenet.konnectivity.go_flags import KLOG, Flag, Kind
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity.flag_table import flag_table, shown


def config(certs: Certificates, *flags: str, env: Mapping[str, str] | None = None) -> AgentConfig:
    return load([f"--ca-cert={certs.ca}", *flags], env or {})


def test_defaults_are_upstreams(certs: Certificates) -> None:
    found = config(certs)
    assert (found.server_host, found.server_port) == ("127.0.0.1", 8091)
    assert (found.health_host, found.health_port) == ("", 8093)
    assert (found.admin_host, found.admin_port) == ("127.0.0.1", 8094)
    assert (found.sync_interval, found.sync_interval_cap) == (1.0, 10.0)
    assert (found.lease_namespace, found.lease_selector) == (
        "kube-system",
        "k8s-app=konnectivity-server",
    )
    assert not (found.sync_forever or found.count_leases or found.profiling)
    assert found.count_source == "default" and found.cert is None
    assert len(found.agent_id) == 36, "a random UUID"


#: Name and default of every flag of upstream's agent, as its --help prints them. Of the two names
#: of the lease selector the newer one has the default.
UPSTREAM = """
admin-bind-address 127.0.0.1 | admin-server-port 8094 | agent-cert | agent-id | agent-identifiers |
agent-key | alpn-proto | ca-cert | count-server-leases false | enable-contention-profiling false |
enable-profiling false | health-server-host | health-server-port 8093 |
kube-api-content-type application/vnd.kubernetes.protobuf | kubeconfig | lease-label |
lease-label-selector k8s-app=konnectivity-server | lease-namespace kube-system |
probe-interval 1s | proxy-server-host 127.0.0.1 | proxy-server-port 8091 |
server-count-source default | service-account-token-path | sync-forever false | sync-interval 1s |
sync-interval-cap 10s | warn-on-channel-limit false | xfr-channel-size 150
"""
#: Ours has another default, see docs/konnectivity.md.
DIFFERENT = {"keepalive-time"}
OURS = {"admin-socket", "drain-timeout"}


def test_every_flag_of_upstream_is_there_with_its_default() -> None:
    ours = {flag.name: shown(flag.default) for flag in FLAGS}
    assert {n: v for n, v in ours.items() if n not in DIFFERENT | OURS} == flag_table(UPSTREAM)
    assert DIFFERENT | OURS <= ours.keys()
    assert not set(KLOG) & {flag.name for flag in FLAGS}


@pytest.mark.parametrize("separator", ["-", "_"])
def test_every_flag_may_be_given_as_it_is_printed(certs: Certificates, separator: str) -> None:
    """A program in place of upstream's own gives every one, empty strings and ``[]`` too."""
    words = [
        f"--{flag.name.replace('-', separator)}={shown(flag.default) or _nothing(flag)}"
        for flag in FLAGS
        if flag.name != "ca-cert"
    ]
    given, plain = config(certs, *words, "--agent-id=a"), config(certs, "--agent-id=a")
    assert given == plain


def _nothing(flag: Flag) -> str:
    return "[]" if flag.kind is Kind.LIST else ""


def test_a_command_line_as_manifests_have_it(certs: Certificates, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    found = config(
        certs,
        "--logtostderr=true",
        "--v=4",
        f"--agent-cert={certs.client.cert}",
        f"--agent-key={certs.client.key}",
        "--proxy-server-host=konnectivity.example",
        "--proxy-server-port=443",
        "--alpn-proto=[konnectivity]",
        "--admin-server-port=8133",
        "--health-server-port=8134",
        f"--service-account-token-path={token}",
        "--agent-identifiers=host=n1&default-route=true",
        "--sync-interval=5s",
        "--sync-interval-cap=30s",
        "--probe-interval=5s",
        "--keepalive-time=30s",
        "--sync-forever",
        "--count-server-leases=false",
        "--server-count-source=max",
        "--lease-label=a=b",
        "--xfr-channel-size=200",
        env={"PROXY_AGENT_ID": "node-1"},
    )
    assert found.agent_id == "node-1"
    assert found.server_host == "konnectivity.example" and found.alpn == ("konnectivity",)
    assert found.keepalive == 30.0 and found.sync_forever and found.count_source == "max"
    assert found.lease_selector == "a=b" and found.token_path == token
    assert found.ignored == ("--logtostderr=true", "--v=4")


def test_the_flag_wins_over_the_environment(certs: Certificates) -> None:
    assert config(certs, "--agent-id=a", env={"PROXY_AGENT_ID": "b"}).agent_id == "a"


def test_a_keepalive_that_a_go_server_counts_as_abuse_is_raised(certs: Certificates) -> None:
    assert config(certs, "--keepalive-time=1s").keepalive == 10.0
    assert config(certs).keepalive == 35.0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--agent-cert={cert}"], "--agent-cert and --agent-key need each other"),
        (["--agent-key={key}"], "--agent-cert and --agent-key need each other"),
        (["--agent-cert=/nope"], "--agent-cert=/nope: no such file"),
        (["--service-account-token-path=/nope"], "--service-account-token-path=/nope: no such"),
        (["--proxy-server-port=0"], "--proxy-server-port=0: not a port"),
        (["--health-server-port=65536"], "--health-server-port=65536: not a port"),
        (["--xfr-channel-size=0"], "--xfr-channel-size must be greater than 0"),
        (["--enable-contention-profiling"], "--enable-contention-profiling needs"),
        (["--sync-interval=11s"], "--sync-interval=11s is more than --sync-interval-cap=10s"),
        (["--sync-interval=0s"], "--sync-interval must be greater than 0"),
        *(
            ([f"--{flag.name}=-1s"], f"--{flag.name} is negative")
            for flag in FLAGS
            if flag.kind is Kind.DURATION
        ),
        (["--ca-cert=/dev"], "--ca-cert=/dev: is a directory"),
        (
            ["--admin-server-port=8093"],
            "--health-server-port and --admin-server-port are both 8093",
        ),
        (["--server-count-source=min"], "--server-count-source is neither default nor max"),
        (["--agent-identifiers=hosts=a"], "--agent-identifiers: unknown address type: hosts"),
        (["--agent-identifiers=uid=a"], "--agent-identifiers: unknown address type: uid"),
        (["--agent-identifiers=host=a;b"], "--agent-identifiers: fail to parse url"),
        (["--agent-identifiers=host=%zz"], "--agent-identifiers: fail to parse url"),
        (["--agent-id=nöde"], "--agent-id='nöde': only printable ASCII travels"),
        (["--proxy-server-host="], "--proxy-server-host is empty"),
        (["--proxy-server-host=.foo"], "--proxy-server-host=.foo: neither a name nor an"),
        (["--proxy-server-host=[a]"], "--proxy-server-host=[a]: neither a name nor an"),
        (["--proxy-server-host=[a:1]"], "--proxy-server-host=a:1: neither a name nor an"),
        (["--proxy-server-host=a b"], "--proxy-server-host=a b: neither a name nor an"),
        (["--proxy-server-host=https://a"], "--proxy-server-host=https://a: neither a"),
        (["--proxy-server-host=a:8091"], "--proxy-server-host=a:8091: neither a name"),
        ([f"--proxy-server-host={'a' * 64}.b"], f"--proxy-server-host={'a' * 64}.b: neither"),
        (["--alpn-proto=é"], "--alpn-proto=é: not a protocol name"),
        ([f"--alpn-proto={'a' * 256}"], f"--alpn-proto={'a' * 256}: not a protocol name"),
        (["--health-server-host=here"], "--health-server-host=here: not an address"),
        (["--admin-bind-address=here"], "--admin-bind-address=here: not an address"),
        ([f"--agent-cert=/{'a' * 300}"], f"--agent-cert=/{'a' * 300}: file name too long"),
    ],
)
def test_refusals(certs: Certificates, flags: Sequence[str], text: str) -> None:
    files = {"cert": str(certs.client.cert), "key": str(certs.client.key)}
    with pytest.raises(UsageError) as caught:
        config(certs, *(flag.format(**files) for flag in flags))
    assert caught.value.message.startswith(text)


@pytest.mark.parametrize("host", ["a", "a.b.c.", "10.0.0.1", "fd00::1", "node_1.x-y", "fe80::1%lo"])
def test_hosts(certs: Certificates, host: str) -> None:
    assert config(certs, f"--proxy-server-host={host}").server_host == host


def test_an_ipv6_address_may_have_brackets(certs: Certificates) -> None:
    assert config(certs, "--proxy-server-host=[fd00::1]").server_host == "fd00::1"


def test_the_ca_is_needed() -> None:
    with pytest.raises(UsageError) as caught:
        load([], {})
    assert caught.value.message == "--ca-cert is missing"
