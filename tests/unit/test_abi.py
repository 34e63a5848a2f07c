"""`nodenet.abi` against ``bpf/nn_abi.h``, through the C compiler and field by field."""

from __future__ import annotations

import ipaddress
import re
import subprocess
from collections.abc import Iterable, Iterator
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.kernel.spec import bpf_directory

BPF = bpf_directory()
HEADER = (BPF / "nn_abi.h").read_text()

#: C prefix of each enumeration's members, and what else carries that prefix.
PREFIXES: dict[type[IntEnum] | type[IntFlag], tuple[str, set[str]]] = {
    abi.PodFlag: ("NN_POD_", set()),
    abi.Reason: ("NN_R_", {"NN_R_MAX"}),
    abi.Action: ("NN_ACT_", set()),
    abi.Direction: ("NN_DIR_", set()),
    abi.ConnFlag: ("NN_CF_", set()),
    abi.Via: ("NN_VIA_", set()),
    abi.EventKind: ("NN_EV_", {"NN_EV_KINDS"}),
    abi.Asker: ("NN_ASK_", set()),
    abi.Stat: ("NN_STAT_", {"NN_STAT_MAX"}),
}
NUMBERS = {
    "NN_SCHEMA": abi.SCHEMA,
    "NN_STAT_MAX": abi.STAT_MAX,
    "NN_EV_KINDS": len(abi.EventKind),
}


def member(layout: abi.Layout, field: str) -> str:
    """The C member of a field: an event's first part is a whole nn_conn."""
    return f"conn.{field}" if layout is abi.EVENT and field in abi.CONN.names else field


def layout_checks(layouts: Iterable[abi.Layout]) -> Iterator[str]:
    for layout in layouts:
        name = layout.c_name
        yield f'_Static_assert(sizeof({name}) == {layout.size}, "size of {name}");'
        for field, (offset, size) in layout.offsets().items():
            path = member(layout, field)
            yield (
                f"_Static_assert(__builtin_offsetof({name}, {path}) == {offset} && "
                f'sizeof((({name} *)0)->{path}) == {size}, "{name}.{path}");'
            )


def number_checks() -> Iterator[str]:
    for kind, (prefix, _) in PREFIXES.items():
        for one in kind:
            yield f'_Static_assert({prefix}{one.name} == {one.value}, "{prefix}{one.name}");'
    for name, value in NUMBERS.items():
        yield f'_Static_assert({name} == {value}, "{name}");'


def compile_checks(directory: Path, lines: Iterable[str]) -> str:
    """What the compiler says about the assertions; empty when all hold."""
    source = directory / "checks.c"
    source.write_text('#include "nn_abi.h"\n' + "\n".join(lines) + "\n")
    command = ["cc", "-std=gnu11", "-fsyntax-only", f"-I{BPF}", f"-I{BPF / 'include'}", str(source)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stderr


def test_every_field_lies_where_c_puts_it(tmp_path: Path) -> None:
    assert compile_checks(tmp_path, layout_checks(abi.STRUCTS)) == ""


def test_numbers_are_those_of_c(tmp_path: Path) -> None:
    assert compile_checks(tmp_path, number_checks()) == ""


def test_a_wrong_field_is_noticed(tmp_path: Path) -> None:
    fields = [f._replace(code="I") if f.name == "agent_cgroup" else f for f in abi.CFG.fields]
    said = compile_checks(tmp_path, layout_checks([abi.Layout("struct nn_cfg", *fields)]))
    assert "struct nn_cfg.agent_cgroup" in said
    assert "size of struct nn_cfg" in said


def test_a_wrong_number_is_noticed(tmp_path: Path) -> None:
    assert "off by one" in compile_checks(
        tmp_path, [f'_Static_assert(NN_SCHEMA == {abi.SCHEMA + 1}, "off by one");']
    )


@pytest.mark.parametrize("kind", PREFIXES, ids=lambda kind: kind.__name__)
def test_c_has_no_number_that_python_lacks(kind: type[IntEnum] | type[IntFlag]) -> None:
    prefix, others = PREFIXES[kind]
    in_c = set(re.findall(rf"^(?:#define|\t)\s*({prefix}[A-Z0-9_]+)\b", HEADER, re.MULTILINE))
    assert in_c - others == {f"{prefix}{one.name}" for one in kind}


def test_c_has_no_struct_that_python_lacks() -> None:
    in_c = {f"struct {name}" for name in re.findall(r"^struct (\w+) \{", HEADER, re.MULTILINE)}
    assert in_c == {layout.c_name for layout in abi.STRUCTS} | {"struct nn_ip"}


def test_fields_are_all_of_c_and_leave_no_gap() -> None:
    # naturally aligned with every padding written out: offset and size tile the struct
    for layout in abi.STRUCTS:
        for field, (offset, size) in layout.offsets().items():
            code = next(f.code for f in layout.fields if f.name == field)
            if not code.endswith("s"):
                assert offset % size == 0, f"{layout.c_name}.{field} is not aligned"


@pytest.mark.parametrize("text", ["10.99.0.1", "0.0.0.0", "fd99::1", "::", "::1"])
def test_addresses_survive_packing(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert len(abi.pack_ip(address)) == 16
    assert abi.unpack_ip(abi.pack_ip(address)) == address


def test_layouts_survive_packing() -> None:
    raw = abi.BYP.pack(since_ns=2**63, reason=abi.Reason.FROM_PROXY)
    assert abi.BYP.unpack(raw) == {"since_ns": 2**63, "reason": 17}
    with pytest.raises(TypeError, match="no field"):
        abi.BYP.pack(nonsense=1)


def test_every_reason_of_a_direction_has_a_rule() -> None:
    assert abi.rule(abi.Direction.OUT, abi.Reason.CAPTURED) == "O8"
    assert abi.rule(abi.Direction.IN, abi.Reason.CAPTURED) == "I10"
    assert abi.rule(abi.Direction.OUT, abi.Reason.HBONE) is None
    decided = abi.OUT_RULES.keys() | abi.IN_RULES.keys()
    assert decided == set(abi.Reason) - {abi.Reason.NONE, abi.Reason.PRE_ENROLMENT}


def test_fields_left_out_are_zero_and_an_unknown_one_is_refused() -> None:
    raw = abi.POD.pack(id=7, ip4=b"x" * 16)
    assert len(raw) == abi.POD.size
    fields = abi.POD.unpack(raw)
    assert (fields.pop("id"), fields.pop("ip4")) == (7, b"x" * 16)
    assert all(not value or not any(bytes(value)) for value in fields.values())
    with pytest.raises(TypeError, match=r"struct nn_pod has no field \['port'\]"):
        abi.POD.pack(id=7, port=80)
