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


@pytest.mark.parametrize("name", ["server.yaml", "agent.yaml"])
def test_ports_and_files_are_there(name: str) -> None:
    """Ports are those of the flags; every path of a flag is mounted, every mount is a volume."""
    given = flags(name)
    spec, found = container(name)
    declared = {port["name"]: port for port in found["ports"]}
    health = "health-port" if name == "server.yaml" else "health-server-port"
    assert declared["health"]["containerPort"] == given.number(health)
    if name == "server.yaml":
        assert declared["agents"]["containerPort"] == given.number("agent-port")
        assert spec["hostNetwork"] is True
        assert all(port["hostPort"] == port["containerPort"] for port in found["ports"])
    mounted = {mount["name"]: Path(mount["mountPath"]) for mount in found["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in spec["volumes"]}
    service_account = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    known = [*mounted.values(), service_account]
    for word in found["args"]:
        path = Path(word.partition("=")[2])
        if path.is_absolute():
            assert any(path.is_relative_to(place) for place in known), word
    for volume in spec["volumes"]:
        if "hostPath" in volume:
            assert mounted[volume["name"]] == Path(volume["hostPath"]["path"])


def test_roles_are_bound_to_whom_they_are_for() -> None:
    """Every binding names a role that is there, or Kubernetes' own, and the right subject."""
    made = documents("rbac.yaml")
    roles = {(d["kind"], d["metadata"]["name"]) for d in made if "rules" in d}
    subjects = {}
    for binding in (d for d in made if d["kind"].endswith("Binding")):
        role = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        assert role in roles | {("ClusterRole", "system:auth-delegator")}
        (subject,) = binding["subjects"]
        subjects[role] = subject["kind"], subject["name"]
        if role[0] == "Role":
            assert binding["metadata"]["namespace"] == flags("server.yaml").text("lease-namespace")
    assert subjects == {
        ("ClusterRole", "system:auth-delegator"): ("User", "system:konnectivity-server"),
        ("Role", "system:konnectivity-server"): ("User", "system:konnectivity-server"),
        ("Role", "system:konnectivity-agent"): ("ServiceAccount", "konnectivity-agent"),
    }
    text = (FOLDER / "server.yaml").read_text()
    assert "--client-name=system:konnectivity-server" in text


def test_the_egress_selection_is_what_kube_apiserver_takes() -> None:
    """Strictly decoded there: no other key, GRPC over a Unix socket, the server in that mode."""
    (selector,) = documents("egress-selector.yaml")
    assert selector["apiVersion"] == "apiserver.k8s.io/v1beta1"
    assert selector["kind"] == "EgressSelectorConfiguration"
    assert selector.keys() == {"apiVersion", "kind", "egressSelections"}
    (selection,) = selector["egressSelections"]
    assert selection.keys() == {"name", "connection"} and selection["name"] == "cluster"
    connection = selection["connection"]
    assert connection.keys() == {"proxyProtocol", "transport"}
    assert connection["proxyProtocol"] == "GRPC" and flags("server.yaml").text("mode") == "grpc"
    assert connection["transport"].keys() == {"uds"}
    assert connection["transport"]["uds"].keys() == {"udsName"}
