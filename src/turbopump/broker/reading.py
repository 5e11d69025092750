"""Bridge from asynchronous callers to the reads of the store.

The store reads in steps (``store/log/cold_reads.py``). Three functions run these steps:

- ``answer`` reads for a request. Data in memory are answered at once, without a task.
  Other reads wait for their turn among all readers, and are answered later unless the
  peer has gone.
- ``read`` reads for a task that serves a consumer (POP). It also waits for its turn among
  all readers.
- ``ask`` reads for a task of the broker's own (timers, delays, transactions). It does not
  wait for other readers: data in the system's cache are read at once, the rest in a
  thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeVar

from turbopump.disk.disk import Found, Piece
from turbopump.errors import ReadsRefusedError, StoreError
from turbopump.filtering.tag import code_filter
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import ReplyT
from turbopump.remoting.response import Refusal, refusal
from turbopump.remoting.router import HELD, Outcome, RequestContext
from turbopump.remoting.turns import Turns, awaited
from turbopump.store.log.cold_reads import ColdReads, ReadState, ReadSteps
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.checked_entries import REBUILDING
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.queues.lookup import Lookup, StoredEntry, possible_units
from turbopump.store.queues.matching import PropertyFilter
from turbopump.store.queues.read_result import GetResult

T = TypeVar("T")

REBUILD_WAIT_S: Final = 5.0
"""Maximum seconds to wait for the rebuild of a damaged queue. The queue of a log of 1 GB takes
about two seconds."""

BUSY = refusal(
    ResponseCode.SYSTEM_BUSY, "broker busy: too many reads wait for the disk; try again later"
)


def answer(
    reads: ColdReads,
    steps: ReadSteps[T],
    respond: Callable[[T], Outcome[ReplyT]],
    context: RequestContext,
    *,
    busy: Refusal = BUSY,
    again: Callable[[], None] | None = None,
) -> Outcome[ReplyT]:
    """Run a read of the store, and answer a request with the result.

    - ``respond``: a function that makes the answer from the result of the read.
    - ``busy``: the answer if too many reads wait.
    - ``again``: a function that restarts a read which was dropped because its peer had not
      read earlier answers.

    Return HELD if the answer is sent later.
    """

    def done(outcome: T) -> None:
        if not context.peer.closed:
            context.settle_call(respond, outcome)

    def failed(error: Exception) -> None:
        if not context.peer.closed:
            context.fail(error)

    def wanted() -> bool:
        if again is not None and context.served.full:
            context.served.when_room(again)
            return False
        return not context.peer.closed

    try:
        outcome = _start(reads, steps, done, wanted, failed)
    except ReadsRefusedError:
        return busy
    if outcome is ReadState.PENDING:
        return HELD
    return respond(outcome)


async def read(reads: ColdReads, steps: ReadSteps[T]) -> T:
    """Run a read of the store and return the result. The read takes its turn among other reads.

    Raises ReadsRefusedError if too many reads wait, and the errors of the read.
    """
    later: asyncio.Future[T]
    later, done, failed = awaited()
    outcome = _start(reads, steps, done, lambda: True, failed)
    if outcome is ReadState.PENDING:
        return await later
    return outcome


async def ask(reads: ColdReads, steps: ReadSteps[T], turns: Turns) -> T:
    """Run a read of the store and return the result. The read does not wait for other readers.

    ``turns`` pauses the read between steps, so that the event loop can do other work. Raises
    ReadsRefusedError if too many reads wait, and the errors of the read.
    """
    try:
        pieces = next(steps)
        while True:
            if not pieces:
                await turns.pause()
            pieces = steps.send(await read_pieces(reads, pieces))
    except StopIteration as end:
        value: T = end.value
        return value


def entry_for(
    context: RequestContext, lookup: Lookup, offset: int
) -> ReadSteps[StoredEntry | None]:
    """Return the log entry at an offset that a client has sent, or None.

    Unless the client may read everything, it must be proven that an entry begins at this offset.
    RocketMQ returns anything that looks like an entry.
    """
    if context.judge_topic is None:  # who asks may read everything
        return lookup.entry_at(offset)
    return lookup.proven_entry_at(offset)


async def read_pieces(reads: ColdReads, pieces: Sequence[Piece]) -> list[Found]:
    """Read pieces of files, and return the bytes or the error for each piece.

    Raises ReadsRefusedError if too many reads wait.
    """
    found = [piece.segment.read_cached(piece.at, piece.size) for piece in pieces]
    missing = [piece for piece, data in zip(pieces, found, strict=True) if data is None]
    rest = iter(await read(reads, _all(missing)) if missing else ())
    return [next(rest) if data is None else data for data in found]


async def read_queue(
    store: MessageStore,
    topic: str,
    queue_id: int,
    start: int,
    count: int,
    codes: frozenset[int] = frozenset(),
    matches: PropertyFilter | None = None,
) -> GetResult:
    """Read at most ``count`` messages of a queue, beginning at the queue offset ``start``.

    Only messages with one of the tag ``codes``, and only those that match ``matches``, are
    returned. If a part of the queue is damaged, the call waits for its rebuild for at most
    ``REBUILD_WAIT_S``. Raises StoreError if that part is not rebuilt by then, if too many reads
    wait for the disk, or if the disk fails.
    """
    deadline = asyncio.get_running_loop().time() + REBUILD_WAIT_S
    while True:
        steps = store.reader.steps(topic, queue_id, start, count, code_filter(codes), matches)
        result = await read(store.cold_reads, steps)
        if result.unreadable is None:
            return result
        over: asyncio.Future[None]
        over, done, _ = awaited()
        if result.unreadable is not REBUILDING or not when_rebuilt(
            store, deadline, partial(done, None)
        ):
            raise StoreError(result.unreadable)
        await over


async def read_units(
    store: MessageStore, queue: ConsumeQueue, index: int, count: int, turns: Turns
) -> bytes:
    """Return at most ``count`` raw units of a consume queue, beginning at ``index``.

    Raises StoreError if there is no such unit, or while it is being rebuilt. Raises OSError if the
    disk fails.
    """
    reads = store.cold_reads
    units = await ask(reads, possible_units(queue, index, count, store.rebuild.mark_unit), turns)
    if isinstance(units, OSError):
        raise units
    if not units:
        raise StoreError(f"queue offset {index} of {queue.topic} cannot be found")
    return units


def when_rebuilt(store: MessageStore, deadline: float, then: Callable[[], object]) -> bool:
    """Call ``then`` at the end of the running rebuild of queues, or at ``deadline``.

    ``deadline`` is a time of the event loop, in seconds. Return False if no rebuild is running, or
    if the deadline has passed.
    """
    loop = asyncio.get_running_loop()
    if loop.time() >= deadline:
        return False

    def over() -> None:
        timer.cancel()
        then()

    def too_late() -> None:
        store.rebuild.stop_waiting(over)
        then()

    timer = loop.call_at(deadline, too_late)
    if store.rebuild.when_over(over):
        return True
    timer.cancel()
    return False


def _start(
    reads: ColdReads,
    steps: ReadSteps[T],
    done: Callable[[T], None],
    wanted: Callable[[], bool],
    failed: Callable[[Exception], None],
) -> T | Literal[ReadState.PENDING]:
    outcome = reads.run(steps, done, wanted, failed)
    if outcome is ReadState.REFUSED:
        raise ReadsRefusedError
    return outcome


def _all(pieces: list[Piece]) -> ReadSteps[list[Found]]:
    return (yield pieces)
