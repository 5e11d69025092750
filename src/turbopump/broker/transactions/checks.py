"""Asking producers what has become of their transactions: in rounds, each half message once in a
round.

The rule: whoever was asked about stands again at the end of the queue, with the number of times in
its properties, so that the place in the queue moves on and nothing else need be kept. After a kill
the queue goes on from a place that was kept before; of the copies that are read again, only the
newest of each half message counts (with RocketMQ each is asked about and copied again, so that
every such kill doubles them). While nothing is pending, nothing happens. Source: apache/rocketmq
``TransactionalMessageServiceImpl.check``, ``AbstractTransactionalMessageCheckListener``; there
rounds go on whether there is anything to ask about or not.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from turbopump.broker.consumers import ClientTable
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.reading import ask
from turbopump.broker.topics import TopicTable
from turbopump.broker.transactions.endings import Endings, PendingHalves, SavedPlace
from turbopump.broker.transactions.half_messages import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    QUEUE,
    Half,
    read_half,
)
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import MessageError, StoreError
from turbopump.protocol.command import encode_command, request_command
from turbopump.remoting.connection import Connection
from turbopump.store.disk_space import Level
from turbopump.store.log.commit_log import Placed
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)

TRIED_ROUNDS: Final = 3
"""In so many rounds a half message that cannot be read is tried, then it is passed over."""
PRODUCERS_TRIED: Final = 3
TAKE_S: Final = 0.1
"""How long a producer that is slow to read is waited for before another one is asked."""
SLICE: Final = 16
_LONG_MS: Final = 86_400_000
_NEVER: Final = 1 << 62


class _Step(NamedTuple):
    """What came of looking at one half message: when the next round is due because of it (ms since
    1970), whether it stands behind the others now, whether the round ends here."""

    due: int = _NEVER
    copied: bool = False
    stop: bool = False


class TransactionChecks:
    """Asks. ``asked``, ``unheard`` (no producer of the group is connected) and ``given_up`` count
    half messages since the start."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        forwarding: Forwarding,
        topics: TopicTable,
        clients: ClientTable[Connection],
        clock: Clock,
        pending: PendingHalves,
        endings: Endings,
        place: SavedPlace,
    ) -> None:
        self._store = store
        self._forwarding = forwarding
        self._topics = topics
        self._clients = clients
        self._now_ms = clock.now_ms
        self._pending = pending
        self._endings = endings
        self._place = place
        self._broker_name = config.broker_name
        self._timeout_ms = config.transaction_time_out
        self._interval = config.transaction_check_interval / 1000
        self._checks_max = config.transaction_check_max
        self._age_max_ms = config.file_reserved_time * 3_600_000
        self._turn = 0
        self._failed: dict[int, int] = {}
        self.asked = 0
        self.unheard = 0
        self.given_up = 0

    # --- when
    # ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Rounds for ever: the first after an interval, for producers come back first; none while
        nothing is pending."""
        loop = asyncio.get_running_loop()
        pending, timeout = self._pending, self._timeout_ms / 1000
        earliest = due = loop.time() + self._interval
        look = max(self._interval, 1.0)
        known = self._end
        while True:
            if pending.place >= self._end:
                await self._arrival(self._end)
                due, known = loop.time() + timeout, self._end
            while (left := max(earliest, due) - loop.time()) > 0:
                try:
                    async with asyncio.timeout(min(left, look)):
                        await self._arrival(known)
                except TimeoutError:
                    if left <= look or self._in_the_way():
                        break
                    continue
                due, known = min(due, loop.time() + timeout), 1 << 62
            pending.advance()
            if pending.place < self._end:
                known = self._end
                wait_ms, copies = await self._round()
                known += copies
                earliest = loop.time() + self._interval
                due = loop.time() + wait_ms / 1000

    def _in_the_way(self) -> bool:
        """Whether the first one that is pending lies in the segment that is next to be deleted for
        want of room: a round puts those that are to be asked about much later behind the others."""
        files, queue = self._store.log.files.files, self._store.queues.find(HALF_TOPIC, QUEUE)
        unit = queue.unit(self._pending.place) if queue is not None else None
        return (
            self._store.space.level >= Level.CRAMPED
            and bool(files)
            and unit is not None
            and unit[0] < files[0].end
        )

    @property
    def _end(self) -> int:
        return self._store.max_offset(HALF_TOPIC, QUEUE)

    async def _arrival(self, end: int) -> None:
        """Return when the queue is longer than this."""
        arrived = asyncio.Event()
        waiter = self._store.queues.find_or_make(HALF_TOPIC, QUEUE).end.when(end + 1, arrived.set)
        try:
            if self._end <= end:
                await arrived.wait()
        finally:
            waiter.cancel()

    # --- a round
    # ----------------------------------------------------------------------------------------------

    async def _round(self) -> tuple[int, int]:
        """Go through what was pending when it began. In how many ms the next is due, and how many
        were put behind the others."""
        begun, end = self._now_ms(), self._end
        before = (self.asked, self.unheard, self.given_up)
        pending, soonest, copies, looked = self._pending, begun + _LONG_MS, 0, 0
        while True:
            looked += 1
            if looked % SLICE == 0:
                await asyncio.sleep(0)
            pending.begin_at(self._store.min_offset(HALF_TOPIC, QUEUE))
            if not pending.advance():
                continue
            if (place := pending.place) >= end:
                pending.forget_given_up()
                break
            try:
                step = await self._look_at(place)
            except (OSError, StoreError) as error:
                log.warning(
                    "a round of checks was broken off, the next goes on place=%d cause=%s",
                    place,
                    error,
                )
                step = _Step(due=begun, stop=True)
            except MessageError as error:
                step = self._not_treated(place, str(error))
            except Exception:  # whatever it is, those behind it are not to wait for ever
                log.exception("half message cannot be treated place=%d", place)
                step = self._not_treated(place, "it cannot be treated")
            copies += step.copied
            soonest = min(soonest, step.due)
            if step.stop:
                break
        self._place.moved()
        self._tell(before)
        return max(soonest - self._now_ms(), 0), copies

    async def _look_at(self, place: int) -> _Step:
        """Do what there is to be done for the half message at ``place``."""
        entry = await ask(
            self._store.cold_reads, self._store.lookup.entry_in_queue(HALF_TOPIC, QUEUE, place)
        )
        pending = self._pending
        if entry is None:  # a gap, or retention was here
            pending.passed(place)
            return _Step()
        if entry.fault is not None:
            return self._not_treated(place, entry.fault)
        half = read_half(entry.message)
        if half is None:
            log.error(
                "half message does not say whose it is or where it goes, passed over offset=%d",
                place,
            )
            pending.passed(place)
            return _Step()
        await self._endings.settled(half)
        if pending.place != place or pending.has_ended(place):
            return _Step()
        if pending.has_ended(half.origin):
            self._endings.note_ended(half.offset)
            return _Step()
        if await self._stands_further_behind(half):
            pending.passed(place)
            return _Step()
        if await self._was_given_up(half):
            pending.forget_copy(half.origin)
            pending.passed(place)
            return _Step()
        if self._is_hopeless(half):
            await self._give_up(half)
            return _Step()
        try:
            return await self._ask_or_put_off(half)
        except MessageError as error:
            # of another broker's directory, with no room for what a copy adds
            log.error(
                "half message cannot be stored again, it is given up offset=%d cause=%s",
                place,
                error,
            )
            await self._give_up(half)
            return _Step()

    async def _stands_further_behind(self, half: Half) -> bool:
        """Whether a newer copy of it can be read: the last run made it, and was killed before it
        had kept its place."""
        newest = self._pending.newest_copy(half.origin)
        if newest is None or newest <= half.offset:
            return False
        entry = await ask(
            self._store.cold_reads, self._store.lookup.entry_in_queue(HALF_TOPIC, QUEUE, newest)
        )
        copy = read_half(entry.message) if entry is not None and entry.fault is None else None
        return copy is not None and copy.is_the_same_as(half)

    async def _was_given_up(self, half: Half) -> bool:
        """Whether a letter about it was written behind it: by the last run, which was killed before
        it had kept its place."""
        offset = self._pending.given_up(half.origin)
        if offset is None or offset <= half.message.commit_log_offset:
            return False
        entry = await ask(self._store.cold_reads, self._store.lookup.entry_at(offset))
        letter = read_half(entry.message) if entry is not None and entry.fault is None else None
        return letter is not None and letter.is_the_same_as(half)

    async def _ask_or_put_off(self, half: Half) -> _Step:
        due = self._due(half)
        if due is None:
            await self._ask(half)
            return _Step(due=0, copied=True)
        if half.immunity_ms is None:
            return _Step(due, stop=True)  # those behind it are younger
        await self._put_behind(half, half.put_off())
        return _Step(due, copied=True)

    def _not_treated(self, place: int, fault: str) -> _Step:
        """Try again in the next rounds, then pass it over."""
        times = self._failed.get(place, 0) + 1
        if times < TRIED_ROUNDS:
            self._failed = {place: times}
            return _Step(due=0, stop=True)
        log.error("half message passed over offset=%d cause=%s", place, fault)
        self._failed = {}
        self._pending.passed(place)
        return _Step()

    def _is_hopeless(self, half: Half) -> bool:
        """Asked about often enough, or so old that its files may be deleted."""
        return (
            half.checks >= self._checks_max
            or self._now_ms() - half.message.born_timestamp > self._age_max_ms
        )

    def _due(self, half: Half) -> int | None:
        """When to ask, ms since 1970; None: now. The producer's clock counts; a birth in the future
        is old enough, as for RocketMQ."""
        born = half.message.born_timestamp
        age = self._now_ms() - born
        if half.immunity_ms is not None:
            return born + half.immunity_ms + 1 if age <= half.immunity_ms else None
        return born + self._timeout_ms + 1 if 0 <= age <= self._timeout_ms else None

    async def _ask(self, half: Half) -> None:
        properties = half.asked_again()
        placed = await self._put_behind(half, properties)
        if self._pending.has_ended(half.origin):
            return
        self.asked += 1
        header, body = half.question(properties, placed, self._broker_name)
        peer = await self._producer_of(half.group)
        if peer is None:
            self.unheard += 1
        else:
            peer.send_frame(
                encode_command(request_command(header, body, opaque=peer.next_opaque, oneway=True))
            )

    async def _put_behind(self, half: Half, properties: str) -> Placed:
        """Store it again at the end of the queue; where that is."""
        placed = await self._forwarding.forward(
            half.message, HALF_TOPIC, QUEUE, properties=properties
        )
        if self._pending.has_ended(half.offset, half.origin):  # meanwhile
            self._endings.note_ended(placed.queue_offset)
        else:
            self._pending.note_copy(half.origin, placed.queue_offset)
        self._pending.passed(half.offset)
        return placed

    async def _give_up(self, half: Half) -> None:
        self._topics.find_or_make(GIVEN_UP_TOPIC, 1)
        try:
            await self._forwarding.forward(
                half.message, GIVEN_UP_TOPIC, QUEUE, properties=half.put_off()
            )
        except MessageError:  # of another broker's directory, with no room for where it was first
            await self._forwarding.forward(half.message, GIVEN_UP_TOPIC, QUEUE)
        self._pending.forget_copy(half.origin)
        self._pending.passed(half.offset)
        self.given_up += 1

    async def _producer_of(self, group: str) -> Connection | None:
        """A connection of the group, in turn; the next one if it does not take what was written
        before."""
        members = [peer for peer in self._clients.producers.get(group, ()) if not peer.closed]
        self._turn += 1
        for number in range(min(len(members), PRODUCERS_TRIED)):
            peer = members[(self._turn + number) % len(members)]
            try:
                async with asyncio.timeout(TAKE_S):
                    await peer.drain()
            except TimeoutError:
                continue
            if not peer.closed:
                return peer
        return None

    def _tell(self, before: tuple[int, int, int]) -> None:
        asked, unheard, given_up = (
            self.asked - before[0],
            self.unheard - before[1],
            self.given_up - before[2],
        )
        if asked or given_up:
            log.info(
                "transactions checked asked=%d no_producer=%d place=%d",
                asked,
                unheard,
                self._pending.place,
            )
        if given_up:
            log.warning(
                "transactions given up, their messages went to %s count=%d transactionCheckMax=%d",
                *(GIVEN_UP_TOPIC, given_up, self._checks_max),
            )
