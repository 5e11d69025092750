"""The commit log: every message of every topic, one after the other, as ``message/entry.py`` lays
it out.

::

    segment   entry entry entry … blank     1 GiB by default, named by the offset of its first byte
    entry     message/entry.py
    blank     4 size of the file from here on   4 CBD43194   then anything

An entry and 8 bytes must fit, else the rest of the segment becomes a blank and the entry begins the
next: no entry spans files, and every full file ends in a blank. Source: apache/rocketmq
``CommitLog``. It assigns physical offsets; queue offsets come from outside.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from turbopump.errors import MessageError, RoomInMakingError, StoreError
from turbopump.message.entry import MAGIC_BLANK
from turbopump.store.disk import Disk
from turbopump.store.mapped_file import MappedFile, MappedFiles

BLANK_SIZE_MIN: Final = 8
POPULATE_STEP: Final = 8 * 1024 * 1024
"""Bytes of fresh pages asked for at a time, ahead of the writes."""
SMALL_STEP: Final = 1024 * 1024
"""The same where every send waits for a sync: pages asked for are dirty, and the next sync writes
them all."""
_SPARE_AT: Final = 4 * POPULATE_STEP
"""The next file is made when the current one has less left than this."""

_BLANK: Final = struct.Struct(">II")
ENTRY_SIZE_MAX: Final = 1 << 26
"""No entry is larger (64 MiB; a frame has 16 MiB): a size that says so is wrong, and is not
read."""


class CommitLog:
    """The log in the directories ``roots``, and in those that are ``read_only``. ``reserve`` to
    ``written``: one copy into the map.

    ``synced_often``: a few messages at a time (SYNC_FLUSH); fresh pages then come in small numbers
    and sizes. ``requires_crc``: whether the entry at an offset was written with a whole-entry CRC,
    so that its absence is damage. ``full_roots``: where no segment should be made. ``on_segment``
    is called with its start when a segment begins, before its first entry is written.
    """

    def __init__(
        self,
        disk: Disk,
        roots: Sequence[Path],
        segment_size: int,
        read_only: Sequence[Path] = (),
        synced_often: bool = False,
        requires_crc: Callable[[int], bool] = lambda _offset: False,
        full_roots: Callable[[], Collection[Path]] = tuple,
        on_segment: Callable[[int], None] = lambda _start: None,
    ) -> None:
        self._disk = disk
        self.files = MappedFiles(
            disk,
            roots,
            segment_size,
            read_only=read_only,
            ahead=True,
            aligned=True,
            full_roots=full_roots,
        )
        self.segment_size = segment_size
        self.end = 0
        """Physical offset of the next entry."""
        self._current: MappedFile | None = None
        self._populated = 0
        self._populating = False
        self._growth: Callable[[], None] | None = None
        self._look_at = 0
        """Beyond this end there is something to do: pages to ask for, or somebody to tell."""
        self._synced_often = synced_often
        self._step = SMALL_STEP if synced_often else POPULATE_STEP
        self.requires_crc = requires_crc
        self._on_segment = on_segment

    def load(self) -> None:
        """Map what is there; ``end`` is unknown until recovery calls ``open_at``."""
        self.files.load()

    @property
    def start(self) -> int:
        """Physical offset of the first byte that is still there."""
        return self.files.start

    @property
    def is_young(self) -> bool:
        """Whether it has one segment, the very first: recovery then reads all of it."""
        return self.start == 0 and len(self.files.files) <= 1

    def open_at(self, end: int) -> None:
        """Append from ``end`` on; everything after it is cut off."""
        self.files.truncate(end)
        self.end = end
        self._current = self.files.at(end)
        self._populated = end
        self._set_look()

    def begin_at(self, offset: int) -> None:
        """Let a log without a segment begin there, at the start of one: a slave's first. Raises
        StoreError if it cannot."""
        if self.files or offset % self.segment_size:
            raise StoreError(
                f"a log cannot begin at {offset}: it has segments already, or that is no multiple "
                f"of mappedFileSizeCommitLog={self.segment_size}; a slave has the size of its "
                "master"
            )
        self.end = offset

    def when_longer(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once, inside the next ``written``; it must be short. One waiter: the last
        one counts. It costs a send nothing while nobody waits."""
        self._growth = tell
        self._set_look()

    def reserve(self, size: int) -> int:
        """The physical offset at which an entry of ``size`` bytes will go: at the end, or at the
        start of the next segment.

        Raises OSError if a new segment cannot be made, RoomInMakingError if one is being made,
        MessageError if no segment can hold it; nothing has changed then.
        """
        current = self._current
        if current is not None and current.end - self.end >= size + BLANK_SIZE_MIN:
            return self.end
        if size + BLANK_SIZE_MIN > self.segment_size:
            raise MessageError(
                f"the message or batch takes {size} bytes in the store, more than a commit log "
                f"file of {self.segment_size} holds; "
                "send less at once (mappedFileSizeCommitLog is the size, and stays as it is for "
                "a store that has messages)"
            )
        return self._roll()

    def new_file_for(self, size: int) -> int:
        """Bytes of the file that ``reserve`` would make for an entry of ``size`` bytes; 0 for
        none."""
        current = self._current
        fits = current is not None and current.end - self.end >= size + BLANK_SIZE_MIN
        return 0 if fits or self.files.has_spare else self.segment_size

    @property
    def room(self) -> tuple[Any, int]:
        """Where the entry that ``reserve`` was called for is to be written: a map, and the byte of
        it."""
        current = self._current
        assert current is not None
        return current.buffer, self.end - current.start

    def written(self, size: int) -> None:
        """The ``size`` bytes that ``reserve`` was asked for are written."""
        assert self._current is not None
        self._current.dirty = True
        self.end += size
        if self.end > self._look_at:
            self._look()

    def copy_blank(self, data: bytes) -> None:
        """The rest of the segment is a blank, which a slave has from its master."""
        current = self._current
        assert current is not None
        at = self.end - current.start
        assert len(data) == current.end - self.end
        current.buffer[at : at + len(data)] = data
        current.dirty = True
        self.end = current.end

    def read(self, offset: int, size: int) -> bytes | None:
        """``size`` bytes at ``offset`` of one segment; None if they are not there."""
        file = self.files.at(offset)
        if file is None or offset + size > file.end:
            return None
        return file.segment.read(offset - file.start, size)

    def put_right(self, offset: int, data: bytes) -> None:
        """Write the very bytes that belong there over damaged ones, in one file."""
        file = self.files.at(offset)
        assert file is not None
        assert offset + len(data) <= min(file.end, self.end)
        at = offset - file.start
        file.buffer[at : at + len(data)] = data

    def segment_end(self, offset: int) -> int:
        """Where the segment ends that ``offset`` lies in: what is before that can be read in one
        piece."""
        start = self.files.start
        return offset + self.segment_size - (offset - start) % self.segment_size

    def close(self) -> None:
        self.files.close()
        self._current = None

    def _roll(self) -> int:
        """Fill the current segment with a blank and open the next; the new end."""
        current = self._current
        start = current.end if current is not None else self.end
        if self.files.wait_for_spare:
            raise RoomInMakingError("the next file of the commit log is being made")
        fresh = self.files.append_file(start)
        if current is not None and self.end < current.end:
            at = self.end - current.start
            _BLANK.pack_into(current.buffer, at, current.end - self.end, MAGIC_BLANK)
            current.dirty = True
        self._current = fresh
        self.end = start
        self._populated = start
        self._populate_ahead()
        self._set_look()
        self._on_segment(start)
        return start

    def _look(self) -> None:
        if self.end > self._populated - self._step // 2:
            self._populate_ahead()
        growth, self._growth = self._growth, None
        self._set_look()
        if growth is not None:
            growth()

    def _set_look(self) -> None:
        self._look_at = self._populated - self._step // 2 if self._growth is None else self.end

    def _populate_ahead(self) -> None:
        current = self._current
        if self._populating or current is None:
            return
        if self._populated >= current.end:
            return
        start = max(self._populated, self.end)
        size = min(self._step, current.end - start)
        self._populating = True

        def done(_error: OSError | None) -> None:
            self._populating = False

        self._populated = start + size
        if self._populated >= current.end - _SPARE_AT:
            self.files.prepare_next()
        small = self._synced_often
        self._disk.start(
            lambda: current.segment.populate(start - current.start, size, small=small), done
        )


# --- How long appends took, in Apache's thirteen classes. Those under 1 ms cost nothing here: the
# number of messages tells how many there were. RocketMQ: ``setPutMessageEntireTimeMax``.

_TEXT: Final = (
    "[<=0ms] [0~10ms] [10~50ms] [50~100ms] [100~200ms] [200~500ms] [500ms~1s] [1~2s] [2~3s] "
    "[3~4s] [4~5s] [5~10s] [10s~]"
)
NAMES: Final = tuple(_TEXT.split(" "))
BOUNDS_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
SLOW_S: Final = 0.001
"""From here on an append is counted one by one."""


class AppendLatency:
    """``appended()`` is the number of messages appended so far. ``on_slow`` gets the seconds of
    each append from ``SLOW_S`` on."""

    def __init__(self, appended: Callable[[], int], on_slow: Callable[[float], None]) -> None:
        self._appended = appended
        self._on_slow = on_slow
        self._before = 0
        self._slow = [0] * len(NAMES)
        self.last_minute: dict[str, int] = dict.fromkeys(NAMES, 0)
        """Class to count, of the minute that ended last."""
        self.longest = 0.0
        """Seconds."""

    def begin(self) -> None:
        """What there is now was appended before."""
        self._before = self._appended()

    def slow(self, seconds: float) -> None:
        """An append took ``SLOW_S`` or longer; one of a batch counts once."""
        self._slow[bisect_right(BOUNDS_MS, int(seconds * 1000))] += 1
        self.longest = max(self.longest, seconds)
        self._on_slow(seconds)

    def end_minute(self) -> str:
        """Close a minute: its counts are ``last_minute`` now. The line for the log."""
        now = self._appended()
        counts = [*self._slow]
        counts[0] += max(now - self._before - sum(self._slow), 0)
        self._before, self._slow = now, [0] * len(NAMES)
        self.last_minute = dict(zip(NAMES, counts, strict=True))
        text = "".join(f"{name}:{count} " for name, count in self.last_minute.items())
        return f"[PAGECACHERT] TotalPut {sum(counts)}, PutMessageDistributeTime {text}"


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to append. ``properties`` is UTF-8 property text that ends with its separator, or
    empty; ``tags_code`` as ``java_hash.tags_code`` makes it; ``unique`` and ``keys`` are what it is
    indexed by."""

    body: bytes
    properties: bytes
    tags_code: int
    flag: int = 0
    unique: str | None = None
    keys: str | None = None


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message, or the first of a batch, now is; ``log_end`` is what the flush must pass."""

    queue_offset: int
    offset: int
    log_end: int
