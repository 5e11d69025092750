"""Asking the store a question from a task: what is in memory is read at once, the rest beside the
loop (``store/log/cold_reads.py``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from turbopump.broker.pop.offsets import GroupQueue
from turbopump.errors import StoreError
from turbopump.filtering.tag import code_filter
from turbopump.protocol.codes import ResponseCode
from turbopump.remoting.router import RequestContext, Response, failure
from turbopump.store.disk import Found, Piece
from turbopump.store.log.cold_reads import ColdReads, Later, Question, Steps
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.checked_entries import GetResult
from turbopump.store.queues.queue_reader import Wanted

T = TypeVar("T")


async def ask(reads: ColdReads, question: Question[T]) -> T:
    """The answer. Where the question pauses, others have their turn. Raises what the question
    raises, and StoreError if too many wait for the disk."""
    try:
        wanted = next(question)
        while True:
            if wanted is None:
                await asyncio.sleep(0)
            wanted = question.send(await read_pieces(reads, wanted) if wanted else [])
    except StopIteration as end:
        value: T = end.value
        return value


async def read_pieces(reads: ColdReads, pieces: Sequence[Piece]) -> list[Found]:
    """The bytes of each piece, or the error. Raises StoreError if too many wait for the disk."""
    found: list[Found | None] = [
        piece.segment.read_cached(piece.at, piece.size) for piece in pieces
    ]
    missing = [piece for piece, data in zip(pieces, found, strict=True) if data is None]
    if not missing:
        return [data for data in found if data is not None]
    later: asyncio.Future[list[Found]] = asyncio.get_running_loop().create_future()

    def done(outcome: list[Found]) -> None:
        if not later.done():
            later.set_result(outcome)

    outcome = reads.run(_steps(missing), done)
    if outcome is Later.REFUSED:
        raise StoreError("too many reads wait for the disk")
    rest = iter(await later if outcome is Later.PENDING else outcome)
    return [data if data is not None else next(rest) for data in found]


def _steps(pieces: list[Piece]) -> Steps[list[Found]]:
    return (yield pieces)


# --- Asking the store single questions without holding up the loop.
#
# A question (``store/log/cold_reads.py``) says which pieces of files it wants. Those that the system has in
# memory are read at once, so most questions are answered in the turn in which they came; at the first
# piece that is not in memory, or after a long walk, the rest goes on later. It must not know what is
# asked.


class Questions:
    """Asks questions, for handlers."""

    def __init__(self, reads: ColdReads) -> None:
        self._reads = reads

    def ask(
        self, question: Question[T], respond: Callable[[T], Response], context: RequestContext
    ) -> Response | None:
        """The response, which ``respond`` makes from the answer; None: it is sent later, or never,
        if the peer has gone."""
        return _Asked(self._reads, question, respond, context).go_on()

    async def answer(self, question: Question[T]) -> T:
        """The answer, for the broker's own use. Raises what the question does, and StoreError if
        too many reads wait for the disk."""
        while True:
            found: asyncio.Future[_Answer[T] | None] = asyncio.get_running_loop().create_future()
            outcome = self._reads.run(_until_pause(question), partial(_settle, found))
            if outcome is Later.REFUSED:
                raise StoreError("too many reads wait for the broker's disk")
            settled = await found if outcome is Later.PENDING else outcome
            if settled is not None:
                return settled.value()
            await asyncio.sleep(0)


class _Asked(Generic[T]):
    """One question on its way."""

    def __init__(
        self,
        reads: ColdReads,
        question: Question[T],
        respond: Callable[[T], Response],
        context: RequestContext,
    ) -> None:
        self._reads = reads
        self._question = question
        self._respond = respond
        self._context = context

    def go_on(self) -> Response | None:
        outcome = self._reads.run(_until_pause(self._question), self._arrived, self._wanted)
        if outcome is Later.PENDING:
            return None
        if outcome is Later.REFUSED:
            return Response(
                code=ResponseCode.SYSTEM_BUSY,
                remark="broker busy: too many reads wait for the disk; try again later",
            )
        return self._judge(outcome)

    def _judge(self, outcome: _Answer[T] | None) -> Response | None:
        if outcome is not None:
            return self._respond(outcome.value())
        asyncio.get_running_loop().call_soon(self._answer_with, self.go_on)
        return None

    def _arrived(self, outcome: _Answer[T] | None) -> None:
        self._answer_with(lambda: self._judge(outcome))

    def _answer_with(self, make: Callable[[], Response | None]) -> None:
        if not self._wanted():
            return
        try:
            response = make()
        except Exception as error:
            response = failure(error, self._context)
        if response is not None:
            self._context.answer(response)

    def _wanted(self) -> bool:
        return not self._context.peer.closed


class _Answer(Generic[T]):
    """What a question came to; ``value`` gives it, or raises the error in which it ended."""

    __slots__ = ("value",)

    def __init__(self, value: Callable[[], T]) -> None:
        self.value = value


def _settle(found: asyncio.Future[T], outcome: T) -> None:
    if not found.done():  # else whoever asked has gone
        found.set_result(outcome)


def _until_pause(question: Question[T]) -> Steps[_Answer[T] | None]:
    """The answer, or None where the question lets others have their turn."""
    try:
        wanted = next(question)
        while wanted is not None:
            wanted = question.send((yield wanted))
    except StopIteration as end:
        value: T = end.value
        return _Answer(lambda: value)
    except Exception as error:
        failed = error

        def fail() -> T:
            raise failed

        return _Answer(fail)
    return None


# --- Reading a queue from a coroutine: what is not in memory is waited for.


async def read_queue(
    store: MessageStore,
    place: GroupQueue,
    start: int,
    count: int,
    codes: frozenset[int] = frozenset(),
    matches: Wanted | None = None,
) -> GetResult:
    """At most ``count`` messages from queue offset ``start`` on, of all or with one of these tag
    ``codes``, that ``matches``. Raises StoreError if too many reads wait for the disk, or it does
    not give what is there."""
    found: asyncio.Future[GetResult] = asyncio.get_running_loop().create_future()
    result = store.reader.start(
        place.topic,
        place.queue_id,
        start,
        count,
        code_filter(codes),
        lambda outcome: None if found.done() else found.set_result(outcome),
        wanted=lambda: True,
        matches=matches,
    )
    if result is Later.REFUSED:
        raise StoreError("too many reads wait for the broker's disk; ask again in a moment")
    result = await found if result is Later.PENDING else result
    if result.unreadable is not None:
        raise StoreError(result.unreadable)
    return result
