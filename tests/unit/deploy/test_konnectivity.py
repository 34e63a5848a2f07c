"""The manifests: YAML that says what the programs take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nodenet.agents.konnectivity import agent_config, server_config
from nodenet.konnectivity.go_flags import Parsed, parse

FOLDER = Path(__file__).parents[3] / "deploy" / "konnectivity"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def container(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's spec and its one container."""
    (found,) = documents(name)
    spec = found["spec"].get("template", found)["spec"]
    (only,) = spec["containers"]
    return spec, only


def flags(name: str) -> Parsed:
    _, found = container(name)
    table = server_config.FLAGS if name == "server.yaml" else agent_config.FLAGS
    return parse(" ".join(found["command"]), table, found["args"])


@pytest.mark.parametrize("name", ["server.yaml", "agent.yaml"])
def test_flags_are_known_and_ports_are_probed(name: str) -> None:
    given = flags(name)
    spec, found = container(name)
    port = given.number("health-port" if name == "server.yaml" else "health-server-port")
    for probe in ("readinessProbe", "livenessProbe"):
        assert found[probe]["httpGet"]["port"] == port
    drain = "graceful-shutdown-timeout" if name == "server.yaml" else "drain-timeout"
    assert spec["terminationGracePeriodSeconds"] > given.seconds(drain) > 0


def test_both_ends_name_the_same_things() -> None:
    server, agent = flags("server.yaml"), flags("agent.yaml")
    assert server.number("agent-port") == agent.number("proxy-server-port")
    assert server.text("lease-label") == agent.text("lease-label-selector")
    assert server.text("lease-namespace") == agent.text("lease-namespace")
    (selector,) = documents("egress-selector.yaml")
    uds = selector["egressSelections"][0]["connection"]["transport"]["uds"]["udsName"]
    assert server.text("uds-name") == uds
    spec, _ = container("agent.yaml")
    (volume,) = spec["volumes"]
    token = volume["projected"]["sources"][0]["serviceAccountToken"]
    assert token["audience"] == server.text("authentication-audience")
    assert agent.text("service-account-token-path").endswith(token["path"])
    (account, *_) = documents("rbac.yaml")
    assert account["metadata"]["name"] == server.text("agent-service-account")
    assert account["metadata"]["namespace"] == server.text("agent-namespace")
    assert spec["serviceAccountName"] == account["metadata"]["name"]


def test_the_server_may_do_what_it_does() -> None:
    roles = {d["metadata"]["name"]: d for d in documents("rbac.yaml") if d["kind"] == "Role"}
    (rule,) = roles["system:konnectivity-server"]["rules"]
    assert {"get", "list", "create", "update", "delete"} <= set(rule["verbs"])
    (rule,) = roles["system:konnectivity-agent"]["rules"]
    assert "list" in rule["verbs"] and "delete" not in rule["verbs"]
