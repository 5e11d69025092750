"""A small table kept as one JSON file: topics, groups, consumer offsets.

The rule: load before the first save, replace in one step (temporary file, fsync, rename, directory fsync; the old file stays as
``.bak``), never in the owner's thread. A file that cannot be read falls back to its ``.bak``. It knows bytes; what they mean is the
owner's: ``decode`` raises ValueError or a TurbopumpError for bytes that make no sense.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from turbopump.errors import StoreDamagedError, TurbopumpError
from turbopump.store.disk import Disk

T = TypeVar("T")


class JsonTable:
    """The file at ``path``."""

    def __init__(self, disk: Disk, path: Path, on_failure: Callable[[str], None]) -> None:
        self._disk = disk
        self._path = path
        self._on_failure = on_failure
        self._saving = False
        self._next: bytes | None = None
        self._loaded = False
        self._torn = False

    def load(self, decode: Callable[[bytes], T], empty: Callable[[], T]) -> T:
        """The table from its file, else from ``.bak``, else ``empty()``.

        Raises StoreDamagedError if there are files but none can be read: starting empty would lose what they say.
        """
        self._loaded = True
        faults: list[str] = []
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            data = self._disk.read_file(path)
            if data is None:
                continue
            try:
                if data.strip():
                    table = decode(data)
                    if faults:
                        self._torn = True
                        self._on_failure(f"{faults[0]}; {path.name} is used instead")
                    return table
                faults.append(f"{path} is empty")
            except (ValueError, TurbopumpError) as error:
                faults.append(f"{path} cannot be read ({error})")
        if faults and not all(fault.endswith("is empty") for fault in faults):
            raise StoreDamagedError(f"{'; '.join(faults)}: repair the file, or move it away to start without it")
        return empty()

    def save(self, data: bytes) -> None:
        """Replace the content, beside the owner's thread; of several saves under way only the last is written."""
        assert self._loaded, "a table is loaded before it is saved"
        if self._saving:
            self._next = data
            return
        self._saving = True

        def done(error: OSError | None) -> None:
            self._saving = False
            if error is not None:
                self._on_failure(
                    f"{self._path} could not be saved ({error.strerror or error}); the next change or a clean stop saves it again"
                )
            following, self._next = self._next, None
            if following is not None:
                self.save(following)

        self._disk.start(lambda: self._replace(data), done)

    def save_now(self, data: bytes) -> None:
        """Replace the content in this thread, at a clean stop. Raises OSError."""
        assert self._loaded, "a table is loaded before it is saved"
        self._replace(data)

    def _replace(self, data: bytes) -> None:
        self._disk.make_directory(self._path.parent)
        if self._torn:  # the good one is the .bak: a torn file must not take its place
            self._disk.remove(self._path)
            self._torn = False
        self._disk.replace_file(self._path, data)
