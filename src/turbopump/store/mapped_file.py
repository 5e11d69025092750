"""One file of a row of files, mapped or only open. The meaning of its bytes is unknown here."""

from __future__ import annotations

from typing import Any, cast

from turbopump.disk.disk import Segment, SparseSegment


class MappedFile:
    """One mapped file of a row of files.

    - ``start``, ``end``: offsets in the row.
    - ``buffer``: the map, or None if the file is not mapped.
    - ``room``: offset in the row before which bytes may be written. For a whole file, this is
      ``end``. For a sparse file, ``MappedFileQueue.make_room`` sets it; without a map there is no
      room.
    - ``dirty``: True if the file was written and is not synced yet.
    - ``is_warm``: True if the file was used since the last search for cold files.
    - ``reported_lost``: True if a log line has reported the file as missing.
    """

    __slots__ = ("buffer", "dirty", "end", "is_warm", "reported_lost", "room", "segment", "start")

    def __init__(self, start: int, segment: Segment, *, sparse: bool = False) -> None:
        self.start = start
        self.end = start + segment.size
        self.segment = segment
        self.buffer: Any = None if sparse else segment.buffer
        self.room = start if sparse else self.end
        self.dirty = False
        self.reported_lost = False
        self.is_warm = False

    def unmap(self) -> bool:
        """Unmap a sparse file. Return False if other code still uses the map."""
        if not cast(SparseSegment, self.segment).unmap():
            return False
        self.buffer = None
        self.room = self.start
        return True

    def read_at_start(self, at: int, size: int) -> bytes:
        """Read bytes of the file while the store is being opened.

        A start cannot continue without these bytes, so the text of the OSError names the unreadable
        part and the ways to go on.
        """
        try:
            return self.segment.read_cold(at, size)
        except OSError as error:
            text = (
                f"{error.strerror or error} between bytes {at} and {at + size}; stop "
                "here: turbopump store set-apart lists the messages that this costs, and "
                "replaces the file by a copy. Or copy it to a good disk, with zeros for "
                "the unreadable bytes (ddrescue, or dd bs=4096 conv=noerror,sync); a "
                "start then sets those messages apart as damaged"
            )
            raise OSError(error.errno, text, str(self.segment.path)) from None
