"""Asking the system for the pages of a map ahead of need. The one rule: nothing in the file changes, and nothing depends on it."""

from __future__ import annotations

import mmap
import sys
from typing import Any

_MADV_POPULATE_WRITE = 23  # Linux 5.14; faults pages in for writing without changing them
_madvise: Any = None


def populate_write(buffer: mmap.mmap, at: int, size: int) -> None:
    """Ask for pages ahead of need: a page fault inside a map holds the GIL, ``madvise`` called through ctypes does not.

    Where the system does not know the request nothing happens: the pages then come one by one, on first touch.
    """
    global _madvise
    if not sys.platform.startswith("linux") or size <= 0:
        return
    import ctypes

    if _madvise is None:
        _madvise = ctypes.CDLL(None, use_errno=True).madvise
        _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    start = at & ~(mmap.PAGESIZE - 1)
    holder = ctypes.c_char.from_buffer(buffer, start)  # pins the map while the call runs
    _madvise(ctypes.addressof(holder), size + at - start, _MADV_POPULATE_WRITE)
    del holder
