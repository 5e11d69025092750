"""Whether the log still has its end: what is known, when a store is opened, of how far it was on
the disk.

- After a clean stop of ours all of the log was on the disk. Its end is in the checkpoint and in
  ``turbopump.queues.json`` (with a CRC).
- After a kill the log was on the disk up to the offset in our part of the checkpoint, which is
  written after the sync.
- A snapshot in ``turbopump.queues.json`` is taken when a segment begins, whether or not what lies
  before it was synced. After a kill it proves alone only that the log was written up to there. A
  power cut may still have taken that.

- After a kill the queues may point behind the end of the log, to messages that were in it. After a
  power cut without SYNC_FLUSH that is nothing unusual: a queue may reach the disk before the log.

The rule: missing segments refuse the start, and nothing is changed, if two of these agree, or the
one that has a CRC says so. A torn end is reported. Nothing is said of a store that another program
has had since. This module must not know how the log is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbopump.errors import StoreDamagedError
from turbopump.store.files import segment_name
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.log.scanner import NOTHING
from turbopump.store.queues.queue_ends import NotedQueueEnds
from turbopump.store.recovery.checkpoint import StoreCheckpoint


@dataclass(frozen=True, slots=True)
class KnownLogEnd:
    """Offsets of the log: it was on the disk up to ``synced``, and written up to ``noted``;
    segments that do not reach ``needed`` are not all there. 0: nothing is known."""

    synced: int = 0
    noted: int = 0
    needed: int = 0

    @classmethod
    def of(
        cls, checkpoint: StoreCheckpoint, known: NotedQueueEnds, *, clean: bool, ours: bool
    ) -> KnownLogEnd:
        """``clean``: the last run stopped cleanly; ``ours``: it was ours, and nobody has had the
        store since."""
        if not ours:
            return cls()
        noted = known.snapshots[-1].at if known.snapshots else 0
        if clean:
            return cls(max(noted, checkpoint.log_end), noted, noted)
        # One byte more than the snapshot's offset: the segment that begins there was made.
        return cls(
            checkpoint.safe_offset, noted, min(checkpoint.safe_offset, noted + 1) if noted else 0
        )

    def refuse_missing(self, log: CommitLog) -> None:
        """Raise StoreDamagedError if segments are missing at the end of the loaded log."""
        files = log.files.files
        there = files[-1].end if files else 0
        if self.needed <= there:
            return
        size = log.segment_size
        first, last = (
            segment_name(there),
            segment_name(there + (max(self.synced, self.needed) - 1 - there) // size * size),
        )
        which = f"segment {first}" if first == last else f"segments {first} to {last}"
        roots = log.files.roots
        raise StoreDamagedError(
            f"{which} of the log, which was on the disk up to {self.synced}, cannot be found in "
            f"{', '.join(map(str, roots))}; "
            "nothing was changed: bring back what is missing from a copy, or mount its disk. To "
            "go on without, and to lose the messages "
            f"there, make files of zeros with their names, here with: truncate -s {size} "
            f"{roots[0] / first}"
        )

    def lost(
        self, log: CommitLog, end: int, torn: str | None, queued: tuple[int, int] = (0, 0)
    ) -> str | None:
        """The report about a log that was found to end at ``end``; None if it lost nothing.
        ``torn`` is what is wrong there; ``queued``: up to which offset the queues pointed, and to
        how many messages that are not there."""
        file = log.files.at(end)
        where = (
            f"{file.segment.path if file is not None else log.files.roots[0]}: {torn or NOTHING}"
        )
        pointed, count = queued
        missing = f", and the queues had {count} messages behind that" if pointed > end else ""
        if end < self.synced:
            return (
                f"the end of the log is lost: it was on the disk up to {self.synced}, and its "
                f"last good message ends at {end} ({where}){missing}; "
                "messages that had been stored are gone, and their offsets in the queues are "
                "given again"
            )
        written = max(self.noted, pointed)
        if end < written:
            return (
                f"the log had been written up to {written}, and its last good message ends at "
                f"{end} ({where}){missing}: what is missing was not "
                "on the disk yet when the power went, or is lost; its offsets in the queues are "
                "given again"
            )
        return None
