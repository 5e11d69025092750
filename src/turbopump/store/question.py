"""A question to the store, as a generator: it yields the pieces of files it wants, is sent what was
found there, and returns the answer.

Unlike the steps of ``cold_reads.py``, which it otherwise equals, it may also yield None: it wants
nothing, but has worked for a while and lets others have their turn. What it looked at before a
yield may be gone after it. Whoever asks decides how pieces are read: ``answer`` does it on the
spot, a broker beside its loop (``broker/questions.py``).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from turbopump.store.disk import Found, Piece

T = TypeVar("T")

Question: TypeAlias = Generator[list[Piece] | None, list[Found], T]


def answer(question: Question[T]) -> T:
    """The answer, with every piece read here and now."""
    try:
        wanted = next(question)
        while True:
            wanted = question.send([_read(piece) for piece in wanted or ()])
    except StopIteration as end:
        value: T = end.value
        return value


def read_piece(piece: Piece) -> Question[Found]:
    """One piece."""
    (found,) = yield [piece]
    return found


def _read(piece: Piece) -> Found:
    try:
        return piece.segment.read_cold(piece.at, piece.size)
    except OSError as error:
        return error
