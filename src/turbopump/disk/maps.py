"""Maps of files beyond ``mmap.mmap``: without a descriptor, with pages asked for ahead of need, and
with pages that their file no longer has; syncs of them all.

``mmap.mmap`` has a descriptor of its own for each map (until Python 3.13, where that can be
declined): tens of thousands of queues would need as many.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

from turbopump.compiled import has_twin

_MAP_FAILED: Final = (1 << 64) - 1
_MS_SYNC: Final = 4 if sys.platform.startswith("linux") else 0x10
_SYNCFS_TELLS: Final = (5, 8)
"""The Linux from which on ``syncfs`` reports that something could not be written."""


@cache
def _c_functions() -> Any:
    """The C library; calls of it give the GIL away."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    address, size = ctypes.c_void_p, ctypes.c_size_t
    library.mmap.argtypes = (address, size, *(ctypes.c_int,) * 3, ctypes.c_long)
    library.mmap.restype = address
    library.munmap.argtypes = address, size
    library.madvise.argtypes = library.msync.argtypes = address, size, ctypes.c_int
    return library


@cache
def _map_of(size: int) -> Any:
    """Make the class of maps of this size. A map ends with its last view."""
    import ctypes

    unmap, address_of = _c_functions().munmap, ctypes.addressof

    class Map(ctypes.c_ubyte * size):  # type: ignore[misc]
        __slots__ = ()

        def __del__(self) -> None:
            unmap(address_of(self), size)

    return Map


def map_file(fd: int, size: int) -> memoryview:
    """The first ``size`` bytes of a file, shared with it, for reading and writing; the descriptor
    may be closed. The map ends with the last view of it. Raises OSError.

    The system reads no more of the file into memory than the page that is touched: it would be up
    to 2 MiB, which for a file with little in it costs 6 ms and as much memory.
    """
    import ctypes

    library = _c_functions()
    at = library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if at in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    library.madvise(at, size, _MADV_RANDOM)
    return memoryview(_map_of(size).from_address(at)).cast("B")


def sync_map(view: memoryview) -> None:
    """Write bytes of a map of ``map_file`` to the disk: an fdatasync of its file. An error of the
    file since it was mapped is reported, once. Raises OSError."""
    import ctypes

    whole = view.obj
    if _c_functions().msync(ctypes.addressof(whole), len(view), _MS_SYNC) != 0:  # type: ignore[arg-type]
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sync_file_system(fd: int) -> bool:
    """Write all dirty bytes of the descriptor's file system to the disk. Return False if this
    system cannot, or would not report a failed write. An error of any file there since the
    descriptor was opened is reported, once. Raises OSError."""
    if not _syncfs_tells():
        return False
    import ctypes

    if _c_functions().syncfs(fd) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


@cache
def _syncfs_tells() -> bool:
    if not sys.platform.startswith("linux") or not hasattr(_c_functions(), "syncfs"):
        return False
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= _SYNCFS_TELLS


def maps_max() -> int:
    """Return the maximum number of files that a process should map: three quarters of the system's
    limit, because libraries, threads and memory need maps too."""
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        allowed = 65_530
    return max(allowed * 3 // 4, 64)


_MADV_NORMAL = 0
_MADV_RANDOM = 1
_MADV_POPULATE_WRITE = 23  # Linux 5.14; faults pages in for writing without changing them


def populate_write(buffer: Any, at: int, size: int, *, small: bool = False) -> None:
    """Fault in pages before they are needed: a page fault inside a map holds the GIL, ``madvise``
    called through ctypes does not.

    ``small``: in pieces of one page. By default the system reads a file ahead into pieces of up to
    2 MiB, and one byte written into such a piece through a map makes all of it dirty, to be written
    by the next sync (ext4 since Linux 6.16, XFS since 5.18).

    On a system without this request nothing happens: the pages then come one by one, on first
    touch.
    """
    if not sys.platform.startswith("linux") or size <= 0:
        return
    import ctypes

    madvise = _c_functions().madvise
    start = at & ~(mmap.PAGESIZE - 1)
    holder = ctypes.c_char.from_buffer(buffer, start)  # pins the map while the calls run
    requests = (
        (_MADV_RANDOM, _MADV_POPULATE_WRITE, _MADV_NORMAL) if small else (_MADV_POPULATE_WRITE,)
    )
    for request in requests:
        madvise(ctypes.addressof(holder), size + at - start, request)
    del holder


@has_twin
def outlive_lost_pages() -> bool:
    """Keep this process alive after access to a page of a map that its file no longer has, or that
    the disk cannot give: the page becomes zeros, and writes to it reach no file. Return False
    without the compiled module. The setting holds for the whole process, so only server commands
    call it."""
    return False


@has_twin
def lost_pages() -> int:
    """Return the number of such pages."""
    return 0
