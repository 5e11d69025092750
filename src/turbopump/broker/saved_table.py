"""A table of the broker that is kept as one JSON file under ``config/``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import msgspec

from turbopump.protocol import fastjson
from turbopump.store.json_table import JsonTable

ContentT = TypeVar("ContentT", bound=msgspec.Struct)


class SavedTable(ABC, Generic[ContentT]):
    """``content`` is the struct that the file holds. A table is loaded before it is saved."""

    def __init__(self, file: JsonTable, content: type[ContentT]) -> None:
        self._file = file
        self._struct = content
        self._dirty = False

    def _load(self) -> ContentT:
        """What the file holds, or an empty struct. Raises OSError."""
        return self._file.load(lambda data: fastjson.decode(data, self._struct), self._struct)

    @abstractmethod
    def _content(self) -> ContentT:
        """What is to be saved."""

    def _encode(self) -> bytes:
        return fastjson.encode_indented(self._content())

    def save(self) -> None:
        """Write the file, beside the loop, if anything has changed."""
        if self._dirty:
            self._dirty = False
            self._file.save(self._encode())

    def save_now(self) -> None:
        """Write the file in this thread. Raises OSError."""
        self._file.save_now(self._encode())
