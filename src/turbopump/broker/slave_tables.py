"""What a slave copies from its master beside the log: topics, groups, request modes, the offsets of
consumers and of delay levels, what ordered pops have taken, and how far the timers are.

The rule: nothing is copied unless the log is, and what says how far something is counts only when
the log here has come as far as the master's had, or a takeover would leave messages out. Our own
master is asked twice a second and answers with what has changed; Apache's every three seconds, and
answers with everything. Source: apache/rocketmq ``SlaveSynchronize``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from turbopump.broker.apache_master import compare_with_apache
from turbopump.broker.background import stop_task
from turbopump.broker.groups import GroupTable, RequestModes
from turbopump.broker.handlers.topics import TopicRecords
from turbopump.broker.pop.offsets import OrderInfo, OrderInfoTable
from turbopump.broker.schedule.delays import Delays
from turbopump.broker.schedule.timers import Timers
from turbopump.errors import ProtocolError, RemotingError, ResponseError, StoreError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.assignment import MessageRequestModeTable
from turbopump.protocol.requests.groups import GetAllGroups, SubscriptionGroupWrapper
from turbopump.protocol.requests.offsets import ConsumerOffsetTable, DelayOffsetTable
from turbopump.protocol.requests.replication import (
    LOG_END,
    LOG_START,
    PARTIAL,
    SLAVES,
    TABLE_VERSION,
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetAllMessageRequestMode,
    GetTimerCheckpoint,
)
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo
from turbopump.protocol.requests.topics import GetAllTopicConfig, TopicConfigSerializeWrapper
from turbopump.remoting.client import RemotingClient
from turbopump.replication.link import SlaveLink
from turbopump.replication.slave import first_wanted
from turbopump.store.message_store import MessageStore
from turbopump.store.timers.timer_log import TimerCheckpoint

TableT = TypeVar("TableT", bound=msgspec.Struct)

log = logging.getLogger(__name__)

EVERY_S: Final = 0.5
AT_ONCE_S: Final = 0.05
"""After a connection: a slave that is in sync and does not know its topics is asked in vain."""
APACHE_EVERY_S: Final = 3.0
ANSWER_S: Final = 5.0
LOG_WAIT_S: Final = 2.0
"""How long the log here may take to come as far as the master's was; then its positions are left
out of the round."""
LOOK_S: Final = 0.02


@dataclass(eq=False)
class SlaveTables:
    """Copies what is not in the log. ``link`` tells whether the log is being copied."""

    link: SlaveLink
    store: MessageStore
    records: TopicRecords
    groups: GroupTable
    modes: RequestModes
    order: OrderInfo
    delays: Delays
    timers: Timers
    remoting: RemotingClient
    master: str | None = None
    """The master's address, `host:port`; None: it is not known."""
    rounds: int = 0
    """How often everything was copied."""
    _known: dict[type[msgspec.Struct], str] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None
    _fault: str | None = None
    _needed_from: int | None = None

    def needed_from(self) -> int | None:
        """For retention: what the master keeps is kept here too, for timers and delays wait in it.
        None: it is not known yet."""
        return self._needed_from

    def start(self) -> None:
        """Copy from now on."""
        self.store.retention.needed_from.append(self.needed_from)
        self._task = asyncio.create_task(self._run(), name="copying the master's tables")

    async def stop(self) -> None:
        """Copy no more. May be called twice."""
        task, self._task = self._task, None
        await stop_task(task)
        await self.remoting.close()

    async def begin_at(self) -> int | None:
        """From where on to copy the log: where it ends here, or, if there is none, all that the
        master has; None: the master is ours, and the logs are compared (``replication/``). Raises
        CopyError if the master has another log, RemotingError."""
        end = self.store.log.end
        if self.master is None:
            return end  # only haMasterAddress is known: as Apache's slave
        figures = await self.remoting.call(self.master, GetBrokerRuntimeInfo(), timeout=ANSWER_S)
        if SLAVES in figures.table:
            return None
        start, masters_end = (
            int(figures.table.get(f"commitLog{one}Offset", "0")) for one in ("Min", "Max")
        )
        if not end:
            return first_wanted(start, masters_end, self.store.log.segment_size)
        equal = await compare_with_apache(
            self.store, self.remoting, self.master, start, masters_end
        )
        log.info(
            "a master of Apache's has the same messages master=%s compared=%d of those here",
            self.master,
            equal,
        )
        return end

    def master_is_at(self, address: str | None) -> None:
        """A name server says so; None: it knows of none."""
        if address is not None and address != self.master:
            log.info("master's address changes old=%s new=%s", self.master, address)
            was_unknown, self.master = self.master is None, address
            if was_unknown:
                self.link.begin_again()
            self._known.clear()

    async def _run(self) -> None:
        while True:
            pause = AT_ONCE_S
            if self.master is not None and self.link.accepted:
                try:
                    pause = await self._copy_all(self.master)
                    if self._fault is not None:
                        log.info("the master's tables are copied again master=%s", self.master)
                        self._fault = None
                except (RemotingError, ProtocolError, StoreError) as error:
                    self._failed(str(error))
                    pause = APACHE_EVERY_S
                except Exception:
                    log.exception("the master's tables cannot be copied, tried again")
                    pause = APACHE_EVERY_S
            await asyncio.sleep(pause)

    def _failed(self, cause: str) -> None:
        if cause != self._fault:
            log.warning("the master's tables cannot be copied cause=%s", cause)
        self._fault = cause

    async def _copy_all(self, master: str) -> float:
        """One round; seconds until the next."""
        topics = await self._ask(master, GetAllTopicConfig(), TopicConfigSerializeWrapper)
        groups = await self._ask(master, GetAllGroups(), SubscriptionGroupWrapper)
        modes = await self._ask(
            master, GetAllMessageRequestMode(), MessageRequestModeTable, optional=True
        )
        ours = topics.ext is not None and TABLE_VERSION in topics.ext
        if not ours and (end := await self._log_end(master, topics)) < self.store.log.end:
            raise StoreError(  # ours refuses such a slave
                f"the master's log ends at {end}, and the slave's at {self.store.log.end}"
            )
        await self._take(topics, TopicConfigSerializeWrapper, self._take_topics)
        await self._take(groups, SubscriptionGroupWrapper, self._take_groups)
        await self._take(modes, MessageRequestModeTable, self._take_modes)
        offsets = await self._ask(master, GetAllConsumerOffset(), ConsumerOffsetTable)
        order = (
            await self._ask(master, GetAllConsumerOffset(order_info=True), OrderInfoTable)
            if ours
            else None
        )
        delays = await self._ask(master, GetAllDelayOffset())
        timers = await self._ask(master, GetTimerCheckpoint(), optional=True)
        if await self._has_log(await self._log_end(master, delays)):
            await self._take(offsets, ConsumerOffsetTable, self._take_offsets)
            if order is not None:
                await self._take(order, OrderInfoTable, self._take_order)
            if delays.body:
                self.delays.copy(fastjson.decode(delays.body, DelayOffsetTable).offset_table)
            if timers.code == ResponseCode.SUCCESS and timers.body:
                checkpoint = TimerCheckpoint.of_master(timers.body)
                if checkpoint.read_time:
                    await self.timers.copy(checkpoint)
            self.rounds += 1
        return EVERY_S if ours else APACHE_EVERY_S

    async def _ask(
        self,
        master: str,
        request: Request[Any],
        table: type[msgspec.Struct] | None = None,
        *,
        optional: bool = False,
    ) -> Command:
        """The whole answer, or what has changed in a ``table`` that is known already. ``optional``:
        Apache's 4.9 does not know the request."""
        known = self._known.get(table) if table is not None else None
        if known is not None:
            request = msgspec.structs.replace(request, known_version=known)
        answer = await self.remoting.exchange(master, request, timeout=ANSWER_S)
        if answer.code != ResponseCode.SUCCESS and not optional:
            name = type(request).__name__
            raise ResponseError(answer.code, answer.remark, request=name, address=master)
        return answer

    async def _take(
        self, answer: Command, table: type[TableT], take: Callable[[TableT, bool], Any]
    ) -> None:
        """Let ``take`` have the table of an answer, and whether it is all of it; an answer without
        a body says that nothing has changed."""
        if answer.code != ResponseCode.SUCCESS:
            return
        ext = answer.ext or {}
        if answer.body:
            done = take(fastjson.decode(answer.body, table), PARTIAL not in ext)
            if done is not None:
                await done
        if TABLE_VERSION in ext:
            self._known[table] = ext[TABLE_VERSION]

    async def _take_topics(self, table: TopicConfigSerializeWrapper, whole: bool) -> None:
        topics = self.records.topics
        given = table.topic_config_table
        if whole:
            for name in [name for name in topics.names() if name not in given]:
                if name not in topics.system:
                    error = await self.records.forget(name)
                    if error is not None:
                        log.error("queues cannot be deleted topic=%s cause=%s", name, error)
        topics.copy(given, table.data_version)

    def _take_groups(self, table: SubscriptionGroupWrapper, whole: bool) -> None:
        self.groups.copy(table, whole=whole)

    def _take_modes(self, table: MessageRequestModeTable, whole: bool) -> None:
        self.modes.copy(table.message_request_mode_map, whole=whole)

    def _take_offsets(self, table: ConsumerOffsetTable, whole: bool) -> None:
        self.records.offsets.copy(table, whole=whole)

    def _take_order(self, table: OrderInfoTable, _whole: bool) -> None:
        self.order.copy(table)

    async def _log_end(self, master: str, answer: Command) -> int:
        """Where the master's log ended when it answered."""
        if answer.ext is not None and LOG_END in answer.ext:
            self._needed_from = int(answer.ext.get(LOG_START, "0"))
            return int(answer.ext[LOG_END])
        figures = await self.remoting.call(master, GetBrokerRuntimeInfo(), timeout=ANSWER_S)
        self._needed_from = int(figures.table.get("commitLogMinOffset", "0"))
        return int(figures.table.get("commitLogMaxOffset", "0"))

    async def _has_log(self, end: int) -> bool:
        """Whether the log here comes so far, in time."""
        for _ in range(int(LOG_WAIT_S / LOOK_S)):
            if self.store.log.end >= end:
                return True
            await asyncio.sleep(LOOK_S)
        return False
