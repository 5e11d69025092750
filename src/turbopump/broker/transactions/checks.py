"""Transaction checks: the broker asks producers for the outcome of their open transactions.

The stored message of an open transaction is a half message. The broker checks half messages in
rounds, and in each round asks a producer at most once for each of them.

A checked half message is stored again at the end of the queue, with the number of checks in its
properties. So the offset in the queue advances, and no other state is needed. After a kill the
queue continues at an earlier saved offset. Of the copies that are read again, only the newest of
each half message counts. RocketMQ checks and copies all of them, so each kill doubles them.

A check counts only if a producer was asked. While no producer of its group is connected, a half
message waits; RocketMQ gives it up after 15 rounds. While nothing is pending, no round runs.

Source: apache/rocketmq ``TransactionalMessageServiceImpl.check``,
``AbstractTransactionalMessageCheckListener``; there, rounds also run when nothing is pending.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from turbopump.broker.background import wait_for
from turbopump.broker.client_table import ClientTable
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.reading import ask
from turbopump.broker.topics import TopicTable
from turbopump.broker.transactions.endings import Endings
from turbopump.broker.transactions.half_messages import QUEUE, HalfMessage, half_of
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import MessageError, StoreError
from turbopump.message.rules import GIVEN_UP_TOPIC, HALF_TOPIC
from turbopump.protocol.command import encode_command, request_command
from turbopump.remoting.wire import Wire
from turbopump.store.disk_space import SpaceLevel
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.log.commit_log import PutResult
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.lookup import StoredEntry

log = logging.getLogger(__name__)

TRIED_ROUNDS: Final = 3
"""Number of rounds in which the broker tries to read a half message before the message is
skipped."""
PRODUCERS_TRIED: Final = 3
DRAIN_S: Final = 0.1
"""Maximum seconds to wait for a producer that reads slowly, before another producer is asked."""
ABSENT_MAX_MS: Final = 300_000
"""Maximum milliseconds for which a half message without producers keeps its place in the queue.

Then it is stored again behind the others, so that the offset in the queue advances.
"""
ABSENT_KEPT: Final = 10_000
"""Maximum number of half messages without producers that keep their place in the queue.

In each round, further ones are stored again behind the others.
"""
_LONG_MS: Final = 86_400_000
_NEVER: Final = 1 << 62


class _Step(NamedTuple):
    """Result of one check of a half message.

    - ``due``: the time when the half message needs another round, in ms since 1970.
    - ``copied``: True if the half message was stored again behind the others.
    - ``stop``: True if the round ends here.
    """

    due: int = _NEVER
    copied: bool = False
    stop: bool = False


class _Absent(NamedTuple):
    """A half message that waits for a producer, because no producer of its group is connected.

    - ``until``: the time until which the half message is skipped, in ms since 1970. It is checked
      earlier if a producer connects.
    - ``times``: the number of earlier rounds in which no producer was connected.
    """

    group: str
    topic: str
    until: int
    times: int


@dataclass(slots=True, eq=False)
class TransactionChecks:
    """Task that checks the open transactions of a broker.

    - ``may_publish``: returns True if the user of a connection may publish to a topic. Other users
      do not get its half messages. In RocketMQ every member of the producer group gets them.
    """

    config: BrokerConfig
    store: MessageStore
    forwarding: Forwarding
    topics: TopicTable
    clients: ClientTable[Wire]
    clock: Clock
    endings: Endings
    may_publish: Callable[[Wire, str], bool]
    _asked: int = 0
    """Number of producers that were asked in this round."""
    _without_producer: int = 0
    """Number of half messages without a connected producer in this round."""
    _given_up: int = 0
    """Number of half messages that were given up in this round."""
    _turn: int = 0
    _failed: dict[int, int] = field(default_factory=dict)
    _absent: dict[int, _Absent] = field(default_factory=dict)
    """Half messages without connected producers, by offset in the queue."""
    _missed: set[str] = field(default_factory=set)
    """Producer groups whose absence has been logged."""

    # --- when rounds run

    async def run(self) -> None:
        """Check the open transactions in rounds, for ever.

        The first round starts after one interval, so that producers can connect. No round runs
        while nothing is pending.
        """
        loop = asyncio.get_running_loop()
        pending = self.endings.pending
        timeout = self.config.transaction_time_out / 1000
        interval = self.config.transaction_check_interval / 1000
        look = max(interval, 1.0)
        earliest = due = loop.time() + interval
        known = self._end
        # A round reads everything that is pending, so it should find something to do. ``due`` is
        # the time of the next check that the last round found. ``earliest`` is one interval after
        # that round. A new half message is due one timeout from now at the earliest, and only the
        # first new one can make ``due`` earlier. ``known`` is the end of the queue up to which
        # ``due`` includes new half messages (``_NEVER`` until the next round). Copies that a round
        # stores at the end of the queue are not new, so they are added to ``known``.
        #
        # The wait is divided into pieces of ``look`` seconds because of retention: if the disk is
        # nearly full, the half message that keeps the oldest segment is moved before its time.
        while True:
            if pending.offset >= self._end:
                await self._wait_for_growth(self._end)
                due = loop.time() + timeout
                known = self._end
            while (left := max(earliest, due) - loop.time()) > 0:
                if await self._wait_for_growth(known, min(left, look)):
                    due = min(due, loop.time() + timeout)
                    known = _NEVER
                elif left <= look or self._blocks_deletion() or self._any_producer_is_back():
                    break
            pending.advance()
            if pending.offset < self._end:
                known = self._end
                wait_ms, copies = await self._run_round()
                known += copies
                earliest = loop.time() + interval
                due = loop.time() + wait_ms / 1000

    def _blocks_deletion(self) -> bool:
        """Return True if a pending half message blocks the deletion of a segment. The disk needs
        the space.

        A round then stores messages with a late check behind the others.
        """
        files = self.store.log.files.files
        queue = self.store.queues.find(HALF_TOPIC, QUEUE)
        if queue is None or not files or self.store.space.level < SpaceLevel.CLEAN_FORCIBLY:
            return False
        unit = queue.unit(self.endings.pending.offset)
        return unit is not None and unit[0] < files[0].end

    def _any_producer_is_back(self) -> bool:
        """Return True if half messages wait for a producer that has connected again."""
        awaited = {(one.group, one.topic) for one in self._absent.values()}
        return any(bool(self._producers(*one)) for one in awaited)

    def _producers(self, group: str, topic: str) -> list[Wire]:
        """Return the connections of a producer group. The broker may ask them about messages of a
        topic."""
        may: dict[tuple[str | None, str], bool] = {}
        found = []
        for peer in self.clients.producers.get(group, ()):
            who = peer.user, peer.peer_ip
            if who not in may:
                may[who] = self.may_publish(peer, topic)
            if may[who] and not peer.closed:
                found.append(peer)
        return found

    @property
    def _end(self) -> int:
        return self.store.max_offset(HALF_TOPIC, QUEUE)

    async def _wait_for_growth(self, end: int, seconds: float | None = None) -> bool:
        """Wait until the queue of half messages grows beyond ``end``.

        Return False if it does not within ``seconds``.
        """
        queue = self.store.queues.find_or_make(HALF_TOPIC, QUEUE)
        await wait_for((queue.end, end + 1), seconds=seconds)
        return self._end > end

    # --- one round

    async def _run_round(self) -> tuple[int, int]:
        """Check the half messages that are pending now.

        Return the milliseconds until the next round, and the number of half messages that were
        stored again behind the others.
        """
        # The queue of half messages is read from the first pending one on, and its offset only
        # moves forward. Most half messages become due in their order in the queue, so the first one
        # that is too young ends the round. A half message that was checked, or has its own time
        # (``CHECK_IMMUNITY_TIME_IN_SECONDS``), would block all later ones. So it is stored again at
        # the end of the queue, with its number of checks, and the old entry is skipped. ``end`` is
        # determined first, so that a round does not read its own copies. A half message whose
        # producers are not connected keeps its place for a while, and the round continues.
        begun = self.clock.now_ms()
        end = self._end
        self._asked = self._without_producer = self._given_up = 0
        pending = self.endings.pending
        soonest = begun + _LONG_MS
        copies = 0
        offset = pending.offset
        while True:
            await self.forwarding.turns.pause()
            pending.begin_at(self.store.min_offset(HALF_TOPIC, QUEUE))
            if not pending.advance():
                continue
            offset = max(offset, pending.offset)
            if offset >= end:
                pending.given_up.clear()  # all half messages of the last run are checked
                break
            if pending.is_finished(offset):
                offset += 1
                continue
            if (until := self._skipped_until(offset)) is not None:
                soonest = min(soonest, until)
                offset += 1
                continue
            try:
                step = await self._check_half(offset)
            except (OSError, StoreError) as error:
                log.warning(
                    "round of transaction checks stopped, the next one continues offset=%s "
                    "cause=%s",
                    offset,
                    error,
                )
                step = _Step(due=begun, stop=True)
            except MessageError as error:
                step = self._retry_or_skip(offset, str(error))
            except Exception:  # later half messages must not wait for ever
                log.exception("half message cannot be processed offset=%d", offset)
                step = self._retry_or_skip(offset, "an unexpected error, logged before")
            copies += step.copied
            soonest = min(soonest, step.due)
            if step.stop:
                break
            offset += 1
        first = pending.offset
        self._absent = {at: one for at, one in self._absent.items() if at >= first}
        self.endings.saved.save_soon()
        self._log_round()
        return max(soonest - self.clock.now_ms(), 0), copies

    async def _check_half(self, offset: int) -> _Step:
        """Process the half message at an offset of the queue: check it, give it up, or skip it."""
        lookup = self.store.lookup
        pending = self.endings.pending
        steps = lookup.entry_in_queue(HALF_TOPIC, QUEUE, offset)
        entry = await ask(self.store.cold_reads, steps, self.forwarding.turns)
        if entry is None:  # a gap, or retention has deleted the entry
            pending.skip(offset)
            return _Step()
        if entry.fault is not None:
            return self._retry_or_skip(offset, entry.fault)
        half = half_of(entry)
        if half is None:
            log.error(
                "half message skipped, it has no producer group or no destination offset=%s", offset
            )
            pending.skip(offset)
            return _Step()
        await self.endings.wait_for_end(half)
        if pending.is_finished(offset):
            return _Step()
        if pending.has_ended(half.origin):
            self.endings.note_ended(half.offset)
            return _Step()
        # a newer copy: the last run stored it, and was killed before it saved its offset
        copy = pending.copies.get(half.origin, -1)
        if copy > offset and await self._is_copy(
            half, lookup.entry_in_queue(HALF_TOPIC, QUEUE, copy)
        ):
            pending.skip(offset)
            return _Step()
        # a later dead letter: the last run gave it up, and was killed before it saved its offset
        letter = pending.given_up.get(half.origin, -1)
        if letter > half.message.commit_log_offset and await self._is_copy(
            half, lookup.entry_at(letter)
        ):
            pending.copies.pop(half.origin, None)
            pending.skip(offset)
            return _Step()
        if await self._must_give_up(half):
            await self._give_up(half)
            return _Step()
        try:
            return await self._ask_or_move(half)
        except MessageError as error:
            # another broker has stored it, with no room for the properties that a copy adds
            log.error(
                "half message cannot be stored again and is given up offset=%s cause=%s",
                offset,
                error,
            )
            await self._give_up(half)
            return _Step()

    async def _is_copy(self, half: HalfMessage, steps: ReadSteps[StoredEntry | None]) -> bool:
        """Return True if a stored entry is a copy of this half message.

        - ``steps``: the read that finds the entry.
        """
        copy = half_of(await ask(self.store.cold_reads, steps, self.forwarding.turns))
        return copy is not None and copy.is_the_same_as(half)

    async def _ask_or_move(self, half: HalfMessage) -> _Step:
        due = await self._due_time(half)
        if due is None:
            producer = await self._producer_of(half.group, half.topic)
            if producer is None:
                return await self._wait_for_producer(half)
            await self.ask_producer(half, producer)
            return _Step(due=0, copied=True)
        if half.immunity_ms is None:
            return _Step(due, stop=True)  # later half messages are younger
        await self._store_again(half, half.moved_properties())
        return _Step(due, copied=True)

    def _retry_or_skip(self, offset: int, fault: str) -> _Step:
        """Record that a half message cannot be read. The next rounds try again.

        After ``TRIED_ROUNDS`` rounds the half message is skipped.
        """
        times = self._failed.get(offset, 0) + 1
        if times < TRIED_ROUNDS:
            self._failed = {offset: times}
            return _Step(due=0, stop=True)
        log.error("half message skipped offset=%d cause=%s", offset, fault)
        self._failed = {}
        self.endings.pending.skip(offset)
        return _Step()

    async def _must_give_up(self, half: HalfMessage) -> bool:
        """Return True if a half message has had its last check, or if its files may soon be
        deleted."""
        if half.checks >= self.config.transaction_check_max:
            return True
        kept_ms = self.config.file_reserved_time * 3_600_000
        now = self.clock.now_ms()
        if 0 <= now - half.message.born_timestamp <= kept_ms:
            return False  # the usual case needs no read
        return now - await self._stored_ms(half) > kept_ms

    async def _due_time(self, half: HalfMessage) -> int | None:
        """Return the time of the next check of a half message. Return None if the check is due now.

        The time is in ms since 1970.
        """
        wait_ms = half.immunity_ms
        if half.checks or (wait_ms is None and half.offset != half.origin):
            return None  # its time was over when it was stored again
        if wait_ms is None:
            wait_ms = self.config.transaction_time_out
        stored = await self._stored_ms(half)
        return stored + wait_ms + 1 if 0 <= self.clock.now_ms() - stored <= wait_ms else None

    async def _stored_ms(self, half: HalfMessage) -> int:
        """Return the time when this broker stored a half message for the first time, in ms since
        1970.

        If retention has deleted that entry, the producer's clock counts, but at most the time of
        the copy. RocketMQ always uses the producer's clock, so a wrong clock decides about the
        checks.
        """
        stored = half.message.store_timestamp
        if half.offset == half.origin:
            return stored
        lookup = self.store.lookup.entry_in_queue(HALF_TOPIC, QUEUE, half.origin)
        first = half_of(await ask(self.store.cold_reads, lookup, self.forwarding.turns))
        if first is not None and first.is_the_same_as(half):
            return first.message.store_timestamp
        return min(half.message.born_timestamp, stored)

    async def ask_producer(self, half: HalfMessage, producer: Wire) -> None:
        properties = half.checked_properties()
        self._absent.pop(half.offset, None)
        self._missed.discard(half.group)
        stored = await self._store_again(half, properties)
        if self.endings.pending.has_ended(half.origin):
            return
        self._asked += 1
        header, body = half.check_request(properties, stored, self.config.broker_name)
        producer.send_frame(
            encode_command(
                request_command(header, body, opaque=producer.calls.next_opaque, oneway=True)
            )
        )

    def _skipped_until(self, offset: int) -> int | None:
        """Return the time until which the checks skip a half message, because it has no producers.

        The time is in ms since 1970. Return None if the half message is not skipped.
        """
        absent = self._absent.get(offset)
        if (
            absent is None
            or absent.until <= self.clock.now_ms()
            or self._producers(absent.group, absent.topic)
        ):
            return None
        blocks = offset == self.endings.pending.offset and self._blocks_deletion()
        return None if blocks else absent.until

    async def _wait_for_producer(self, half: HalfMessage) -> _Step:
        """Let a half message wait for a producer. No producer of its group is connected.

        This does not count as a check. The half message waits for one interval, then for twice as
        long each time. After the first wait it is also stored again behind the others.
        """
        self._without_producer += 1
        if half.group not in self._missed:
            self._missed.add(half.group)
            log.warning(
                "transactions wait: no producer of their group is connected, so they are "
                "not checked group=%s",
                half.group,
            )
        before = self._absent.pop(half.offset, None)
        offset = half.offset
        kept = len(self._absent) < ABSENT_KEPT
        if before is not None or not kept or self._blocks_deletion():
            offset = (await self._store_again(half, half.moved_properties())).queue_offset
        times = 0 if before is None else before.times + 1
        wait_ms = min(self.config.transaction_check_interval << min(times, 16), ABSENT_MAX_MS)
        until = self.clock.now_ms() + wait_ms
        if kept:
            self._absent[offset] = _Absent(half.group, half.topic, until, times)
        return _Step(until, copied=offset != half.offset)

    async def _store_again(self, half: HalfMessage, properties: str) -> PutResult:
        """Store a half message again at the end of the queue. Return the position of the copy."""
        stored = await self.forwarding.forward(
            half.message, HALF_TOPIC, QUEUE, properties=properties
        )
        if self.endings.pending.has_ended(half.offset, half.origin):  # during the await
            self.endings.note_ended(stored.queue_offset)
        else:
            self.endings.pending.note_copy(half.origin, stored.queue_offset)
        self.endings.pending.skip(half.offset)
        return stored

    async def _give_up(self, half: HalfMessage) -> None:
        self.topics.find_or_make(GIVEN_UP_TOPIC, 1)
        try:
            await self.forwarding.forward(
                half.message, GIVEN_UP_TOPIC, QUEUE, properties=half.moved_properties()
            )
        except MessageError:  # another broker has stored it, with no room for the added property
            await self.forwarding.forward(half.message, GIVEN_UP_TOPIC, QUEUE)
        self.endings.pending.copies.pop(half.origin, None)
        self.endings.pending.skip(half.offset)
        self.endings.counts.count_closed(half.topic, half.offset)
        self._given_up += 1

    async def _producer_of(self, group: str, topic: str) -> Wire | None:
        """Return a connected producer with the needed permission, or None.

        The producers of a group are asked in rotation. A producer that has not read earlier data is
        skipped.
        """
        members = self._producers(group, topic)
        self._turn += 1
        for number in range(min(len(members), PRODUCERS_TRIED)):
            peer = members[(self._turn + number) % len(members)]
            try:
                async with asyncio.timeout(DRAIN_S):
                    await peer.drain()
            except TimeoutError:
                continue
            if not peer.closed:
                return peer
        return None

    def _log_round(self) -> None:
        """Log the results of this round: how many half messages were checked or given up."""
        if self._asked or self._given_up:
            log.info(
                "transactions checked asked=%s no_producer=%s offset=%s",
                self._asked,
                self._without_producer,
                self.endings.pending.offset,
            )
        if self._given_up:
            log.warning(
                "transactions given up, their messages are in another topic topic=%s count=%s "
                "transactionCheckMax=%s",
                GIVEN_UP_TOPIC,
                self._given_up,
                self.config.transaction_check_max,
            )
