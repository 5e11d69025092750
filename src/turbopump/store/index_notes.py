"""What a store does about its index beside filling it: which files there are is written down, and
what goes wrong is told.

One rule: a file that is written down and missing at a start has the index filled again. It must not
know keys or messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from turbopump.store.disk import Disk
from turbopump.store.disk_space import SpaceWatch
from turbopump.store.key_index import KeyIndex
from turbopump.store.provenance import Provenance


class IndexNotes:
    """``index`` None: nothing is indexed. ``file_size``: bytes of an index file in
    ``directory``."""

    def __init__(
        self,
        index: KeyIndex | None,
        provenance: Provenance,
        disk: Disk,
        space: SpaceWatch,
        directory: Path,
        file_size: int,
        on_failure: Callable[[str], None],
    ) -> None:
        self._index = index
        self._provenance = provenance
        self._disk = disk
        self._space = space
        self._directory = directory
        self._file_size = file_size
        self._on_failure = on_failure

    def load(self) -> bool:
        """Open the files that are there; False if some are known to be missing."""
        index, provenance = self._index, self._provenance
        if index is None:
            return True
        index.load()
        expected = provenance.index_names
        there = set(expected) <= set(index.names) if expected is not None else bool(index.files)
        index.on_failure = self._stop
        index.on_no_room = self._no_room
        index.on_damage = self._on_failure
        return there and not provenance.index_incomplete

    def begin(self) -> None:
        """The store is recovered: from now on each new file is written down."""
        index = self._index
        if index is not None:
            index.on_new_file = lambda: self._disk.start(self.note, lambda _error: None)
            if index.failed:
                self._provenance.note_indexes(None)

    def note(self) -> None:
        """Write down which files there are."""
        index = self._index
        self._provenance.note_indexes(
            index.names if index is not None and not index.failed else None
        )

    def _stop(self, error: OSError) -> None:
        """The index cannot grow: it is left behind, and the next start fills it again. Should
        noting that fail too, the clean stop does."""
        self._on_failure(
            f"an index file cannot be made ({error.strerror or error}); messages are not indexed "
            "until the next start"
        )
        self._disk.start(lambda: self._provenance.note_indexes(None), lambda _error: None)

    def _no_room(self, error: OSError) -> None:
        self._space.no_room(error, self._directory, self._file_size)
