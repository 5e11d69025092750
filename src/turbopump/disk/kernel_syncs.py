"""Syncs by threads of the kernel, started with one system call.

A sync in a thread of this process needs two thread switches, each of which waits for the GIL. On a
fast disk that costs more than the sync itself. Linux (4.18) accepts ``IOCB_CMD_FDSYNC`` in
``io_submit`` instead: the same ``vfs_fsync``, with the same errors, in a kernel worker. The owner's
loop watches a descriptor that reports the result. If anything is missing (another system, calls
that a container forbids), ``start`` returns False, and the caller uses a thread. The synced content
is unknown here.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

AT_ONCE_MAX: Final = 8
"""Largest number of syncs that run at the same time. One more is refused."""

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
    """Event loop that calls a function while a descriptor is readable.

    The function runs in the owner's thread.
    """

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> Any: ...
    def remove_reader(self, fd: int, /) -> Any: ...


class KernelSyncs:
    """Starter of file syncs that the kernel runs without a thread of this process.

    The first use checks that the kernel supports them. Call every method in the owner's thread.
    Only ``close`` waits for the disk.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._possible: bool | None = None
        self._under_way: dict[int, Callable[[OSError | None], None]] = {}
        self._number = 0

    def start(self, fd: int, done: Callable[[OSError | None], None]) -> bool:
        """Start an fdatasync of a file in the kernel.

        ``done`` is called later with None or the error. Return False if the kernel did not accept
        the sync, so that the caller must use a thread.
        """
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
        except OSError:  # no file, no fsync, no space: a sync in a thread reports it
            return False
        self._under_way[self._number] = done
        return True

    def _open(self) -> bool:
        """Prepare the kernel interface, and return True if the kernel supports and allows it."""
        numbers = (
            _NUMBERS.get(os.uname().machine)
            if sys.platform == "linux" and sys.maxsize > 1 << 32
            else None
        )
        if numbers is None:
            return False
        import ctypes

        self._setup, self._destroy, self._submit, self._events = numbers
        # The first keeps the GIL: releasing it costs more than a call that only starts work. The
        # second may block.
        self._libraries = ctypes.PyDLL(None, use_errno=True), ctypes.CDLL(None, use_errno=True)
        for library in self._libraries:
            library.syscall.argtypes = [ctypes.c_long] * 6
            library.syscall.restype = ctypes.c_long
        self._errno = ctypes.get_errno
        context = ctypes.c_ulong(0)
        try:
            self._call(self._setup, AT_ONCE_MAX, ctypes.addressof(context))
        except OSError:
            # The kernel was built without it, a container forbids it, or fs.aio-max-nr is used up.
            return False
        self._context = context.value
        self._request = ctypes.create_string_buffer(_IOCB.size)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._request))
        self._pointer_at = ctypes.addressof(self._pointer)
        self._found = ctypes.create_string_buffer(_EVENT.size)
        self._found_at = ctypes.addressof(self._found)
        # readable once for each completed sync
        self._ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._loop.add_reader(self._ended, self._report)
        return True

    def close(self) -> None:
        """Wait for all started syncs and report their results, then refuse new syncs."""
        while self._under_way:
            with contextlib.suppress(InterruptedError):  # interrupted by a signal
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
        """Report the result of one completed sync, if there is one.

        With ``at_least`` 1, wait until a sync is complete.
        """
        if self._call(self._events, self._context, at_least, 1, self._found_at, library=library):
            number, _, result, _ = _EVENT.unpack(self._found)
            self._under_way.pop(number)(
                OSError(-result, os.strerror(-result)) if result < 0 else None
            )

    def _call(self, number: int, *arguments: int, library: Any = None) -> int:
        """Make a system call and return its result.

        Raises OSError if the call fails.
        """
        result = (library or self._libraries[0]).syscall(
            number, *arguments, *(0,) * (5 - len(arguments))
        )
        if result < 0:
            raise OSError(self._errno(), os.strerror(self._errno()))
        return int(result)
