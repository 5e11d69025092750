"""Copying of one queue to a queue of another cluster, in order.

One task reads ahead. Another sends a batch, waits for its answer, and sends the next one. Only one
batch of a queue is under way, because Apache's broker may store two in the other order. Speed comes
from many messages in a batch, and many queues.

One rule: before a batch is sent on a new connection, or after a failure, the end of the target
queue is read. It tells which messages of a batch without an answer are stored, and whether the
target has lost its newest messages in a power cut. So a message is stored twice only if it arrives
after that, or if the mirror was killed. Which topics are mirrored is unknown here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from turbopump.admin.mirror.mirrored_cluster import AGAIN_S, TIMEOUT_S, MirroredCluster
from turbopump.admin.mirror.origin import MarkWriter, MirroredMessage, Origin, copied, origin_of
from turbopump.admin.mirror.read_back import BATCH_COUNT, find_copies, is_copy_of
from turbopump.errors import ConnectError, MirrorError, RemotingError, ResponseError
from turbopump.message.entry import queue_offset_of
from turbopump.message.message import BODY_SIZE_MAX, MessageQueue
from turbopump.protocol.codes import TEMPORARY_REFUSALS, ResponseCode
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageReply, SendMessageV2
from turbopump.remoting.client import refused_by
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_unsafe = RepeatedLine(log, logging.WARNING, "copies are stored but not safe yet queue=%s cause=%s")

PRODUCER_GROUP: Final = "TURBOPUMP_MIRROR"
BATCH_SIZE: Final = 256 * 1024
"""Size in bytes of bodies and properties from which a batch is sent."""
READ_AHEAD: Final = 256
"""Number of messages in the buffer from which reading waits for sending."""
HOLD_S: Final = 10.0
"""Seconds for which the source broker waits for new messages before it answers a pull."""
SETTLE_S: Final = 3.0
"""Seconds after a batch without an answer. If the batch is not in its queue then, it is sent
again."""
_END_ASKED_MAX: Final = 3
_STORED: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Codes for messages that are stored, but not flushed or replicated yet."""


class _TargetShrunkError(Exception):
    """The target queue ends before the newest copy that it has acknowledged."""


@dataclass(slots=True)
class QueueCounts:
    """Counts of one queue in this run.

    - ``sent``: messages that the target has stored.
    - ``repeated``: messages of them that were stored once more.
    - ``lost``: messages that the source had deleted before they were read.
    - ``returned``: messages that come from the target cluster, and are not sent back.
    - ``damaged``: messages whose bytes are damaged at the source.
    """

    sent: int = 0
    repeated: int = 0
    lost: int = 0
    returned: int = 0
    damaged: int = 0


@dataclass(eq=False)
class QueueMirror:
    """Mirror of one queue.

    - ``follow``: continue at the end of the source queue.
    - ``skip_lost``: continue after messages that the source has deleted.
    - ``until``: source offset at which the mirror ends, or None.
    - ``next_offset``: offset of the next message of the source.
    - ``target_end``: offset after the newest message of the target queue, as far as is known.
    - ``others``: first offset in the target queue, after a copy, of a message that is no copy.
    - ``source_end``: end of the source queue at the last pull.
    """

    source: MirroredCluster
    target: MirroredCluster
    source_queue: MessageQueue
    target_queue: MessageQueue
    follow: bool
    skip_lost: bool
    until: int | None = None
    counts: QueueCounts = field(default_factory=QueueCounts)
    next_offset: int = 0
    target_end: int = 0
    others: int | None = None
    source_end: int = 0
    ready: bool = False
    """True once the target was searched."""

    def __post_init__(self) -> None:
        queue = self.source_queue
        self._marks = MarkWriter(self.source.name, queue.broker_name, queue.queue_id)
        self._unstored: deque[MirroredMessage] = deque()
        """Messages of the batch that is under way, without those that are stored."""
        self._checked: Wire | None = None
        """Connection on which the end of the target queue was read after the last failure."""
        self._in_doubt = False
        self._stopped = False
        self._reader: asyncio.Task[None] | None = None
        self._buffer: list[MirroredMessage] = []
        self._read_to = 0
        """Source offset after the messages in the buffer."""
        self._news = asyncio.Event()
        self._taken = asyncio.Event()

    async def run(self) -> None:
        """Copy messages until the end, or until ``stop``.

        Raises MirrorError if the queue cannot be mirrored.
        """
        while True:
            await self._find_start()
            try:
                await self._copy()
            except _TargetShrunkError:
                log.warning(
                    "target has lost its newest messages, they are copied again queue=%s "
                    "target_end=%d",
                    self.target_queue,
                    self.target_end,
                )
                continue
            return

    def stop(self) -> None:
        """End the run after the batch that is under way."""
        self._stopped = True
        if self._reader is not None:
            self._reader.cancel()

    @property
    def behind(self) -> int:
        """Number of messages that are not copied yet."""
        return max(0, self.source_end - self.next_offset)

    # --- start

    async def _find_start(self) -> None:
        queue = self.source_queue
        found = await self.target.patiently(
            f"reading the end of {self.target_queue}",
            lambda: find_copies(self.target, self.target_queue, queue, self.source.name),
        )
        first, end = await self.source.patiently(
            f"asking for the offsets of {queue}", lambda: self.source.bounds(queue)
        )
        self.target_end, self.others = found.end, found.others
        self.source_end = end
        if not self.follow and self.until is None:
            self.until = end
        self.next_offset = first
        if found.newest:
            self.next_offset = await self._offset_after(found.newest)
            self._refuse_other_queue(end)
        self.ready = True

    async def _offset_after(self, newest: Sequence[Origin]) -> int:
        """Return the source offset at which to continue after the newest copies.

        A copy beyond a missing one does not count: the missing one is stored first, and then it is
        stored again. If no message between two originals was to be copied, nothing is missing.
        """
        following = max(origin.offset - origin.back for origin in newest)
        for offset in (origin.offset for origin in newest):
            if offset == following or (
                offset > following and not await self._lacks_copies(following, offset)
            ):
                following = offset + 1
        return following

    async def _lacks_copies(self, begin: int, end: int) -> bool:
        """Return True if the source has a message to copy between two offsets."""
        queue = self.source_queue
        while begin < end:
            found = await self.source.patiently(
                f"reading {queue}",
                lambda: self.source.pull(queue, begin, end - begin),  # noqa: B023
            )
            if any(one.offset < end for one in self._wanted(found.entries)):
                return True
            if found.next_offset <= begin:
                return False
            begin = found.next_offset
        return False

    def _wanted(self, entries: Sequence[bytes]) -> list[MirroredMessage]:
        """Return copies of stored messages, without those that come from the target cluster."""
        messages = [copied(entry) for entry in entries]
        return [one for one in messages if self.target.name not in one.before]

    def _refuse_other_queue(self, end: int) -> None:
        if self.next_offset > end:
            raise MirrorError(
                f"{self.target_queue} has copies up to offset {self.next_offset - 1} of "
                f"{self.source_queue} of cluster {self.source.name}, which ends at {end}: the "
                "source topic was made again, or its broker has lost messages. Mirror with "
                "another --from-name, which begins at the first message, or delete the target topic"
            )

    # --- reading

    async def _read_ahead(self) -> None:
        """Read the source queue into the buffer, up to the end or until cancelled."""
        while self.until is None or self._read_to < self.until:
            await self._pull()
            self._news.set()
            while len(self._buffer) >= READ_AHEAD:
                self._taken.clear()
                await self._taken.wait()

    async def _pull(self) -> None:
        queue, offset = self.source_queue, self._read_to
        found = await self.source.patiently(
            f"reading {queue}", lambda: self.source.pull(queue, offset, hold_s=HOLD_S)
        )
        self.source_end = found.end
        if found.gone:
            self._read_to = self._skip_gone(offset, found.first, found.end)
            if self._read_to == offset:  # an empty queue, and the broker has not waited
                await asyncio.sleep(AGAIN_S)
            return
        self.counts.damaged += found.damaged
        wanted = self._wanted(found.entries)
        self.counts.returned += len(found.entries) - len(wanted)
        self._buffer += wanted
        self._read_to = max(offset, found.next_offset)

    def _skip_gone(self, offset: int, first: int, end: int) -> int:
        """Return the offset at which to continue if the source queue does not have ``offset``."""
        if offset > end:
            self._refuse_other_queue(end)
        lost = first - offset
        if lost <= 0:
            return offset
        text = (
            f"{lost:,} messages of {self.source_queue} are gone: the source has deleted those from "
            f"offset {offset} to {first - 1} before they were read"
        )
        if not self.skip_lost:
            raise MirrorError(f"{text}. --skip-lost continues after them, and counts them")
        log.warning("messages are gone queue=%s from=%d to=%d", self.source_queue, offset, first)
        self.counts.lost += lost
        return first

    # --- sending

    async def _copy(self) -> None:
        self._buffer.clear()
        self._read_to = self.next_offset
        reader = self._reader = asyncio.create_task(self._read_ahead())
        reader.add_done_callback(lambda _: self._news.set())
        try:
            while not self._stopped:
                if not reader.done():
                    await self._news.wait()
                    self._news.clear()
                if self._read_to > self.next_offset:
                    messages, following = self._buffer, self._read_to
                    self._buffer = []
                    self._taken.set()
                    for batch in batches(messages):
                        await self._store(batch)
                    self.next_offset = following
                elif reader.done() and not self._stopped:
                    return reader.result()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _store(self, batch: Sequence[MirroredMessage]) -> None:
        """Store a batch in the target queue, in its order."""

        self._unstored = deque(batch)

        async def attempt() -> None:
            await self._check_target()
            left = list(self._unstored)
            if left:
                await self._note_stored(left, await self._send(left))

        while self._unstored:
            await self.target.patiently(f"sending to {self.target_queue}", attempt)

    async def _check_target(self) -> None:
        """Read the end of the target queue if it may have changed without an answer to this mirror.

        Raises RemotingError, and _TargetShrunkError if the queue lacks messages that it had.
        """
        connection = self.target.connection(self.target_queue.broker_name)
        if connection is not None and connection is self._checked:
            return
        if self._in_doubt:
            await asyncio.sleep(SETTLE_S)
        end = await self.target.end(self.target_queue)
        asked = 1
        while end < self.target_end and asked < _END_ASKED_MAX:
            await asyncio.sleep(AGAIN_S)  # Apache's brokers count a message after its answer
            end = await self.target.end(self.target_queue)
            asked += 1
        if end < self.target_end:
            raise _TargetShrunkError
        await self._read_arrivals(end)
        self._in_doubt = False
        self._checked = self.target.connection(self.target_queue.broker_name)

    async def _read_arrivals(self, end: int) -> None:
        """Read the messages that were stored in the target queue since the last answer.

        They are copies whose answers did not arrive, and messages of other producers.
        """
        for entry in await self.target.read(self.target_queue, self.target_end, end):
            origin = origin_of(entry)
            if origin is not None and is_copy_of(self.source_queue, self.source.name, origin):
                self._count_stored(origin.offset)
            elif self.others is None:
                self.others = queue_offset_of(entry)
                log.warning(
                    "target queue has messages of other producers queue=%s offset=%d",
                    self.target_queue,
                    self.others,
                )
        self.target_end = max(self.target_end, end)

    def _count_stored(self, offset: int) -> None:
        """Count a copy in the target. Only the next one of the batch ends its wait: after a power
        cut, copies before it may be missing."""
        if self._unstored and self._unstored[0].offset == offset:
            self._unstored.popleft()
            self.counts.sent += 1
        else:
            self.counts.repeated += 1

    async def _send(self, batch: Sequence[MirroredMessage]) -> int:
        """Send a batch once. Return the offset of its first message in the target queue.

        Raises RemotingError. The messages are in doubt then, unless the broker has refused them.
        """
        queue = self.target_queue
        first = batch[0]
        body = self._marks.batch(batch, self.others)
        request: SendMessageV2 = SendBatchMessage(
            producer_group=PRODUCER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            sys_flag=first.sys_flag,
            born_timestamp=first.born_timestamp,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=True,
            broker_name=queue.broker_name,
        )
        if len(body) > BODY_SIZE_MAX:  # one message, which is as large as a message may be
            text = self._marks.properties(first, first, self.others)
            request = SendMessageV2(
                producer_group=PRODUCER_GROUP,
                topic=queue.topic,
                queue_id=queue.queue_id,
                sys_flag=first.sys_flag,
                born_timestamp=first.born_timestamp,
                flag=first.flag,
                properties=str(text, "utf-8", "replace"),
                reconsume_times=0,
                unit_mode=False,
                batch=False,
                broker_name=queue.broker_name,
            )
            body = first.body
        try:
            address = self.target.address(queue.broker_name)
            answer = await self.target.servers.exchange(address, request, body, timeout=TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS and answer.code not in _STORED:
                raise refused_by(address, request, answer)
        except RemotingError as error:
            code = error.code if isinstance(error, ResponseError) else None
            self._in_doubt = code not in TEMPORARY_REFUSALS and not isinstance(error, ConnectError)
            self._checked = None
            raise
        if answer.code in _STORED:
            _unsafe(queue, answer.remark, kind=queue.broker_name)
        return answer.header(SendMessageReply).queue_offset

    async def _note_stored(self, batch: Sequence[MirroredMessage], at: int) -> None:
        """Count a batch whose first message is stored at this offset of the target queue."""
        if at < self.target_end:
            raise MirrorError(
                f"{self.target_queue} has stored a copy at offset {at}, though it had messages up "
                f"to {self.target_end - 1}: some are lost there. Delete the target topic and "
                "mirror it again"
            )
        if at > self.target_end:
            self._checked, self._in_doubt = None, True  # if this read fails, it is done again
            await self._read_arrivals(at)
            self._in_doubt = False
        for message in batch:
            self._count_stored(message.offset)
        self.target_end = at + len(batch)


def batches(messages: Sequence[MirroredMessage]) -> Iterator[Sequence[MirroredMessage]]:
    """Divide messages into batches. The messages of a batch have the same kind of compression."""
    begin = size = 0
    for number, message in enumerate(messages):
        if number > begin and (
            number - begin >= BATCH_COUNT
            or size >= BATCH_SIZE
            or size + len(message.body) > BODY_SIZE_MAX // 2
            or message.sys_flag != messages[begin].sys_flag
        ):
            yield messages[begin:number]
            begin, size = number, 0
        size += len(message.body) + len(message.properties)
    if messages:
        yield messages[begin:]
