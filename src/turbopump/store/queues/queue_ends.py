"""Record of each queue's end at some log offsets. A recovery that reads only a part of the log
needs this record.

::

    turbopump.queues.json   {"crc": 3735928559, "ends": {
        "places": [{"at": 1073741824, "ends": {"T": {"0": 17, "1": 4}}}, …],      oldest first
        "firsts": {"T": {"0": 3}},
        "deleted": {"U": 900}}}

An entry of ``places`` is a snapshot: the next index of each queue when all of the log before ``at``
had been dispatched, and nothing behind it. Queues without a number were empty. A snapshot is taken
when a segment of the log begins, after each recovery, and at a clean stop. ``firsts`` has the index
at which each queue begins (default 0). It is raised before files are deleted, so that a queue never
begins behind it. ``deleted`` has the log offset up to which the messages of a deleted topic have no
queue. It is saved before the queues are deleted.

This is derived data: recovery reads more of the log if the queues contradict the file. Only missing
segments before a snapshot are a reason to refuse a start (``known_log_end.py``). A failed save is
repeated. The rebuild of queues is unknown here. Apache's broker leaves the file alone; after it has
used the store, the file is stale and counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec

from turbopump.disk.disk import Disk
from turbopump.disk.json_table import JsonTable
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.struct_decoders import decoder_of

SNAPSHOTS_KEPT: Final = 8
"""Number of kept snapshots. Recovery begins at the checkpoint's segment, seldom more than two
before the last."""

ByTopic = dict[str, dict[int, int]]


class EndsSnapshot(msgspec.Struct, frozen=True):
    """Record of the ends of all queues when the log ended at ``at``.

    ``ends`` has the next index of every queue that was not empty then.
    """

    at: int
    ends: ByTopic


class NotedQueueEnds(msgspec.Struct, frozen=True):
    """Content of ``turbopump.queues.json``.

    - ``snapshots``: recorded ends of queues, oldest first.
    - ``firsts``: index at which each queue begins, by topic and queue id.
    - ``deleted``: log offset up to which messages of deleted topics have no queue, by topic.
    """

    snapshots: list[EndsSnapshot] = msgspec.field(default_factory=list, name="places")
    firsts: ByTopic = {}
    deleted: dict[str, int] = {}

    def newest(self, log_end: int) -> EndsSnapshot | None:
        """Return the newest snapshot taken at or before this log offset, or None."""
        return next(
            (snapshot for snapshot in reversed(self.snapshots) if snapshot.at <= log_end), None
        )

    def back_from(self, offset: int, log_start: int) -> Iterator[EndsSnapshot]:
        """Return the snapshots taken between two log offsets, newest first."""
        return (
            snapshot for snapshot in reversed(self.snapshots) if log_start <= snapshot.at <= offset
        )

    def ends_at(self, snapshot: EndsSnapshot) -> dict[tuple[str, int], int]:
        """For each queue in a snapshot, return the next index. Queues deleted later are left
        out."""
        return {
            (topic, queue_id): end
            for topic, queues in self._alive(snapshot).items()
            for queue_id, end in queues.items()
        }

    def least_ends(self, snapshot: EndsSnapshot) -> dict[tuple[str, int], int]:
        """For each queue, return the lowest end that is possible after a snapshot.

        This is the end of the queue in the snapshot, or its recorded first index, which may be
        newer.
        """
        ends = self.ends_at(snapshot)
        for topic, firsts in self.firsts.items():
            for queue_id, first in firsts.items() if topic not in self.deleted else ():
                ends[topic, queue_id] = max(first, ends.get((topic, queue_id), 0))
        return ends

    def mismatch(self, snapshot: EndsSnapshot, queues: Iterable[ConsumeQueue]) -> str | None:
        """Describe the first queue whose end differs from its end in a snapshot.

        The queues must be cut at the log offset of the snapshot. Return None if all ends agree.
        """
        ends = self.ends_at(snapshot)
        for queue in queues:
            end = ends.pop((queue.topic, queue.queue_id), 0)
            if queue.max_index != end:
                return wrong_end(queue.topic, queue.queue_id, queue.max_index, end, snapshot.at)
        return next(
            (wrong_end(*key, 0, end, snapshot.at) for key, end in ends.items() if end), None
        )

    def lost_front(self, queues: Iterable[ConsumeQueue]) -> str | None:
        """Describe the first loaded queue that begins later than its recorded start, or return
        None."""
        for queue in queues if self.snapshots else ():
            first = self.firsts.get(queue.topic, {}).get(queue.queue_id, 0)
            if queue.min_index > first:
                return (
                    f"topic={queue.topic} queue={queue.queue_id}: its units begin at "
                    f"{queue.min_index}, and began at {first}"
                )
        return None

    def since(self, log_start: int) -> NotedQueueEnds:
        """Return a copy of the record without deleted queues, and without deletions before
        ``log_start``."""
        snapshots = [
            EndsSnapshot(snapshot.at, self._alive(snapshot)) for snapshot in self.snapshots
        ]
        return NotedQueueEnds(snapshots, self.firsts, deletions_since(log_start, self.deleted))

    def without(self, is_left_out: Callable[[str], bool]) -> NotedQueueEnds:
        """Return a copy of the record without the queues of some topics."""

        def kept(ends: ByTopic) -> ByTopic:
            return {topic: queues for topic, queues in ends.items() if not is_left_out(topic)}

        snapshots = [EndsSnapshot(snapshot.at, kept(snapshot.ends)) for snapshot in self.snapshots]
        return NotedQueueEnds(snapshots, kept(self.firsts), self.deleted)

    def _alive(self, snapshot: EndsSnapshot) -> ByTopic:
        return {
            topic: ends
            for topic, ends in snapshot.ends.items()
            if self.deleted.get(topic, -1) < snapshot.at
        }


class QueueEnds:
    """Record of the queues' ends at some log offsets, stored in a file.

    Call ``load`` before recovery, ``begin_notes`` after it, and ``end_notes`` at a clean stop.
    ``log_error`` gets a line when the file cannot be read or saved.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        queues: Iterable[ConsumeQueue],
        log_error: Callable[[str], None],
        log_info: Callable[[str], None],
    ) -> None:
        self._queues = queues
        self._log_error = log_error
        self.file = JsonTable(disk, path, log_error, log_info, self._settled)
        self._waiting: list[Callable[[bool], None]] = []
        self._snapshots: list[_SavedSnapshot] = []
        self._deleted: dict[str, int] = {}
        self._leaving: set[str] = set()
        """Topics whose queues are about to be deleted. New snapshots leave them out."""
        self._stale = False

    def load(self, *, trusted: bool) -> NotedQueueEnds:
        """Read the record that the last run has saved.

        ``trusted`` is False if another program has used the store since. Then the result is empty.
        It is also empty if the file cannot be read.
        """
        try:
            known = self.file.load(decode_known, NotedQueueEnds)
        except OSError as error:
            self._log_error(
                f"where the queues ended cannot be read ({error.strerror or error}): "
                "the next start will know"
            )
            known = NotedQueueEnds()
        self._stale = not trusted and known != NotedQueueEnds()
        known = known if trusted else NotedQueueEnds()
        self._snapshots = [_SavedSnapshot(snapshot) for snapshot in known.snapshots]
        self._deleted = dict(known.deleted)
        return known

    def begin_notes(
        self, log_start: int, log_end: int, deleted: dict[str, int], *, agreed: bool, all_read: bool
    ) -> None:
        """Start the record of this run after recovery.

        - ``deleted``: deletions of topics that recovery knows.
        - ``agreed``: True if recovery found no queue that contradicts the old record.
        - ``all_read``: True if a start after a kill will read the whole log, from 0 on, so that no
          record is needed.

        Raises OSError if the log has become shorter than at the deletion of a topic, and that
        cannot be saved. New messages get these offsets, and would count as deleted.
        """
        # A crash may cut the log to before the offset at which a topic was deleted. The lost
        # offsets are used again, so a message of the topic, created again, would count as deleted.
        # The deletion is therefore reduced to ``log_end``. Both the file and its backup must have
        # it before the first new message.
        shorter = any(at > log_end for at in deleted.values())
        snapshots = [
            noted for noted in self._snapshots if agreed and log_start <= noted.at <= log_end
        ]
        true = agreed and not self._stale and len(snapshots) == len(self._snapshots)
        true = true and deletions_since(log_start, self._deleted) == deleted
        self._snapshots = snapshots
        self._deleted = {topic: min(at, log_end) for topic, at in deleted.items()}
        if true and not shorter and (snapshots or all_read):
            return
        self._add(log_end)
        try:
            for _ in range(1 + shorter):  # the second save replaces the backup, too
                self.file.save_now(self._content()())
        except OSError:
            if shorter:
                raise
            self._save()  # reported, and repeated

    def note_ends(self, at: int) -> None:
        """Take a snapshot of the queues' ends at this log offset, and save it in a thread.

        All of the log before the offset must be dispatched, and nothing behind it. Cost: about 50
        ns a queue here, the rest in the thread.
        """
        self._add(at)
        self._save()

    def save_firsts(self, then: Callable[[bool], None]) -> None:
        """Save the first index of each queue in a thread.

        ``then`` gets True when the save is on the disk, or False if it failed.
        """
        self._save(then)

    def forget_topic(self, topic: str, at: int, then: Callable[[bool], None]) -> None:
        """Save the deletion of a topic in a thread. Messages before ``at``, the end of the log, are
        deleted.

        ``then`` gets True when the save is on the disk. If it gets False, the queues must stay.

        A second save brings the deletion into the backup too. If only the second save fails, it is
        repeated.
        """
        # The order is: save the deletion, delete the files, answer. After a kill between the first
        # two, a start finds the record and finishes the deletion. In the other order it would find
        # the messages in the log, and make the deleted queues again. ``_leaving`` keeps the queues
        # out of snapshots that are taken meanwhile.
        before = self._deleted.get(topic)
        self._deleted[topic] = at
        self._leaving.add(topic)

        def settled(good: bool) -> None:
            if not good:
                if before is None:
                    del self._deleted[topic]
                else:
                    self._deleted[topic] = before
                self._leaving.discard(topic)
                self._save()  # replaces the save that would be repeated
                then(False)
            else:
                self._save(lambda _good: then(True))

        self._save(settled)

    def deleted_now(self, topic: str, at: int) -> None:
        """Record that the queues of a topic were deleted when the log ended at ``at``.

        The offset is later than the one of ``forget_topic`` if messages arrived in between.
        """
        self._leaving.discard(topic)
        if self._deleted.get(topic) != at:
            self._deleted[topic] = at
            self._save(lambda _good: self._save())  # twice, as above

    def deleted_until(self, topic: str) -> int:
        """Return the log offset at which a topic was last deleted, or 0. The topic's messages
        before it are deleted."""
        return self._deleted.get(topic, 0)

    def follow(self, deleted: dict[str, int], log_end: int) -> None:
        """Take over the topic deletions that the master has recorded. Only a slave calls this.

        ``log_end`` is the end of the slave's log. Deletions of the master behind that end count
        too. Our own deletions behind it come from another master, and are reduced to ``log_end``.
        The next save includes the change; until then the master can be asked again.
        """
        ours = {topic: min(at, log_end) for topic, at in self._deleted.items()}
        self._deleted.clear()
        self._deleted.update(ours | {t: max(at, ours.get(t, 0)) for t, at in deleted.items()})

    @property
    def deletions(self) -> dict[str, int]:
        """For each deleted topic, the log offset up to which its messages were deleted.

        Topics that were created again are included.
        """
        return self._deleted

    def end_notes(self, log_end: int, *, all_read: bool) -> None:
        """Save the record at a clean stop.

        ``all_read`` is True if a start after a kill will read the whole log, from 0 on. Raises
        OSError if the save fails.
        """
        if all_read and not self._snapshots and not self._deleted:
            return
        self._add(log_end)
        self.file.save_now(self._content()())

    def _add(self, at: int) -> None:
        if self._snapshots and self._snapshots[-1].at == at:
            self._snapshots.pop()
        queues = [queue for queue in self._queues if queue.topic not in self._leaving]
        self._snapshots.append(_SavedSnapshot(at, queues, [queue.max_index for queue in queues]))
        del self._snapshots[:-SNAPSHOTS_KEPT]

    def _save(self, then: Callable[[bool], None] | None = None) -> None:
        if then is not None:
            self._waiting.append(then)
        self.file.save(self._content())

    def _settled(self, good: bool) -> None:
        waiting = self._waiting
        self._waiting = []
        for then in waiting:
            then(good)

    def _content(self) -> Callable[[], bytes]:
        """Return a function that encodes the present record. Any thread may call this function."""
        snapshots = tuple(self._snapshots)
        deleted = dict(self._deleted)
        queues = list(self._queues)
        firsts = [queue.min_index for queue in queues]

        def encode() -> bytes:
            known = {
                "places": [noted.encoded() for noted in snapshots],
                "firsts": ends_by_topic(queues, firsts),
                "deleted": deleted,
            }
            return encode_known(known)

        return encode


class _SavedSnapshot:
    """Snapshot of the queues' ends, encoded only once: by the first thread that saves it."""

    __slots__ = ("_ends", "_queues", "_raw", "at")

    def __init__(
        self,
        snapshot: EndsSnapshot | int,
        queues: list[ConsumeQueue] | None = None,
        ends: list[int] | None = None,
    ) -> None:
        self._queues = queues or []
        self._ends = ends or []
        self.at = snapshot if isinstance(snapshot, int) else snapshot.at
        self._raw: msgspec.Raw | None = None
        if isinstance(snapshot, EndsSnapshot):
            self._raw = msgspec.Raw(msgspec.json.encode(snapshot))

    def encoded(self) -> msgspec.Raw:
        if self._raw is None:
            self._raw = msgspec.Raw(
                msgspec.json.encode(EndsSnapshot(self.at, ends_by_topic(self._queues, self._ends)))
            )
            self._queues = []
            self._ends = []
        return self._raw


class _File(msgspec.Struct):
    crc: int
    ends: msgspec.Raw


def decode_known(data: bytes) -> NotedQueueEnds:
    """Decode the content of ``turbopump.queues.json``.

    Raises ValueError for a wrong CRC or other content.
    """
    file = decoder_of(_File, strict=True).decode(data)
    if crc32(file.ends) != file.crc:
        raise ValueError("its CRC is wrong")
    ends: NotedQueueEnds = decoder_of(NotedQueueEnds, strict=True).decode(file.ends)
    return ends


def encode_known(known: NotedQueueEnds | dict[str, Any]) -> bytes:
    """Encode the content of ``turbopump.queues.json``. A dict may have encoded parts."""
    data = msgspec.json.encode(known)
    return b'{"crc":%d,"ends":%s}' % (crc32(data), data)


def deletions_since(log_start: int, deleted: dict[str, int]) -> dict[str, int]:
    """Return the topic deletions at or behind ``log_start``, the start of the log."""
    return {topic: at for topic, at in deleted.items() if at >= log_start}


def wrong_end(topic: str, queue_id: int, found: int, expected: int, at: int) -> str:
    """Describe a queue whose end differs from the end recorded at log offset ``at``."""
    return (
        f"topic={topic} queue={queue_id}: its units end at {found}, and ended at {expected} "
        f"when the log was at {at}"
    )


def ends_by_topic(queues: list[ConsumeQueue], numbers: list[int]) -> ByTopic:
    """Arrange one number for each queue by topic and queue id. Zeros are left out."""
    table: dict[str, dict[int, int]] = {}
    for queue, number in zip(queues, numbers, strict=True):
        if number:
            table.setdefault(queue.topic, {})[queue.queue_id] = number
    return table
