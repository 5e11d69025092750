"""What the store asks of the system that the standard library has not: syncs by the kernel's own
threads, pages ahead of need, maps without a descriptor, syncs of many files at once, locks.

``KernelSyncs``: fdatasync by a thread of the kernel's own, asked for with one system call, reported
through a descriptor that the owner's loop watches. A sync in a thread of this process costs two
changes of thread, each of which waits for the GIL: more than the sync itself on a fast disk. Linux
(4.18) takes ``IOCB_CMD_FDSYNC`` in ``io_submit`` instead: the same ``vfs_fsync``, with the same
errors, in a kernel worker. The one rule: whatever is missing (another system, calls that a
container forbids) is said at once, and the caller uses a thread. It must not know what is synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from turbopump.compiled import has_twin
from turbopump.errors import StoreLockedError

FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
"""Mode of new directories: the owner writes, the group reads, since they hold messages. The umask
may remove more."""

AT_ONCE_MAX: Final = 8
"""Syncs under way at a time; one more is refused."""

_FDSYNC: Final = 3
_WITH_EVENTFD: Final = 1
_IOCB: Final = struct.Struct("<QIIHhIQQqQII")
"""``struct iocb``: data, key, rw_flags, opcode, priority, fd, buf, nbytes, offset, reserved, flags,
eventfd."""
_EVENT: Final = struct.Struct("<QQqq")
"""``struct io_event``: data, iocb, result, second result."""
_EVERYWHERE_ELSE: Final = (0, 1, 2, 4)
_NUMBERS: Final = {
    "x86_64": (206, 207, 209, 208),
    "aarch64": _EVERYWHERE_ELSE,
    "riscv64": _EVERYWHERE_ELSE,
}
"""System calls ``io_setup``, ``io_destroy``, ``io_submit``, ``io_getevents`` by machine; the C
library has no functions for them."""


class Loop(Protocol):
    """The part of an event loop that is needed: calling back, in the owner's thread, while a
    descriptor can be read."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> Any: ...
    def remove_reader(self, fd: int, /) -> Any: ...


class KernelSyncs:
    """Asks the kernel when it is first needed whether it can. Every method is called in the owner's
    thread; none but ``close`` blocks."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._possible: bool | None = None
        self._under_way: dict[int, Callable[[OSError | None], None]] = {}
        self._number = 0

    def start(self, fd: int, done: Callable[[OSError | None], None]) -> bool:
        """Begin an fdatasync of ``fd``; then ``done``, with its error if it failed. False: nothing
        was begun, use a thread."""
        if self._possible is None:
            self._possible = self._open()
        if not self._possible or len(self._under_way) == AT_ONCE_MAX:
            return False
        self._number += 1
        _IOCB.pack_into(
            self._request,
            0,
            self._number,
            0,
            0,
            _FDSYNC,
            0,
            fd & 0xFFFFFFFF,
            0,
            0,
            0,
            0,
            _WITH_EVENTFD,
            self._ended,
        )
        try:
            self._call(self._submit, self._context, 1, self._pointer_at)
        except OSError:  # no file, a file system without fsync, no room: a thread finds out which
            return False
        self._under_way[self._number] = done
        return True

    def _open(self) -> bool:
        """Return True if the kernel supports this and allows it."""
        numbers = (
            _NUMBERS.get(os.uname().machine)
            if sys.platform == "linux" and sys.maxsize > 1 << 32
            else None
        )
        if numbers is None:
            return False
        import ctypes

        self._setup, self._destroy, self._submit, self._events = numbers
        # the first keeps the GIL: giving it away costs more than a call that only starts something;
        # the second may block
        self._libraries = ctypes.PyDLL(None, use_errno=True), ctypes.CDLL(None, use_errno=True)
        for library in self._libraries:
            library.syscall.argtypes = [ctypes.c_long] * 6
            library.syscall.restype = ctypes.c_long
        self._errno = ctypes.get_errno
        context = ctypes.c_ulong(0)
        try:
            self._call(self._setup, AT_ONCE_MAX, ctypes.addressof(context))
        except OSError:
            # the kernel was built without, a container forbids it, or fs.aio-max-nr is used up
            return False
        self._context = context.value
        self._request = ctypes.create_string_buffer(_IOCB.size)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._request))
        self._pointer_at = ctypes.addressof(self._pointer)
        self._found = ctypes.create_string_buffer(_EVENT.size)
        self._found_at = ctypes.addressof(self._found)
        # can be read once for each that ended
        self._ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._loop.add_reader(self._ended, self._report)
        return True

    def close(self) -> None:
        """Wait for what was begun and report it; then begin nothing more."""
        while self._under_way:
            with contextlib.suppress(InterruptedError):  # by a signal
                self._report_next(self._libraries[1], at_least=1)
        if not self._possible:
            return
        self._possible = False
        self._loop.remove_reader(self._ended)
        os.close(self._ended)
        self._call(self._destroy, self._context)

    def _report(self) -> None:
        try:
            os.eventfd_read(self._ended)
        except BlockingIOError:
            return
        self._report_next(self._libraries[0], at_least=0)

    def _report_next(self, library: Any, *, at_least: int) -> None:
        """Report the sync that ended first, if there is one; wait if there must ``at_least`` be
        one."""
        if self._call(self._events, self._context, at_least, 1, self._found_at, library=library):
            number, _, result, _ = _EVENT.unpack(self._found)
            self._under_way.pop(number)(
                OSError(-result, os.strerror(-result)) if result < 0 else None
            )

    def _call(self, number: int, *arguments: int, library: Any = None) -> int:
        """Raises OSError."""
        result = (library or self._libraries[0]).syscall(
            number, *arguments, *(0,) * (5 - len(arguments))
        )
        if result < 0:
            raise OSError(self._errno(), os.strerror(self._errno()))
        return int(result)


# --- Asking the system for the pages of a map ahead of need. The one rule: nothing in the file
# changes, and nothing depends on it.

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


# --- A page of a map whose file was cut: where these are not compiled, SIGBUS ends the process.


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


# --- Maps that keep no descriptor, and syncs of many files at once. ``mmap.mmap`` has a descriptor
# of its own for each map (until Python 3.13, where that can be declined): tens of thousands of
# queues would need as many.

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


# --- Locks on a store's files and directories: no two brokers in one.

_HELD = (errno.EACCES, errno.EAGAIN)


class FileLock:
    """A POSIX record lock on the first byte, which is what Apache's broker takes
    (``FileChannel.tryLock(0, 1, false)``)."""

    # POSIX locks do not hold against their own process
    _held_here: set[Path] = set()  # noqa: RUF012

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        if self._path in self._held_here:
            raise StoreLockedError(_locked_text(path))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            self.found = os.pread(self._fd, 64, 0)
        except OSError as error:
            os.close(self._fd)
            if error.errno in _HELD:
                raise StoreLockedError(_locked_text(path)) from None
            raise
        self._held_here.add(self._path)

    def mark(self, data: bytes) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)
        os.fsync(self._fd)

    def release(self) -> None:
        if self._fd >= 0:
            self._held_here.discard(self._path)
            os.close(self._fd)
            self._fd = -1


def _locked_text(path: Path) -> str:
    return (
        f"the store directory {path.parent} is in use by another broker (lock file {path}); "
        "stop that broker or choose another directory"
    )


def lock_directories(paths: Iterable[Path]) -> Callable[[], None]:
    """Lock directories with ``flock`` on themselves, which needs no file in them and which no
    program of Apache's uses. Return the function that unlocks them. On a file system without this
    lock (NFS) nothing is locked. Raises StoreLockedError."""
    held: set[tuple[int, int]] = set()
    with contextlib.ExitStack() as stack:
        for path in paths:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except PermissionError:
                continue
            stack.callback(os.close, fd)
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) in held:
                continue  # named twice
            held.add((found.st_dev, found.st_ino))
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _HELD:
                    raise StoreLockedError(
                        f"the directory {path} is in use by another broker: stop that one, or "
                        "give each its own directories"
                    ) from None
        return stack.pop_all().close
