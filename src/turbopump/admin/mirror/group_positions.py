"""Positions of consumer groups, translated from the source's offsets to the target's.

Copies have the offset of their original in their mark, so a position is found by a search in the
target queue. These rules keep a group from missing a message when it moves to the target:

- A position never goes beyond a message of another producer in the target queue, because the group
  has not consumed that one at the source.
- A position never goes back, and it stays if the group has a consumer in the target.

A group that is missing in the target is made there with the same settings. Messages that wait in a
retry topic of the group are not copied, and are reported. Sending is unknown here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from turbopump.admin.admin import Admin
from turbopump.admin.group_lag import QueueLag
from turbopump.admin.groups import group_members
from turbopump.admin.mirror.origin import origin_of
from turbopump.admin.mirror.queue_mirror import QueueMirror
from turbopump.admin.mirror.read_back import is_copy_of
from turbopump.message.entry import queue_offset_of
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.plural import counted
from turbopump.protocol.requests.groups import SubscriptionGroupConfig

log = logging.getLogger(__name__)


class GroupPositions:
    """Positions of all groups that consume mirrored topics.

    - ``notes``: a sentence for each group or queue that an operator should look at, as of the last
      round.
    """

    def __init__(
        self, source: Admin, target: Admin, mirrors: Mapping[MessageQueue, QueueMirror]
    ) -> None:
        self.notes: list[str] = []
        self._source = source
        self._target = target
        self._mirrors = mirrors
        self._done: dict[tuple[str, MessageQueue], int] = {}
        """Position at the source that was translated last, by group and source queue."""

    async def set_all(self) -> int:
        """Set the positions that have moved at the source. Return their number.

        Raises RemotingError.
        """
        self.notes = []
        count = 0
        for group in await self._source.groups.names():
            count += await self._set_group(group)
        return count

    async def _set_group(self, group: str) -> int:
        lag = await self._source.offsets.show(group)
        moved = [
            one
            for one in lag.queues
            if one.offset > 0
            and one.queue in self._mirrors
            and self._mirrors[one.queue].ready
            and self._done.get((group, one.queue)) != one.offset
        ]
        waiting = sum(one.behind for one in lag.queues if one.topic.startswith(RETRY_PREFIX))
        if waiting and any(one.queue in self._mirrors for one in lag.queues):
            self.notes.append(
                f"group {group} has {counted(waiting, 'message')} for a retry at the source, and "
                "retries are not copied"
            )
        if not moved:
            return 0
        masters = await self._target.servers.masters()
        if await group_members(self._target.servers, masters, group):
            self.notes.append(f"group {group} consumes in the target: its positions stay")
            return 0
        await self._make_group(group, masters)
        present = {one.queue: one.offset for one in (await self._target.offsets.show(group)).queues}
        count = 0
        for one in moved:
            count += await self._set_position(group, one, present)
        return count

    async def _make_group(self, group: str, masters: list[str]) -> None:
        there = await self._target.groups.settings(group)
        missing = [address for address in masters if address not in there]
        if not missing:
            return
        found = await self._source.groups.settings(group)
        settings = next(iter(found.values()), SubscriptionGroupConfig(group_name=group))
        for address in missing:
            log.info("group is made in the target group=%s broker=%s", group, address)
            await self._target.groups.put(settings, broker=address)

    async def _set_position(
        self, group: str, lag: QueueLag, present: Mapping[MessageQueue, int]
    ) -> int:
        one = self._mirrors[lag.queue]
        queue = one.target_queue
        offset = await target_offset(one, lag.offset)
        if one.others is not None and offset >= one.others:
            self.notes.append(
                f"group {group}: {queue} has messages of other producers from offset {one.others} "
                "on, and its position stays before them"
            )
        exact = lag.offset <= one.next_offset
        if exact:
            self._done[group, lag.queue] = lag.offset
        if offset <= present.get(queue, 0):
            return 0
        await self._target.offsets.set(group, queue, offset)
        return 1


async def target_offset(one: QueueMirror, source_offset: int) -> int:
    """Translate an offset of a source queue to its target queue.

    The result is the offset of the first copy of a message from ``source_offset`` on, or the end of
    the copies. It is never beyond a message of another producer. Raises RemotingError.
    """
    low, _ = await one.target.bounds(one.target_queue)
    high = one.target_end if one.others is None else min(one.target_end, one.others)

    async def is_before(at: int) -> bool:
        """Return True if the message at an offset of the target is before the wanted one."""
        for entry in await one.target.read(one.target_queue, at, at + 1):
            origin = origin_of(entry)
            if queue_offset_of(entry) == at and origin is not None:
                mine = is_copy_of(one.source_queue, one.source.name, origin)
                return not mine or origin.offset < source_offset
        return True  # older than the mirror, or deleted

    # Usually one copy follows the other without a gap, and one guess finds the place.
    guess = high - (one.next_offset - source_offset)
    if low < guess < high and not await is_before(guess) and await is_before(guess - 1):
        return guess
    while low < high:
        middle = (low + high) // 2
        if await is_before(middle):
            low = middle + 1
        else:
            high = middle
    return low
