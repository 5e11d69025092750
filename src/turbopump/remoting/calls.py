"""Calls to one peer, stored by request id until their answers arrive.

One timer per connection finds late calls. This module neither reads nor writes bytes. ``wire.py``
sends the requests, and answers are passed to ``settle``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from turbopump.errors import CallTimeoutError
from turbopump.protocol.codes import FLAG_RESPONSE
from turbopump.protocol.command import Command, TypedJsonHeader

AnswerDecoder = msgspec.json.Decoder[TypedJsonHeader[Any]]


class Calls:
    """Calls of one connection that still have no answer.

    - ``waiting``: the future and the deadline of each call, by request id.
    - ``peer``: name of the peer in errors.
    - ``typed``: decoder of the answer, by request id. Only calls with their own decoder are here.
    """

    __slots__ = ("_loop", "_opaque", "_sweep", "_swept_by", "_usual", "peer", "typed", "waiting")

    def __init__(self) -> None:
        self.peer = "?"
        self._loop = asyncio.get_running_loop()
        self.waiting: dict[int, tuple[asyncio.Future[Any], float]] = {}
        self.typed: dict[int, AnswerDecoder] = {}
        self._usual: AnswerDecoder | None = None
        self._opaque = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._swept_by = 0.0

    @property
    def next_opaque(self) -> int:
        """New request id for the next call."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def add(
        self, opaque: int, timeout: float, answer: AnswerDecoder | None = None
    ) -> asyncio.Future[Any]:
        """Add a call with the request id ``opaque``, and return a future for its answer.

        The future fails with CallTimeoutError after ``timeout`` seconds. ``answer`` is a decoder
        for the header of the answer. It takes an eighth of the time that a ``Command`` takes, and
        drops the body.
        """
        if answer is not None:
            self.typed[opaque] = self._usual = answer
        future: asyncio.Future[Any] = self._loop.create_future()
        deadline = self._loop.time() + timeout
        self.waiting[opaque] = (future, deadline)
        if self._sweep is None or deadline < self._swept_by:
            self._wake_sweep_by(deadline)
        return future

    def settle(self, answer: TypedJsonHeader[Any] | Command) -> None:
        """Pass an answer to the waiting call with the same request id. Drop the answer if no such
        call is waiting."""
        waiting = self.waiting.pop(answer.opaque, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(answer)

    def settle_typed(self, header: bytes) -> bool:
        """Decode a JSON header with the decoder of the waiting call, and settle this call.

        Returns False if no typed call waits for this header, or if the decoder cannot read it. The
        caller then uses ``decode_command``.
        """
        usual = self._usual
        if usual is not None:
            try:
                answer = usual.decode(header)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
            else:
                # the usual case: all pending calls are of one kind
                if self.typed.get(answer.opaque) is usual and answer.flag & FLAG_RESPONSE:
                    del self.typed[answer.opaque]
                    self.settle(answer)
                    return True
        at = header.find(b'"opaque":') + 9
        digits = header[at : header.find(b",", at)]
        if at < 9 or not digits.isdigit():
            return False
        opaque = int(digits)
        decoder = self.typed.pop(opaque, None)
        if decoder is None:
            return False
        try:
            answer = decoder.decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if answer.opaque != opaque or not answer.flag & FLAG_RESPONSE:
            return False
        self.settle(answer)
        return True

    def fail_typed(self, answer: AnswerDecoder, error: Callable[[], Exception]) -> int:
        """Fail all calls whose decoder is ``answer``. Return the number of failed calls."""
        failed = 0
        for opaque in [opaque for opaque, kind in self.typed.items() if kind is answer]:
            del self.typed[opaque]
            future, _ = self.waiting.pop(opaque, (None, 0.0))
            if future is not None and not future.done():
                future.set_exception(error())
                failed += 1
        return failed

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Fail all calls because their connection has ended. ``error`` makes the exception of each
        call."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        waiting, self.waiting = self.waiting, {}
        self.typed.clear()
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(error())

    def _wake_sweep_by(self, deadline: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._swept_by = deadline
        self._sweep = self._loop.call_at(deadline, self._sweep_late)

    def _sweep_late(self) -> None:
        self._sweep = None
        now = self._loop.time()
        nearest = None
        late = []
        for opaque, (future, deadline) in self.waiting.items():
            if future.done():
                late.append(opaque)
            elif deadline <= now:
                late.append(opaque)
                future.set_exception(CallTimeoutError(f"no answer from {self.peer} in time"))
            elif nearest is None or deadline < nearest:
                nearest = deadline
        for opaque in late:
            del self.waiting[opaque]
            self.typed.pop(opaque, None)
        if nearest is not None:
            self._wake_sweep_by(nearest)
