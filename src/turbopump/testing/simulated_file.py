"""One file of a simulated disk: what the program sees, and what would be there after a power cut.

`content` is the page cache, the platter the disk under it; they differ in whole sectors of 512
bytes. Its one rule: only `sync` promises anything; before it, any subset of the changed sectors may
have reached the platter, one of them torn. It must not know names and directories.

Both are kept as strides of 32 KiB, those of zeros not at all: a timer wheel of 38 MB of which
little was ever written costs as much as what was written.
"""

import contextlib
import mmap
import random
from collections.abc import Iterator

SECTOR_SIZE = 512
STRIDE = 64 * SECTOR_SIZE
ZEROS = bytes(STRIDE)

Sectors = dict[int, bytes]
"""Sector number -> its bytes."""

Strides = dict[int, bytes]
"""Where a stride begins -> its bytes; what is missing is zeros."""


class SimulatedFile:
    """Until it was `synced` once, a file may be empty after a power cut."""

    def __init__(self, data: bytes, *, synced: bool, modified_ms: int = 0) -> None:
        self.modified_ms = modified_ms
        self._size = len(data)
        self._strides = _in_strides(data)
        self._map: mmap.mmap | None = None
        self._platter: Strides | None = dict(self._strides) if synced else None
        self._platter_size = self._size
        self._given_up: Sectors = {}

    @classmethod
    def of_zeros(cls, size: int, *, modified_ms: int = 0) -> "SimulatedFile":
        """A new file that was never synced."""
        file = cls(b"", synced=False, modified_ms=modified_ms)
        file._size = size
        return file

    @property
    def size(self) -> int:
        return self._size

    @property
    def content(self) -> bytes:
        """The whole file as a program reads it now."""
        return _joined(self._strides, self._size) if self._map is None else self._map[:]

    def map(self) -> mmap.mmap:
        """Memory that is the file's content, the same for all who map it, until `unmap`."""
        if self._map is None:
            self._map = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for start, piece in self._strides.items():
                self._map[start : start + len(piece)] = piece
            self._strides = {}
        return self._map

    def unmap(self) -> None:
        """The program closed its map. Raises BufferError as mmap does, if views of it are still
        held."""
        if self._map is not None:
            strides = _in_strides(self._map)
            self._map.close()
            self._strides, self._map = strides, None

    def free(self) -> None:
        """Give back the memory: whoever mapped it is dead, and somebody else has what was in it."""
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
        self._platter, self._map, self._strides, self._size = None, None, {}, 0

    def overwrite(self, data: bytes) -> None:
        """Replace the content in place, in the cache only."""
        assert self._map is None, "a mapped file is written through its map"
        self._strides, self._size = _in_strides(data), len(data)

    def changed(self) -> Sectors:
        """What a sync would have to write: the sectors that differ from the platter and that the
        kernel holds dirty.
        """
        return {
            number: sector
            for number, sector in self._differing()
            # After a failed write-back the kernel calls the page clean and never writes it again,
            # unless it changes.
            if self._given_up.get(number) != sector
        }

    def write_back(self, sectors: Sectors) -> None:
        """These sectors reached the platter, and the size with them."""
        platter = self._sized_platter()
        pieces: dict[int, bytearray] = {}
        for number, sector in sectors.items():
            at = number * SECTOR_SIZE
            start = at - at % STRIDE
            assert at < self._size
            if start not in pieces:
                pieces[start] = bytearray(self._under(platter, start))
            pieces[start][at - start : at - start + len(sector)] = sector
        platter.update((start, bytes(piece)) for start, piece in pieces.items())
        self._platter, self._platter_size = platter, self._size

    def fail_write_back(self, sectors: Sectors) -> None:
        """The kernel tried to write these and could not; it forgets that they are dirty."""
        self._given_up.update(sectors)

    def survivor(self) -> "SimulatedFile":
        """The same file for the next process, when this one was killed: its map goes, the cache
        stays."""
        file = SimulatedFile.of_zeros(self._size, modified_ms=self.modified_ms)
        file._strides = self._strides if self._map is None else _in_strides(self._map)
        file._platter = None if self._platter is None else dict(self._platter)
        file._platter_size = self._platter_size
        file._given_up = self._given_up
        return file

    def after_power_cut(self, rng: random.Random, *, may_be_empty: bool) -> "SimulatedFile":
        """What is found at the next start; empty if the name was written and the allocation was
        not."""
        if self._platter is None and may_be_empty and rng.random() < 0.5:
            return SimulatedFile(b"", synced=True, modified_ms=self.modified_ms)
        survivors = dict(self._differing())
        # nothing, everything, or some: the extremes find bugs too
        keep = rng.choice((0.0, 1.0, rng.random()))
        found = {number: sector for number, sector in survivors.items() if rng.random() < keep}
        if survivors and rng.random() < 0.5:
            torn = rng.choice(list(survivors))
            cut = rng.randrange(len(survivors[torn]) + 1)
            rest = found.get(torn) or self._platter_sector(torn)
            found[torn] = survivors[torn][:cut] + rest[cut:]
        file = self.survivor()
        file.write_back(found)
        assert file._platter is not None
        file._strides, file._given_up = dict(file._platter), {}
        return file

    def _platter_sector(self, number: int) -> bytes:
        at = number * SECTOR_SIZE
        start = at - at % STRIDE
        return self._under(self._sized_platter(), start)[at - start : at - start + SECTOR_SIZE]

    def _sized_platter(self) -> Strides:
        """The platter in the file's present size (new room is zeros)."""
        if self._platter is None:
            return {}
        if self._platter_size == self._size:
            return self._platter
        return _in_strides(
            _joined(self._platter, self._platter_size)[: self._size].ljust(self._size, b"\0")
        )

    def _under(self, strides: Strides, start: int) -> bytes:
        """The stride that begins at ``start``."""
        piece = strides.get(start)
        return piece if piece is not None else ZEROS[: self._size - start]

    def _differing(self) -> Iterator[tuple[int, bytes]]:
        live, under = self._map, self._sized_platter()
        for stride in range(0, self._size, STRIDE):
            piece = (
                live[stride : stride + STRIDE]
                if live is not None
                else self._under(self._strides, stride)
            )
            old = self._under(under, stride)
            if piece == old:
                continue
            for start in range(0, len(piece), SECTOR_SIZE):
                sector = piece[start : start + SECTOR_SIZE]
                if sector != old[start : start + SECTOR_SIZE]:
                    yield (stride + start) // SECTOR_SIZE, sector


def _in_strides(data: bytes | mmap.mmap) -> Strides:
    found = {}
    for start in range(0, len(data), STRIDE):
        piece = bytes(data[start : start + STRIDE])
        if piece != ZEROS[: len(piece)]:
            found[start] = piece
    return found


def _joined(strides: Strides, size: int) -> bytes:
    if size <= STRIDE:
        return strides.get(0, ZEROS[:size])
    return b"".join(strides.get(start, ZEROS[: size - start]) for start in range(0, size, STRIDE))
