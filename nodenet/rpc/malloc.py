"""glibc's allocator, told that this process lives on large buffers."""

from __future__ import annotations

import ctypes
import logging
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # mallopt(3), malloc.h
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
#: Blocks below it come from the heap and not from a mapping of their own, which would be faulted in
#: page by page and unmapped for every message.
_MMAP_BYTES: Final = 32 << 20
#: Free memory at the end of the heap that is kept: a few turns' worth of buffers.
_KEPT_BYTES: Final = 64 << 20
_PAD_BYTES: Final = 4 << 20
#: Seconds between two looks for memory to give back, see `give_back`.
GIVE_BACK_SECONDS: Final = 30.0

logger = logging.getLogger(__name__)


def keep_large_buffers() -> bool:
    """Sets the thresholds for this process; False where the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        logger.debug("no mallopt in this C library")
        return False
    wanted = (
        (_M_MMAP_THRESHOLD, _MMAP_BYTES),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES),
        (_M_TOP_PAD, _PAD_BYTES),
    )
    # every one is tried: each helps alone
    return all([bool(mallopt(name, value)) for name, value in wanted])


def give_back() -> bool:
    """Gives the kernel the free pages between what is in use; False where there were none.

    What a thousand stalled peers once held stays with the process otherwise, because the large
    buffers lie between small objects. A call takes 0.1 ms for each MiB it gives back, and a tenth
    of that where there is little; it belongs behind a load and not into it.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    return bool(trim(_PAD_BYTES))
