"""Where each group stands in each queue: ``config/consumerOffset.json``, saved every few seconds and at the end.

The rule: the broker itself moves an offset back in one case only, at its start, when recovery has left the queue shorter than the group
had come; a client goes where it likes. Source: apache/rocketmq ``ConsumerOffsetManager``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from turbopump.clock import Clock
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.offsets import ConsumerOffsetTable
from turbopump.protocol.bodies.topics import DataVersion
from turbopump.store.json_table import JsonTable


class SetBack(NamedTuple):
    """An offset that was beyond the end of its queue, and is the end now."""

    group: str
    topic: str
    queue_id: int
    offset: int
    end: int


class ConsumerOffsets:
    """``topic@group`` to queue id to the offset of the next message wanted."""

    def __init__(self, table: JsonTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._offsets: dict[str, dict[int, int]] = {}
        self._version = DataVersion()
        self._dirty = False

    def load(self) -> None:
        """Read the file. Raises OSError."""
        saved = self._table.load(lambda data: fastjson.decode(data, ConsumerOffsetTable), ConsumerOffsetTable)
        self._offsets = {key: dict(queues) for key, queues in saved.offset_table.items()}
        self._version = saved.data_version

    def set_back(self, end_of: Callable[[str, int], int]) -> list[SetBack]:
        """Set every offset beyond ``end_of(topic, queue_id)`` to it; which were. To be called once, between recovery and the first
        request, and saved at once: messages that come later take the offsets that were lost, and a group that stands beyond them would
        never see them."""
        moved = []
        for key, queues in self._offsets.items():
            topic, _, group = key.partition("@")  # neither name can hold another
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    moved.append(SetBack(group, topic, queue_id, offset, end))
        self._dirty = self._dirty or bool(moved)
        return moved

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._offsets.get(f"{topic}@{group}")
        return queues.get(queue_id) if queues is not None else None

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note where a group stands. A client may also go back: that is how it seeks."""
        self._offsets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self._dirty = True

    def save(self) -> None:
        """Write the file, beside the loop, if anything has changed."""
        if self._dirty:
            self._dirty = False
            self._table.save(self._encode())

    def save_now(self) -> None:
        self._table.save_now(self._encode())

    def _encode(self) -> bytes:
        self._version = self._version.next(self._clock.now_ms())
        return fastjson.encode_indented(
            ConsumerOffsetTable(
                data_version=self._version,
                group_topic_map=self._topics_of_groups(),
                offset_table=self._offsets,
            )
        )

    def _topics_of_groups(self) -> dict[str, tuple[str, ...]]:
        topics: dict[str, list[str]] = {}
        for key in self._offsets:
            topic, _, group = key.partition("@")
            topics.setdefault(group, []).append(topic)
        return {group: tuple(names) for group, names in topics.items()}
