"""Asking the store a question from a task: what is in memory is read at once, the rest beside the
loop (``store/log/cold_reads.py``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from turbopump.errors import StoreError
from turbopump.store.disk import Found, Piece
from turbopump.store.log.cold_reads import ColdReads, Later, Question, Steps

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
