"""Where a group stands in each queue, and where a queue begins and ends, as the brokers keep it.

One rule: an offset is the index of the next message wanted. It must not know why an offset is
committed, or which queues are ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from turbopump.client.instance import ClientInstance
from turbopump.config.setting import below_home
from turbopump.disk.json_table import JsonTable
from turbopump.errors import ConfigError, ConnectError, ResponseError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import ReplyT, Request
from turbopump.protocol.requests import offsets as requests
from turbopump.repeated_line import RepeatedLine

if TYPE_CHECKING:
    from turbopump.disk.disk import Disk

log = logging.getLogger(__name__)
_read_from_beginning = RepeatedLine(
    log,
    logging.INFO,
    "queue is read from its beginning: the group has no offset there, and the first message is "
    "still in the broker's memory; ConsumeFrom.NOW begins at the start queue=%s group=%s",
)


class ConsumeFrom(Enum):
    """Where a group begins in a queue in which it has no offset yet.

    ``FIRST``: at the oldest message that is kept. ``NOW``: at what is stored after the consumer was
    started, by its own clock. ``LAST``: RocketMQ's rule. It is the end of the queue, but the
    *beginning* of a queue whose first message is still in the broker's memory, as in a topic that
    is new or small.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    NOW = "CONSUME_FROM_TIMESTAMP"


class StartOffset(NamedTuple):
    """Where to begin in a queue. ``answered``: the group's offset was asked for, and this came;
    ``stored``: it is certainly kept as such."""

    offset: int
    answered: bool
    stored: bool


class OffsetStore:
    """The offsets of one group, kept by the brokers. Every method may raise a RemotingError."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._began_ms = instance.environment.clock.now_ms()
        self._turns: dict[MessageQueue, asyncio.Lock] = {}
        self._begun: dict[tuple[str, str], asyncio.Event] = {}
        """Broker name and topic -> set when the first offset that this member committed there is
        known."""

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool = True) -> int | None:
        """The group's offset in ``queue``; None if it has none yet. Of a queue whose first message
        is still in its memory, the broker says 0 then; ``zero_if_young=False`` asks it not to
        (those of 4.9 do all the same)."""
        request = requests.QueryConsumerOffset(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=None if zero_if_young else False,
        )
        try:
            return (await self._ask(queue, request)).offset
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Set the group's offset; return when the broker has it.

        One at a time in each queue, each answered: Apache's broker gives the requests of one
        connection to many threads, so that of two on their way the older may come last and set the
        offset back. For the same cause the first offset in a topic goes alone: of several first
        ones at once, Apache's broker keeps the last (``ConsumerOffsetManager.commitOffset`` makes
        the table of a topic and group without a lock). Java's client sends them oneway, and has
        both risks."""
        async with self._turns.setdefault(queue, asyncio.Lock()):
            topic = queue.broker_name, queue.topic
            if topic in self._begun:
                await self._begun[topic].wait()
                return await self._update(queue, offset)
            begun = self._begun[topic] = asyncio.Event()
            try:
                await self._update(queue, offset)
            except BaseException:
                # The next one is the first. The waiting caller goes on: a broker that is away would
                # keep each of them.
                del self._begun[topic]
                raise
            finally:
                begun.set()

    async def _update(self, queue: MessageQueue, offset: int) -> None:
        request = requests.UpdateConsumerOffset(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        await self._ask(queue, request)

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Their brokers may have lost the last commits: the next in each topic is a first one
        again."""
        for queue in queues:
            begun = self._begun.get((queue.broker_name, queue.topic))
            if begun is not None and begun.is_set():
                del self._begun[queue.broker_name, queue.topic]

    async def flush(self, *, acknowledged: bool = False) -> None:
        """Nothing is left to do: the brokers write down what is committed."""

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest message that is kept."""
        request = requests.GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self._ask(queue, request)).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the newest message."""
        request = requests.GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self._ask(queue, request)).offset

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at or after that time (ms since 1970 UTC)."""
        request = requests.SearchOffset(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
        )
        return (await self._ask(queue, request)).offset

    async def starting_offset(
        self, queue: MessageQueue, consume_from: ConsumeFrom | datetime
    ) -> StartOffset:
        """Where to begin (``RebalancePushImpl.computePullFromWhere``).

        A 0 may be the offset that is kept, or say only that the queue is young: it holds as long as
        the broker is asked in time, and is to be committed like an offset that nobody has kept
        (Java commits whatever was answered, ``RemoteBrokerOffsetStore.readOffset``)."""
        zero_if_young = consume_from in (ConsumeFrom.LAST, ConsumeFrom.FIRST)
        committed = await self.committed(queue, zero_if_young=zero_if_young)
        if committed is not None and committed >= 0:
            is_retry = queue.topic.startswith(RETRY_PREFIX)
            if committed == 0 and consume_from is ConsumeFrom.LAST and not is_retry:
                _read_from_beginning(queue, self._group, kind=(queue, self._group))
            return StartOffset(committed, answered=True, stored=committed > 0)
        return StartOffset(
            await self.first_offset(queue, consume_from), answered=False, stored=False
        )

    async def first_offset(self, queue: MessageQueue, consume_from: ConsumeFrom | datetime) -> int:
        """Where to begin without an offset."""
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if isinstance(consume_from, datetime) and not is_retry:
            return await self.offset_at(queue, int(consume_from.timestamp() * 1000))
        if consume_from is ConsumeFrom.NOW and not is_retry:
            return await self.offset_at(queue, self._began_ms)
        if consume_from is ConsumeFrom.LAST and not is_retry:
            return await self.max_offset(queue)
        return 0  # the first pull corrects it to the oldest there is

    async def _ask(self, queue: MessageQueue, request: Request[ReplyT]) -> ReplyT:
        address = self._instance.routes.address_of(queue.broker_name, topic=queue.topic)
        if address is None:
            raise ConnectError(f"no address is known for broker {queue.broker_name}")
        return await self._instance.remoting.call(
            address, request, timeout=self._instance.call_timeout
        )


# --- The offsets of a broadcasting consumer: ``<directory>/<clientId>/<group>/offsets.json``, in
# Apache's format (``LocalFileOffsetStore``), so that a Java client of that id can go on with them.

SAVE_PATIENCE_S: Final = 3.0
"""Longest wait for the disk when a consumer closes."""


def default_directory() -> Path:
    """``~/.rocketmq_offsets``, as Java's clients have it."""
    return below_home(".rocketmq_offsets", instead="offsets_directory")


class LocalOffsets:
    """The offsets of one broadcasting consumer. ``brokers`` knows where queues begin and end.
    ``disk`` is the system's unless given.

    Raises ConfigError if the client id or the group cannot be the name of a directory, or the file
    cannot be read (OSError).
    """

    def __init__(
        self,
        brokers: OffsetStore,
        directory: Path,
        client_id: str,
        group: str,
        disk: Disk | None = None,
    ) -> None:
        for name in (client_id, group):
            if "/" in name or "\0" in name or name in (".", ".."):
                raise ConfigError(
                    f"{name!r} is to be the name of a directory for offsets and "
                    "cannot be; choose another name"
                )
        self.path = directory / client_id / group / "offsets.json"
        self._brokers = brokers
        self._own_disk = disk is None
        if disk is None:  # its module needs Unix, which other clients do without
            from turbopump.disk.system_disk import SystemDisk

            disk = SystemDisk(asyncio.get_running_loop().call_soon_threadsafe)
        self._disk = disk
        self._table = JsonTable(
            self._disk,
            self.path,
            lambda text: log.warning("offsets: %s", text),
            on_settled=self._saved,
        )
        self._settled: asyncio.Future[None] | None = None
        self._dirty = False
        try:
            read = self._table.load(
                lambda data: fastjson.decode(data, requests.OffsetSerializeWrapper),
                requests.OffsetSerializeWrapper,
            )
        except OSError as error:
            raise ConfigError(
                f"the offsets in {self.path} cannot be read ({error.strerror or error})"
            ) from None
        self._offsets = dict(read.offset_table)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Note our offset; ``flush`` writes it down."""
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._dirty = True

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """The file forgets nothing."""

    async def flush(self, *, acknowledged: bool = False) -> None:
        """Write the file, if anything has changed. ``acknowledged``: wait until it is written, or
        until the disk has failed."""
        if self._dirty:
            self._dirty = False
            self._table.save(
                fastjson.encode_indented(
                    requests.OffsetSerializeWrapper(offset_table=self._offsets)
                )
            )
        if acknowledged and self._table.saving:
            self._settled = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._settled], timeout=SAVE_PATIENCE_S)

    async def starting_offset(
        self, queue: MessageQueue, consume_from: ConsumeFrom | datetime
    ) -> StartOffset:
        """Where to begin: as the file says, or where a queue without an offset is begun."""
        offset = self._offsets.get(queue)
        if offset is not None and offset >= 0:
            return StartOffset(offset, answered=True, stored=True)
        return StartOffset(
            await self._brokers.first_offset(queue, consume_from), answered=False, stored=False
        )

    async def close(self) -> None:
        """Write what has changed and let go of the disk."""
        await self.flush(acknowledged=True)
        if self._own_disk:
            self._disk.close()

    def _saved(self, good: bool) -> None:
        self._dirty = self._dirty or not good  # the next flush tries again
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
