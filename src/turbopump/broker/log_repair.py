"""Repair of damaged parts of the log with data from another broker of the same name.

Master and slave have the same log, byte for byte. When a scrub, a start or a reader finds damage,
this broker requests each message in the damaged part from the other broker (request 33), checks it
and writes it in place. A message that cannot have been there is not written, because the other
broker may have another log. A part that the device cannot read is left alone: replace that disk. A
reader waits until all damaged parts that are due have been requested, for at most 2 s per message
and broker.

A damaged part is open until it is repaired, or the master has answered that it cannot help. Open
parts are requested again when this broker begins to copy from a master. A replica with an open part
must not be elected, because another one may have these messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple

from turbopump.broker.background import stop_task
from turbopump.broker.reading import ask, read_pieces
from turbopump.broker.stored import Stored
from turbopump.disk.disk import Piece
from turbopump.errors import ProtocolError, RemotingError, StoreError
from turbopump.message.codec import entry_fault, lengths_fault
from turbopump.message.entry import FIXED_SIZE
from turbopump.message.properties import SysFlag
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.namesrv import GetBrokerClusterInfo
from turbopump.protocol.requests.pull import ViewMessageById
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.turns import awaited
from turbopump.store.log.parsed_entry import INNER_COUNT_MAX, parse_entry
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, ConsumeQueue
from turbopump.store.queues.lookup import StoredEntry
from turbopump.store.queues.read_result import DamagedMessage
from turbopump.store.recovery.log_replay import is_in_no_queue
from turbopump.store.repair.scrub import Scrub

log = logging.getLogger(__name__)

ANSWER_S: Final = 2.0
AGAIN_S: Final = 60.0
"""Minimum seconds between two requests for the same range."""
UNREACHED_S: Final = 2.0
"""Seconds until the next request for a range, if no other broker could be asked."""
RANGE_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes that are fetched of a damaged range. They are its first ones."""
RANGES_MAX: Final = 10_000
"""Maximum number of ranges whose last request is remembered."""


class State(Enum):
    """State of a damaged range that is not repaired."""

    DUE = auto()
    UNREACHED = auto()
    """The master could not be asked. It is asked again after UNREACHED_S."""
    UNWRITTEN = auto()
    """Its messages were fetched, and could not be written."""
    IN_VAIN = auto()
    """The master has no usable message there."""


class Range(NamedTuple):
    """Part of the commit log, from the offset ``start`` to the offset ``end``."""

    start: int
    end: int


class Copies(NamedTuple):
    """Addresses of the other brokers of this name, beginning with the master.

    - ``deciding``: the brokers whose answer is final. This is the master, or at the master each
      other broker.
    """

    addresses: Sequence[str] = ()
    deciding: Sequence[str | None] = ()


def damaged_ranges(damages: Iterable[DamagedMessage | StoredEntry]) -> list[Range]:
    """Return the ranges of the log that a read found damaged."""
    return [Range(one.offset, one.offset + one.size) for one in damages]


@dataclass(eq=False)
class LogRepair:
    """Repair of the log with data from other brokers of the same name.

    The name servers give the addresses of these brokers. ``address`` is this broker's own address,
    which is left out.
    """

    stored: Stored
    remoting: RemotingClient
    address: str
    mended: int = 0
    """Number of messages that were repaired since the start."""
    _due: dict[Range, None] = field(default_factory=dict)
    _now: dict[Range, None] = field(default_factory=dict)
    _tried: dict[Range, float] = field(default_factory=dict)
    _waiting: list[Callable[[], object]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None
    _damaged: dict[Range, State] = field(default_factory=dict)
    """Ranges that are not repaired."""
    _timer: asyncio.TimerHandle | None = None

    @property
    def open_from(self) -> int | None:
        """Log offset of the first open damage, or None if there is none."""
        log_start = self.stored.store.log.start
        return min(
            (
                one.start
                for one, state in self._damaged.items()
                if state is not State.IN_VAIN and one.end > log_start
            ),
            default=None,
        )

    def fetch_again(self) -> None:
        """Start to repair all known damaged ranges at once, because a master can be asked."""
        self._fetch_now(list(self._damaged))

    def _fetch_now(self, ranges: Sequence[Range]) -> None:
        """Start to repair ranges, also those that were tried less than AGAIN_S ago."""
        for one in ranges:
            self._tried.pop(one, None)
        self.fetch(ranges)

    async def stop(self) -> None:
        """Stop the running repair. The method may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
        await stop_task(self._task)
        await self.remoting.close()

    def fetch(self, ranges: Iterable[Range], then: Callable[[], object] | None = None) -> bool:
        """Start to repair damaged ranges of the log, and call ``then`` at the end.

        Return False, without a call of ``then``, if there is nothing to repair now: no name server
        is configured, or all ranges were tried less than AGAIN_S ago.
        """
        if not self.stored.config.namesrv_addresses:
            return False
        now = asyncio.get_running_loop().time()
        begun = False
        if len(self._tried) >= RANGES_MAX:
            self._tried.clear()
            self._damaged.clear()
        for one in ranges:
            if one in self._due or one in self._now:
                begun = True
            elif now - self._tried.get(one, now - AGAIN_S) >= AGAIN_S:
                begun = True
                self._tried[one] = now
                self._due[one] = None
                self._damaged.setdefault(one, State.DUE)
        if not begun:
            return False
        if then is not None:
            self._waiting.append(then)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="fetching damaged messages")
        return True

    async def fetch_and_wait(self, ranges: Iterable[Range]) -> bool:
        """Repair damaged ranges of the log, and wait for the end of the repair.

        Return True if it makes sense to read the ranges again.
        """
        over: asyncio.Future[None]
        over, done, _ = awaited()
        if not self.fetch(ranges, partial(done, None)):
            return False
        await over
        return True

    async def _run(self) -> None:
        while self._due or self._waiting:
            self._now = self._due
            self._due = {}
            waiting = self._waiting
            self._waiting = []
            try:
                if self._now:
                    copies = await self._find_copies()
                else:
                    copies = Copies()
                for one in self._now:
                    await self._fetch_range(one, copies)
            finally:
                self._now = {}
                for then in waiting:
                    then()

    async def _find_copies(self) -> Copies:
        """Ask the name servers for the other brokers of this name."""
        for server in self.stored.config.namesrv_addresses:
            try:
                found = await self.remoting.call(server, GetBrokerClusterInfo(), timeout=ANSWER_S)
            except (RemotingError, ProtocolError):
                continue
            data = found.broker_addr_table.get(self.stored.config.broker_name)
            addresses = {} if data is None else data.broker_addrs
            others = [addresses[one] for one in sorted(addresses) if addresses[one] != self.address]
            master = addresses.get(0)
            return Copies(others, others if master == self.address else [master])
        return Copies()

    async def _fetch_range(self, one: Range, copies: Copies) -> None:
        entries: list[bytes] = []
        at = one.start
        causes = list[str]()
        state = State.DUE
        while at < min(one.end, one.start + RANGE_MAX):
            entry, causes, state = await self._fetch_entry(at, one.end, copies)
            if entry is None:
                break
            entries.append(entry)
            at += len(entry)
        try:
            if entries:
                await self._write_fetched(one.start, b"".join(entries))
                self.mended += len(entries)
                log.warning(
                    "damaged part of the commit log was fetched again from another broker of this "
                    "name start=%d end=%d messages=%d",
                    one.start,
                    at,
                    len(entries),
                )
        except (StoreError, OSError) as error:
            at = one.start
            causes = [str(error)]
            state = State.UNWRITTEN
        before = self._damaged.pop(one, State.DUE)
        if at >= one.end:
            return
        self._damaged[one] = state
        if state is State.UNREACHED:
            self._fetch_soon()
        if copies.addresses and (state is not State.UNREACHED or state is not before):
            log.error(
                "damaged part of the commit log cannot be fetched again start=%d end=%d cause=%s",
                at,
                one.end,
                "; ".join(causes) or f"only the first {RANGE_MAX} bytes are",
            )

    def _fetch_soon(self) -> None:
        """Request unreached ranges again after UNREACHED_S. The other brokers may just be
        starting."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(UNREACHED_S, self._fetch_unreached)

    def _fetch_unreached(self) -> None:
        unreached = [one for one, state in self._damaged.items() if state is State.UNREACHED]
        self._fetch_now(unreached)

    async def _fetch_entry(
        self, at: int, end: int, copies: Copies
    ) -> tuple[bytes | None, list[str], State]:
        """Fetch the message at a log offset from another broker.

        If no broker has a usable message, return None and the reasons. The last value is the state
        of the range then.
        """
        causes = []
        state = State.UNREACHED
        for address in copies.addresses:
            try:
                answer = await self.remoting.exchange(
                    address, ViewMessageById(offset=at), timeout=ANSWER_S
                )
            except (RemotingError, ProtocolError) as error:
                causes.append(str(error))
                continue
            if address in copies.deciding:
                state = State.IN_VAIN
            fault: str | None = answer.remark or f"code {answer.code}"
            if answer.code == ResponseCode.SUCCESS:
                fault = self._entry_fault(answer.body, at, end)
                if fault is None:
                    return bytes(answer.body), [], State.DUE
            causes.append(f"{address}: {fault}")
        return None, causes, state

    def _entry_fault(self, entry: bytes, at: int, end: int) -> str | None:
        """Check an entry that another broker has sent for this offset. Return its fault, or None if
        it may be written."""
        crc_required = self.stored.store.log.requires_crc(at)
        fault = entry_fault(entry, at, crc_required=crc_required) or lengths_fault(entry)
        if fault is not None:
            return fault
        if at + len(entry) > end:
            return f"its message there has {len(entry)} bytes, more than are damaged here"
        parsed = parse_entry(entry, at)
        if parsed is None:
            return "the topic of its message there has an invalid name"
        if parsed.sys_flag & SysFlag.TRANSACTION_PREPARED:
            return None  # it is in no queue
        # Each message before this one in its queue has an entry before it in the log, of FIXED_SIZE
        # bytes at least; an inner batch has up to INNER_COUNT_MAX messages in one entry. An entry
        # with a larger queue offset cannot have been here: the copy has another log.
        index = parsed.queue_offset
        possible = at // FIXED_SIZE
        if is_in_no_queue(parsed, self.stored.store.queues):
            possible *= INNER_COUNT_MAX
        if index > possible:
            return (
                f"its message there has the queue offset {index}, and {possible} can be before it"
            )
        queue = self.stored.store.queues.find(parsed.topic, parsed.queue_id)
        if queue is None:
            return None
        return _queue_fault(queue, entry, at, index)

    async def _write_fetched(self, start: int, data: bytes) -> None:
        """Write fetched entries to the damaged part of the log.

        Raises StoreError if the entries cannot be written there. Raises OSError if the write fails.
        """
        store = self.stored.store
        segment_log = self.stored.store.log
        file = segment_log.files.at(start)
        if file is None or start + len(data) > min(file.end, store.durable.value):
            raise StoreError("the range is not in one file, or not on the disk yet")
        piece = Piece(file.segment, start - file.start, len(data))
        (found,) = await read_pieces(store.cold_reads, [piece])
        if isinstance(found, OSError):
            raise StoreError(f"the device cannot read that part of {file.segment.path}: replace it")
        if segment_log.files.at(start) is not file:
            raise StoreError("its file was deleted meanwhile")
        segment_log.put_right(start, data)
        synced: asyncio.Future[OSError | None]
        synced, done, _ = awaited()
        self.stored.disk.start_sync([file.segment], done)
        if (error := await synced) is not None:
            raise error
        scrub = Scrub(
            self.stored.disk,
            segment_log,
            store.queues,
            lambda: store.durable.value,
            1,
            lambda text: log.warning("store: %s", text),
            store.rebuild,
        )
        await ask(store.cold_reads, scrub.check_range(start, start + len(data)), self.stored.turns)


def _queue_fault(queue: ConsumeQueue, entry: bytes, at: int, index: int) -> str | None:
    """Check whether a fetched entry can have its queue offset. Return the fault, or None.

    The entry is compared with the queue's unit of the same offset. If the queue has no such unit,
    the entry must lie before the first unit or after the last one, with enough room in the log for
    the entries between.
    """
    unit = queue.unit(index)
    edge = index
    if unit is None:
        edge = queue.min_index if index < queue.min_index else queue.max_index - 1
        unit = queue.unit(edge)
    if unit is None or unit[1] == NO_MESSAGE_SIZE:
        return None
    between = index - edge
    if between == 0:
        possible = unit[:2] == (at, len(entry))
    else:
        room = at - unit[0] if between > 0 else unit[0] - at
        possible = abs(between) * FIXED_SIZE <= room
    if possible:
        return None
    return f"it has another log: queue offset {edge} of {queue.topic} is at {unit[0]} here"
