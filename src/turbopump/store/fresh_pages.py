"""Asking the system for the pages of a map ahead of need. The one rule: nothing in the file
changes, and nothing depends on it."""

from __future__ import annotations

import mmap
import sys
from typing import Any

_MADV_NORMAL = 0
_MADV_RANDOM = 1
_MADV_POPULATE_WRITE = 23  # Linux 5.14; faults pages in for writing without changing them
_madvise: Any = None


def populate_write(buffer: mmap.mmap, at: int, size: int, *, small: bool = False) -> None:
    """Ask for pages ahead of need: a page fault inside a map holds the GIL, ``madvise`` called
    through ctypes does not.

    ``small``: in pieces of one page. Left to itself the system reads a file ahead into pieces of up
    to 2 MiB, and one byte written into such a piece through a map makes all of it dirty, to be
    written by the next sync (ext4 since Linux 6.16, XFS since 5.18).

    Where the system does not know the request nothing happens: the pages then come one by one, on
    first touch.
    """
    global _madvise
    if not sys.platform.startswith("linux") or size <= 0:
        return
    import ctypes

    if _madvise is None:
        _madvise = ctypes.CDLL(None, use_errno=True).madvise
        _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    start = at & ~(mmap.PAGESIZE - 1)
    holder = ctypes.c_char.from_buffer(buffer, start)  # pins the map while the calls run
    requests = (
        (_MADV_RANDOM, _MADV_POPULATE_WRITE, _MADV_NORMAL) if small else (_MADV_POPULATE_WRITE,)
    )
    for request in requests:
        _madvise(ctypes.addressof(holder), size + at - start, request)
    del holder
