"""Reading the log from some place on, past what is damaged.

The rule: a bad entry with a good one somewhere behind it is damage, and reading goes on behind it;
one with nothing good behind it is where the log ends. It must not know what is done with the
entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from turbopump.store.commit_log import CommitLog
from turbopump.store.entry_mark import EntryMark

PROGRESS_STEP: Final = 8 * 1024 * 1024
"""Bytes of log between two calls of ``on_progress``."""
_LOOK: Final = 4096


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the log that holds no good entry although good ones follow: offsets in bytes, and
    what is wrong at its start."""

    start: int
    end: int
    fault: str


def good_entries(
    log: CommitLog,
    begin: int,
    on_progress: Callable[[int, int], None],
    on_damage: Callable[[Damage], None] = lambda _damage: None,
    end: int | None = None,
) -> Iterator[EntryMark]:
    """The good entries from ``begin`` on, until ``end`` or to the end of the log; then
    ``log.walked_to`` and ``log.fault`` say where that is, and what is wrong there. ``on_damage``
    hears of a range before the entries behind it come. ``on_progress`` gets (offset reached, about
    where it ends) when reading begins, every few MiB, and when it has ended."""
    about = end if end is not None else _about_the_end(log)
    on_progress(begin, about)
    position, progress_at = begin, begin + PROGRESS_STEP
    while True:
        for mark in log.walk(position, end):
            yield mark
            if mark.offset >= progress_at:
                progress_at = mark.offset + PROGRESS_STEP
                on_progress(mark.offset, max(about, mark.offset))
        fault = log.fault
        following = log.next_good(log.walked_to) if fault is not None else None
        if fault is None or following is None or (end is not None and following >= end):
            reached = end if end is not None else log.walked_to
            on_progress(reached, reached)
            return
        on_damage(Damage(log.walked_to, following, fault))
        position = following


def _about_the_end(log: CommitLog) -> int:
    """Where the zeros begin at the end of the last file, if nothing but zeros follows a zero page:
    for the progress only."""
    if not log.files:
        return 0
    last = log.files.files[-1]
    low, high = 0, last.segment.size // _LOOK
    while low < high:
        middle = (low + high) // 2
        if any(last.read_at_start(middle * _LOOK, _LOOK)):
            low = middle + 1
        else:
            high = middle
    return last.start + low * _LOOK
