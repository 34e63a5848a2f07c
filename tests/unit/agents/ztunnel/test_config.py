"""Options and environment to a configuration, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from nodenet.agents.ztunnel.config import PLANNED, ZtunnelConfig, load
from nodenet.agents.ztunnel.log_control import LogFilter
from nodenet.agents.ztunnel.variables import ConfigError
from nodenet.errors import NotThereYet
from nodenet.paths import Instance


def test_defaults() -> None:
    assert load({"NODENET_ID": "x"}) == ZtunnelConfig(
        instance=Instance("x"),
        # nobody's connections are worth a line without a mesh
        log_filter=LogFilter.parse("access=off"),
        # there may be many instances with an id on one host
        admin=None,
        stats=None,
        readiness=None,
    )


def test_surfaces_can_be_moved_and_left_out() -> None:
    config = load({"NODENET_ID": "x"}, admin="127.0.0.1:1500", stats="", readiness="*:15021")
    assert (config.admin, config.stats, config.readiness) == ("127.0.0.1:1500", None, "*:15021")


@pytest.mark.parametrize(
    ("variables", "level", "access"),
    [
        ({}, logging.INFO, logging.INFO),
        ({"RUST_LOG": "warn,access=info"}, logging.WARNING, logging.INFO),
        ({"RUST_LOG": "debug", "NODENET_LOG_LEVEL": "error"}, logging.ERROR, logging.ERROR),
    ],
)
def test_the_log_is_filtered_as_ztunnels(
    variables: dict[str, str], level: int, access: int
) -> None:
    config = load({"NODENET_ID": "x", **variables}, access_log=True)
    assert (config.log_level, config.access_level) == (level, access)


def test_options_overrule_the_environment() -> None:
    env = {"NODENET_ID": "a", "NODE_NAME": "one", "NODENET_LOG_LEVEL": "error"}
    config = load(env, instance="b", node="two", log_level="debug", cgroup="/sys/fs/cgroup/x")
    assert (config.instance.id, config.node, config.log_level) == ("b", "two", logging.DEBUG)
    assert config.cgroup == Path("/sys/fs/cgroup/x")
    config = load(env)
    assert (config.instance.id, config.node, config.log_level) == ("a", "one", logging.ERROR)


def test_an_empty_node_is_none() -> None:
    assert load({"NODENET_ID": "x", "NODE_NAME": ""}).node is None
    assert load({"NODENET_ID": "x", "NODE_NAME": "one"}, node="").node is None


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"max_connections": 0}, "--max-connections=0: must be at least 1"),
        ({"drain_seconds": -1.0}, "--drain=-1.0: must be at least 0 seconds"),
        ({"connect_seconds": 0.0}, "--connect-timeout=0.0: must be at least 0.01 seconds"),
        ({"connect_seconds": float("nan")}, "--connect-timeout=nan: must be at least 0.01 seconds"),
        ({"cgroup": "x/y"}, "--cgroup=x/y: give the directory's full path"),
        ({"node": "a/b"}, "--node='a/b': not a node's name"),
        (
            {"log_level": "loud"},
            "--log-level=loud: 'loud' is not a level: off error warn info debug trace",
        ),
    ],
)
def test_what_is_refused_names_option_value_and_reason(
    options: dict[str, object], line: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load({"NODENET_ID": "x"}, **options)  # type: ignore[arg-type]  # the table is mixed
    assert raised.value.line() == line
    assert raised.value.exit_code == 2


def test_the_environment_is_named_when_it_is_at_fault() -> None:
    with pytest.raises(ConfigError, match=r"^NODENET_LOG_LEVEL=loud: "):
        load({"NODENET_ID": "x", "NODENET_LOG_LEVEL": "loud"})


@pytest.mark.parametrize("variable", PLANNED)
def test_a_control_plane_is_not_passed_over_in_silence(variable: str) -> None:
    with pytest.raises(NotThereYet) as raised:
        load({"NODENET_ID": "x", variable: "https://istiod:15012"})
    assert raised.value.line() == (
        f"{variable}=https://istiod:15012: not there yet in this version; "
        f"unset it, and {PLANNED[variable]}"
    )
    assert raised.value.exit_code == 3
    assert load({"NODENET_ID": "x", variable: ""}).mesh_file is None
