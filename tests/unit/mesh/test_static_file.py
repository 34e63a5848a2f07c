"""Mesh files: what is read, and that every fault is one error with its line and path."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.errors import NodenetError
from nodenet.mesh import static_file
from nodenet.mesh.policy import Action, Scope
from nodenet.mesh.static_file import MAX_FILE_BYTES, MeshFileError, StaticMesh, from_dump, parse
from tests.unit.mesh.building import TCP, mesh, pod, service

FILE = """\
# two workloads, of which one is a service's
workloads:
- uid: c1//Pod/ns/a
  name: a
  namespace: ns
  serviceAccount: a
  workloadIps: [10.0.0.1]
  protocol: HBONE
  services:
    ns/s.ns: {80: 8080}
- {name: b, namespace: ns, serviceAccount: b, uid: c1//Pod/ns/b}
services:
- name: s
  namespace: ns
  hostname: s.ns
  vips: [/10.96.0.1]
  ports:
    80: 8080
policies:
- name: p
  namespace: ns
  scope: Namespace
  action: Deny
  rules:
  - - - notPrincipals: [{Presence: []}]
"""


def test_read() -> None:
    found = parse(FILE)
    assert found.workloads == (
        pod("a", "10.0.0.1", services={"ns/s.ns": {80: 8080}}),
        pod("b", protocol=TCP),
    )
    assert found.services == (service("s", "10.96.0.1"),)
    [policy] = found.policies
    assert (policy.key, policy.scope, policy.action) == ("ns/p", Scope.NAMESPACE, Action.DENY)
    state = mesh(*found.resources)
    assert set(state.endpoints(found.services[0])) == {"c1//Pod/ns/a"}
    assert list(found.notices()) == []


@pytest.mark.parametrize("text", ["", "# nothing", "{}", "workloads:\nservices: []\n"])
def test_an_empty_file_is_an_empty_mesh(text: str) -> None:
    assert parse(text) == StaticMesh()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  protocol: HBONE", "  protocl: HBONE",
         "mesh.yaml:8: workloads[0].protocl: unknown key; did you mean protocol"),
        ("policies:", "polices:", "mesh.yaml:19: polices: unknown key; did you mean policies"),
        ("[10.0.0.1]", "[10.0.0.1, 10.0.0.300]",
         "mesh.yaml:7: workloads[0].workloadIps[1]: '10.0.0.300' is not an IP address"),
        ("    ns/s.ns: {80: 8080}", "    ns/s.ns:\n      80: 80800",
         "mesh.yaml:11: workloads[0].services.ns/s.ns.80: 80800 is not within 0-65535"),
        ("uid: c1//Pod/ns/b", "uid: c1//Pod/ns/a",
         "mesh.yaml:11: workloads[1]: c1//Pod/ns/a is there twice, first in line 3"),
        ("  namespace: ns\n  hostname", "  hostname",
         "mesh.yaml:13: services[0].namespace: is missing"),
        ("services:\n- name: s", "services:\n- {name: t, namespace: ns, hostname: s.ns}\n- name: s",
         "mesh.yaml:14: services[1]: ns/s.ns is there twice, first in line 13"),
        ("Presence", "Present",
         "mesh.yaml:25: policies[0].rules[0][0][0].notPrincipals[0].Present: "
         "unknown key; did you mean Presence"),
        ("  action: Deny", "  action: Deny\n  action: Allow",
         "mesh.yaml:24: 'action' is there twice, first in line 23"),
        ("name: b,", "name: ,", "mesh.yaml:11: workloads[1].name: is missing"),
        ("  ports:\n", "  endpoints: {c1//Pod/ns/b: {}}\n  ports:\n",
         "mesh.yaml:17: services[0].endpoints.c1//Pod/ns/b: "
         "no workload c1//Pod/ns/b names ns/s.ns among its services"),
        ("[/10.96.0.1]", "[/10.96.0.1", "mesh.yaml:17: "),
    ],
)  # fmt: skip
def test_faults(old: str, new: str, message: str) -> None:
    assert FILE.count(old) == 1
    with pytest.raises(MeshFileError) as caught:
        parse(FILE.replace(old, new), file="mesh.yaml")
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("workloads: 3", "mesh:1: workloads: 3 where a list is needed"),
        ("[]", "mesh:1: a list where an object is needed"),
        ("a", "mesh:1: 'a' where an object is needed"),
        ("workloads: ''", "mesh:1: workloads: '' where a list is needed"),
        ("services: {}", "mesh:1: services: an object where a list is needed"),
        ("workloads: [3]", "mesh:1: workloads[0]: 3 where an object is needed"),
        ("policies: [{name: p, namespace: ns}]", "mesh:1: policies[0].scope: is missing"),
        (b"a: \xff", "mesh:1: not UTF-8"),
        (b"\n\n\xff", "mesh:3: not UTF-8"),
        ("x" * (MAX_FILE_BYTES + 1), "mesh: larger than 16 MiB"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_other_faults(data: bytes | str, message: str) -> None:
    with pytest.raises(MeshFileError) as caught:
        parse(data)
    assert str(caught.value) == message


def test_load(tmp_path: Path) -> None:
    file = tmp_path / "mesh.yaml"
    file.write_text(FILE)
    assert static_file.load(file) == parse(FILE)
    assert static_file.load(str(file)) == parse(FILE)


@pytest.mark.parametrize("name", ["missing.yaml", ".", "a\0b"])
def test_what_cannot_be_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(MeshFileError) as caught:
        static_file.load(f"{tmp_path}/{name}")
    assert caught.value.exit_code == 4
    assert caught.value.line_number is None
    assert str(caught.value)


def test_notices() -> None:
    text = """
workloads:
- name: a
  namespace: ns
  services: [ns/gone]
  authorizationPolicies: [ns/p]
  waypoint: {destination: ns/w}
- {name: b, namespace: ns, waypoint: {destination: ns/c.example}}
- {name: c, namespace: ns, hostname: c.example, waypoint: {destination: /10.0.0.1}}
services:
- {name: s, namespace: ns, hostname: s.ns, waypoint: {destination: ns/x}}
"""
    assert list(parse(text).notices()) == [
        "workload Kubernetes//Pod/ns/a: no service ns/gone in this file",
        "workload Kubernetes//Pod/ns/a: no policy ns/p in this file",
        "workload Kubernetes//Pod/ns/a: no waypoint ns/w in this file",
        "service ns/s.ns: no waypoint ns/x in this file",
    ]


def test_services_named_without_ports_get_those_of_the_endpoints() -> None:
    text = FILE.replace("services:\n    ns/s.ns: {80: 8080}", "services: [ns/s.ns]")
    text = text.replace("  ports:", "  endpoints: {c1//Pod/ns/a: {port: {80: 9090}}}\n  ports:")
    assert parse(text).workloads[0] == pod("a", "10.0.0.1", services={"ns/s.ns": {80: 9090}})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "not JSON: "),
        ("{", "not JSON: "),
        (b"\xff", "not JSON: "),
        ("[" * 100_000, "not JSON: "),
        ("\ud800", "not JSON: "),
        ("[]", "a list where an object is needed"),
        ('{"workloads": [{}]}', "workloads[0].name: is missing"),
        ('{"stagedServices": []}', "stagedServices: a list where an object is needed"),
        ('{"stagedServices": {"ns/s": {"a": 1}}}', "stagedServices.ns/s.a: 1 where an object"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_dumps_that_cannot_be_read(data: bytes | str, reason: str) -> None:
    with pytest.raises(MeshFileError) as caught:
        from_dump(data)
    assert str(caught.value).startswith(f"dump: {reason}")


def test_what_else_a_dump_holds_is_passed_over() -> None:
    assert from_dump('{"version": {}, "config": {}, "workloads": []}') == StaticMesh()


FRAGMENTS = st.sampled_from(
    [*FILE.split(), "\n", "\n- ", "\n  ", ": ", "&a ", "*a", "{", "}", "[", "]", "!!x ", "'", '"']
)


@given(st.lists(FRAGMENTS, max_size=30).map("".join) | st.text(max_size=60))
def test_any_text(text: str) -> None:
    """A mesh or the one error, whose message is one line."""
    try:
        found = parse(text, file="f")
    except MeshFileError as error:
        assert isinstance(error, NodenetError)
        assert error.line_number is not None
        assert len(str(error).splitlines()) == 1
        return
    mesh(*found.resources)


LINES = FILE.splitlines()


@given(st.integers(0, len(LINES) - 1), st.text(max_size=20) | FRAGMENTS, st.integers(0, 40))
def test_a_damaged_line(number: int, junk: str, column: int) -> None:
    damaged = list(LINES)
    damaged[number] = damaged[number][:column] + junk
    try:
        found = parse("\n".join(damaged))
    except MeshFileError as error:
        assert error.line_number is not None
        return
    mesh(*found.resources)


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    for read in (parse, from_dump):
        try:
            read(data)
        except MeshFileError as error:
            assert str(error)
