"""Joining the sources into one text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.kernel.spec import BpfSpec, Piece, SourcesMissing, bpf_directory, ordered


def test_order_is_declared_headers_then_other_headers_then_programs() -> None:
    names = ["a.bpf.c", "nn_decide.h", "nn_helpers.h", "b.bpf.c", "nn_abi.h", "nn_maps.h"]
    assert ordered(names) == [
        "nn_abi.h",
        "nn_maps.h",
        "nn_helpers.h",
        "nn_decide.h",
        "a.bpf.c",
        "b.bpf.c",
    ]


def test_each_line_keeps_its_file_and_number() -> None:
    text = BpfSpec(
        (
            Piece("nn_abi.h", "/* one */\nint a;\n"),
            Piece("x.bpf.c", '#include "nn_abi.h"\n#include <linux/types.h>\nint b;\n\n\n'),
        )
    ).text
    assert text == (
        '#line 1 "nn_abi.h"\n/* one */\nint a;\n'
        '#line 1 "x.bpf.c"\n\n#include <linux/types.h>\nint b;\n'
    )


def test_offsets_are_found_in_the_text() -> None:
    spec = BpfSpec(
        (Piece("a.h", "f(NN_OFF_SK_ERR); /* -DNN_OFF_... */ g(NN_OFF_A, NN_OFF_SK_ERR)"),)
    )
    assert spec.offsets == ("A", "SK_ERR")


def test_the_installed_sources_define_every_program_and_map() -> None:
    text = BpfSpec.read().text
    for name in abi.PROGRAMS:
        assert re.search(rf"^int {name}\(", text, re.MULTILINE), f"no function {name}"
    for name in abi.MAPS:
        assert re.search(rf"\b{name}\b", text), f"no map {name}"
    assert not re.search(r'#\s*include\s+"', text)


def test_the_header_tree_is_installed_beside_them() -> None:
    tree = bpf_directory() / "include"
    found = {str(p.relative_to(tree)) for p in tree.rglob("*.h")}
    assert found == {
        "asm/page.h",
        "linux/bpf_common.h",
        "linux/kconfig.h",
        "linux/log2.h",
        "linux/types.h",
        "linux/version.h",
        "uapi/linux/bpf.h",
        "uapi/linux/if_packet.h",
        "uapi/linux/in.h",
    }


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourcesMissing, match=f"{tmp_path}/gone; reinstall nodenet"):
        BpfSpec.read(tmp_path / "gone")
