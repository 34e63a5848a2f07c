"""The allocator's thresholds, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import resource
from nodenet.rpc.malloc import keep_large_buffers
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        bytes(1 << 20)[:1]
        bytearray(4 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
if "keep" in __import__("sys").argv:
    assert keep_large_buffers()
    faults()
print(faults())
"""


def faults(*arguments: str) -> int:
    command = [sys.executable, "-c", CODE, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)


def test_buffers_are_not_faulted_in_again() -> None:
    assert faults("keep") < 100 < faults() / 10
