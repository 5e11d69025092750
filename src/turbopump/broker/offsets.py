"""Offsets of each group in each queue: ``config/consumerOffset.json``, saved every few seconds and
at the end.

The broker itself moves an offset back in one case only: at its start, if recovery has left the
queue shorter than the offset. A client may set any offset. An operator's reset takes precedence
over commits until the readers have learned of it. Source: apache/rocketmq
``ConsumerOffsetManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import NamedTuple

from turbopump.broker.saved_table import EncodedMap, SavedTable
from turbopump.clock import Clock
from turbopump.disk.json_table import JsonTable
from turbopump.protocol.requests.offsets import ConsumerOffsetTable
from turbopump.protocol.requests.topics import DataVersion
from turbopump.remoting.turns import Steps, Turns


class SetBack(NamedTuple):
    """An offset that was beyond the end of its queue, and was set to the end."""

    group: str
    topic: str
    queue_id: int
    offset: int
    end: int


class ConsumerOffsets(SavedTable[ConsumerOffsetTable]):
    """Next offset of each group, by ``topic@group`` and queue id."""

    def __init__(self, file: JsonTable, clock: Clock, turns: Turns | None = None) -> None:
        super().__init__(file, ConsumerOffsetTable, turns)
        self._clock = clock
        self._offsets: dict[str, dict[int, int]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}
        self._entries = EncodedMap(self._offsets.__getitem__)
        self._names = EncodedMap(self._topic_names)
        self._version = DataVersion()
        self._resets: dict[str, dict[int, Hashable]] = {}
        """Resets that a reader does not know yet: ``topic@group`` to queues; the value is the
        reader that learned of it last, if any. They are saved, because after a restart a commit may
        be older than the reset."""
        self._pending = EncodedMap(self._reset_queues)
        self._maps = {"groupTopicMap": self._names, "offsetTable": self._entries}
        self._own: dict[tuple[str, int], int] | None = None
        """Offsets committed at this slave that its master does not have."""

    def _topic_names(self, group: str) -> tuple[str, ...]:
        return tuple(self._topics_of[group])

    def _reset_queues(self, key: str) -> list[int]:
        return list(self._resets[key])

    def follow_master(self) -> None:
        """Start to record commits at this slave."""
        self._own = {}

    def copy(self, table: ConsumerOffsetTable, *, whole: bool) -> None:
        """Copy a master's offsets. An offset that was committed here while the master was away
        stays until the master reaches it. ``whole``: delete groups that the master does not
        have."""
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

    def load(self) -> None:
        """Read the file. Raises OSError."""
        saved = self._load()
        for key, queues in saved.offset_table.items():
            self._queues_of(key).update(queues)
        self._version = saved.data_version
        for key, queue_ids in (saved.pending_resets or {}).items():
            self._note_reset(key, dict.fromkeys(queue_ids))

    def set_back(self, end_of: Callable[[str, int], int]) -> list[SetBack]:
        """Set every offset beyond ``end_of(topic, queue_id)`` to that end. Return the changed
        offsets.

        Call this once, between recovery and the first request, and save at once. New messages reuse
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
        """Commit a group's offset. A client may also commit a lower one, to read again. Return
        False if an operator's reset takes precedence, of which the client did not know."""
        if self._resets and self.is_reset(group, topic, queue_id):
            return False
        self._queues_of(f"{topic}@{group}")[queue_id] = offset
        self._dirty = True
        if self._own is not None:
            self._own[f"{topic}@{group}", queue_id] = offset
        return True

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset an offset for an operator. Commits are ignored until a reader of the queue knows of
        the reset."""
        key = f"{topic}@{group}"
        self._queues_of(key)[queue_id] = offset
        self._note_reset(key, {queue_id: None})
        self._dirty = True

    def reset_for(
        self, group: str, topic: str, queue_id: int, offset: int, reader: Hashable
    ) -> int | None:
        """Return the offset at which a ``reader`` that pulls at ``offset`` must continue instead;
        None: at ``offset``.

        A reader that pulls at the offset of the reset knows of it. A reader that knows of it and
        still pulls elsewhere keeps its own offsets, and may. RocketMQ redirects only one pull, and
        a commit in flight then undoes the reset.
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
        """Return True if a reset waits for the next reader of a queue."""
        return queue_id in self._resets.get(f"{topic}@{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """End the queue's reset, because the broker itself reads the queue for the group (POP) and
        follows it at once. Returns the offset of the reset; None: there was no reset."""
        key = f"{topic}@{group}"
        resets = self._resets.get(key, {})
        if queue_id not in resets:
            return None
        del resets[queue_id]
        self._pending.add(key)
        if not resets:
            self._forget_resets(key)
        self._dirty = True
        return self.find(group, topic, queue_id)

    @property
    def any_reset(self) -> bool:
        """True if a reset waits for a reader."""
        return bool(self._resets)

    def of_group(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of a group in a topic, by queue id."""
        return self._offsets.get(f"{topic}@{group}", {})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has an offset."""
        return list(self._topics_of.get(group, ()))

    def clone(self, source: str, target: str, topic: str) -> Steps[bool]:
        """Reset ``target`` to the offsets of ``source``. Return False if ``source`` has none."""
        offsets = list(self.of_group(source, topic).items())
        for queue_id, offset in offsets:
            self.reset(target, topic, queue_id, offset)
            yield
        return bool(offsets)

    def lowest(self, topic: str, without: Collection[str]) -> Steps[dict[int, int]]:
        """Return the lowest offset of all groups except ``without``, by queue id."""
        found: dict[int, int] = {}
        for group in self.groups_of(topic):
            if group in without:
                continue
            for queue_id, offset in list(self.of_group(group, topic).items()):
                found[queue_id] = min(offset, found.get(queue_id, offset))
                yield
        return found

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have an offset in a topic."""
        return [key.partition("@")[2] for key in self._offsets if key.startswith(f"{topic}@")]

    def forget_group(self, group: str) -> Steps[None]:
        """Delete the offsets of a deleted group."""
        for topic in self.topics_of(group):
            self._forget(group, topic)
            yield

    def forget_topic(self, topic: str) -> None:
        """Delete the offsets of a deleted topic."""
        for group in self.groups_of(topic):
            self._forget(group, topic)

    def _forget(self, group: str, topic: str) -> None:
        """Delete the offsets and resets of a group in a topic."""
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
        """Return the modifiable offsets of ``topic@group``."""
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
