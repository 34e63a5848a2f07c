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


GIVEN_BACK = """
from nodenet.rpc.malloc import give_back, keep_large_buffers
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
assert keep_large_buffers()
buffers = [bytearray(b"x") * (200_000 if n % 2 else 2000) for n in range(1000)]
full = rss()
kept = buffers[::2]  # what is large lies between what stays
del buffers
before = rss()
assert give_back()
print(full - before, before - rss())
"""


def test_holes_are_given_back() -> None:
    command = [sys.executable, "-c", GIVEN_BACK]
    done = subprocess.run(command, check=True, capture_output=True, timeout=30)
    by_itself, given = map(int, done.stdout.split())
    assert by_itself < 10_000_000 and given > 80_000_000


def faults(*arguments: str) -> int:
    command = [sys.executable, "-c", CODE, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)


def test_buffers_are_not_faulted_in_again() -> None:
    assert faults("keep") < 100 < faults() / 10
