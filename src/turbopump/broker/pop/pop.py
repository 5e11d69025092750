"""POP as one thing: what it is made of, in the order in which that is put together, started and
stopped."""

from __future__ import annotations

import asyncio
from typing import Final

from turbopump.broker.forwarding import Forwarding
from turbopump.broker.pop.held_pops import HeldPops
from turbopump.broker.pop.offsets import InFlight, OrderInfo, PopOffsets, TimersMark, recover_places
from turbopump.broker.pop.reader import PopReader, PopView
from turbopump.broker.pop.records import ReviveLog, revive_topic
from turbopump.broker.pop.reviving import PuttingBack, Reviving
from turbopump.broker.schedule.timers import Timers
from turbopump.broker.statistics import Statistics
from turbopump.broker.tables import Tables
from turbopump.broker.topics import READ_WRITE
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import StoreError
from turbopump.protocol.requests.topics import TopicConfig
from turbopump.store.message_store import MessageStore

FLUSH_PATIENCE_S: Final = 5.0
"""Longest that a clean stop waits for the disk, so that what was popped does not come at once
again."""


class Pop:
    """The POP of one broker. ``start``, then ``stop``."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        tables: Tables,
        timers: Timers,
        forwarding: Forwarding,
        statistics: Statistics,
        clock: Clock,
    ) -> None:
        self._store = store
        topics, offsets = tables.topics, tables.offsets
        recover_places(store, offsets, revive_topic(config.broker_cluster_name))
        self._mark = TimersMark(store, offsets)
        self.offsets = PopOffsets(offsets, store.durable)
        self.order = OrderInfo(tables.order_info)
        self.order.load()
        tables.save_too(self.order)
        self.revive_log = ReviveLog(config, forwarding, clock)
        self.in_flight = InFlight(
            config.pop_inflight_message_threshold if config.enable_pop_message_threshold else None
        )
        self.view = PopView(
            config, store, topics, offsets, self.offsets, self.order, self.in_flight, clock
        )
        self.held = HeldPops(self.view, config.pop_polling_size, config.max_pop_polling_size)
        self.reader = PopReader(
            *(
                config.broker_name,
                store,
                offsets,
                self.offsets,
                self.view,
                self.order,
                self.revive_log,
                self.in_flight,
            ),
            *(statistics, clock),
            actual_retry_topic=config.pop_response_return_actual_retry_topic,
        )
        putting_back = PuttingBack(config, topics, tables.groups, forwarding)
        topic, queues = self.revive_log.topic, config.revive_queue_num
        known = topics.find(topic)
        if known is None or known.read_queue_nums < queues:
            topics.put(
                TopicConfig(
                    topic_name=topic,
                    read_queue_nums=queues,
                    write_queue_nums=queues,
                    perm=READ_WRITE,
                )
            )
        else:
            queues = known.read_queue_nums
        name, flushed = config.broker_name, self.offsets.flushed_offsets
        self.reviving = [
            Reviving(
                *(
                    n,
                    name,
                    store,
                    offsets,
                    flushed,
                    timers,
                    putting_back,
                    self.revive_log,
                    self.in_flight,
                    clock,
                ),
                self.held.look,
            )
            for n in range(queues)
        ]

    def start(self) -> None:
        """Put back what is not acknowledged from now on."""
        for each in self.reviving:
            each.start()

    def save(self) -> None:
        """Save, beside the loop, what has changed; to be called as often as offsets are saved."""
        self._mark.note(popped=self.revive_log.used)
        self.order.save()

    async def stop(self) -> None:
        """Put back no more, and let offsets be those that were popped, so that a restart goes on
        there. May be called twice."""
        for each in self.reviving:
            await each.stop()
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flushed, flushed_offsets, end = (
            self._store.durable,
            self.offsets.flushed_offsets,
            self._store.log.end,
        )

        def look() -> None:
            over = flushed.error is not None or (not len(flushed_offsets) and flushed.value >= end)
            if over and not settled.done():
                settled.set_result(None)

        flushed_offsets.settled = look
        waiter = flushed.when(end, look)
        look()
        if not settled.done():
            self._store.flusher.flush_log()
        try:
            async with asyncio.timeout(FLUSH_PATIENCE_S):
                await settled
            for each in self.reviving:
                await each.write_down()
        except (TimeoutError, StoreError, OSError):
            pass  # a disk that is late, or fails: it comes again
        finally:
            waiter.cancel()
