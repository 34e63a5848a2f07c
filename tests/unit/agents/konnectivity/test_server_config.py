"""Upstream's flags of the server."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from nodenet.agents.konnectivity.server_config import (
    FLAGS,
    Mode,
    ServerConfig,
    TlsFiles,
    TokenRule,
    load,
)
from nodenet.errors import UsageError
from nodenet.konnectivity.strategies import Strategy
from tests.unit.agents.konnectivity.flag_table import flag_table, shown

#: Name and default of every flag of upstream's server, as its --help prints them.
UPSTREAM = """
admin-bind-address 127.0.0.1 | admin-port 8095 | agent-bind-address | agent-namespace |
agent-port 8091 | agent-service-account | authentication-audience | backend-dial-timeout 0s |
cipher-suites | cluster-ca-cert | cluster-cert | cluster-key | delete-existing-uds-file true |
enable-contention-profiling false | enable-lease-controller false | enable-profiling false |
graceful-shutdown-timeout 0s | health-bind-address | health-port 8092 |
kube-api-content-type application/vnd.kubernetes.protobuf | kubeconfig | kubeconfig-burst 0 |
kubeconfig-qps 0 | lease-label k8s-app=konnectivity-server | lease-namespace kube-system |
mode grpc | proxy-strategies default | server-bind-address | server-ca-cert | server-cert |
server-count 1 | server-id | server-key | server-port 8090 | tls-min-version | uds-name |
warn-on-channel-limit true | xfr-channel-size 10
"""
#: Ours have another default, see docs/konnectivity.md.
DIFFERENT = {"keepalive-time", "frontend-keepalive-time"}
OURS = {"admin-socket"}
#: Not in the version whose --help this is.
NEWER = {"frontend-write-channel-size"}


def test_every_flag_of_upstreams_is_there_with_its_default() -> None:
    ours = {flag.name: shown(flag.default) for flag in FLAGS}
    others = DIFFERENT | OURS | NEWER
    assert {n: v for n, v in ours.items() if n not in others} == flag_table(UPSTREAM)


@pytest.mark.parametrize("separator", ["-", "_"])
def test_every_flag_may_be_given_as_it_is_printed(separator: str) -> None:
    """As a program that starts one in place of upstream's does it."""
    words = [
        f"--{flag.name.replace('-', separator)}={shown(flag.default)}"
        for flag in FLAGS
        if flag.name not in ("server-port", "uds-name", "server-id", "cluster-cert", "cluster-key")
    ]
    assert uds(*words) == uds()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("c", "k", "ca", "kubeconfig"):
        (tmp_path / name).write_text("x")
    return tmp_path


#: Any files: what is in them is looked at when the server starts.
CLUSTER = (f"--cluster-cert={__file__}", f"--cluster-key={__file__}")


def uds(*more: str) -> ServerConfig:
    least = ["--uds-name=/run/k.sock", "--server-port=0", "--server-id=s", *CLUSTER]
    return load([*least, *more], {})


def test_a_unix_socket(files: Path) -> None:
    config = uds(
        f"--cluster-cert={files}/c", f"--cluster-key={files}/k", f"--cluster-ca-cert={files}/ca"
    )
    assert config.uds == Path("/run/k.sock") and config.frontend_port is None
    assert config.agent_tls == TlsFiles(files / "c", files / "k", files / "ca")
    assert config.mode is Mode.GRPC and config.agent_port == 8091 and config.server_count == 1
    assert config.strategies == (Strategy.DEFAULT,) and config.token_rule is None


def test_mutual_tls(files: Path) -> None:
    config = load(
        [
            *("--mode", "http-connect", "--v=4", "--logtostderr", "--log-file-max-size=0"),
            f"--server-cert={files}/c",
            f"--server-key={files}/k",
            f"--server-ca-cert={files}/ca",
            *CLUSTER,
            "--tls-min-version=VersionTLS13",
            "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256",
            "--proxy-strategies=destHost,defaultRoute,default,destHost",
            "--graceful-shutdown-timeout=1m30s",
            "--backend-dial-timeout=5s",
            "--enable-lease-controller",
            "--lease-label=a=b, c.d/e = f",
        ],
        {"PROXY_SERVER_ID": "from-env"},
    )
    assert config.frontend_port == 8090 and config.mode is Mode.HTTP_CONNECT
    assert config.frontend_tls == TlsFiles(files / "c", files / "k", files / "ca")
    assert config.server_id == "from-env"
    assert config.tls_version is ssl.TLSVersion.TLSv1_3
    assert config.ciphers == ("ECDHE-RSA-AES128-GCM-SHA256",)
    assert [s.value for s in config.strategies] == ["destHost", "defaultRoute", "default"]
    assert config.drain_timeout == 90 and config.dial_timeout == 5
    assert config.lease_labels == {"a": "b", "c.d/e": "f"}
    assert config.ignored == ("--v=4", "--logtostderr", "--log-file-max-size=0")


def test_tokens(files: Path) -> None:
    config = uds(
        "--agent-namespace=kube-system",
        "--agent-service-account=konnectivity-agent",
        "--authentication-audience=system:konnectivity-server",
        f"--kubeconfig={files}/kubeconfig",
        "--kubeconfig-qps=75",
        "--kubeconfig-burst=150",
    )
    rule = TokenRule("kube-system", "konnectivity-agent", "system:konnectivity-server")
    assert config.token_rule == rule and config.kubeconfig == files / "kubeconfig"
    assert (config.api_qps, config.api_burst) == (75.0, 150)


def test_the_flag_wins_over_the_environment_and_else_it_is_random() -> None:
    assert uds().server_id == "s"
    one, two = (
        load(["--uds-name=/x", "--server-port=0", *CLUSTER], {}).server_id for _ in range(2)
    )
    assert one != two and len(one) == 36


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--agent-port=80"], "--agent-port=80: not within 1024 and 49151"),
        (["--health-port=60000"], "--health-port=60000: not within"),
        (["--mode=carrier-pigeon"], "--mode=carrier-pigeon: unknown"),
        (["--proxy-strategies=default,nearest"], "unknown 'nearest'"),
        (["--proxy-strategies="], "--proxy-strategies is empty"),
        (["--tls-min-version=VersionTLS9"], "--tls-min-version=VersionTLS9: unknown"),
        (["--cipher-suites=TLS_NULL"], "TLS_NULL is not known"),
        (["--enable-lease-controller", "--lease-label=nonsense"], "not of the form key=value"),
        (["--enable-lease-controller", "--lease-label="], "not of the form key=value"),
        (["--enable-lease-controller", "--server-id=Node 1"], "cannot be part of a lease's name"),
        (["--enable-lease-controller", "--server-id=a_b"], "cannot be part of a lease's name"),
        (["--enable-lease-controller", f"--server-id={'a' * 228}"], "cannot be part of a lease's"),
        (["--xfr-channel-size=0"], "--xfr-channel-size must be greater than 0"),
        (["--server-count=-1"], "--server-count is negative"),
        (["--kubeconfig-qps=many"], "--kubeconfig-qps=many: not of type float32"),
        (["--kubeconfig-burst=-1"], "--kubeconfig-burst is negative"),
        (["--backend-dial-timeout=-1s"], "--backend-dial-timeout is negative"),
        (["--admin-bind-address=here"], "--admin-bind-address=here: not an address"),
        (["--agent-bind-address=10.0.0.1:80"], "--agent-bind-address=10.0.0.1:80: not an address"),
        (["--graceful-shutdown-timeout=-1s"], "--graceful-shutdown-timeout is negative"),
        (["--keepalive-time=-1ms"], "--keepalive-time is negative"),
        (["--frontend-keepalive-time=-1ms"], "--frontend-keepalive-time is negative"),
        (["--enable-contention-profiling"], "needs --enable-profiling too"),
        (["--kubeconfig=/nowhere"], "--kubeconfig=/nowhere: no such file"),
        (["--cluster-cert=/nowhere"], "--cluster-cert=/nowhere: no such file"),
        (["--cluster-cert={}"], "{}: is a directory"),
        (["--cluster-cert=/dev/null"], "--cluster-cert=/dev/null: not a file"),
        (["--admin-port=8092"], "--health-port and --admin-port are both 8092"),
        (["--agent-port=8095"], "--agent-port and --admin-port are both 8095"),
        (
            ["--health-bind-address=0.0.0.0", "--agent-bind-address=10.0.0.1", "--agent-port=8092"],
            "--agent-port and --health-port are both 8092",
        ),
        (
            ["--admin-port=8092", "--health-bind-address=localhost"],
            "--health-port and --admin-port are both 8092",
        ),
        (["--cluster-key="], "--cluster-cert and --cluster-key need each other"),
        (["--cluster-cert=", "--cluster-key="], "--cluster-cert and --cluster-key are missing"),
        (
            ["--cluster-cert=", "--cluster-key=", "--cluster-ca-cert={}/c"],
            "--cluster-ca-cert needs --cluster-cert",
        ),
        (["--agent-namespace=x"], "--agent-namespace needs --agent-service-account and "),
        (["--server-id=ü"], "only printable ASCII travels"),
        (["--server-port=8090"], "--uds-name goes with --server-port=0"),
        (["--server-cert={}/c", "--server-key={}/k"], "--uds-name goes with --server-port=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(files: Path, arguments: list[str], text: str) -> None:
    with pytest.raises(UsageError, match="--") as caught:
        uds(*(argument.format(files) for argument in arguments))
    assert text.format(files) in caught.value.message


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 30.0), ("1ms", 1.0), ("45s", 45.0), ("1h", 3600.0)]
)
def test_a_keepalive_is_as_grpc_go_takes_it(text: str, seconds: float) -> None:
    """0 is the default and too little the least there: manifests have both."""
    config = uds(f"--keepalive-time={text}", f"--frontend-keepalive-time={text}")
    assert config.agent_keepalive == config.frontend_keepalive == seconds


def test_what_upstream_takes_is_taken() -> None:
    config = uds(
        "--kubeconfig-qps=75.5",
        "--server-count=0",
        "--lease-label=",
        "--proxy-strategies=destHost,,default,",
        "--server-bind-address=0.0.0.0",
        "--health-bind-address=localhost",
        "--admin-bind-address=::1",
    )
    assert config.api_qps == 75.5 and config.server_count == 0
    assert [s.value for s in config.strategies] == ["destHost", "default"]
    assert uds("--kubeconfig-qps=-1").api_qps == 0, "client-go: no limit"
    assert uds("--kubeconfig-qps=0").api_qps == 50


def test_a_list_of_ciphers_never_means_all_of_them() -> None:
    """Go: with names of TLS 1.3 alone nobody gets in by TLS 1.2."""
    config = uds("--cipher-suites=TLS_AES_128_GCM_SHA256")
    assert config.ciphers == () and config.tls_version is ssl.TLSVersion.TLSv1_3
    both = uds("--cipher-suites=TLS_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    assert both.ciphers and both.tls_version is ssl.TLSVersion.TLSv1_2


def test_one_port_at_two_addresses_is_two() -> None:
    for addresses in (("127.0.0.1", "127.0.0.2"), ("0.0.0.0", "::"), ("10.0.0.1", "localhost")):
        one, two = addresses
        config = uds(
            f"--health-bind-address={one}", f"--admin-bind-address={two}", "--admin-port=8092"
        )
        assert config.health_port == config.admin_port == 8092
    assert uds("--agent-port=8090").agent_port == 8090, "no frontend is there"


@pytest.mark.parametrize("text", ["VersionTLS10", "VersionTLS11"])
def test_a_version_that_nobody_speaks_any_more_is_taken_and_told(text: str) -> None:
    config = uds(f"--tls-min-version={text}")
    assert config.tls_version is ssl.TLSVersion.TLSv1_2
    assert config.notices == (f"--tls-min-version={text}: TLS 1.2 is the least here",)
    assert uds("--tls-min-version=VersionTLS12").notices == ()
    assert "mean VersionTLS12" in next(f.help for f in FLAGS if f.name == "tls-min-version")


def test_a_flag_of_upstreams_newest_server_is_taken() -> None:
    assert uds("--frontend-write-channel-size=100") == uds()


def test_a_hint_is_the_flags_own_default() -> None:
    with pytest.raises(UsageError) as caught:
        uds("--health-port=60000")
    assert caught.value.hint == "e.g. --health-port=8092"


def test_tokens_and_agents_certificates_exclude_each_other(files: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        uds(
            "--agent-namespace=a",
            "--agent-service-account=b",
            "--authentication-audience=c",
            f"--cluster-cert={files}/c",
            f"--cluster-key={files}/k",
            f"--cluster-ca-cert={files}/ca",
        )


def test_frontends_over_tcp_need_mutual_tls(files: Path) -> None:
    for arguments in ([], [f"--server-cert={files}/c", f"--server-key={files}/k"]):
        with pytest.raises(UsageError, match="frontends over TCP need"):
            load(arguments, {})


@pytest.mark.parametrize(
    "more",
    [
        (),
        (
            "--agent-namespace=kube-system",
            "--agent-service-account=konnectivity-agent",
            "--authentication-audience=system:konnectivity-server",
        ),
    ],
)
def test_agents_never_connect_in_plain_text(more: tuple[str, ...]) -> None:
    """Whoever reaches the port would be an agent, and a token would be read on its way."""
    with pytest.raises(UsageError) as caught:
        load(["--uds-name=/run/k.sock", "--server-port=0", *more], {})
    assert caught.value.message == "--cluster-cert and --cluster-key are missing"
    assert caught.value.hint is not None and "agents connect by TLS only" in caught.value.hint
