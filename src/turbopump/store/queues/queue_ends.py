"""Where each queue ended at some offsets of the log: what a recovery that does not read all of the
log cannot know otherwise.

::

    turbopump.queues.json   {"crc": 3735928559, "ends": {
        "places": [{"at": 1073741824, "ends": {"T": {"0": 17, "1": 4}}}, …],      oldest first
        "firsts": {"T": {"0": 3}},
        "deleted": {"U": 900}}}

An entry of ``places`` is a snapshot: the next index of each queue when all of the log before ``at``
had been dispatched, and nothing behind it. Queues that it does not name were empty. A snapshot is
taken when a segment of the log begins, after each recovery, and at a clean stop. ``firsts`` is the
index at which each queue begins (0 if it is not named). It is raised before files are deleted, so
that a queue never begins behind it. ``deleted`` says up to which offset of the log the messages of
a topic have no queue any more. It is saved before the queues are deleted.

The rule: this is derived data. What does not agree with it makes recovery read more of the log.
Only segments that are missing before a snapshot are a reason to refuse a start
(``known_log_end.py``). A save that fails is repeated. This module must not know how queues are
rebuilt. Apache's broker leaves the file alone; if one has had the store since, the file is stale
and counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from turbopump.store.disk import Disk
from turbopump.store.json_table import JsonTable
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.struct_decoders import decoder_of

SNAPSHOTS_KEPT: Final = 8
"""Recovery begins at the checkpoint's segment, which is seldom more than two before the last."""

ByTopic = dict[str, dict[int, int]]


class EndsSnapshot(msgspec.Struct, frozen=True):
    """An offset of the log, and the next index of every queue that was not empty there."""

    at: int
    ends: ByTopic


class NotedQueueEnds(msgspec.Struct, frozen=True):
    """What a file says."""

    snapshots: list[EndsSnapshot] = msgspec.field(default_factory=list, name="places")
    firsts: ByTopic = {}
    deleted: dict[str, int] = {}

    def newest(self, log_end: int) -> EndsSnapshot | None:
        """The newest snapshot at or before ``log_end``."""
        return next(
            (snapshot for snapshot in reversed(self.snapshots) if snapshot.at <= log_end), None
        )

    def back_from(self, offset: int, log_start: int) -> Iterator[EndsSnapshot]:
        """The snapshots from ``log_start`` to ``offset``, newest first."""
        return (
            snapshot for snapshot in reversed(self.snapshots) if log_start <= snapshot.at <= offset
        )

    def ends_at(self, snapshot: EndsSnapshot) -> dict[tuple[str, int], int]:
        """The next index of each queue in a snapshot, without those that were deleted since."""
        return {
            (topic, queue_id): end
            for topic, queues in self._alive(snapshot).items()
            for queue_id, end in queues.items()
        }

    def least_ends(self, snapshot: EndsSnapshot) -> dict[tuple[str, int], int]:
        """The least index at which each queue may end: its end in a snapshot, or its noted first
        index, which may be newer than that."""
        ends = self.ends_at(snapshot)
        for topic, firsts in self.firsts.items():
            for queue_id, first in firsts.items() if topic not in self.deleted else ():
                ends[topic, queue_id] = max(first, ends.get((topic, queue_id), 0))
        return ends

    def mismatch(self, snapshot: EndsSnapshot, queues: Iterable[ConsumeQueue]) -> str | None:
        """Which of ``queues``, cut at the offset of a snapshot, does not end as the snapshot says;
        None if all do."""
        ends = self.ends_at(snapshot)
        for queue in queues:
            end = ends.pop((queue.topic, queue.queue_id), 0)
            if queue.max_index != end:
                return wrong_end(queue.topic, queue.queue_id, queue.max_index, end, snapshot.at)
        return next(
            (wrong_end(*key, 0, end, snapshot.at) for key, end in ends.items() if end), None
        )

    def lost_front(self, queues: Iterable[ConsumeQueue]) -> str | None:
        """Which of the queues, as they were found, begins behind the first unit that it should
        have; None if none does."""
        for queue in queues if self.snapshots else ():
            first = self.firsts.get(queue.topic, {}).get(queue.queue_id, 0)
            if queue.min_index > first:
                return (
                    f"topic={queue.topic} queue={queue.queue_id}: its units begin at "
                    f"{queue.min_index}, and began at {first}"
                )
        return None

    def since(self, log_start: int) -> NotedQueueEnds:
        """The same without deletions that no message of the log tells of, and without the queues
        that were deleted."""
        snapshots = [
            EndsSnapshot(snapshot.at, self._alive(snapshot)) for snapshot in self.snapshots
        ]
        return NotedQueueEnds(snapshots, self.firsts, deletions_since(log_start, self.deleted))

    def without(self, is_left_out: Callable[[str], bool]) -> NotedQueueEnds:
        """The same without the queues of some topics."""

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
    """The file at ``path``, about ``queues``. ``load`` before recovery, ``begin`` behind it,
    ``end`` at a clean stop. ``log_error`` gets a sentence when it cannot be read or saved."""

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
        """Topics whose queues are about to be deleted: no snapshot names them any more."""
        self._stale = False

    def load(self, *, trusted: bool) -> NotedQueueEnds:
        """What is known of the last run. Nothing, if not ``trusted``: another program has had the
        store since."""
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

    def begin(
        self, log_start: int, log_end: int, deleted: dict[str, int], *, agreed: bool, all_read: bool
    ) -> None:
        """Recovery has ended; ``deleted`` are the deletions that it knows of. ``agreed``: it found
        no queue that contradicts what was known. ``all_read``: a start after a kill will read all
        of the log, from 0 on, so that nothing need be known.

        Raises OSError if the log has become shorter than it was when a topic was deleted, and that
        cannot be saved: new messages get these offsets, and they are not deleted.
        """
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

    def note(self, at: int) -> None:
        """Take a snapshot at this offset of the log: all before it has been dispatched, and nothing
        behind it. It is saved in a thread.

        Cost: some 50 ns a queue here, the rest in the thread.
        """
        self._add(at)
        self._save()

    def save_firsts(self, then: Callable[[bool], None]) -> None:
        """Save at which index queues begin now; ``then`` gets whether that is on the disk."""
        self._save(then)

    def forget_topic(self, topic: str, at: int, then: Callable[[bool], None]) -> None:
        """Save that a topic's queues are deleted, where the log ends at ``at``; ``then`` gets
        whether that is on the disk. If not, they must stay. It is saved twice, so that the backup
        has it too; where only the second save fails, it is on the disk, and that save is
        repeated."""
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
                self._save()  # instead of what would be saved again
                then(False)
            else:
                self._save(lambda _good: then(True))

        self._save(settled)

    def deleted_now(self, topic: str, at: int) -> None:
        """The queues went only now: messages of the topic that came since ``forget_topic`` went
        with them."""
        self._leaving.discard(topic)
        if self._deleted.get(topic) != at:
            self._deleted[topic] = at
            self._save(lambda _good: self._save())  # twice, as above

    def deleted_until(self, topic: str) -> int:
        """Up to which offset of the log the messages of a topic were deleted with it."""
        return self._deleted.get(topic, 0)

    def follow(self, deleted: dict[str, int], log_end: int) -> None:
        """Take the deletions of the master whose log this one is a copy of, also those behind
        ``log_end``, where it ends here. Deletions of another master behind that are forgotten. This
        is saved with the next save: until then the master can be asked again."""
        ours = {topic: min(at, log_end) for topic, at in self._deleted.items()}
        self._deleted.clear()
        self._deleted.update(ours | {t: max(at, ours.get(t, 0)) for t, at in deleted.items()})

    @property
    def deletions(self) -> dict[str, int]:
        """``deleted_until`` of each topic that was deleted, also of those made again."""
        return self._deleted

    def end(self, log_end: int, *, all_read: bool) -> None:
        """The store stops cleanly; ``all_read`` as for ``begin``. Raises OSError."""
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
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(good)

    def _content(self) -> Callable[[], bytes]:
        """Makes the bytes of the file, as things are now, in whatever thread."""
        snapshots, deleted, queues = tuple(self._snapshots), dict(self._deleted), list(self._queues)
        firsts = [queue.min_index for queue in queues]

        def encode() -> bytes:
            known = {
                "places": [noted.encoded() for noted in snapshots],
                "firsts": _by_topic(queues, firsts),
                "deleted": deleted,
            }
            data = msgspec.json.encode(known)
            return b'{"crc":%d,"ends":%s}' % (crc32(data), data)

        return encode


class _SavedSnapshot:
    """A snapshot, encoded once, by the first thread that saves it."""

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
                msgspec.json.encode(EndsSnapshot(self.at, _by_topic(self._queues, self._ends)))
            )
            self._queues, self._ends = [], []
        return self._raw


class _File(msgspec.Struct):
    crc: int
    ends: msgspec.Raw


def decode_known(data: bytes) -> NotedQueueEnds:
    """Raises ValueError for bytes that are not what was saved."""
    file = decoder_of(_File, strict=True).decode(data)
    if crc32(file.ends) != file.crc:
        raise ValueError("its CRC is wrong")
    ends: NotedQueueEnds = decoder_of(NotedQueueEnds, strict=True).decode(file.ends)
    return ends


def deletions_since(log_start: int, deleted: dict[str, int]) -> dict[str, int]:
    """The deletions that a message of the log may tell of."""
    return {topic: at for topic, at in deleted.items() if at >= log_start}


def wrong_end(topic: str, queue_id: int, found: int, expected: int, at: int) -> str:
    """The text for a queue whose end is not the one that it had when the log was at ``at``."""
    return (
        f"topic={topic} queue={queue_id}: its units end at {found}, and ended at {expected} "
        f"when the log was at {at}"
    )


def _by_topic(queues: list[ConsumeQueue], numbers: list[int]) -> ByTopic:
    """The numbers of queues, without zeros."""
    table: dict[str, dict[int, int]] = {}
    for queue, number in zip(queues, numbers, strict=True):
        if number:
            table.setdefault(queue.topic, {})[queue.queue_id] = number
    return table
