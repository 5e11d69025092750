"""Table of the consumer offsets: the next offset of each group in each queue.

The table is saved in ``config/consumerOffset.json`` every few seconds and at the end. The broker
itself moves an offset back in one case only: at its start, if recovery has left the queue shorter
than the offset. A client may set any offset. An operator's reset takes precedence over commits
until the readers have learned of it. Source: apache/rocketmq ``ConsumerOffsetManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import NamedTuple

import msgspec

from turbopump.broker.saved_table import EncodedMap, SavedTable
from turbopump.clock import Clock
from turbopump.disk.json_table import JsonTable
from turbopump.protocol.requests.offsets import ConsumerOffsetTable
from turbopump.protocol.requests.topics import DataVersion
from turbopump.remoting.turns import Steps, Turns


class SetBack(NamedTuple):
    """Consumer offset that was beyond the end of its queue. The broker has set it back to the
    end."""

    group: str
    topic: str
    queue_id: int
    offset: int
    end: int


class OffsetChange(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Offsets of one group in one topic after a change.

    - ``offsets``: the changed offsets by queue id, or all offsets of the group in the topic.
    - ``is_whole``: True if ``offsets`` has all of them, and others are deleted.
    - ``resets``: the queues whose reset by an operator no reader knows yet.
    """

    offsets: dict[int, int] = {}
    is_whole: bool = False
    resets: list[int] = []


class ConsumerOffsets(SavedTable[ConsumerOffsetTable]):
    """Committed offsets of consumer groups.

    An offset is the next one that a group reads in a queue. The keys are ``topic@group`` and the
    queue id.
    """

    def __init__(self, file: JsonTable, clock: Clock, turns: Turns | None = None) -> None:
        super().__init__(file, ConsumerOffsetTable, turns)
        self._clock = clock
        self._offsets: dict[str, dict[int, int]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}
        self._entries = EncodedMap(self._offsets.__getitem__)
        self._names = EncodedMap(self._topic_names)
        self._version = DataVersion()
        self._resets: dict[str, dict[int, Hashable]] = {}
        """Resets by an operator that a reader may not know yet, by ``topic@group`` and queue id.
        The value is the reader that was last redirected, or None. Resets are saved, because after a
        restart a commit may be older than the reset."""
        self._pending = EncodedMap(self._reset_queues)
        self._maps = {"groupTopicMap": self._names, "offsetTable": self._entries}
        self._changes: dict[str, set[int] | None] = {}
        """Changes that are not recorded in the log yet: the changed queue ids by ``topic@group``.
        None stands for all queues."""
        self.on_change: Callable[[], None] | None = None
        """Function that is called when ``take_changes`` has something to return. Commits come by
        the thousand, and many share a record. None unless changes are recorded."""
        self._own: dict[tuple[str, int], int] | None = None
        """Offsets that were committed at this slave and that its master does not have yet. None at
        a master."""

    def _topic_names(self, group: str) -> tuple[str, ...]:
        return tuple(self._topics_of[group])

    def _reset_queues(self, key: str) -> list[int]:
        return list(self._resets[key])

    def follow_master(self) -> None:
        """Turn this table into a slave's table. It then records the commits that the master
        lacks."""
        self._own = {}

    def forget_own(self) -> None:
        """Let the next ``copy`` replace the offsets that were committed at this slave, too."""
        if self._own is not None:
            self._own.clear()

    def copy(self, table: ConsumerOffsetTable, *, whole: bool) -> None:
        """Copy the offsets of a master.

        An offset that was committed here while the master was away stays until the master reaches
        it. If ``whole`` is True, ``table`` has all offsets of the master, and groups that the
        master lacks are deleted here.
        """
        own = self._own if self._own is not None else {}
        for key, queues in table.offset_table.items():
            mine = self._offsets.get(key, {})
            for queue_id, offset in queues.items():
                if own.get((key, queue_id), offset) > offset:
                    continue
                own.pop((key, queue_id), None)
                if mine.get(queue_id) != offset:
                    self._queues_of(key)[queue_id] = offset
                    self._dirty = True
        for key, queue_ids in (table.pending_resets or {}).items():
            self._note_reset(key, dict.fromkeys(queue_ids))
        if whole:
            there = {*table.offset_table, *(key for key, _ in own)}
            gone = [key for key in self._offsets if key not in there]
            for key in gone:
                gone_from, _, group = key.partition("@")
                self._forget(group, gone_from)

    def advance(
        self, table: ConsumerOffsetTable, end_of: Callable[[str, int], int], *, resets: bool
    ) -> None:
        """Take over the offsets of a slave that are higher than those of this master.

        An offset beyond the end of its queue here is left out.

        - ``end_of``: a function that returns the end of a queue, for a topic and a queue id.
        - ``resets``: True if the slave has acted as the master. Resets by operators that wait for
          their readers there are then taken over, also if they are lower.
        """
        waiting = (table.pending_resets or {}) if resets else {}
        for key, queues in table.offset_table.items():
            topic, _, group = key.partition("@")
            mine = self._offsets.get(key, {})
            for queue_id, offset in queues.items():
                if queue_id in waiting.get(key, ()):
                    self.reset(group, topic, queue_id, offset)
                elif mine.get(queue_id, -1) < offset <= end_of(topic, queue_id):
                    self.commit(group, topic, queue_id, offset)

    def load(self) -> None:
        """Read the offsets and the resets from the file.

        Raises OSError if the file cannot be read.
        """
        saved = self._load()
        for key, queues in saved.offset_table.items():
            self._queues_of(key).update(queues)
        self._version = saved.data_version
        for key, queue_ids in (saved.pending_resets or {}).items():
            self._note_reset(key, dict.fromkeys(queue_ids))

    def set_back(self, end_of: Callable[[str, int], int]) -> list[SetBack]:
        """Set each offset beyond the end of its queue back to that end.

        ``end_of`` returns the end for a topic and a queue id. Return the changed offsets. Call this
        method once, between recovery and the first request, and save at once. New messages reuse
        the lost offsets, and a group beyond them would never read these messages.
        """
        moved = []
        for key, queues in self._offsets.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    self._entries.add(key)
                    moved.append(SetBack(group, topic, queue_id, offset, end))
        self._dirty = self._dirty or bool(moved)
        return moved

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._offsets.get(f"{topic}@{group}")
        if queues is not None:
            return queues.get(queue_id)
        return None

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set the next offset of a consumer group in a queue.

        A client may also commit a lower offset, to read messages again. Return False if an operator
        has reset the offset and the readers do not know of the reset yet.
        """
        if self._resets and self.is_reset(group, topic, queue_id):
            return False
        key = f"{topic}@{group}"
        queues = self._queues_of(key)
        if self.on_change is not None and queues.get(queue_id) != offset:
            self._note_queue(key, queue_id)
        queues[queue_id] = offset
        self._dirty = True
        if self._own is not None:
            self._own[key, queue_id] = offset
        return True

    def take_changes(self) -> list[tuple[str, OffsetChange]]:
        """Return the changes since the last call, by ``topic@group``."""
        changes, self._changes = self._changes, {}
        found = []
        for key, queue_ids in changes.items():
            queues = self._offsets.get(key, {})
            if queue_ids is not None:
                queues = {queue_id: queues[queue_id] for queue_id in queue_ids}
            change = OffsetChange(
                offsets=queues, is_whole=queue_ids is None, resets=list(self._resets.get(key, ()))
            )
            found.append((key, change))
        return found

    def apply_change(self, key: str, change: OffsetChange) -> None:
        """Apply a change of the master's table that the log has brought."""
        if change.is_whole and key in self._offsets:
            topic, _, group = key.partition("@")
            self._forget(group, topic)
        if change.offsets:
            self._queues_of(key).update(change.offsets)
        for queue_id in [*self._resets.get(key, ())]:
            if queue_id not in change.resets:
                del self._resets[key][queue_id]
                self._pending.add(key)
        if change.resets:
            self._note_reset(key, dict.fromkeys(change.resets))
        elif key in self._resets:
            self._forget_resets(key)
        self._dirty = True

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset the offset of a consumer group in a queue, for an operator.

        Commits are ignored until a reader of the queue knows of the reset.
        """
        key = f"{topic}@{group}"
        self._queues_of(key)[queue_id] = offset
        self._note_reset(key, {queue_id: None})
        self._dirty = True
        self._note_queue(key, queue_id)

    def reset_for(
        self, group: str, topic: str, queue_id: int, offset: int, reader: Hashable
    ) -> int | None:
        """Return the offset to which an operator's reset redirects a pull. Return None if the pull
        is not redirected.

        - ``offset``: the offset at which the ``reader`` pulls.

        A reader that pulls at the reset offset knows of the reset. A reader that was redirected and
        pulls elsewhere again may keep its own offset. RocketMQ redirects only one pull, and a
        commit in flight then undoes the reset.
        """
        resets = self._resets.get(f"{topic}@{group}", {})
        if queue_id not in resets:
            return None
        target = self.find(group, topic, queue_id)
        if target is None or target == offset or resets[queue_id] == reader:
            self.take_reset(group, topic, queue_id)
            return None
        resets[queue_id] = reader
        return target

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return True if an operator has reset an offset, and no reader knows of this reset."""
        return queue_id in self._resets.get(f"{topic}@{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """End the reset of an offset and return the offset. Return None without a reset.

        The caller is the broker itself, which reads the queue for the group (POP) and follows the
        reset at once.
        """
        key = f"{topic}@{group}"
        resets = self._resets.get(key, {})
        if queue_id not in resets:
            return None
        del resets[queue_id]
        self._pending.add(key)
        if not resets:
            self._forget_resets(key)
        self._dirty = True
        if queue_id in self._offsets.get(key, ()):
            self._note_queue(key, queue_id)
        return self.find(group, topic, queue_id)

    @property
    def any_reset(self) -> bool:
        """True while a reset by an operator waits for a reader."""
        return bool(self._resets)

    def of_group(self, group: str, topic: str) -> Mapping[int, int]:
        """For each queue id of a topic, return the next offset of a consumer group."""
        return self._offsets.get(f"{topic}@{group}", {})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a consumer group has an offset."""
        return list(self._topics_of.get(group, ()))

    def clone(self, source: str, target: str, topic: str) -> Steps[bool]:
        """Reset the offsets of the group ``target`` to those of the group ``source``.

        Return False if ``source`` has no offset in the topic.
        """
        offsets = list(self.of_group(source, topic).items())
        for queue_id, offset in offsets:
            self.reset(target, topic, queue_id, offset)
            yield
        return bool(offsets)

    def lowest(self, topic: str, without: Collection[str]) -> Steps[dict[int, int]]:
        """For each queue of a topic, return the lowest offset among all consumer groups.

        The groups in ``without`` do not count.
        """
        found: dict[int, int] = {}
        for group in self.groups_of(topic):
            if group in without:
                continue
            for queue_id, offset in list(self.of_group(group, topic).items()):
                found[queue_id] = min(offset, found.get(queue_id, offset))
                yield
        return found

    def groups_of(self, topic: str) -> list[str]:
        """Return the consumer groups that have an offset in a topic."""
        return [key.partition("@")[2] for key in self._offsets if key.startswith(f"{topic}@")]

    def forget_group(self, group: str) -> Steps[None]:
        """Delete all offsets of a deleted consumer group."""
        for topic in self.topics_of(group):
            self._forget(group, topic)
            yield

    def forget_topic(self, topic: str) -> None:
        """Delete the offsets of all groups in a deleted topic."""
        for group in self.groups_of(topic):
            self._forget(group, topic)

    def _forget(self, group: str, topic: str) -> None:
        """Delete the offsets and resets of a consumer group in a topic."""
        key = f"{topic}@{group}"
        topics = self._topics_of[group]
        del self._offsets[key]
        self._entries.remove(key)
        del topics[topic]
        if topics:
            self._names.add(group)
        else:
            del self._topics_of[group]
            self._names.remove(group)
        self._forget_resets(key)
        self._dirty = True
        if self.on_change is not None:
            self._changes[key] = None
            self.on_change()

    def _note_queue(self, key: str, queue_id: int) -> None:
        """Remember a changed offset for the next record in the log."""
        if self.on_change is None:
            return
        changed = self._changes.setdefault(key, set())
        if changed is not None:
            changed.add(queue_id)
        self.on_change()

    def _note_reset(self, key: str, queues: dict[int, Hashable]) -> None:
        self._resets.setdefault(key, {}).update(queues)
        self._pending.add(key)
        self._maps["pendingResets"] = self._pending

    def _forget_resets(self, key: str) -> None:
        self._resets.pop(key, None)
        self._pending.remove(key)
        if not self._resets:  # ours: the file has it only where there are any
            self._maps.pop("pendingResets", None)

    def _queues_of(self, key: str) -> dict[int, int]:
        """Return the offsets of ``topic@group``, which the caller may modify."""
        self._entries.stale[key] = None
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
            self._entries.add(key)
            topic, _, group = key.partition("@")  # neither name can hold another
            self._topics_of.setdefault(group, {})[topic] = None
            self._names.add(group)
        return queues

    def _content(self) -> ConsumerOffsetTable:
        if self._dirty:
            self._version = self._version.next(self._clock.now_ms())
        return ConsumerOffsetTable(
            data_version=self._version,
            group_topic_map={},
            pending_resets={} if self._resets else None,
        )
