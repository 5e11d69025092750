"""Background copies of a master's tables to a slave. The log is copied separately.

The tables are topics, groups, request modes, offsets of consumers and of delay levels, messages of
ordered pops, holders of queue locks, and the progress of the timers.

Tables are copied only while the log is copied. An offset is accepted only when the log here has
reached the end that the master's log had at that time. Otherwise a takeover would skip messages. A
topic is served as soon as the log has a message of it that is newer than the table. Our own master
answers with the changes: at once for topics, groups, request modes and holders, twice a second for
offsets. Apache's master is asked every three seconds, and answers with whole tables. Source:
apache/rocketmq ``SlaveSynchronize``.

If the log of the master has the changes of its tables (``table_records/``), they are copied once,
whole, before each connection that copies the log. Later copies could be older than a record that
the log has brought. Only what is not recorded is then copied repeatedly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import msgspec

from turbopump.broker.apache_master import compare_with_apache
from turbopump.broker.background import stop_task
from turbopump.broker.handlers.topics import TopicRecords
from turbopump.broker.lost_topics import lost_topic
from turbopump.broker.pop.order_info import OrderInfo, OrderInfoTable
from turbopump.broker.queue_locks import HeldLocks
from turbopump.broker.schedule.delays import Delays
from turbopump.broker.schedule.timers import Timers
from turbopump.broker.stored import Stored
from turbopump.broker.topic_attributes import is_batch_cq
from turbopump.config.addresses import host_of
from turbopump.errors import CopyError, ProtocolError, RemotingError, ResponseError, StoreError
from turbopump.message.rules import LMQ_PREFIX, is_system_topic
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.assignment import MessageRequestModeTable
from turbopump.protocol.requests.groups import GetAllGroups, SubscriptionGroupWrapper
from turbopump.protocol.requests.offsets import ConsumerOffsetTable, DelayOffsetTable
from turbopump.protocol.requests.replication import (
    COMPARES,
    DELETED,
    HELD,
    LOG_END,
    LOG_START,
    PARTIAL,
    RECORDS,
    SLAVES,
    TABLE_VERSION,
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetAllMessageRequestMode,
    GetTimerCheckpoint,
)
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo
from turbopump.protocol.requests.topics import (
    GetAllTopicConfig,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from turbopump.remoting.client import RemotingClient
from turbopump.replication.copying_link import CopyingLink
from turbopump.replication.slave import first_wanted
from turbopump.replication.slave_link import SlaveLink
from turbopump.store.timers.timer_checkpoint import TimerCheckpoint

TableT = TypeVar("TableT", bound=msgspec.Struct)
CopiedT = TypeVar("CopiedT", bound=msgspec.Struct, contravariant=True)

log = logging.getLogger(__name__)

EVERY_S: Final = 0.5
NEWS_S: Final = 0.02
"""Seconds between two requests to our own master, which answers each request when it has changes.
With this pause many changes share an answer."""
AT_ONCE_S: Final = 0.05
"""Seconds until the next attempt while a table cannot be copied yet. The pause is short, because a
slave that has the log but not the topics cannot serve consumers."""
APACHE_EVERY_S: Final = 3.0
ANSWER_S: Final = 5.0
LOG_WAIT_S: Final = 2.0
"""Maximum seconds to wait until the log here has reached the end of the master's log. After that
the received offsets are ignored."""
LOG_CHECK_S: Final = 0.02
SAVE_S: Final = 10.0
"""Maximum seconds to wait until the tables of a master are saved here."""


class CopiedTable(Protocol[CopiedT]):
    """Table of a slave that can be copied from the master's table."""

    def copy(self, table: CopiedT, /, *, whole: bool) -> None:
        """Copy the table of a master.

        If ``whole`` is False, ``table`` has only the changed entries.
        """


@dataclass(eq=False)
class SlaveTables:
    """Background copies of a master's tables to a slave.

    ``link`` is the connection that copies the log.
    """

    stored: Stored
    link: CopyingLink
    records: TopicRecords
    order: OrderInfo
    delays: Delays
    timers: Timers
    remoting: RemotingClient
    master: str | None = None
    """Address of the master, ``host:port``. None while unknown."""
    acts: bool = False
    """True while this slave acts as the master. The slave then has progress of its own, and
    copies no positions."""
    copy_accounts: Callable[[str], Awaitable[None]] | None = None
    """Function that copies the users and policies of a master once. None without access control."""
    by_records: bool = False
    """True while the log of the master brings the changes of its tables."""
    rounds: int = 0
    """Number of times that the offsets were copied."""
    _known: dict[type[msgspec.Struct], str] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _faults: dict[str, str] = field(default_factory=dict)
    """Reasons why tables cannot be copied, by the name of the copying method."""
    _needed_from: int | None = None

    def needed_from(self) -> int | None:
        """Return the log offset from which a master keeps its log for waiting messages.

        The slave keeps its log from there as well. Return None while the offset is unknown.
        """
        return self._needed_from

    def has_records(self) -> bool:
        """Return True while the log of the master brings the changes of its tables."""
        return self.by_records and self.link.accepted

    def __post_init__(self) -> None:
        assert self.stored.store.copied is not None
        self._copied = self.stored.store.copied
        self._copied.on_first = self._first_message
        self._topics_at = 0
        """Log offset at which the master's log ended when it sent the known topics."""
        self._has_less = False
        """True if the master's log is shorter than the log here."""
        self._coming: dict[str, TopicConfig] = {}
        """Topics of the master that are not copied yet."""
        self._deleted: dict[str, int] = {}
        """Log offset of each deletion by the master that was repeated here, by topic."""
        self._made: dict[str, tuple[int, TopicConfig | None]] = {}
        """Topics that were created or got more queues here because of messages in the log. The
        value is the log offset of the message, and the earlier settings or None."""

    def start(self) -> None:
        """Start to copy all tables in the background."""
        self.stored.store.retention.needed_from.append(self.needed_from)
        for copy in (
            self._copy_topics,
            self._copy_groups,
            self._copy_modes,
            self._copy_locks,
            self._copy_positions,
        ):
            self._tasks.append(asyncio.create_task(self._copy_repeatedly(copy)))

    async def stop(self) -> None:
        """Stop copying. The method may be called twice."""
        await asyncio.gather(*map(stop_task, self._tasks))
        await self.remoting.close()

    async def copy_first(self) -> None:
        """Do what comes before each connection that copies the log of a replica's master.

        Raises RemotingError if the master does not answer.
        """
        if self.master is not None:
            figures = await self.remoting.call(
                self.master, GetBrokerRuntimeInfo(), timeout=ANSWER_S
            )
            await self.prepare(self.master, is_recorded=RECORDS in figures.table)

    async def prepare(self, master: str, *, is_recorded: bool) -> None:
        """Copy all tables of a master whose log has their changes, before its log is copied.

        ``is_recorded`` is True for such a master. From any other master only the topics are
        requested. Raises RemotingError if the master does not answer, and CopyError if its tables
        cannot be saved.
        """
        # Every record before the end of the log here is in the copies, because the master has this
        # log, or will have it cut first: then it is copied from again. Records behind the end are
        # applied on top, in the order of the log, so it does no harm that the copies have some.
        self.by_records = False
        if not is_recorded:
            await self._check_topics(master)
            return
        self._known.clear()
        topics, end, had = await self._ask_topics(master)
        groups = await self._request(master, GetAllGroups())
        modes = await self._request(master, GetAllMessageRequestMode())
        locks = await self._request(master, GetAllConsumerOffset(locks=True))
        offsets = await self._request(master, GetAllConsumerOffset())
        if self.copy_accounts is not None:
            await self.copy_accounts(master)
        table = self._judge_by(topics, end, had)
        if self._has_less:
            return  # the log here is cut before it is continued
        await self._take_topics(table, end, whole=True)
        self._take_groups(groups)
        tables = self.stored.tables
        self._copy_table(modes, MessageRequestModeTable, self.stored.request_modes)
        self._copy_table(locks, HeldLocks, tables.locks)
        tables.offsets.forget_own()
        self._copy_table(offsets, ConsumerOffsetTable, tables.offsets)
        await self._save_copies()
        self.by_records = True
        log.info("tables of the master copied, its log brings later changes master=%s", master)

    async def _save_copies(self) -> None:
        """Save the copied tables. Raises CopyError if they cannot be saved now."""
        # A crash must not leave a log that was confirmed without the tables that belong to it. The
        # log brings later changes only, and older records may be deleted already.
        if not await self.stored.save_recorded(SAVE_S):
            raise CopyError(
                "the tables of the master cannot be saved here: the disk is full, slow or broken "
                "(see the log of this broker)"
            )

    async def _check_topics(self, master: str) -> None:
        """Request the topics of a master before the slave connects to copy its log.

        Nothing is stored or deleted before the log is copied. Raises RemotingError if the master
        does not answer.
        """
        with contextlib.suppress(ResponseError):
            answer, end, had = await self._ask_topics(master)
            self._coming = self._judge_by(answer, end, had).topic_config_table

    async def begin_at(self, shakes_hands: bool, by_tls: bool) -> int | None:
        """Return the log offset at which copying begins. Return None if the logs must be compared
        first.

        The offset is the end of the log here, or the master's first offset if the log here is
        empty. None means that the master is ours, and compares the logs itself (``replication/``).

        - ``shakes_hands``: True if the master on the HA port is ours.
        - ``by_tls``: True if the HA port would be used with TLS, which Apache's master does not
          support.

        Raises CopyError if the master has another log, or does not support TLS. Raises
        RemotingError if the master does not answer.
        """
        end = self.stored.store.log.end
        if self.master is None:  # only haMasterAddress is known: as Apache's slave
            if shakes_hands:
                return None
            return end
        figures = await self.remoting.call(self.master, GetBrokerRuntimeInfo(), timeout=ANSWER_S)
        await self.prepare(self.master, is_recorded=RECORDS in figures.table)
        if by_tls and SLAVES not in figures.table:
            # It would take the first bytes of TLS for an offset, and a send for copied that is not.
            address = self.link.address or self.master
            raise CopyError(
                f"the master at {address} is Apache's, which speaks no TLS there: name "
                f"{host_of(address)} in haAllowedPeers here"
            )
        if COMPARES in figures.table:
            return None
        start, masters_end = (
            int(figures.table.get(f"commitLog{one}Offset", "0")) for one in ("Min", "Max")
        )
        if not end:
            return first_wanted(start, masters_end, self.stored.store.log.segment_size)
        equal = await compare_with_apache(
            self.stored.store, self.stored.turns, self.remoting, self.master, start, masters_end
        )
        log.info("the master has the same messages master=%s compared=%d", self.master, equal)
        return end

    def master_is_at(self, address: str | None) -> None:
        """Set the address of the master that a name server has returned.

        None means that the name server does not know the master, and changes nothing.
        """
        if address is not None and address != self.master:
            log.info("master's address changes old=%s new=%s", self.master, address)
            was_unknown = self.master is None
            self.master = address
            if was_unknown and isinstance(self.link, SlaveLink):
                self.link.reconnect()
            self._known.clear()

    async def _copy_repeatedly(self, copy: Callable[[str], Awaitable[float]]) -> None:
        """Call ``copy`` for ever. Each call returns the seconds to pause before the next call."""
        name = copy.__name__
        while True:
            pause = AT_ONCE_S
            is_safe = copy == self._copy_topics or not self._has_less
            if self.acts and copy == self._copy_positions:
                is_safe = False
            if self.by_records and copy != self._copy_positions:
                is_safe = False
                pause = EVERY_S  # the log brings the changes
            if self.master is not None and self.link.accepted and is_safe:
                try:
                    pause = await copy(self.master)
                    if self._faults.pop(name, None) is not None and not self._faults:
                        log.info("the master's tables are copied again master=%s", self.master)
                except (RemotingError, ProtocolError, StoreError) as error:
                    if str(error) not in self._faults.values():
                        log.warning("the master's tables cannot be copied cause=%s", error)
                    self._faults[name] = str(error)
                    pause = APACHE_EVERY_S
                except Exception:
                    log.exception("the master's tables cannot be copied, tried again")
                    pause = APACHE_EVERY_S
            await asyncio.sleep(pause)

    async def _copy_groups(self, master: str) -> float:
        answer = await self._request(master, GetAllGroups(held=True), SubscriptionGroupWrapper)
        if not self.by_records:
            self._take_groups(answer)
        return _pause_after(answer)

    def _take_groups(self, answer: Command) -> None:
        groups = self.stored.tables.groups
        before = groups.names()
        self._copy_table(answer, SubscriptionGroupWrapper, groups)
        for name in set(before).difference(groups.names()):
            self.stored.statistics.forget_group(name)

    async def _copy_modes(self, master: str) -> float:
        request = GetAllMessageRequestMode(held=True)
        answer = await self._request(master, request, MessageRequestModeTable, optional=True)
        if not self.by_records:
            self._copy_table(answer, MessageRequestModeTable, self.stored.request_modes)
        return _pause_after(answer)

    async def _copy_locks(self, master: str) -> float:
        if TopicConfigSerializeWrapper not in self._known:
            return AT_ONCE_S  # it is no master of ours, or its topics come first
        request = GetAllConsumerOffset(locks=True, held=True)
        answer = await self._request(master, request, HeldLocks)
        # an older master has answered with offsets
        if HELD in (answer.ext or {}) and not self.by_records:
            self._copy_table(answer, HeldLocks, self.stored.tables.locks)
        return _pause_after(answer)

    async def _copy_positions(self, master: str) -> float:
        offsets = await self._request(master, GetAllConsumerOffset(), ConsumerOffsetTable)
        ours = TABLE_VERSION in (offsets.ext or {})
        if ours:
            order = await self._request(
                master, GetAllConsumerOffset(order_info=True), OrderInfoTable
            )
        else:
            order = None
        delays = await self._request(master, GetAllDelayOffset())
        timers = await self._request(master, GetTimerCheckpoint(), optional=True)
        if await self._has_log(await self._log_end(master, delays)) and not self.acts:
            if not self.by_records:
                self._copy_table(offsets, ConsumerOffsetTable, self.records.offsets)
            if order is not None:
                self._copy_table(order, OrderInfoTable, self.order)
            if delays.body:
                self.delays.copy(fastjson.decode(delays.body, DelayOffsetTable).offset_table)
            if timers.code == ResponseCode.SUCCESS and timers.body:
                checkpoint = TimerCheckpoint.of_master(timers.body)
                if checkpoint.read_time:
                    await self.timers.copy(checkpoint)
            self.rounds += 1
        if ours:
            return EVERY_S
        return APACHE_EVERY_S

    async def _request(
        self,
        master: str,
        request: Request[Any],
        table: type[msgspec.Struct] | None = None,
        *,
        optional: bool = False,
    ) -> Command:
        """Send a request for a table to the master, and return the answer.

        - ``table``: the type of the table. If the slave has a version of it, the answer contains
          only the changes.
        - ``optional``: True if older masters do not know the request. Their refusal is then
          returned.

        Raises ResponseError for any other refusal.
        """
        known = self._known.get(table) if table is not None else None
        if known is not None:
            request = msgspec.structs.replace(request, known_version=known)
        answer = await self.remoting.exchange(master, request, timeout=ANSWER_S)
        if answer.code != ResponseCode.SUCCESS and not optional:
            name = type(request).__name__
            raise ResponseError(answer.code, answer.remark, request=name, address=master)
        return answer

    def _copy_table(
        self, answer: Command, table: type[TableT], target: CopiedTable[TableT]
    ) -> None:
        """Copy the table in an answer of the master to ``target``.

        An answer without a body means that the table has not changed.
        """
        if answer.code != ResponseCode.SUCCESS:
            return
        ext = answer.ext or {}
        if answer.body:
            target.copy(fastjson.decode(answer.body, table), whole=PARTIAL not in ext)
        if TABLE_VERSION in ext:
            self._known[table] = ext[TABLE_VERSION]

    async def _log_end(self, master: str, answer: Command) -> int:
        """Return the end of the master's log at the time of its ``answer``."""
        if answer.ext is not None and LOG_END in answer.ext:
            self._needed_from = int(answer.ext.get(LOG_START, "0"))
            return int(answer.ext[LOG_END])
        figures = await self.remoting.call(master, GetBrokerRuntimeInfo(), timeout=ANSWER_S)
        self._needed_from = int(figures.table.get("commitLogMinOffset", "0"))
        return int(figures.table.get("commitLogMaxOffset", "0"))

    async def _has_log(self, end: int) -> bool:
        """Wait until the log of this slave reaches the offset ``end``.

        Returns False if that takes longer than LOG_WAIT_S.
        """
        for _ in range(int(LOG_WAIT_S / LOG_CHECK_S)):
            if self.stored.store.log.end >= end:
                return True
            await asyncio.sleep(LOG_CHECK_S)
        return False

    # --- Topics. The log and the table come by different ways, and either may be ahead. An answer
    # says where the master's log ended when it was made (``_topics_at``). A message behind that may
    # be of a topic that was made since, and makes it here as well; one before it may be of a topic
    # that was deleted, and does not. So nothing that was deleted or forbidden comes back with old
    # messages, and nothing that was acknowledged waits for the table. RocketMQ: a slave has a topic
    # when it has copied the table, every 3 s.

    async def _copy_topics(self, master: str) -> float:
        """Copy the topics of the master and repeat its deletions. Return the seconds until the next
        copy.

        Raises StoreError if the master has less data than this slave, because nothing must be
        deleted then.
        """
        connection = self.link.peer
        answer, end, had = await self._ask_topics(master, held=True)
        if self.link.peer is not connection or self.by_records:
            return AT_ONCE_S  # ``begin_at`` has a newer answer
        table = self._judge_by(answer, end, had)
        ext = answer.ext or {}
        if self._has_less:
            raise StoreError(f"the master's log ends at {end}, and the slave's at {had}")
        await self._take_topics(table, end, whole=bool(answer.body) and PARTIAL not in ext)
        if TABLE_VERSION in ext:
            self._known[TopicConfigSerializeWrapper] = ext[TABLE_VERSION]
        return _pause_after(answer)

    async def _take_topics(
        self, table: TopicConfigSerializeWrapper, end: int, *, whole: bool
    ) -> None:
        """Copy topics of the master, whose log ended at ``end``.

        If ``whole`` is True, ``table`` has all of them, and others are deleted here.
        """
        topics = self.records.topics
        given = table.topic_config_table
        if whole:
            await self._delete_missing(given, end)
        topics.copy(given, table.data_version)
        if any(map(is_batch_cq, given.values())):
            self.stored.store.queues.remove_unserved()
        self._coming = {}
        for name, (offset, before) in list(self._made.items()):
            if offset < end:
                del self._made[name]
                if name not in given:  # the master has no such topic: it came out of a delay
                    topics.restore(name, before)
            elif name in given:  # as it was before that message
                del self._made[name]
                self._serve_newer(name)

    async def _ask_topics(self, master: str, *, held: bool = False) -> tuple[Command, int, int]:
        """Request the topics of the master that have changed.

        Return the answer, the end of the master's log at the answer, and the end of the log here at
        the request.
        """
        had = self.stored.store.log.end
        request = GetAllTopicConfig(held=held or None)
        answer = await self._request(master, request, TopicConfigSerializeWrapper)
        return answer, await self._log_end(master, answer), had

    def _judge_by(self, answer: Command, end: int, had: int) -> TopicConfigSerializeWrapper:
        """Record facts from an answer about topics: the end of the master's log, and its deletions.

        Returns the topics in the answer, or none if no topic has changed.
        """
        self._topics_at = end
        self._has_less = end < had
        if answer.ext is not None and DELETED in answer.ext:
            deleted = fastjson.decode(answer.ext[DELETED].encode(), dict[str, int])
            self._copied.deleted.clear()
            self._copied.deleted.update(deleted)
        if not answer.body:
            return TopicConfigSerializeWrapper(data_version=self.records.topics.version)
        table = fastjson.decode(answer.body, TopicConfigSerializeWrapper)
        for name, config in table.topic_config_table.items():
            config.topic_name = name
        return table

    async def _delete_missing(self, given: Mapping[str, TopicConfig], end: int) -> None:
        """Delete each topic that the master no longer has.

        If a topic was deleted and created again, its old messages are deleted.

        - ``given``: all topics of the master.
        - ``end``: the end of the master's log when it sent them.
        """
        store = self.stored.store
        topics = self.records.topics
        deleted = dict(self._copied.deleted)
        # A deletion comes with the end of the master's log at that time. Queues with a message
        # behind it belong to a topic of the same name that was created again, and stay. The log
        # comes by another connection: it may be ahead of this answer, or behind.
        news = {name: at for name, at in deleted.items() if at > self._deleted.get(name, 0)}
        store.queue_ends.follow(deleted, store.log.end)
        gone = {name: deleted.get(name, end) for name in topics.names() if name not in given}
        for queue in store.queues if news else ():
            unit = queue.unit(queue.min_index) if queue.topic in news else None
            if unit is not None and unit[0] < news[queue.topic]:
                gone[queue.topic] = news[queue.topic]
        for name, until in gone.items():
            if name in topics.system or (name in self._made and self._made[name][0] >= end):
                continue
            error = await self.records.forget(name, until)
            if error is not None:
                log.error("queues cannot be deleted topic=%s cause=%s", name, error)
            self._known.pop(ConsumerOffsetTable, None)  # those of a newer topic went, too
            if name in given:
                topics.restore(name, given[name])
            self._serve_newer(name)
        self._deleted = deleted

    def _serve_newer(self, name: str) -> None:
        """Create or extend a topic, if its queues have messages newer than the table of topics."""
        for queue in [queue for queue in self.stored.store.queues if queue.topic == name]:
            unit = queue.unit(queue.max_index - 1)
            if unit is not None:
                self._first_message(name, queue.queue_id, unit[0])

    def _first_message(self, name: str, queue_id: int, offset: int) -> None:
        """Create or extend a topic, so that a queue with a message at ``offset`` is served."""
        if self.by_records or is_system_topic(name) or name.startswith(LMQ_PREFIX):
            return
        topics = self.records.topics
        queue = self.stored.store.queues.find(name, queue_id)
        topic = topics.find(name)
        coming = self._coming.get(name)
        assert queue is not None
        if offset < self._topics_at:
            if topic is None and coming is not None:
                topics.restore(name, coming)
            return
        if topic is None:
            made = lost_topic(name, queue_id, self.stored.config.default_topic_queue_nums)
        elif queue_id >= topic.read_queue_nums:
            count = queue_id + 1
            made = msgspec.structs.replace(topic, read_queue_nums=count)
            made.write_queue_nums = max(count, topic.write_queue_nums)
        else:
            return
        self._made.setdefault(name, (offset, topic))
        topics.restore(name, made)
        log.info("topic restored from the log of this slave topic=%s queue=%d", name, queue_id)


def _pause_after(answer: Command) -> float:
    """Return the seconds to wait before a table is requested again."""
    ext = answer.ext or {}
    if HELD in ext:
        return NEWS_S
    if TABLE_VERSION in ext:
        return EVERY_S
    return APACHE_EVERY_S
