"""What the loader checks before the kernel is asked, and how it words a refusal."""

from __future__ import annotations

import errno

import pytest

from nodenet import abi
from nodenet.kernel.bytecode import Compiled
from nodenet.kernel.loader import AbiMismatch, VerifierRejected, check_abi
from nodenet.kernel.map_shape import Shape


def compiled(**maps: Shape) -> Compiled:
    return Compiled({}, maps, "0", ())


def test_maps_that_agree() -> None:
    check_abi(compiled(**{name: Shape.of(defn) for name, defn in abi.MAPS.items()}))


@pytest.mark.parametrize("field", Shape._fields)
def test_any_difference_is_named(field: str) -> None:
    wanted = Shape.of(abi.MAPS["pods"])
    shape = wanted._replace(**{field: getattr(wanted, field) + 1})
    with pytest.raises(AbiMismatch, match=r"map pods: C declares \(type "):
        check_abi(compiled(pods=shape))


def test_a_map_that_python_does_not_know() -> None:
    with pytest.raises(AbiMismatch, match="map extra"):
        check_abi(compiled(extra=Shape(1, 4, 4, 1, 0)))


def test_a_ring_buffers_bound_depends_on_the_page_size() -> None:
    check_abi(compiled(evs=Shape.of(abi.MAPS["evs"])._replace(max_entries=64 << 20)))


def test_a_rejection_shows_the_end_of_the_log() -> None:
    log = "0: (b7) r1 = 0\n1: (71) r0 = *(u8 *)(r1 +0)\nR1 invalid mem access 'scalar'\n"
    error = VerifierRejected("nn_x", errno.EACCES, log + "processed 2 insns (limit 1000000)\n\n")
    assert error.message == (
        "program nn_x: the kernel refuses it (Permission denied): "
        "0: (b7) r1 = 0 | 1: (71) r0 = *(u8 *)(r1 +0) | R1 invalid mem access 'scalar'"
    )
    assert error.log.endswith("\n\n")
    assert "no verifier log" in VerifierRejected("nn_x", errno.EINVAL, "").message
