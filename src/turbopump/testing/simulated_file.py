"""One file of a simulated disk: what the program sees, and what would be there after a power cut.

`content` is the page cache, `platter` the disk under it; they differ in whole sectors of 512 bytes. Its one
rule: only `sync` promises anything; before it, any subset of the changed sectors may have reached the
platter, one of them torn. It must not know names and directories.
"""

import mmap
import random
from collections.abc import Iterator

SECTOR_SIZE = 512
_STRIDE = 64 * SECTOR_SIZE  # compared at once; most of a segment has not changed

Sectors = dict[int, bytes]
"""Sector number -> its bytes."""


class SimulatedFile:
    """`platter` is None until the file was synced once: after a power cut such a file may be empty."""

    def __init__(self, data: bytes, *, synced: bool, modified_ms: int = 0) -> None:
        self.modified_ms = modified_ms
        self.platter: bytearray | None = bytearray(data) if synced else None
        self._data: bytes = data
        self._map: mmap.mmap | None = None
        self._given_up: Sectors = {}

    @property
    def size(self) -> int:
        return len(self._data) if self._map is None else len(self._map)

    @property
    def content(self) -> bytes:
        """The whole file as a program reads it now."""
        return self._data if self._map is None else self._map[:]

    def map(self) -> mmap.mmap:
        """Memory that is the file's content, the same for all who map it, until `unmap`."""
        if self._map is None:
            self._map = mmap.mmap(-1, len(self._data))
            self._map[:] = self._data
            self._data = b""
        return self._map

    def unmap(self) -> None:
        """The program closed its map. Raises BufferError as mmap does, if views of it are still held."""
        if self._map is not None:
            data = self._map[:]
            self._map.close()
            self._data, self._map = data, None

    def overwrite(self, data: bytes) -> None:
        """Replace the content in place, in the cache only."""
        assert self._map is None, "a mapped file is written through its map"
        self._data = data

    def changed(self) -> Sectors:
        """What a sync would have to write: the sectors that differ from the platter and that the kernel
        holds dirty.
        """
        return {
            number: sector
            for number, sector in self._differing()
            # After a failed write-back the kernel calls the page clean and never writes it again, unless it changes.
            if self._given_up.get(number) != sector
        }

    def write_back(self, sectors: Sectors) -> None:
        """These sectors reached the platter, and the size with them."""
        platter = self._sized_platter()
        for number, sector in sectors.items():
            platter[number * SECTOR_SIZE : number * SECTOR_SIZE + len(sector)] = sector
        self.platter = platter

    def fail_write_back(self, sectors: Sectors) -> None:
        """The kernel tried to write these and could not; it forgets that they are dirty."""
        self._given_up.update(sectors)

    def survivor(self) -> "SimulatedFile":
        """The same file for the next process, when this one was killed: its map goes, the cache stays."""
        file = SimulatedFile(self.content, synced=False, modified_ms=self.modified_ms)
        file.platter = self.platter
        file._given_up = self._given_up
        return file

    def after_power_cut(self, rng: random.Random, *, may_be_empty: bool) -> bytes:
        """The content that is found at the next start; empty if the name was written and the allocation was
        not.
        """
        if self.platter is None and may_be_empty and rng.random() < 0.5:
            return b""
        found = self._sized_platter()
        survivors = dict(self._differing())
        keep = rng.choice((0.0, 1.0, rng.random()))  # nothing, everything, or some: the extremes find bugs too
        for number, sector in survivors.items():
            if rng.random() < keep:
                found[number * SECTOR_SIZE : number * SECTOR_SIZE + len(sector)] = sector
        if survivors and rng.random() < 0.5:
            torn = rng.choice(list(survivors))
            cut = rng.randrange(len(survivors[torn]) + 1)
            start = torn * SECTOR_SIZE
            found[start : start + cut] = survivors[torn][:cut]
        return bytes(found)

    def _sized_platter(self) -> bytearray:
        """The platter in the file's present size (new room is zeros)."""
        platter = bytearray(self.platter or b"")[: self.size]
        return platter + bytes(self.size - len(platter))

    def _differing(self) -> Iterator[tuple[int, bytes]]:
        live = memoryview(self._data if self._map is None else self._map)
        under = memoryview(self._sized_platter())
        try:
            for stride in range(0, len(live), _STRIDE):
                if live[stride : stride + _STRIDE] == under[stride : stride + _STRIDE]:
                    continue
                for start in range(stride, min(stride + _STRIDE, len(live)), SECTOR_SIZE):
                    sector = live[start : start + SECTOR_SIZE]
                    if sector != under[start : start + SECTOR_SIZE]:
                        yield start // SECTOR_SIZE, bytes(sector)
        finally:
            live.release()
            under.release()
