"""nodenet ztunnel: tables as documented, JSON, filters, errors; proxies, dumps, Istio's ztunnel."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodenet.agents.ztunnel.views import LogLevelView
from nodenet.cli.ztunnel_certificates import CertificateRow
from nodenet.cli.ztunnel_connections import ConnectionRow
from nodenet.cli.ztunnel_policies import PolicyRow
from nodenet.cli.ztunnel_services import ServiceRow
from nodenet.cli.ztunnel_workloads import WorkloadRow
from tests.unit.cli.shop import INSTANCE, POLICIES, SERVICES, WORKLOADS, Proxy, Served, saved

Cli = Callable[..., Any]


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sockets are."""
    monkeypatch.setattr("nodenet.paths.RUN", tmp_path)
    return INSTANCE.run


@pytest.fixture
def ztunnel(cli: Cli, run_directory: Path) -> Cli:
    """``nodenet --id … ztunnel ARGS``."""
    return lambda *arguments: cli("--id", INSTANCE.id, "ztunnel", *arguments)


@pytest.fixture
def one(run_directory: Path) -> Iterator[Served]:
    """The only proxy of a host."""
    with Served({None: Proxy("n1")}) as served:
        yield served


@pytest.fixture
def two(run_directory: Path) -> Iterator[Served]:
    """The proxies of a lab's nodes."""
    with Served({"n1": Proxy("n1"), "n2": Proxy("n2")}) as served:
        yield served


@pytest.fixture
def istios(run_directory: Path) -> Iterator[Served]:
    """A proxy that knows nothing of /v1."""
    with Served({None: Proxy("n1")}, foreign=True) as served:
        yield served


CONNECTIONS = """\
ID    POD               DIR  LOCAL            PEER             SECURITY  PEER-IDENTITY  UPSTREAM         POLICY        SENT  RECV    AGE
3a01  shop/cart-7d9f6b  out  10.42.1.7:51034  shop/db-1:5432   mtls      shop/sa/db     10.42.2.9:15008  -            12.4K  3.1M  2h05m
3b10  shop/db-0         in   10.42.1.9:5432   10.42.7.3:40110  plain     -              app              no policies   2.2K  9.8M  1h15m
"""  # noqa: E501
CERTIFICATES = """\
IDENTITY                               STATE        VALID-FOR  REFRESH-IN  SERIAL    ERROR
spiffe://cluster.local/ns/shop/sa/cart  available    21h15m     9h15m       51c0a9e2  -
spiffe://cluster.local/ns/shop/sa/db    unavailable  -          in 1h12m    -         ca 10.96.0.5:15012: UNAUTHENTICATED (attempt 4)
"""  # noqa: E501
WORKLOAD_TABLE = """\
NAMESPACE  POD          ADDRESS           NODE  WAYPOINT       PROTOCOL  HEALTH
ext        mail         mail.example.com  -     -              tcp       healthy
shop       cart-7d9f6b  10.42.1.7         n1    shop/waypoint  hbone     healthy
shop       db-0         10.42.1.9         n1    -              hbone     unhealthy
shop       db-1         10.42.2.9         n2    -              hbone     healthy
"""
SERVICE_TABLE = """\
NAMESPACE  NAME  VIP         PORTS         WAYPOINT  ENDPOINTS
shop       db    10.96.0.20  5432,80:8080  -         1/2
"""
POLICY_TABLE = """\
NAMESPACE  NAME  ACTION  SCOPE              RULES  PODS  HITS  DRY-RUN
shop       deny  deny    workload-selector      1     1     2  no
shop       open  allow   namespace              2     0     2  yes
"""


@pytest.mark.parametrize(
    ("verb", "table"),
    [
        ("connections", CONNECTIONS),
        ("workloads", WORKLOAD_TABLE),
        ("services", SERVICE_TABLE),
        ("policies", POLICY_TABLE),
    ],
)
@pytest.mark.usefixtures("one")
def test_tables(ztunnel: Cli, verb: str, table: str) -> None:
    outcome = ztunnel(verb)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == table


@pytest.mark.usefixtures("one")
def test_certificates(ztunnel: Cli) -> None:
    lines = [line.split() for line in ztunnel("certificates").out.splitlines()]
    assert lines == [line.split() for line in CERTIFICATES.splitlines()]
    wide = ztunnel("certificates", "-o", "wide").out.splitlines()
    assert wide[2].split() == ["KIND", "SERIAL", "NOT-BEFORE", "NOT-AFTER"]
    assert [line.split()[:2] for line in wide[3:5]] == [["leaf", "51c0a9e2"], ["root", "1"]]


@pytest.mark.parametrize(
    ("word", "verb"),
    [("cert", "certificates"), ("svc", "services"), ("pol", "policies"), ("w", "workloads"),
     ("policy", "policies"), ("service", "services"), ("conn", "connections")],
)  # fmt: skip
@pytest.mark.usefixtures("one")
def test_short_forms_of_istioctl(ztunnel: Cli, word: str, verb: str) -> None:
    assert ztunnel(word, "-j").status == 0
    assert ztunnel(word, "-o", "name").out == ztunnel(verb, "-o", "name").out


@pytest.mark.parametrize(
    ("verb", "row", "keys"),
    [
        (
            "connections",
            ConnectionRow,
            {"row": "Z9", "node": None, "original_dst": "10.96.0.20:5432"},
        ),
        ("workloads", WorkloadRow, {"source": "file", "local": False, "health": "healthy"}),
        ("services", ServiceRow, {"endpoints_healthy": 1, "load_balancing": None}),
        ("policies", PolicyRow, {"hits_deny": 2, "hits_allow": 0, "applies_to": ["shop/db-0"]}),
        ("certificates", CertificateRow, {"state": "available", "attempts": 0}),
    ],
)
@pytest.mark.usefixtures("one")
def test_json(ztunnel: Cli, verb: str, row: type, keys: dict[str, object]) -> None:
    plain, pretty = ztunnel(verb, "-j"), ztunnel(verb, "-p")
    assert plain.json == pretty.json
    rows = msgspec.convert(plain.json, list[row])  # type: ignore[valid-type]
    first = msgspec.to_builtins(rows[0])
    assert keys.items() <= first.items()
    assert list(first) == list(plain.json[0])


@pytest.mark.usefixtures("one")
def test_names(ztunnel: Cli) -> None:
    assert ztunnel("policies", "-o", "name").out == "shop/deny\nshop/open\n"
    assert ztunnel("services", "-o", "name").out == "shop/db.shop.svc.cluster.local\n"
    assert ztunnel("connections", "-o", "name").out == "3a01\n3b10\n"


@pytest.mark.usefixtures("one")
def test_services_tell_every_endpoint(ztunnel: Cli) -> None:
    (service,) = ztunnel("services", "-j").json
    assert service["endpoints"] == [
        {"uid": "Kubernetes//Pod/shop/db-0", "ip": "10.42.1.9", "ports": {}, "healthy": False},
        {"uid": "Kubernetes//Pod/shop/db-1", "ip": "10.42.2.9", "ports": {"80": 8081},
         "healthy": True},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "objects"),
    [("workloads", WORKLOADS), ("services", SERVICES), ("policies", POLICIES)],
)
@pytest.mark.usefixtures("one")
def test_istios_objects_as_they_are(ztunnel: Cli, verb: str, objects: list[object]) -> None:
    outcome = ztunnel(verb, "-o", "istio")
    assert outcome.json == objects
    assert outcome.out == json.dumps(objects, indent=2) + "\n"
    assert ztunnel(verb, "-o", "istio", "-n", "nowhere").json["kind"] == "NotFound"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("workloads", "shop/cart-7d9f6b"), ["cart-7d9f6b"]),
        (("workloads", "cart"), ["cart-7d9f6b"]),
        (("workloads", "shop/cart"), ["cart-7d9f6b"]),
        (("workloads", "-n", "ext"), ["mail"]),
        (("workloads", "--sort", "-pod", "--limit", "1"), ["mail"]),
    ],
)
@pytest.mark.usefixtures("one")
def test_filters(ztunnel: Cli, arguments: tuple[str, ...], names: list[str]) -> None:
    outcome = ztunnel(*arguments, "-j")
    assert outcome.status == 0
    assert [row["pod"] for row in outcome.json] == names


@pytest.mark.usefixtures("one")
def test_connections_of_a_pod(ztunnel: Cli) -> None:
    assert [row["id"] for row in ztunnel("connections", "cart", "-j").json] == ["3a01"]
    assert [row["id"] for row in ztunnel("connections", "-n", "shop", "-j").json] == [
        "3a01", "3b10",
    ]  # fmt: skip
    assert "10.96.0.20:5432" in ztunnel("connections", "--raw").out


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (
            ("workloads", "shop/crat"), 4,
            "no workload shop/crat in 4 known (xDS synced 4320 s ago); nearest: shop/cart-7d9f6b",
        ),
        (("workloads", "db"), 2, "db may be several: shop/db-0, shop/db-1; write one in full"),
        (("connections", "shop/nobody"), 4, "no pod shop/nobody in 2 served; nearest: shop/db-0"),
        (
            ("certificates", "mail"), 4,
            "no identity mail in 2 known (xDS synced 4320 s ago)",
        ),
        (("log-level", "loud"), 2, "log filter 'loud': 'loud' is not a level: off error warn info"
         " debug trace; e.g. info,access=off"),
        (("log-level", "--for", "10m"), 2, 
         "--for: says for how long a filter is set; give a filter"),
        (("workloads", "--admin", "x:y:z"), 2,
         "x:y:z is no address in --admin; e.g. --admin 127.0.0.1:15000"),
        (("workloads", "-f", "x.json", "--node", "n1"), 2,
         "-f: a saved dump is asked instead of a proxy; leave out --admin, --node"),
        (("workloads", "-o", "istio", "-w"), 2,
         "-o istio and --watch do not go together; use -j --watch"),
        (("workloads", "-f", "/nonexistent/x.json"), 4, "no such file: /nonexistent/x.json"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("one")
def test_errors(ztunnel: Cli, arguments: tuple[str, ...], status: int, line: str) -> None:
    outcome = ztunnel(*arguments)
    said = re.sub(r"synced 43\d\d s ago", "synced 4320 s ago", outcome.err)
    assert (outcome.status, said) == (status, f"nodenet: {line}\n")
    as_json = ztunnel(*arguments, "-j")
    assert as_json.json["exit"] == status


def test_nobody_here(ztunnel: Cli, run_directory: Path) -> None:
    outcome = ztunnel("connections")
    assert outcome.status == 4
    assert outcome.err == (
        f"nodenet: no ztunnel here: connect {run_directory}/ztunnel.sock: no such file; "
        "start it: nodenet ztunnel run, or name one: --admin 127.0.0.1:15000\n"
    )
    assert ztunnel("config").status == 4
    assert ztunnel("log-level", "debug").status == 4


def test_an_empty_list_of_one_that_is_not_ready_is_an_error(ztunnel: Cli, one: Served) -> None:
    proxy = one.proxies[None]
    proxy.source.known = False
    proxy.source.error = "connection refused (attempt 7, next in 8 s)"
    proxy.readiness.wait_for("state manager")
    outcome = ztunnel("workloads")
    assert (outcome.status, outcome.err) == (
        1,
        "nodenet: ztunnel not ready: xds 10.96.0.5:15012: connection refused (attempt 7, "
        "next in 8 s); showing nothing\n",
    )
    proxy.readiness.done("state manager")
    outcome = ztunnel("workloads")
    assert (outcome.status, outcome.err) == (0, "nodenet: no workloads are known\n")


@pytest.mark.usefixtures("one")
def test_check_says_no_when_one_is_missing(ztunnel: Cli) -> None:
    outcome = ztunnel("certificates", "--check", "-j")
    assert outcome.status == 1
    assert len(json.loads(outcome.out)) == 2
    assert "certificate of spiffe://cluster.local/ns/shop/sa/db is unavailable" in outcome.err
    assert ztunnel("certificates", "cart", "--check").status == 0


# several proxies


@pytest.mark.usefixtures("two")
def test_several_proxies_are_all_asked(ztunnel: Cli) -> None:
    header, first, second = ztunnel("connections").out.splitlines()
    assert header.split()[:2] == ["ID", "NODE"]
    assert (first.split()[1], second.split()[1]) == ("n1", "n1")
    # each once, local as its own proxy says
    rows = ztunnel("workloads", "-j").json
    assert [(row["pod"], row["local"]) for row in rows] == [
        ("mail", False), ("cart-7d9f6b", True), ("db-0", True), ("db-1", True),
    ]  # fmt: skip
    assert [row["hits_deny"] for row in ztunnel("policies", "-j").json] == [3, 0]


@pytest.mark.usefixtures("two")
def test_one_of_several_can_be_chosen(ztunnel: Cli) -> None:
    assert ztunnel("connections", "--node", "n2", "-j").json == []
    assert [row["node"] for row in ztunnel("connections", "--node", "n1", "-j").json] == [None] * 2
    outcome = ztunnel("config", "-j")
    assert outcome.err == "nodenet: several ztunnels here: n1, n2; choose one: --node NAME\n"
    assert ztunnel("config", "--node", "n1", "-j").json["config"]["localNode"] == "n1"
    assert ztunnel("config").out.count("ztunnel ") == 2


def test_one_that_was_killed_is_told_of_and_left_out(ztunnel: Cli, two: Served) -> None:
    dead = two.path("n3")
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(dead))
    outcome = ztunnel("services")
    assert outcome.out == SERVICE_TABLE
    assert outcome.err == (
        f"nodenet: no ztunnel here: connect {dead}: connection refused "
        "(left by one that was killed)\n"
    )


# other ways to ask


def test_a_saved_dump(ztunnel: Cli, tmp_path: Path) -> None:
    path = str(saved(tmp_path / "n1.json"))
    assert ztunnel("workloads", "-f", path).out == WORKLOAD_TABLE
    assert ztunnel("services", "-f", path).out == SERVICE_TABLE
    # nobody counts the hits of a dump
    assert [row["hits_deny"] for row in ztunnel("policies", "-f", path, "-j").json] == [None] * 2
    (row,) = ztunnel("connections", "-f", path, "-j").json
    assert (row["id"], row["pod"], row["security"]) == (None, "shop/cart-7d9f6b", "mtls")
    assert ztunnel("config", "-f", path).out.startswith("ztunnel 1.31, node n1\n")
    assert ztunnel("config", "-f", path, "-j").out == Path(path).read_text() + "\n"
    outcome = ztunnel("workloads", "shop/crat", "-f", path)
    assert outcome.err == ("nodenet: no workload shop/crat in 4 known; nearest: shop/cart-7d9f6b\n")


def test_a_dump_from_stdin(ztunnel: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = saved(tmp_path / "n1.json").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert ztunnel("services", "-f", "-").out == SERVICE_TABLE


def test_what_is_no_dump(ztunnel: Cli, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"workloads": 3}')
    outcome = ztunnel("workloads", "-f", str(path))
    assert outcome.status == 1
    assert outcome.err == (
        f"nodenet: not a dump of a ztunnel: {path}: expected `array`, got `int` - "
        "at `$.workloads`\n"
    )


@pytest.mark.usefixtures("istios")
def test_istios_ztunnel_is_asked_too(ztunnel: Cli) -> None:
    assert ztunnel("workloads").out == WORKLOAD_TABLE
    rows = ztunnel("connections", "-j").json
    assert [(row["pod"], row["id"], row["bytes_sent"]) for row in rows] == [
        ("shop/cart-7d9f6b", None, None), ("shop/db-0", None, None),
    ]  # fmt: skip
    assert ztunnel("certificates", "-j").json[0]["refresh_at"] is None
    assert ztunnel("config").out.startswith("ztunnel ")
    assert ztunnel("log-level", "debug").out == "debug\n"
    outcome = ztunnel("log-level", "info", "--for", "1m")
    assert "does not tell a level that goes back by itself (--for)" in outcome.err
    outcome = ztunnel("explain", "shop/cart", "shop/db:5432")
    assert (outcome.status, "does not tell what would happen" in outcome.err) == (1, True)


def test_by_address(ztunnel: Cli, one: Served) -> None:
    assert ztunnel("services", "--admin", str(one.path(None))).out == SERVICE_TABLE
    outcome = ztunnel("services", "--admin", "127.0.0.1:1")
    assert outcome.err.startswith(
        "nodenet: no ztunnel here: connect 127.0.0.1:1: connection refused; "
    )


# one screen, levels, explain


@pytest.mark.usefixtures("one")
def test_config_is_one_screen(ztunnel: Cli) -> None:
    first, *rest = ztunnel("config").out.splitlines()
    assert first.startswith("ztunnel 0.1.0 · pid ")
    assert first.endswith("· ready")
    assert rest == [
        "xds        10.96.0.5:15012  synced 1h12m ago",
        "knows      4 workloads, 1 service, 2 policies, 2 certificates",
        "carries    2 connections of 2 pods, 0 to other proxies",
        "log        info",
    ]


def test_log_level(ztunnel: Cli, one: Served) -> None:
    assert ztunnel("log-level").out == "info\n"
    changed = ztunnel("log-level", "debug,access=off", "-j").json
    assert changed == {"level": "debug,access=off", "was": "info", "until": None, "node": None}
    timed = ztunnel("log-level", "trace", "--for", "10m")
    assert timed.out.startswith("trace,access=off until 20")
    assert one.proxies[None].logs.until is not None
    assert ztunnel("log-level", "--reset").out == "info\n"
    assert one.proxies[None].logs.until is None


def test_log_level_of_several(ztunnel: Cli, two: Served) -> None:
    assert ztunnel("log-level", "--node", "n2", "warn").out == "warn\n"
    assert ztunnel("log-level").out == "n1  info\nn2  warn\n"
    rows = msgspec.convert(ztunnel("log-level", "-j").json, list[dict[str, Any]])
    assert [(row["node"], row["level"]) for row in rows] == [("n1", "info"), ("n2", "warn")]
    assert LogLevelView.__struct_fields__ == ("level", "was", "until")


def test_explaining_a_dump(ztunnel: Cli, tmp_path: Path) -> None:
    path = str(saved(tmp_path / "n1.json"))
    outcome = ztunnel("explain", "shop/cart", "db.shop.svc.cluster.local:5432", "-f", path)
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert lines[:2] == [
        "shop/cart-7d9f6b (10.42.1.7) -> shop/db.shop.svc.cluster.local (10.96.0.20:5432) tcp",
        "PROXY",
    ]
    assert [line.split()[1] for line in lines if line.startswith(">")]
    assert lines[-1].startswith(("Result: ", "Do: "))
    found = ztunnel("explain", "shop/cart", "10.96.0.20:5432", "-f", path, "-j").json
    assert found["ok"] is True
    failing = ztunnel("explain", "shop/cart", "10.96.0.20:5432", "-f", path, "--expect", "plain")
    assert failing.status == 1
    assert f"is {found['result']}, not plain: row " in failing.err


def test_explaining_with_another_policy(ztunnel: Cli, tmp_path: Path) -> None:
    path = str(saved(tmp_path / "n1.json"))
    policy = tmp_path / "deny.yaml"
    policy.write_text(
        "name: all\nnamespace: shop\nscope: Namespace\naction: Deny\n"
        "rules: [[[{principals: [{Presence: []}]}]]]\n"
    )
    asked = ("explain", "shop/cart", "10.42.2.9:5432", "-f", path)
    assert ztunnel(*asked, "-j").json["result"] == "mtls"
    outcome = ztunnel(*asked, "--policy", str(policy))
    assert "With shop/all: denied, now mtls." in outcome.out
    assert "0 live connections would be cut." in outcome.out
    assert "then REFUSED by policy shop/all" in outcome.out
    assert ztunnel(*asked, "--policy", str(tmp_path / "none.yaml")).status == 4


def test_explaining_asks_the_node_of_the_source(ztunnel: Cli, two: Served) -> None:
    outcome = ztunnel("explain", "shop/nobody", "shop/db:5432")
    assert outcome.status == 4
    assert outcome.err == "nodenet: no workload shop/nobody; nearest: shop/cart\n"
    asked = [proxy.source.asked for proxy in two.proxies.values()]
    assert asked == [[("shop/nobody", "shop/db:5432", None)]] * 2


@pytest.mark.usefixtures("one")
def test_a_namespace_that_nobody_has_is_a_slip(ztunnel: Cli) -> None:
    for verb in ("workloads", "services", "policies", "connections"):
        outcome = ztunnel(verb, "-n", "shpo")
        assert outcome.status == 4
        assert outcome.err.startswith("nodenet: no namespace shpo in the mesh; there are: ")
        assert ztunnel(verb, "-n", "shop").status == 0


def test_an_empty_namespace_is_no_word_on_the_others(ztunnel: Cli, tmp_path: Path) -> None:
    path = saved(tmp_path / "n1.json")
    dump = msgspec.json.decode(path.read_bytes())
    dump["policies"] = []
    path.write_bytes(msgspec.json.encode(dump))
    asked = ("policies", "-f", str(path))
    assert ztunnel(*asked).err == "nodenet: no policies are known: everybody may connect\n"
    assert ztunnel(*asked, "-n", "shop").err == "nodenet: no policies in namespace shop\n"


def test_only_a_dump_comes_out_as_one(ztunnel: Cli, tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0\n")
    for words in (("-j",), ("-p",), ("-o", "yaml")):
        outcome = ztunnel("config", "-f", str(path), *words)
        assert outcome.status == 1
        assert f"nodenet: not a dump of a ztunnel: {path}: JSON is malformed" in outcome.err


@pytest.mark.parametrize("text", ["", "root:x:0:0", "[]", "[1]", "{a: ", "[" * 4000])
def test_a_file_without_a_policy(ztunnel: Cli, tmp_path: Path, text: str) -> None:
    path = str(saved(tmp_path / "n1.json"))
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    asked = ("explain", "shop/cart", "10.42.2.9:5432", "-f", path, "--policy", str(policy))
    outcome = ztunnel(*asked)
    assert outcome.status == 2
    assert outcome.err.startswith(f"nodenet: --policy {policy}: ")
    assert len(outcome.err) < 500
