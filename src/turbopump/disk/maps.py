"""Maps of files with functions that ``mmap.mmap`` lacks: maps without a descriptor, pages faulted
in ahead of need, survival of lost pages, and syncs.

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
    """Return the C library. Its calls release the GIL."""
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
    """Return the class of maps of this size. A map ends with its last view."""
    import ctypes

    unmap, address_of = _c_functions().munmap, ctypes.addressof

    class Map(ctypes.c_ubyte * size):  # type: ignore[misc]
        __slots__ = ()

        def __del__(self) -> None:
            unmap(address_of(self), size)

    return Map


def map_file(fd: int, size: int) -> memoryview:
    """Map the first ``size`` bytes of a file, shared, for reading and writing. The descriptor may
    then be closed. The map ends with its last view. Raises OSError.

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
    """Write bytes of a map of ``map_file`` to the disk, as an fdatasync of its file. Reports an
    error of the file since it was mapped, once. Raises OSError."""
    import ctypes

    whole = view.obj
    if _c_functions().msync(ctypes.addressof(whole), len(view), _MS_SYNC) != 0:  # type: ignore[arg-type]
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sync_file_system(fd: int) -> bool:
    """Write all dirty bytes of the descriptor's file system to the disk. Return False if this
    system cannot do that, or would not report a failed write.

    Reports an error of any file there since the descriptor was opened, once. Raises OSError.
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
    """Fault in pages before they are needed. A page fault inside a map holds the GIL; ``madvise``
    called through ctypes does not.

    ``small``: use pieces of one page. By default the system reads a file ahead into pieces of up to
    2 MiB. One byte written into such a piece through a map makes all of it dirty, and the next sync
    writes it (ext4 since Linux 6.16, XFS since 5.18).

    A system without this request does nothing: the pages then come one by one, on first access.
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
    """Keep this process alive after access to a lost page of a map. A page is lost if its file was
    cut, or the disk cannot read it. The page becomes zeros, and writes to it reach no file.

    Return False without the compiled module. The setting holds for the whole process, so only
    server commands call this function.
    """
    return False


@has_twin
def lost_pages() -> int:
    """Return the number of lost pages accessed so far."""
    return 0
