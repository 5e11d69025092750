"""File maps with more functions than ``mmap.mmap``. Maps keep no descriptor, can load pages ahead
of need, can be synced, and let the process survive lost pages.

``mmap.mmap`` keeps a descriptor for each map (optional since Python 3.13): tens of thousands of
queues would need as many.
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
"""Linux version from which on ``syncfs`` reports failed writes."""


@cache
def _c_functions() -> Any:
    """Return functions of the C library. These functions release the GIL while they run."""
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
    """Return the ctypes class for a map of ``size`` bytes.

    A map ends when its last view is deleted.
    """
    import ctypes

    unmap, address_of = _c_functions().munmap, ctypes.addressof

    class Map(ctypes.c_ubyte * size):  # type: ignore[misc]
        __slots__ = ()

        def __del__(self) -> None:
            unmap(address_of(self), size)

    return Map


def map_file(fd: int, size: int) -> memoryview:
    """Map the first ``size`` bytes of a file into memory, for reading and writing.

    Writes go to the file. The descriptor may be closed after the call. The map ends when its last
    view is deleted. Raises OSError.

    The system reads only the touched page into memory. By default it would read up to 2 MiB, which
    costs 6 ms and as much memory for a nearly empty file.
    """
    import ctypes

    library = _c_functions()
    at = library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if at in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    library.madvise(at, size, _MADV_RANDOM)
    return memoryview(_map_of(size).from_address(at)).cast("B")


def sync_map(view: memoryview) -> None:
    """Write the changed bytes of a map to the disk, like an fdatasync of its file.

    An error of the file since it was mapped is reported once. Raises OSError.
    """
    import ctypes

    whole = view.obj
    if _c_functions().msync(ctypes.addressof(whole), len(view), _MS_SYNC) != 0:  # type: ignore[arg-type]
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sync_file_system(fd: int) -> bool:
    """Write all changed data of a file system to the disk, and return True.

    ``fd`` is any descriptor on the file system. Return False if this system cannot sync a whole
    file system, or would not report a failed write. An error of any file there since the descriptor
    was opened is reported once. Raises OSError.
    """
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
    """Return the maximum number of files that this process should map.

    It is three quarters of the system's limit, because libraries, threads and memory need maps too.
    """
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        allowed = 65_530
    return max(allowed * 3 // 4, 64)


_MADV_NORMAL = 0
_MADV_RANDOM = 1
_MADV_POPULATE_WRITE = 23  # Linux 5.14; faults pages in for writing without changing them


def populate_write(buffer: Any, at: int, size: int, *, small: bool = False) -> None:
    """Load the pages of a map into memory and make them writable, before they are needed.

    A page fault inside a map holds the GIL. ``madvise`` called through ctypes does not.

    ``small`` uses pieces of one page. By default the system reads a file ahead into pieces of up to
    2 MiB. One byte written into such a piece through a map makes all of it dirty, and the next sync
    writes it (ext4 since Linux 6.16, XFS since 5.18).

    Nothing happens on a system without this request. The pages are then loaded one by one, on first
    access.
    """
    if not sys.platform.startswith("linux") or size <= 0:
        return
    import ctypes

    madvise = _c_functions().madvise
    start = at & ~(mmap.PAGESIZE - 1)
    holder = ctypes.c_char.from_buffer(buffer, start)  # keeps the map alive while the calls run
    requests = (
        (_MADV_RANDOM, _MADV_POPULATE_WRITE, _MADV_NORMAL) if small else (_MADV_POPULATE_WRITE,)
    )
    for request in requests:
        madvise(ctypes.addressof(holder), size + at - start, request)
    del holder


@has_twin
def outlive_lost_pages() -> bool:
    """Keep this process alive when it accesses a map page that the disk cannot supply.

    Such a page is lost because its file was cut, or because the disk cannot read it. The page
    becomes zeros, and writes to it reach no file. Return False without the compiled module. The
    setting holds for the whole process, so only server commands call this function.
    """
    return False


@has_twin
def lost_pages() -> int:
    """Return the number of lost pages that this process has accessed so far."""
    return 0
