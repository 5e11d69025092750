"""A disk in memory for simulations: it outlives the processes that use it, and can lose power, fail
and be slow.

`SimulatedDisk` is the hardware; a process gets the `turbopump.disk.disk.Disk` seam of it from
`mount()`. Its one rule: every choice (what a power cut keeps, how long a sync takes) comes from the
random source it was given.

After `power_cut`: what was synced is there; of the rest any subset of 512-byte sectors is, one of
them perhaps torn. New names, renames and removals not synced are there up to some point in the
order in which they were made, as a journal keeps them; any sync settles what the journal had
before. With `strict_directories` (all that POSIX promises) only a sync of the directory makes a
name durable, and each directory loses on its own. After `kill` (kill -9) everything written is
there. Either way the mount is dead: every call of it raises PowerCut.

Simplified: directories themselves are durable at once; one that was removed is back if a file in it
is.
"""

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.mount import PowerCut, SimulatedFile, SimulatedMount

from turbopump.clock import Clock
from turbopump.disk.disk import Space

ANY = "any"
Change = list[tuple[Path, SimulatedFile | None]]
"""One step of a directory: the names it sets or removes, all or none of which survive a power
cut."""


@dataclass(frozen=True)
class DiskCopy:
    """All files of a disk at one moment. It may be put back many times."""

    files: dict[Path, SimulatedFile]


@dataclass(slots=True)
class _Fault:
    operation: str
    countdown: int
    times: int
    error: int | None  # None: the power is cut there


class SimulatedDisk:
    """See the module. `capacity` is bytes; `clock` dates files.

    Operations have the names ``create open allocate read write sync rename directory_sync remove
    space``; `fail` and `cut_power_at` take one of them, or ANY.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        clock: Clock,
        *,
        capacity: int = 1 << 30,
        strict_directories: bool = False,
    ) -> None:
        self.capacity = capacity
        self.capacities: dict[Path, int] = {}
        """Directories that are file systems of their own, and how many bytes each has."""
        self.maps_max = 1 << 16
        """How many sparse files may be mapped at a time."""
        self.strict_directories = strict_directories
        self.sync_seconds = (0.000_3, 0.02)
        """Shortest and longest time of what `start` and `start_sync` run beside the process."""
        self.operations = 0
        """How many operations there were: the range for `cut_power_at`."""
        self.failed = False
        """Whether an operation has failed since the last power cut: then the cache may show what
        the disk lost.
        """
        self.on_power_cut: Callable[[], None] | None = None
        """Called when `cut_power_at` strikes, for the process to be killed with its disk."""
        self.loop = loop
        self.rng = rng
        self.clock = clock
        self.files: dict[Path, SimulatedFile] = {}
        self.directories: set[Path] = {Path("/")}
        self.locks: set[Path] = set()
        self.mounted: SimulatedMount | None = None
        self.durable_files: dict[Path, SimulatedFile] = {}
        self._pending: list[Change] = []
        self.faults: list[_Fault] = []
        self._dead: list[SimulatedFile] = []

    def mount(self) -> SimulatedMount:
        """The seam for one process; the mount before it must be dead."""
        assert self.mounted is None or self.mounted.closed, (
            "kill the process before, or cut its power, with the disk's kill() or power_cut()"
        )
        # not before: what was cut down in the middle of an operation may still have had a look at
        # them
        while self._dead:
            self._dead.pop().free()
        self.mounted = SimulatedMount(self)
        return self.mounted

    def kill(self) -> None:
        """The process is gone (kill -9), the machine is not: what was written stays, synced or
        not."""
        self._dismount()
        self._dead += self.files.values()
        survivors = {
            file: file.survivor() for file in (*self.durable_files.values(), *self.files.values())
        }
        for change in self._pending:
            survivors.update(
                (file, file.survivor()) for _, file in change if file and file not in survivors
            )
        self.files = {path: survivors[file] for path, file in self.files.items()}
        self.durable_files = {path: survivors[file] for path, file in self.durable_files.items()}
        self._pending = [
            [(path, file and survivors[file]) for path, file in change] for change in self._pending
        ]

    def power_cut(self) -> None:
        """The machine loses power; `files` are what the next start finds."""
        self._dismount()
        self._dead += self.files.values()
        self.failed = False
        half_made = self._lose_unsynced_names()
        self.faults.clear()
        found = {
            file: file.after_power_cut(self.rng, may_be_empty=file in half_made)
            for _, file in sorted(self.durable_files.items())
        }
        self.durable_files = {path: found[file] for path, file in self.durable_files.items()}
        self.files = dict(self.durable_files)
        self.directories.update(
            parent for path in self.files for parent in path.parents
        )  # a file back is back in its directory
        self.loop.trace(f"power cut, {len(self.files)} files found")

    def copy(self) -> DiskCopy:
        """All files as they are read now, as a snapshot of the machine's volume has them."""
        return DiskCopy({path: file.survivor() for path, file in self.files.items()})

    def put_back(self, copy: DiskCopy) -> None:
        """Make the disk what it was when ``copy`` was taken, durably. No process may have it."""
        assert self.mounted is None, "kill the process first"
        for path in list(self.files):
            self.replace(path, None)
        for path, file in copy.files.items():
            self.replace(path, file.survivor())

    def replace(self, path: Path, file: SimulatedFile | None) -> None:
        """Put another file in the place of one, durably; None removes it. No process may have
        it."""
        assert self.mounted is None, "kill the process first"
        for names in (self.files, self.durable_files):
            _apply([(path, file)], names)
        self._pending = [
            [(named, changed) for named, changed in change if named != path]
            for change in self._pending
        ]
        self._pending = [change for change in self._pending if change]
        if file is not None:
            file.write_back(file.changed())
            self.directories.update(path.parents)

    def fail(self, operation: str, error: int = errno.EIO, *, nth: int = 1, times: int = 1) -> None:
        """Let the `nth` next such operation, and the `times` - 1 after it, fail with this errno."""
        self.faults.append(_Fault(operation, nth, times, error))

    def cut_power_at(self, operation: str = ANY, *, nth: int = 1) -> None:
        """Cut the power in the middle of the `nth` next such operation."""
        self.faults.append(_Fault(operation, nth, 1, None))

    def clear_faults(self) -> None:
        """Forget what `fail` and `cut_power_at` have armed."""
        self.faults.clear()

    def _lose_unsynced_names(self) -> set[SimulatedFile]:
        """Keep the pending changes up to some point; returns the files whose allocation may be
        missing."""
        journals = [self._pending]
        if self.strict_directories:
            directories = sorted({_directory(change) for change in self._pending})
            journals = [
                [change for change in self._pending if _directory(change) == directory]
                for directory in directories
            ]
        half_made: set[SimulatedFile] = set()
        for journal in journals:
            kept = journal[: self.rng.randint(0, len(journal))]
            for change in kept:
                _apply(change, self.durable_files)
            # A journal is written in order: what was made before the last thing that is there, was
            # made entirely.
            half_made.update(file for change in kept[-1:] for _, file in change if file is not None)
        if self.strict_directories:
            half_made.update(self.durable_files.values())
        self._pending = []
        return half_made

    def file_system(self, path: Path) -> Path:
        """The directory where the file system begins that a path lies in."""
        candidates = (path, *path.parents) if self.capacities else ()
        return next((each for each in candidates if each in self.capacities), Path("/"))

    def space(self, path: Path) -> Space:
        """Room on the file system of a path."""
        root = self.file_system(path)
        files = list(self.files.items())
        if self.capacities:  # else all lie in one, and this is asked for every second
            files = [one for one in files if self.file_system(one[0]) == root]
        used = sum(file.room for _, file in files)
        capacity = self.capacities.get(root, self.capacity)
        return Space(capacity, capacity - used)

    def perform(self, operation: str, path: Path) -> None:
        """Count one operation of the mounted process; fails or dies here if told to."""
        self.operations += 1
        self.loop.trace(f"disk {operation} {path}")
        for fault in self.faults:
            if fault.operation not in (operation, ANY):
                continue
            fault.countdown -= 1
            if fault.countdown <= 0 and fault.times > 0:
                fault.times -= 1
                if fault.error is None:
                    raise self._died()
                self.failed = True
                raise OSError(fault.error, os.strerror(fault.error), str(path))

    def change(self, *names: tuple[Path, SimulatedFile | None]) -> None:
        """Set or remove names, visible at once, durable after `sync_directory`."""
        change = list(names)
        _apply(change, self.files)
        self._pending.append(change)

    def sync_directory(self, directory: Path) -> None:
        """Every change of this directory so far is durable."""
        self._settle(lambda change: _directory(change) == directory)

    def name_synced(self, file: SimulatedFile) -> None:
        """A file was synced: with Linux's file systems its name is durable then."""
        if not self.strict_directories:
            self._settle(lambda change: any(named is file for _, named in change))

    def _settle(self, wanted: Callable[[Change], bool]) -> None:
        """Make durable the changes that are wanted; if there is one journal, whatever was changed
        before too."""
        chosen = [number for number, change in enumerate(self._pending) if wanted(change)]
        if not self.strict_directories and chosen:
            chosen = list(range(chosen[-1] + 1))
        for number in chosen:
            _apply(self._pending[number], self.durable_files)
        self._pending = [
            change for number, change in enumerate(self._pending) if number not in set(chosen)
        ]

    def _died(self) -> PowerCut:
        self.power_cut()
        if self.on_power_cut is not None:
            self.on_power_cut()
        return PowerCut()

    def _dismount(self) -> None:
        self.mounted = None
        self.locks.clear()


def _directory(change: Change) -> Path:
    return change[0][0].parent


def _apply(change: Change, names: dict[Path, SimulatedFile]) -> None:
    for path, file in change:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file
