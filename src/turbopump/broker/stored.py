"""Shared state of a broker: the open store and the tables beside it.

This module does not know requests.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from turbopump.broker.client_table import ClientTable
from turbopump.broker.counters.counted_events import CountedEvents
from turbopump.broker.counters.labels import SystemLabel
from turbopump.broker.groups import RequestModes
from turbopump.broker.recovery_progress import RecoveryProgress
from turbopump.broker.runtime_info import RuntimeInfo
from turbopump.broker.saved_table import SavedTable, in_time
from turbopump.broker.send_queue import SendQueue
from turbopump.broker.statistics import Statistics
from turbopump.broker.store_opening import log_error, log_info, open_store
from turbopump.broker.tables import Tables
from turbopump.broker.topics import QueueKinds
from turbopump.clock import Clock
from turbopump.compiled import KIND
from turbopump.config.broker_config import BrokerConfig
from turbopump.disk.disk import Disk
from turbopump.remoting.answer_times import AnswerTimes
from turbopump.remoting.turns import Turns
from turbopump.remoting.wire import Wire
from turbopump.store.log.cold_reads import ReadPace
from turbopump.store.message_store import MessageStore
from turbopump.store.repair.queue_rebuild import REBUILD_SHARE_PERCENT
from turbopump.store.store_config import StoreConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Shared state of a broker: store, tables, connected clients and statistics.

    - ``settings``: the settings of the store.
    - ``sends``: the sends that are not stored yet.
    - ``turns``: runs long work with pauses in which the event loop does other work.
    - ``times``: the times of the broker's answers.
    """

    config: BrokerConfig
    settings: StoreConfig
    disk: Disk
    clock: Clock
    random: random.Random
    store: MessageStore
    tables: Tables
    request_modes: RequestModes
    clients: ClientTable[Wire]
    sends: SendQueue
    statistics: Statistics
    runtime_info: RuntimeInfo
    turns: Turns
    times: AnswerTimes

    async def save_recorded(self, seconds: float | None) -> bool:
        """Save the tables whose changes are records in the log (``table_records/``).

        Return False if one of them cannot be saved, or not within ``seconds``.
        """
        tables = self.tables
        recorded: tuple[SavedTable[Any], ...] = (
            tables.topics,
            tables.groups,
            tables.offsets,
            tables.locks,
            self.request_modes,
        )
        rounds = [each.saving() for each in recorded]
        await in_time(seconds, *rounds)
        return all(each.done() and each.result() for each in rounds)

    def close(self) -> None:
        """Save the tables and close the store."""
        try:
            self.store.finish_background()
            self.tables.save_now()
        finally:
            self.store.close()


def open_stored(
    config: BrokerConfig,
    settings: StoreConfig,
    disk: Disk,
    clock: Clock,
    source: random.Random,
    recovery: RecoveryProgress,
) -> Stored:
    """Open the store of a broker and load the tables.

    Raises StoreLockedError, StoreDamagedError or OSError if that fails. After an error nothing is
    left open.
    """
    loop = asyncio.get_running_loop()
    sends = SendQueue(config)
    turns = Turns()
    kinds = QueueKinds(disk, settings.paths)
    store = open_store(settings, disk, clock, kinds.is_batch, sends.append_took, recovery)
    with ExitStack() as undo:
        undo.callback(store.close)
        undo.callback(store.finish_background)
        store.log.files.read_ahead(enabled=config.data_read_ahead_enable)
        rebuild_share = min(config.cold_read_share, REBUILD_SHARE_PERCENT)
        for reads, share in (
            (store.cold_reads, config.cold_read_share),
            (store.rebuild.reads, rebuild_share),
        ):
            pace = ReadPace(share / 100, lambda: store.log.end, loop.call_later)
            reads.take_turns(loop.call_soon, clock.monotonic, pace)
        log.info("hot functions kind=%s", KIND)
        tables = Tables(config, store, settings.paths, disk, clock, log_error, log_info, turns)
        kinds.table = tables.topics
        request_modes = RequestModes(config, tables.request_modes, turns)
        request_modes.begun_ms = tables.begun_ms
        request_modes.load()
        tables.save_too(request_modes)
        statistics = Statistics(
            store.queues,
            clock,
            config.broker_cluster_name,
            detail=config.enable_detail_stat,
            events=CountedEvents(
                SystemLabel(lambda: tables.topics.system), is_slave=config.is_slave
            ),
        )
        runtime_info = RuntimeInfo(config, settings.paths, store, statistics, sends, clock)
        undo.pop_all()
    return Stored(
        config,
        settings,
        disk,
        clock,
        source,
        store,
        tables,
        request_modes,
        ClientTable(),
        sends,
        statistics,
        runtime_info,
        turns,
        AnswerTimes(),
    )
