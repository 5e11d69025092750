"""Sparse files: how they grow, and which of them stay mapped.

There may be tens of thousands of them (queues), most with few bytes. A file gets blocks in small
steps, before they are written. It is mapped when it is written, and unmapped when it is cold.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from turbopump.disk.disk import Segment
from turbopump.store.mapped_file import MappedFile

PAGE: Final = 4096
"""First allocation of a sparse file in bytes."""
GROWTH_MAX: Final = 256 * 1024
"""Largest growth of a sparse file at a time, in bytes. Below this, its size doubles."""
_LOOKED_AT: Final = 64
"""Number of mapped files examined in a search for a cold one."""


class OpenFiles:
    """Sparse files of many rows. Roughly ``limit`` of the files stay mapped.

    Above the limit, the files with the oldest write are unmapped. A dirty file stays mapped,
    because otherwise a failed write-back would go unnoticed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mapped: OrderedDict[MappedFile, None] = OrderedDict()
        self._dirty: list[MappedFile] = []

    def map(self, file: MappedFile) -> None:
        """Map the file if it is not mapped. Raises OSError."""
        file.buffer = file.segment.buffer
        file.is_warm = True
        self._mapped[file] = None
        if len(self._mapped) > self._limit:
            self._unmap_cold(_LOOKED_AT)

    def written(self, file: MappedFile) -> None:
        """Record a write to a clean file. The file must be synced later."""
        file.dirty = True
        self._dirty.append(file)

    def take_dirty(self) -> list[Segment]:
        """Return the segments that were written since the last call.

        They count as clean from now on, so the caller must sync them at once.
        """
        if len(self._mapped) > self._limit:
            self._unmap_cold(len(self._mapped))
        written = self._dirty
        self._dirty = []
        dirty = [file for file in written if file.dirty]  # others were closed meanwhile
        for file in dirty:
            file.dirty = False
            file.is_warm = True
        return [file.segment for file in dirty]

    def close(self, file: MappedFile) -> None:
        """Close a file, because the file is removed or its row is closed."""
        file.segment.close()
        file.buffer = None
        file.room = file.start
        file.dirty = False
        self._mapped.pop(file, None)

    def _unmap_cold(self, look_at: int) -> None:
        # Each file is examined once. The one that was just mapped is warm, and stays mapped.
        for _ in range(min(look_at, len(self._mapped))):
            file, _ = self._mapped.popitem(last=False)
            if file.dirty or file.is_warm or not file.unmap():
                file.is_warm = False
                self._mapped[file] = None
            elif len(self._mapped) <= self._limit:
                return


def grown(size: int, size_max: int) -> int:
    """Return the number of bytes to allocate for a sparse file that must hold ``size`` bytes.

    The allocation doubles until it grows by ``GROWTH_MAX``. It never exceeds ``size_max``.
    """
    step = PAGE
    while step <= size and step < GROWTH_MAX:
        step *= 2
    return min(-(-size // step) * step, size_max)
