"""nodenet prog: columns and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nodenet.cli.prog import chosen, columns
from nodenet.cli.style import Style
from nodenet.cli.tables import render_table
from nodenet.errors import NotFound
from nodenet.kernel.objects import ProgramRow
from nodenet.paths import Instance

CONNECT4 = ProgramRow(
    id=112, type="cgroup_sock_addr", name="nn_connect4", tag="3f888cfa5de52cd7",
    gpl_compatible=True, run_time_ns=0, run_cnt=0, recursion_misses=0, loaded_at=1, uid=0,
    bytes_xlated=6848, jited=True, bytes_jited=2970, bytes_memlock=8192, map_ids=(457, 458),
    btf_id=None, pids=(), pinned=(), hook="cgroup/connect4", attach=("/sys/fs/cgroup",),
    link_id=(12,), link_pinned=("/sys/fs/bpf/nodenet/links/connect4",), schema=1,
    loaded_at_time="2026-01-31T00:00:00.000000Z",
)  # fmt: skip
SK_LOOKUP = msgspec.structs.replace(
    CONNECT4, id=118, name="nn_sk_lookup", hook="sk_lookup",
    attach=("netns:4026532811", "netns:4026532812", "netns:4026532813"),
    link_pinned=tuple(f"/sys/fs/bpf/nodenet/links/sk_lookup/{n}" for n in (41, 42, 43)),
    runs=12_288, ns_per_run=187, cpu_percent=0.04,
)  # fmt: skip


def test_the_table_of_the_documentation() -> None:
    pods = {"netns:4026532811": "shop/cart-7d9f6b"}
    text = render_table([CONNECT4, SK_LOOKUP], columns(Instance(), pods), Style())
    header, first, second = text.splitlines()
    assert header.split() == ("ID NAME HOOK ATTACHED TO RUNS NS/RUN CPU% JITED PINNED".split())
    assert first.split() == (
        "112 nn_connect4 cgroup/connect4 /sys/fs/cgroup - - - 2.9K links/connect4".split()
    )
    assert (
        second.split()
        == (
            "118 nn_sk_lookup sk_lookup shop/cart-7d9f6b +2 12.0K 187 0.0 2.9K links/sk_lookup/41"
        ).split()
    )


def test_a_program_that_hangs_nowhere() -> None:
    idle = msgspec.structs.replace(CONNECT4, attach=(), link_pinned=(), pinned=())
    row = render_table([idle], columns(Instance(), {}), Style()).splitlines()[1]
    assert row.split()[3] == "-" and row.endswith("-")


@pytest.mark.parametrize("which", ["112", "nn_connect4", "connect4"])
def test_one_by_name_or_id(which: str) -> None:
    assert chosen([CONNECT4, SK_LOOKUP], which) == [CONNECT4]


def test_an_unknown_one() -> None:
    with pytest.raises(NotFound) as raised:
        chosen([CONNECT4, SK_LOOKUP], "connect5")
    assert raised.value.line() == "no program connect5; there are: nn_connect4 nn_sk_lookup"
    assert chosen([CONNECT4], None) == [CONNECT4]


def test_nothing_loaded_is_an_empty_list(cli: Callable[..., Any]) -> None:
    outcome = cli("--id", "nn-nobody", "prog", "show", "-j")
    assert (outcome.status, outcome.json) == (0, [])
    assert cli("--id", "nn-nobody", "prog", "show", "connect4").status == 4
