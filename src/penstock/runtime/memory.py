"""How the process allocates and frees memory.

A fetch response is a short-lived buffer of up to some megabytes. By default glibc maps such a buffer from the kernel and
returns it immediately, so every page is a new page each time, which costs more than reading the file
(docs/decisions/0008-keep-freed-memory.md).
"""

import ctypes
from typing import Final

from penstock.limits import MIB

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

MAP_BYTES_MIN: Final = 32 * MIB
"""Smaller buffers come from the heap; the maximum that glibc allows."""
KEPT_BYTES_MAX: Final = 64 * MIB
"""Free memory at the end of the heap that is kept for the next buffers."""
TOP_PAD_BYTES: Final = 1 * MIB


def keep_freed_memory() -> bool:
    """Let the allocator keep large freed buffers; False if the C library does not support it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, MAP_BYTES_MIN), (_M_TRIM_THRESHOLD, KEPT_BYTES_MAX), (_M_TOP_PAD, TOP_PAD_BYTES))
    taken = [mallopt(name, value) == 1 for name, value in settings]
    return all(taken)
