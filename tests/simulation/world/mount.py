"""What one process has of a simulated disk: `turbopump.store.disk.Disk`, its segments and its
locks.

Its one rule: every operation asks the disk first (`perform`), which may fail it or cut the power
there; a mount whose process is dead reaches nothing. What survives what is disk.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turbopump.errors import StoreLockedError
from turbopump.store.disk import Done, Found, Piece, Segment, Space, failure_of

if TYPE_CHECKING:
    from tests.simulation.world.disk import SimulatedDisk


class PowerCut(BaseException):
    """Raised by every call on the mount of a process that is dead, and in the middle of the
    operation it died in."""


class SimulatedMount:
    """What one process has of the disk: `turbopump.store.disk.Disk`, on a SimulatedDisk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self.closed = False
        self._closing = False
        self._under_way: dict[int, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}
        self._started = 0

    def make_directory(self, path: Path) -> None:
        self._check_alive()
        self._disk.directories.update((path, *path.parents))

    def list_directory(self, path: Path) -> list[str]:
        self._check_alive()
        names = {each.name for each in self._disk.files if each.parent == path}
        names |= {
            each.name for each in self._disk.directories if each.parent == path and each != path
        }
        return sorted(names)

    def is_directory(self, path: Path) -> bool:
        self._check_alive()
        return path in self._disk.directories

    def is_writable(self, path: Path) -> bool:
        return self.is_directory(path)

    def file_size(self, path: Path | str) -> int | None:
        self._check_alive()
        file = self._disk.files.get(Path(path))
        return None if file is None else file.size

    def create_segment(self, path: Path, size: int) -> SimulatedSegment:
        self._perform("create", path)
        if path in self._disk.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._check_directory(path)
        self._check_room(path, size)
        file = SimulatedFile.of_zeros(size, modified_ms=self._disk.clock.now_ms())
        self._disk.change((path, file))
        return SimulatedSegment(self, path, file)

    def open_segment(self, path: Path) -> SimulatedSegment:
        self._perform("open", path)
        return SimulatedSegment(self, path, self._file(path))

    def create_sparse(self, path: Path, size: int) -> SimulatedSparseSegment:
        self._perform("create", path)
        if path in self._disk.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._check_directory(path)
        file = SimulatedFile.of_zeros(size, modified_ms=self._disk.clock.now_ms())
        file.blocks = set()
        self._disk.change((path, file))
        return SimulatedSparseSegment(self, path, file)

    def open_sparse(self, path: Path | str, size: int) -> SimulatedSparseSegment:
        self._check_alive()
        file = self._file(Path(path))
        assert file.size == size
        return SimulatedSparseSegment(self, Path(path), file)

    @property
    def maps_max(self) -> int:
        return self._disk.maps_max

    def rename_segment(self, segment: Segment, path: Path) -> None:
        assert isinstance(segment, SimulatedSegment)
        self._perform("rename", path)
        if not self.same_file_system(segment.path, path):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))
        self._check_directory(path)
        self._disk.change((segment.path, None), (path, segment.file))
        segment.path = path

    def link(self, path: Path, other: Path) -> None:
        self._perform("link", other)
        self._check_directory(other)
        self._disk.change((other, self._file(path)))

    def read_file(self, path: Path) -> bytes | None:
        self._perform("read", path)
        file = self._disk.files.get(path)
        return None if file is None else file.content

    def write_file(self, path: Path, data: bytes) -> None:
        self._perform("write", path)
        self._check_directory(path)
        file = self._disk.files.get(path)
        self._check_room(path, len(data) - (0 if file is None else file.size))
        if file is None:
            file = SimulatedFile(data, synced=False)
            self._disk.change((path, file))
        else:
            file.overwrite(data)
        file.modified_ms = self._disk.clock.now_ms()
        self.sync_file(path, file)

    def replace_file(self, path: Path, data: bytes, *, private: bool = False) -> None:
        temporary = path.with_name(path.name + ".tmp")
        self.write_file(temporary, data)
        old = self._disk.files.get(path)
        if old is not None:
            self._perform("rename", path)
            self._disk.change((path.with_name(path.name + ".bak"), old))
        self._perform("rename", path)
        self._disk.change((temporary, None), (path, self._file(temporary)))
        self._perform("directory_sync", path.parent)
        self._disk.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        self._perform("remove", path)
        if path in self._disk.files:
            self._disk.change((path, None))
        elif path in self._disk.directories:
            if self.list_directory(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
            self._disk.directories.discard(path)

    def modified_ms(self, path: Path) -> int:
        self._check_alive()
        return self._file(path).modified_ms

    def file_mode(self, path: Path) -> int | None:
        """Files have no modes here: each is its owner's alone."""
        return 0o600 if path in self._disk.files else None

    def lock(self, path: Path) -> SimulatedLock:
        self._check_alive()
        if path in self._disk.locks:
            raise StoreLockedError(f"the store directory {path.parent} is in use by another broker")
        self._check_directory(path)
        if path not in self._disk.files:
            self._disk.change((path, SimulatedFile(b"", synced=False)))
        self._disk.locks.add(path)
        return SimulatedLock(self, self._disk.locks, path)

    def lock_directories(self, paths: Iterable[Path]) -> Callable[[], None]:
        self._check_alive()
        directories = set(paths)
        if directories & self._disk.locks:
            raise StoreLockedError(f"{directories & self._disk.locks} is in use by another broker")
        self._disk.locks |= directories
        return partial(self._disk.locks.difference_update, directories)

    def space(self, path: Path) -> Space:
        self._perform("space", path)
        return self._disk.space(path)

    def same_file_system(self, one: Path, other: Path) -> bool:
        self._check_alive()
        return self._disk.file_system(one) == self._disk.file_system(other)

    def lost_pages(self) -> int:
        """A simulated map has all its pages."""
        return 0

    def sync_directory(self, path: Path) -> None:
        self._perform("directory_sync", path)
        self._disk.sync_directory(path)

    def start(self, operation: Callable[[], None], done: Done) -> None:
        """Beside the owner: the operation takes effect at some moment before `done` is called."""
        self._check_alive()
        self._beside(partial(failure_of, operation), done)

    def start_sync(self, segments: Iterable[Segment], done: Done) -> None:
        """What was written before this call is durable when `done(None)` is called; nothing is
        promised of later writes."""
        self._check_alive()
        batch: list[Callable[[], None]] = []
        for segment in segments:
            assert isinstance(segment, SimulatedSegment)
            changed = segment.file.changed()
            batch.append(partial(self.sync_file, segment.path, segment.file, changed))

        def effect() -> OSError | None:
            failures = [failure_of(sync) for sync in batch]
            return next((failure for failure in failures if failure is not None), None)

        self._beside(effect, done)

    def sync(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.sync()

    def start_remove(
        self, segments: Sequence[Segment], done: Callable[[int, OSError | None], None]
    ) -> None:
        """All of it at one moment before `done` is called, unless the process dies in the
        middle."""
        gone = 0

        def remove_all() -> None:
            nonlocal gone
            for segment in segments:
                self.remove(segment.path)
                gone += 1
            for directory in dict.fromkeys(segment.path.parent for segment in segments):
                self.sync_directory(directory)

        self._check_alive()
        self._beside(partial(failure_of, remove_all), lambda error: done(gone, error))

    def start_read(self, pieces: Sequence[Piece], done: Callable[[list[Found]], None]) -> None:
        """Each piece is read at one moment before `done` is called."""
        self._check_alive()
        found: list[Found] = []
        for piece in pieces:
            piece.segment.hold(reading=True)

        def report(_error: OSError | None) -> None:
            for piece in pieces:
                piece.segment.release()
            done(found)

        def effect() -> None:
            for piece in pieces:
                try:
                    found.append(piece.segment.read_cold(piece.at, piece.size))
                except OSError as error:
                    found.append(error)
                except ValueError as error:
                    found.append(OSError(errno.EBADF, str(error)))

        self._beside(effect, report)

    def close(self) -> None:
        """Finish at once what is under way (a real disk is waited for); then refuse more."""
        self._closing = True
        under_way, self._under_way = self._under_way, {}
        for timer, finish in under_way.values():
            timer.cancel()
            finish()
        self.closed = True

    def _beside(self, effect: Callable[[], OSError | None], done: Done) -> None:
        """Call ``effect`` after a random delay, and ``done`` with its result after another one."""
        if self.closed:
            raise RuntimeError("the disk is closed")
        if self._closing:  # started by one of the last ``done``
            done(effect())
            return
        loop = self._disk.loop
        until_effect, until_done = (
            self._disk.rng.uniform(*self._disk.sync_seconds) / 2 for _ in range(2)
        )
        self._started = number = (
            self._started + 1
        )  # closures that knew their timers would be cycles, and nobody collects in a simulation

        def finish() -> None:
            self._under_way.pop(number, None)
            if self._disk.mounted is self:
                outcome = effect()
                if self._closing:
                    done(outcome)
                    return

                def report() -> None:
                    self._under_way.pop(number, None)
                    done(outcome)

                self._under_way[number] = loop.call_later(until_done, report), report

        self._under_way[number] = loop.call_later(until_effect, finish), finish

    def sync_file(self, path: Path, file: SimulatedFile, sectors: Sectors | None = None) -> None:
        """Write back the file, or just these of its sectors; on an injected error the kernel
        forgets them."""
        dirty = file.changed() if sectors is None else sectors
        try:
            self._perform("sync", path)
        except OSError:
            file.fail_write_back(dirty)
            raise
        if dirty:
            file.modified_ms = self._disk.clock.now_ms()
        file.write_back(dirty)
        self._disk.name_synced(file)

    def read_cold(self, path: Path) -> None:
        """A read that goes to the disk itself, and may fail there."""
        self._perform("pread", path)

    def is_named(self, segment: SimulatedSegment) -> bool:
        """Whether the file of a segment is there under its name."""
        self._check_alive()
        return self._disk.files.get(segment.path) is segment.file

    def is_cached(self) -> bool:
        """Half of what is asked for is in memory."""
        self._check_alive()
        return self._disk.rng.random() < 0.5

    def allocate(self, path: Path, file: SimulatedFile, at: int, size: int) -> None:
        """Give the file blocks for a range, if the disk has so many."""
        self._perform("allocate", path)
        if file.blocks is None:
            return
        wanted = set(range(at // SECTOR_SIZE, -(-min(at + size, file.size) // SECTOR_SIZE)))
        self._check_room(path, file.room_of(wanted - file.blocks))
        file.blocks |= wanted

    def _perform(self, operation: str, path: Path) -> None:
        self._check_alive()
        self._disk.perform(operation, path)

    def _check_alive(self) -> None:
        if self._disk.mounted is not self:
            raise PowerCut

    def _check_directory(self, path: Path) -> None:
        if path.parent not in self._disk.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def _check_room(self, path: Path, size: int) -> None:
        if size > self._disk.space(path).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _file(self, path: Path) -> SimulatedFile:
        file = self._disk.files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return file


class SimulatedSegment:
    """A mapped file of a simulated disk: `turbopump.store.disk.Segment`."""

    def __init__(self, mount: SimulatedMount, path: Path, file: SimulatedFile) -> None:
        self.path = path
        self.size = file.size
        self.file = file
        self.buffer: Any = file.map()
        self._mount = mount
        self.reads_ahead = True
        self._holders = 0
        self._closed = False

    def read(self, at: int, size: int) -> bytes:
        data: bytes = self.buffer[at : at + size]
        return data

    def read_cold(self, at: int, size: int) -> bytes:
        self._mount.read_cold(self.path)
        return self.read(at, size)

    def read_cached(self, at: int, size: int) -> bytes | None:
        """Whether the system has it in memory is up to chance."""
        return self.read(at, size) if self._mount.is_cached() else None

    def read_cached_into(self, buffer: Any, at: int) -> bool:
        data = self.read_cached(at, len(buffer))
        if data is not None:
            buffer[:] = data
        return data is not None

    def evict(self, at: int, size: int) -> None:
        """Chance does not remember."""

    def read_ahead(self, *, enabled: bool) -> None:
        """Nor does it look ahead."""
        self.reads_ahead = enabled

    def data_until(self, at: int) -> int:
        """As a file system that reports no holes, so that all is looked at."""
        return self.size

    def data_from(self, at: int) -> int | None:
        """To the sector, as file systems report it."""
        while at < self.size:
            stride = self.file.read(at, STRIDE - at % STRIDE)
            if stride == ZEROS[: len(stride)]:
                at += len(stride)
                continue
            sector = stride[: SECTOR_SIZE - at % SECTOR_SIZE]
            if any(sector):
                return at
            at += len(sector)
        return None

    def populate(self, at: int, size: int, *, small: bool = False) -> None:
        """Memory is always there."""

    def sync(self) -> None:
        self._mount.sync_file(self.path, self.file)

    def lost(self, *, by_name: bool = False) -> str | None:
        """A file cannot be cut here; it can be deleted, or replaced."""
        return None if self._mount.is_named(self) else f"{self.path} was deleted"

    def hold(self, *, reading: bool = False) -> None:
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if self._closed and not self._holders:
            self.file.unmap()

    def close(self) -> None:
        self._closed = True
        if not self._holders:
            self.file.unmap()


class SimulatedSparseSegment(SimulatedSegment):
    """A sparse file: `turbopump.store.disk.SparseSegment`."""

    def __init__(self, mount: SimulatedMount, path: Path, file: SimulatedFile) -> None:
        self.path = path
        self.size = file.size
        self.file = file
        self._mount = mount
        self._holders = 0
        self._closed = False

    @property
    def buffer(self) -> Any:
        self._check_open()
        return self.file.map()

    def allocate(self, at: int, size: int) -> None:
        self._check_open()
        self._mount.allocate(self.path, self.file, at, size)

    def tail(self, size: int) -> tuple[int, bytes]:
        self._mount.read_cold(self.path)
        end = 0
        while (start := self.data_from(end)) is not None:
            end = start - start % SECTOR_SIZE + SECTOR_SIZE
        end = min(end, self.size)
        begin = max(end - size, 0)
        return begin, self.read(begin, end - begin)

    def unmap(self) -> bool:
        if self._holders:
            return False
        self.file.unmap()
        return True

    def read(self, at: int, size: int) -> bytes:
        if not self._holders:
            self._check_open()
        return self.file.read(at, size)

    def read_ahead(self, *, enabled: bool) -> None:
        """There is nothing that would remember."""

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, f"{self.path} is closed")


class SimulatedLock:
    """A held lock on a simulated store directory."""

    def __init__(self, mount: SimulatedMount, locks: set[Path], path: Path) -> None:
        self._mount = mount
        self._locks = locks
        self._path = path
        self.found = (mount.read_file(path) or b"")[:64]

    def mark(self, data: bytes) -> None:
        self._mount.write_file(self._path, data)

    def release(self) -> None:
        self._locks.discard(self._path)


# One file of a simulated disk: what the program sees, and what would be there after a power
# cut. `content` is the page cache, the platter the disk under it; they differ in whole sectors of
# 512 bytes. Its one rule: only `sync` promises anything; before it, any subset of the changed
# sectors may have reached the platter, one of them torn. Both are kept as strides of 32 KiB,
# those of zeros not at all: a timer wheel of 38 MB of which little was ever written costs as much
# as what was written.
SECTOR_SIZE = 512
STRIDE = 64 * SECTOR_SIZE
ZEROS = bytes(STRIDE)

Sectors = dict[int, bytes]
"""Sector number -> its bytes."""

Strides = dict[int, bytes]
"""Where a stride begins -> its bytes; what is missing is zeros."""


class SimulatedFile:
    """Until it was `synced` once, a file may be empty after a power cut. ``blocks`` are the sectors
    of a sparse file that have room on the disk (None: all); what is written elsewhere is a fault of
    the program, for on a full disk the system would end it there (SIGBUS)."""

    def __init__(self, data: bytes, *, synced: bool, modified_ms: int = 0) -> None:
        self.modified_ms = modified_ms
        self._size = len(data)
        self._strides = _in_strides(data)
        self._map: mmap.mmap | None = None
        self._platter: Strides | None = dict(self._strides) if synced else None
        self._platter_size = self._size
        self._given_up: Sectors = {}
        self.blocks: set[int] | None = None
        self._durable_blocks: set[int] = set()

    @classmethod
    def of_zeros(cls, size: int, *, modified_ms: int = 0) -> SimulatedFile:
        """A new file that was never synced."""
        file = cls(b"", synced=False, modified_ms=modified_ms)
        file._size = size
        return file

    @property
    def size(self) -> int:
        return self._size

    @property
    def room(self) -> int:
        """Bytes that it takes on the disk."""
        return self._size if self.blocks is None else self.room_of(self.blocks)

    def room_of(self, sectors: set[int]) -> int:
        """Bytes in these sectors; the last of a file may be short."""
        whole, rest = divmod(self._size, SECTOR_SIZE)
        short = SECTOR_SIZE - rest if rest and whole in sectors else 0
        return len(sectors) * SECTOR_SIZE - short

    def read(self, at: int, size: int) -> bytes:
        """A part of the content."""
        end = min(at + size, self._size)
        if self._map is not None:
            return self._map[at:end]
        first = at - at % STRIDE
        pieces = [self._under(self._strides, start) for start in range(first, end, STRIDE)]
        return b"".join(pieces)[at - first : end - first]

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
        """Give back the memory: the process that mapped it is dead, and its content is kept
        elsewhere."""
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
        kernel holds dirty."""
        return {
            number: sector
            for number, sector in self._written()
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
        self._durable_blocks = set(self.blocks or ())

    def fail_write_back(self, sectors: Sectors) -> None:
        """The kernel tried to write these and could not; it forgets that they are dirty."""
        self._given_up.update(sectors)

    def survivor(self) -> SimulatedFile:
        """The same file for the next process, when this one was killed: its map goes, the cache
        stays."""
        file = SimulatedFile.of_zeros(self._size, modified_ms=self.modified_ms)
        file._strides = self._strides if self._map is None else _in_strides(self._map)
        file._platter = None if self._platter is None else dict(self._platter)
        file._platter_size = self._platter_size
        file._given_up = self._given_up
        file._durable_blocks = self._durable_blocks
        file.blocks = None if self.blocks is None else set(self.blocks)
        return file

    def after_power_cut(self, rng: random.Random, *, may_be_empty: bool) -> SimulatedFile:
        """What is found at the next start; empty if the name was written and the allocation was
        not."""
        if self._platter is None and may_be_empty and rng.random() < 0.5:
            return SimulatedFile(b"", synced=True, modified_ms=self.modified_ms)
        survivors = dict(self._written())
        # nothing, everything, or some: the extremes find bugs too
        keep = rng.choice((0.0, 1.0, rng.random()))
        found = {number: sector for number, sector in survivors.items() if rng.random() < keep}
        if survivors and rng.random() < 0.5:
            torn = rng.choice(list(survivors))
            cut = rng.randrange(len(survivors[torn]) + 1)
            rest = found.get(torn) or self._platter_sector(torn)
            found[torn] = survivors[torn][:cut] + rest[cut:]
        file = self.survivor()
        if file.blocks is not None:
            file.blocks = {*self._durable_blocks, *found}
        file.write_back(found)
        assert file._platter is not None
        file._strides, file._given_up = dict(file._platter), {}
        return file

    def _written(self) -> Iterator[tuple[int, bytes]]:
        """What differs from the platter."""
        for number, sector in self._differing():
            assert self.blocks is None or number in self.blocks, (
                f"SIGBUS: sector {number} of a sparse file was written, and has no block"
            )
            yield number, sector

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
