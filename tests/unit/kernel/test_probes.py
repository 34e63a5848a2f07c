"""The table of probes and the judgement of their failures, without a kernel."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from nodenet import abi
from nodenet.errors import NodenetError, NotPermitted, NotSupported
from nodenet.kernel import pins, probes
from nodenet.kernel.probe_actions import Limited
from nodenet.kernel.probe_scene import Scene, error_name, error_number, insn
from nodenet.kernel.probes import PROBES, Group, Probe, State, obstacles, run_probe


def probe(error: Exception | None, **more: Any) -> Probe:
    def act(_scene: Scene) -> str:
        if error is not None:
            raise error
        return "a remark"

    return Probe(
        id="x", group=Group.CAPTURE, feature="x", run=act, probed_by="trying",
        loss="a loss", fix="a fix", **more,
    )  # fmt: skip


def test_ids_are_unique_and_texts_fit_their_columns() -> None:
    assert len({p.id for p in PROBES}) == len(PROBES)
    for p in PROBES:
        assert len(p.feature) <= 28, p.id
        assert max(len(p.loss), len(p.limited)) <= 44, p.id
        assert p.loss and p.fix and p.probed_by, p.id


def test_every_hook_nodenet_loads_is_probed() -> None:
    features = {p.feature for p in PROBES}
    hooks = {d.hook for d in abi.PROGRAMS.values() if d.attach in ("root", "agent", "netns")}
    assert hooks <= features


def test_what_works_keeps_its_remark() -> None:
    check = run_probe(probe(None), Scene())
    assert (check.state, check.means, check.fix, check.errno) == (State.OK, "a remark", None, None)
    assert check.ms >= 0


@pytest.mark.parametrize(
    ("error", "more", "state", "means"),
    [
        (OSError(errno.EINVAL, "x"), {}, State.MISSING, "a loss"),
        (OSError(errno.EINVAL, "x"), {"failing": State.DEGRADED}, State.DEGRADED, "a loss"),
        (NodenetError("said so"), {}, State.MISSING, "a loss"),
        (NodenetError("said so"), {"says_why": True}, State.MISSING, "said so"),
        (Limited("x"), {"limited": "less"}, State.DEGRADED, "less"),
        (NotPermitted("x"), {}, State.UNKNOWN, "not allowed to look"),
    ],
)
def test_what_a_failure_means(
    error: Exception, more: dict[str, Any], state: State, means: str
) -> None:
    check = run_probe(probe(error, **more), Scene())
    assert (check.state, check.means) == (state, means)
    assert check.fix


def test_eperm_with_every_right_is_the_kernel_s_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "refused", lambda what, feature: NotSupported(feature, "x"))
    monkeypatch.setattr(probes, "lockdown", lambda: "confidentiality")
    refused = probe(OSError(errno.EPERM, "x"))
    check = run_probe(refused, Scene())
    assert (check.state, check.errno) == (State.MISSING, "EPERM")
    assert check.fix == "boot with lockdown=integrity"
    monkeypatch.setattr(probes, "lockdown", lambda: "none")
    assert run_probe(refused, Scene()).fix == "a fix; no policy against it (lockdown=none)"


def test_eperm_without_rights_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "refused", lambda what, feature: NotPermitted(what))
    assert run_probe(probe(OSError(errno.EPERM, "x")), Scene()).state is State.UNKNOWN


def test_a_fault_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run_probe(probe(ZeroDivisionError()), Scene())


def test_only_what_is_required_stands_in_the_way() -> None:
    lost = OSError(errno.EINVAL, "x")
    in_the_way = run_probe(probe(lost, required_for=("capture",)), Scene())
    elsewhere = run_probe(probe(lost, required_for=("conn",)), Scene())
    with_loss = run_probe(probe(lost, required_for=("capture",), failing=State.DEGRADED), Scene())
    assert obstacles([in_the_way, elsewhere, with_loss]) == [in_the_way]


def test_errno_is_found_behind_our_errors() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError as cause:
            raise NodenetError("map") from cause
    except NodenetError as error:
        assert error_number(error) == errno.ENOSPC
    assert error_number(NodenetError("x")) is None
    assert error_name(errno.EPERM) == "EPERM"
    assert error_name(524) == "524"
    assert error_name(None) is None


def test_an_instruction_is_eight_bytes() -> None:
    assert insn(0xB7, 3, imm=-111) == b"\xb7\x03\0\0\x91\xff\xff\xff"
    assert insn(0x79, 2, 1, 64) == b"\x79\x12\x40\0\0\0\0\0"
