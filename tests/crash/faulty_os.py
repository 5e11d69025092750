"""The system calls of the store's disk, one of which fails.

It takes the place of the module ``os`` in ``disk/system_disk.py``, ``disk/whole_files.py`` and
``disk/mapped_segments.py`` (and of ``open`` for files that are written); what the kernel would sync
by itself is synced in threads. Its one rule: the nth call of one kind fails with one errno, before
it does anything; all others do what they do. It must not know who calls.
"""

import builtins
import errno
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from turbopump.disk import mapped_segments, system_disk, whole_files

KINDS = (
    *("fallocate", "fdatasync", "msync", "directory fsync", "ftruncate", "rename", "pread"),
    "file write",
)
_CALLS = {
    "posix_fallocate": "fallocate",
    "ftruncate": "ftruncate",
    "truncate": "ftruncate",
    "replace": "rename",
    "rename": "rename",
    "pread": "pread",
    "preadv": "pread",
    "write": "file write",
    "pwrite": "file write",
}
_SYNCS = ("fdatasync", "fsync")


@dataclass(frozen=True)
class Fault:
    """The `nth` (from 1) call of `kind` fails with `error`."""

    kind: str
    nth: int
    error: int

    def __str__(self) -> str:
        return f"{errno.errorcode[self.error]} at {self.kind} {self.nth}"


class FaultyOs:
    """Stands in for the module ``os``; `struck_at` is the monotonic time of the fault, `victim` the
    file's name if it is known."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.struck_at: float | None = None
        self.victim = ""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name in _SYNCS:
            return lambda fd: self._synced(real, fd)
        kind = _CALLS.get(name)
        if kind is None:
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            self.count(kind, arguments[0])
            return real(*arguments, **named)

        return call

    def open_file(self, path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        """`open`, with writes that may fail."""
        file = builtins.open(path, mode, *arguments, **named)  # noqa: SIM115 - who asked closes it
        return _Written(self, file, path) if "w" in mode else file

    def _synced(self, real: Any, fd: int) -> None:
        kind = "directory fsync" if stat.S_ISDIR(os.fstat(fd).st_mode) else "fdatasync"
        self.count(kind, fd)
        real(fd)

    def count(self, kind: str, victim: Any) -> None:
        with self._lock:
            self.calls[kind] += 1
            fault = self._fault
            if fault is None or fault.kind != kind or self.calls[kind] != fault.nth:
                return
            self.struck_at = time.monotonic()
            self.victim = _name(victim)
        raise OSError(fault.error, os.strerror(fault.error), self.victim)


class _Written:
    """A file opened for writing."""

    def __init__(self, owner: FaultyOs, file: Any, path: Any) -> None:
        self._owner = owner
        self._file = file
        self._path = path

    def write(self, data: bytes) -> int:
        self._owner.count("file write", self._path)
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_Written":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _name(victim: Any) -> str:
    if isinstance(victim, int):
        try:
            return os.readlink(f"/proc/self/fd/{victim}")
        except OSError:
            return f"fd {victim}"
    return str(victim)


@contextmanager
def failing(fault: Fault | None) -> Iterator[FaultyOs]:
    """Within the block the store's disk meets this fault."""
    system = FaultyOs(fault)
    plain = mapped_segments.sync_map

    def sync_map(view: memoryview) -> None:
        system.count("msync", "a queue or an index")
        plain(view)

    with (
        mock.patch.object(mapped_segments, "sync_map", sync_map),
        mock.patch.object(mapped_segments, "sync_file_system", return_value=False),
        mock.patch.object(system_disk, "os", system),
        mock.patch.object(mapped_segments, "os", system),
        mock.patch.object(whole_files, "os", system),
        mock.patch.object(whole_files, "open", system.open_file, create=True),
        mock.patch.object(system_disk.KernelSyncs, "start", return_value=False),
    ):
        yield system
