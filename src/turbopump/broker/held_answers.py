"""Waiting list for answers to sends, until the disk or the slaves have the messages.

Messages reach the disk and the slaves in the order in which they were stored. So one queue of
answers, with one waiter and one timer, is enough. This module does not know the content of the
answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from turbopump.broker.send_reply import decode_reply
from turbopump.config.broker_config import BrokerConfig, FlushDiskType
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendMessageReply
from turbopump.remoting.answer_times import AnswerTimes, answer_key
from turbopump.remoting.response import Response, encode_response, refusal
from turbopump.remoting.wire import Wire
from turbopump.store.confirmed import Confirmed

_Held = tuple[int, Wire, bytes, int, float]
"""A waiting answer: the end of its message in the log, the client's connection, the encoded answer,
the request code, and the time at which the request was read. This is a plain tuple, because there
is one for each message."""


def confirm_wait_s(config: BrokerConfig) -> float:
    """Return the longest time, in seconds, for which a send waits for the disk and the slaves."""
    if config.flush_disk_type == FlushDiskType.SYNC_FLUSH:
        flush = config.sync_flush_timeout
    else:
        flush = None
    waits = [config.slave_timeout] if config.slave_acks else []
    waits += [flush] if flush is not None else []
    return min(waits, default=config.sync_flush_timeout) / 1000


class HeldAnswers:
    """Queue of answers to sends. An answer leaves the queue when its message is confirmed.

    - ``confirmed``: the offset up to which the log is as safe as the settings promise.
    - ``seconds``: the maximum waiting time of an answer.
    - ``late``: a function that converts an answer whose message is not confirmed in time, or
      is on no slave because the broker has none. Its second argument is True if enough slaves
      have the message.
    - ``times``: the times of the broker's answers.
    """

    def __init__(
        self,
        confirmed: Confirmed,
        seconds: float,
        late: Callable[[bytes, bool], bytes],
        times: AnswerTimes,
    ) -> None:
        self._confirmed = confirmed
        self._seconds = seconds
        self._late = late
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._line: deque[_Held] = deque()
        self._deadlines: deque[tuple[float, int]] = deque()
        """Deadline and last log offset for the answers of each run of the event loop."""
        self._turn_open = False
        self._watching = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def hold_answer(self, log_end: int, peer: Wire, frame: bytes, code: int) -> None:
        """Send an encoded answer once the log is confirmed up to ``log_end``.

        ``code`` is the request code.

        After the deadline the client gets the result of ``late``. If the disk fails, the client
        gets an error. ``log_end`` must not decrease from call to call.
        """
        self._line.append((log_end, peer, frame, code, self._times.arrived))
        if not self._turn_open:
            self._turn_open = True
            self._loop.call_soon(self._end_turn)

    async def hold_both(
        self, log_end: int, saving: asyncio.Future[bool], frame: bytes
    ) -> Response[SendMessageReply] | bytes:
        """Wait until a message is confirmed and ``saving`` is done, then return the answer.

        - ``log_end``: the end of the message in the log.
        - ``saving``: a future of the save of a table. Its result is True after success.
        - ``frame``: the encoded answer.

        Return the result of ``late`` after the deadline, or if the save fails. Return a refusal if
        the disk fails.
        """
        confirmed = self._confirmed
        reached: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not reached.done():
                reached.set_result(None)

        waiter = confirmed.when_acknowledged(log_end, wake)
        try:
            async with asyncio.timeout(self._seconds):
                there = await asyncio.shield(saving)
                if confirmed.acknowledged < log_end and confirmed.error is None:
                    await reached
        except TimeoutError:
            there = False
        finally:
            waiter.cancel()
        if confirmed.error is not None:
            return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(confirmed.error))
        copied = log_end <= confirmed.copied
        if there and copied:
            return frame
        return self._late(frame, copied)

    def _end_turn(self) -> None:
        self._turn_open = False
        if not self._line:
            return
        deadline = self._loop.time() + self._seconds
        self._deadlines.append((deadline, self._line[-1][0]))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._send_late)
        if not self._watching:
            self._send_confirmed()

    def _confirmed_further(self) -> None:
        self._watching = False
        self._send_confirmed()

    def _send_confirmed(self) -> None:
        """Send the answers whose messages are confirmed, and keep the others.

        Successive answers to one client are sent together.
        """
        line = self._line
        confirmed = self._confirmed
        if confirmed.error is not None:
            failed = refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(confirmed.error))
            for _, peer, frame, code, arrived in line:
                peer.send_frame(encode_response(decode_reply(frame).opaque, failed))
                self._count_answer(code, failed.code, arrived)
            line.clear()
            return
        end = confirmed.acknowledged
        copied = confirmed.copied
        now = self._loop.time()
        last: Wire | None = None
        frames: list[bytes] = []
        while line and line[0][0] <= end:
            log_end, peer, frame, code, arrived = line.popleft()
            if peer is not last:
                if last is not None:
                    last.send_frame(b"".join(frames))
                last = peer
                frames = []
            if log_end <= copied:
                frames.append(frame)
                self._times.count(code, arrived, now)
            else:  # the broker is alone, readers see it, and no slave has it
                frames.append(self._late_frame(frame, code, arrived, copied=False))
        if last is not None:
            last.send_frame(b"".join(frames))
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] <= end:
            deadlines.popleft()
        if line:
            self._watching = True
            confirmed.when_acknowledged(line[0][0], self._confirmed_further)

    def _send_late(self) -> None:
        line = self._line
        deadlines = self._deadlines
        copied = self._confirmed.copied
        now = self._loop.time()
        while deadlines and deadlines[0][0] <= now:
            _, end = deadlines.popleft()
            while line and line[0][0] <= end:
                log_end, peer, frame, code, arrived = line.popleft()
                late = self._late_frame(frame, code, arrived, copied=log_end <= copied)
                peer.send_frame(late)
        if deadlines:
            self._timer = self._loop.call_at(deadlines[0][0], self._send_late)
        else:
            self._timer = None

    def _late_frame(self, frame: bytes, code: int, arrived: float, *, copied: bool) -> bytes:
        late = self._late(frame, copied)
        self._count_answer(code, decode_reply(late).code, arrived)
        return late

    def _count_answer(self, code: int, response_code: int, arrived: float) -> None:
        self._times.count(answer_key(code, response_code), arrived, self._loop.time())
