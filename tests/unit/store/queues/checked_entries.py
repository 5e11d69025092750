"""A store whose entries are damaged while nobody looks, and opened again."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.directory import Directory, put

from turbopump.message.codec import decode_entries
from turbopump.store.mapped_segments import MappedSegment
from turbopump.store.message_store import PutResult
from turbopump.store.queues.read_result import GetResult

COUNT = 20


class Reopened:
    """A store of some messages, in two queues, stopped cleanly and opened again: all of it is
    cold."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.directory = Directory(
            root,
            **{"segment_size": 1 << 20, "queue_file_size": 20 * 500, "with_crc": True, **config},
        )
        store = self.directory.open()
        self.placed: list[PutResult] = []
        for number in range(COUNT):
            self.placed.append(put(store, b"%02d" % number * 30, tag="ab"[number % 2]))
            put(store, b"other", queue_id=1)
        store.close()
        self.store = self.directory.open()

    def change(self, offset: int, data: bytes) -> None:
        """In the file, as a disk does."""
        for file in self.store.log.files:
            if file.start <= offset < file.end:
                with open(file.segment.path, "r+b") as raw:
                    raw.seek(offset - file.start)
                    raw.write(data)

    def flip(self, offset: int) -> None:
        data = self.store.log.read(offset, 1)
        assert data is not None
        self.change(offset, bytes([data[0] ^ 8]))

    def unit(self, index: int, data: bytes, at: int = 0) -> None:
        queue = self.store.queue("T", 0)
        assert queue is not None
        piece = queue.piece(index, 1)
        assert piece is not None
        piece.segment.buffer[piece.at + at : piece.at + at + len(data)] = data

    def get(self, offset: int = 0, count: int = 32, **more: Any) -> GetResult:
        return self.store.get("T", 0, offset, count, **more)


def offsets(result: GetResult) -> list[int]:
    return [message.queue_offset for message in decode_entries(result.data)]


class Bad:
    """Bytes of the log that the device cannot read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ranges: tuple[int, int]) -> None:
        self.ranges = ranges
        plain = MappedSegment.read_cold

        def read(segment: MappedSegment, at: int, size: int) -> bytes:
            if segment.path.parent.name == "commitlog" and any(
                at < end and start < at + size for start, end in self.ranges
            ):
                raise OSError(5, "Input/output error")
            return plain(segment, at, size)

        monkeypatch.setattr(MappedSegment, "read_cold", read)
