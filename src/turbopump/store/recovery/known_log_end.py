"""Check that the log has not lost its end, by the records of earlier runs.

- After a clean stop of ours all of the log was on the disk. Its end is in the checkpoint and in
  ``turbopump.queues.json`` (with a CRC).
- After a kill the log was on the disk up to the offset in our part of the checkpoint, which is
  written after the sync.
- A snapshot in ``turbopump.queues.json`` is taken when a segment begins, also if the log before it
  is not synced. After a kill it proves alone only that the log was written up to there. A power cut
  may still have taken that.
- After a kill the queues may point behind the end of the log, to messages that were in it. After a
  power cut without SYNC_FLUSH that is usual: a queue may reach the disk before the log.

A start is refused because of missing segments, and nothing is changed, if two of these records
agree, or the one with a CRC shows it. A torn end is reported. Nothing is reported if another
program has used the store since. The reading of the log is unknown here.
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
    """Offsets up to which the log is known to exist, from the records of earlier runs.

    - ``synced``: the log was on the disk up to this offset.
    - ``noted``: the log was written up to this offset.
    - ``needed``: if the segments do not reach this offset, some are missing.

    An offset is 0 if it is unknown.
    """

    synced: int = 0
    noted: int = 0
    needed: int = 0

    @classmethod
    def of(
        cls, checkpoint: StoreCheckpoint, known: NotedQueueEnds, *, clean: bool, ours: bool
    ) -> KnownLogEnd:
        """Return the known offsets of the log, from the checkpoint and the record of queue ends.

        - ``clean``: the last run stopped cleanly.
        - ``ours``: the last run was Turbopump's, and no other program has used the store since.
        """
        if not ours:
            return cls()
        noted = known.snapshots[-1].at if known.snapshots else 0
        if clean:
            return cls(max(noted, checkpoint.log_end), noted, noted)
        # One byte more than the snapshot's offset, because the segment that begins there was made.
        return cls(
            checkpoint.safe_offset, noted, min(checkpoint.safe_offset, noted + 1) if noted else 0
        )

    def refuse_missing(self, log: CommitLog) -> None:
        """Raise StoreDamagedError if segments are missing at the end of the log."""
        files = log.files.files
        there = files[-1].end if files else 0
        if self.needed <= there:
            return
        size = log.segment_size
        last_byte = max(self.synced, self.needed) - 1
        first = segment_name(there)
        last = segment_name(there + (last_byte - there) // size * size)
        which = f"segment {first}" if first == last else f"segments {first} to {last}"
        roots = log.files.roots
        raise StoreDamagedError(
            f"{which} of the log cannot be found in {', '.join(map(str, roots))}, and the "
            f"log was on the disk up to {self.synced}; nothing was changed: restore the "
            "missing files from a copy, or mount their disk. To continue without their "
            "messages, make files of zeros with their names, for example: truncate -s "
            f"{size} {roots[0] / first}"
        )

    def describe_loss(
        self, log: CommitLog, end: int, torn: str | None, queued: tuple[int, int] = (0, 0)
    ) -> str | None:
        """Describe a loss at the end of the log. Return None if the log is complete.

        - ``end``: the end of the log.
        - ``torn``: the fault at the end, or None.
        - ``queued``: the log offset up to which the queues pointed, and the number of missing
          messages.
        """
        file = log.files.at(end)
        where = (
            f"{file.segment.path if file is not None else log.files.roots[0]}: {torn or NOTHING}"
        )
        pointed, count = queued
        missing = f", and the queues had {count} messages behind that" if pointed > end else ""
        if end < self.synced:
            return (
                f"the end of the log is lost: it was on the disk up to {self.synced}, and "
                f"its last good message ends at {end} ({where}){missing}; stored messages "
                "are lost, and new messages get the same queue offsets again"
            )
        written = max(self.noted, pointed)
        if end < written:
            return (
                f"the log had been written up to {written}, and its last good message "
                f"ends at {end} ({where}){missing}: the rest was not on the disk when the "
                "power failed, or is lost; new messages get the same queue offsets again"
            )
        return None
