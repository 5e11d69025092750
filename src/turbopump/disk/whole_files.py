"""Files of the real file system that are read and replaced as a whole, on every operating system.

Clients keep offsets in such files. ``SystemDisk`` adds what the store of a broker needs, which
Windows lacks. The meaning of files is unknown here.

``start`` runs a blocking operation in a thread. The result returns to the owner's thread through
the function ``post`` (``loop.call_soon_threadsafe`` under asyncio). Without ``post``, operations
run at once, which suits tools.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from turbopump.disk.disk import DIRECTORY_MODE, FILE_MODE, Done, Post, failure_of
from turbopump.disk.durable_files import sync_directory

PRIVATE_MODE: Final = 0o600


class WholeFileReader:
    """Read-only access to directories and whole files.

    Methods raise OSError as the system does.
    """

    def list_directory(self, path: Path) -> list[str]:
        """Return the sorted names of the files in a directory.

        The list is empty if the directory does not exist.
        """
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def file_size(self, path: Path | str) -> int | None:
        """Return the size of a file in bytes, or None if there is no such file."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def read_file(self, path: Path) -> bytes | None:
        """Return the content of a file, or None if there is no such file."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


class WholeFiles(WholeFileReader):
    """Files that are read and replaced as a whole.

    ``post`` runs a function in the owner's thread. It is used for the results of ``start``.
    """

    def __init__(self, post: Post | None = None) -> None:
        self._post = post
        self._finished: deque[Callable[[], None]] = deque()
        self._closed = False
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._add_pool("disk", 2)

    def _add_pool(self, name: str, threads: int) -> None:
        if self._post is not None:
            self._pools[name] = ThreadPoolExecutor(threads, f"turbopump-{name}")

    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            if not path.parent.exists():  # ``parents=True`` would leave the mode to the umask alone
                self.make_directory(path.parent)
            path.mkdir(DIRECTORY_MODE, exist_ok=True)

    def write_file(self, path: Path, data: bytes) -> None:
        self._write(path, data, None)

    def _write(self, path: Path, data: bytes, mode: int | None) -> None:
        try:
            with open(path, "wb", opener=partial(os.open, mode=FILE_MODE)) as file:
                if mode is not None and hasattr(os, "fchmod"):  # Windows has no such modes
                    os.fchmod(file.fileno(), mode)  # before it has any content
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # the error of a write has no path
            raise OSError(error.errno, error.strerror, str(path)) from None

    def replace_file(self, path: Path, data: bytes, *, private: bool = False) -> None:
        # At every moment either ``path`` or its ``.bak`` has whole content. The new content is on
        # the disk before any name changes. ``.bak`` becomes a second name of the old file, by a
        # link and a rename: renaming the file itself would leave a moment without ``path``. A kill
        # leaves at most the two temporary names, which the next call overwrites.
        temporary = path.with_name(path.name + ".tmp")
        try:
            mode = PRIVATE_MODE if private else stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            mode = None
        self._write(temporary, data, mode)
        if path.exists():
            if private:
                path.chmod(PRIVATE_MODE)  # another program may have made it; it is kept as .bak
            backup = path.with_name(path.name + ".bak")
            link = path.with_name(path.name + ".bak.tmp")
            with contextlib.suppress(FileNotFoundError):
                link.unlink()
            os.link(path, link)
            os.replace(link, backup)
        os.replace(temporary, path)
        sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()

    def file_mode(self, path: Path) -> int | None:
        try:
            return stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            return None

    def start(self, operation: Callable[[], None], done: Done) -> None:
        self._run_in("disk", lambda: partial(done, failure_of(operation)))

    def close(self) -> None:
        """Wait for all started operations and call every ``done``, then refuse new operations.

        Operations that a ``done`` starts run at once.
        """
        pools, self._pools = self._pools, {}
        for threads in pools.values():
            threads.shutdown(wait=True)
        while self._finished:
            self._report_result()
        self._closed = True

    def _run_in(self, pool: str, operation: Callable[[], Callable[[], None]]) -> None:
        """Run an operation in a thread. Then run its result, a function, in the owner's thread.

        Without threads, both run at once in this thread.
        """
        if self._closed:
            raise RuntimeError("the disk is closed")
        threads, post = self._pools.get(pool), self._post
        if threads is None or post is None:
            operation()()
            return

        def run() -> None:
            self._finished.append(operation())
            # A RuntimeError means that the owner's loop is closed. ``close`` may still report the
            # result.
            with contextlib.suppress(RuntimeError):
                post(self._report_result)

        threads.submit(run)

    def _report_result(self) -> None:
        if self._finished:
            self._finished.popleft()()
