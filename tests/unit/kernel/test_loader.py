"""What the loader checks before the kernel is asked, and how it words a refusal."""

from __future__ import annotations

import errno
import struct

import pytest

from nodenet import abi
from nodenet.kernel.bytecode import Compiled
from nodenet.kernel.loader import AbiMismatch, VerifierRejected, _set_constants, check_abi
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


def load_number(register: int, value: int) -> bytes:
    """``register = value ll``: two instructions, the second with the upper half."""
    low, high = value & 0xFFFFFFFF, value >> 32
    return struct.pack("<BBhIBBhI", 0x18, register, 0, low, 0, 0, 0, high)


def test_a_constant_is_replaced_wherever_it_is_loaded_and_nowhere_else() -> None:
    wanted, other, value = abi.SELF_COOKIE, abi.SELF_COOKIE ^ 1 << 40, 0x1122334455667788
    low = wanted & 0xFFFFFFFF
    rest = b"".join(
        (
            struct.pack("<BBhI", 0xB7, 3, 0, low),  # r3 = low, 32 bits
            load_number(4, other),
            load_number(1 << 4 | 5, wanted),  # the descriptor of a map
            struct.pack("<HIH", 0xB7, low, 0),  # the same bytes across fields
            struct.pack("<BBhI", 0x18, 0, 0, low),  # cut short
        )
    )
    code = bytearray(load_number(1, wanted) + load_number(2, wanted) + rest)
    _set_constants(code, {wanted: value})
    assert code == load_number(1, value) + load_number(2, value) + rest
