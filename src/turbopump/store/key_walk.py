"""The way through the index files for one key, newest entry first.

It is walked in steps, for a chain may be long and not in memory: see ``question.py``. Files may
come and go meanwhile.
"""

from __future__ import annotations

from typing import Final

from turbopump.store.index_file import IndexFile
from turbopump.store.question import Question, read_piece

PAUSE_EVERY: Final = 100
"""Entries that are walked in one go, some 0.3 ms."""


class KeyWalk:
    """Finds entries of ``key_hash`` in ``files`` (oldest first, the list that the index keeps).
    ``errors`` says what could not be read."""

    def __init__(self, files: list[IndexFile], key_hash: int, begin_ms: int, end_ms: int) -> None:
        self._files = files
        self._key_hash = key_hash
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._left = files.copy()
        self._file: IndexFile | None = None
        self._number = 0
        self._walked = 0
        self.errors: list[OSError] = []

    def next(self) -> Question[int | None]:
        """The commit-log offset of the next message that may be meant, newest first; None: that was
        all.

        Hashes collide and times are rough: look at the message itself.
        """
        while True:
            if self._number == 0:
                if not self._left:
                    return None
                self._file = self._left.pop()
                if self._file in self._files:
                    yield from self._begin(self._file)
                continue
            offset = yield from self._step()
            if offset is not None:
                return offset

    def _begin(self, file: IndexFile) -> Question[None]:
        slot = yield from read_piece(file.slot_piece(self._key_hash))
        if not isinstance(slot, OSError):
            self._number = file.newest(slot)
        elif file in self._files:  # else it was removed while the read waited for its turn
            self.errors.append(slot)

    def _step(self) -> Question[int | None]:
        file, number, self._number = self._file, self._number, 0
        self._walked += 1
        if self._walked % PAUSE_EVERY == 0:
            yield None
        if file is None or file not in self._files:  # removed while others had their turn
            return None
        entry = yield from read_piece(file.entry_piece(number))
        if isinstance(entry, OSError):
            if file in self._files:
                self.errors.append(entry)
            return None
        offset, self._number = file.judge(
            number, entry, self._key_hash, self._begin_ms, self._end_ms
        )
        return offset
