"""Server's side of a connection whose requests take time, on a loop whose time the test moves."""

import asyncio
from collections.abc import Callable, Container
from typing import Any

from tests.stand_ins import does_nothing
from tests.unit.remoting.hand_clock import HandClock
from tests.unit.remoting.serving import frame

from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, decode_command
from turbopump.protocol.frame import Frame, FrameReader
from turbopump.protocol.requests.offsets import GetMaxOffset, GetMinOffset
from turbopump.remoting.answer_times import AnswerTimes
from turbopump.remoting.backlog import Backlog, BacklogLimits, BacklogRefusal, PeerRequests
from turbopump.remoting.response import Response
from turbopump.remoting.router import NO_ROOM, Outcome, RequestContext, Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.turns import Turns
from turbopump.remoting.wire import Wire


class KeptAnswers(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5000)})
        self._reader = FrameReader()
        self.answers: list[Command] = []

    def write(self, data: Any) -> None:
        self.answers += [decode_command(one) for one in self._reader.feed(bytes(data))]

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


class Stage:
    """A server's side: requests for the maximum may wait and take `cost` seconds each; those for
    the minimum may not wait. Of the first, those with a number of `long` take `long_cost` seconds,
    and say so."""

    def __init__(self, loop: HandClock, limits: BacklogLimits = BacklogLimits()) -> None:  # noqa: B008
        self.loop = loop
        self.cost = 0.001
        self.quick_cost = 0.0
        self.long: Container[int] = ()
        self.long_cost = 0.001
        self.refusal_cost = 0.0
        self.body = b"x" * 100
        self.handled: list[int] = []
        self.others: list[int] = []
        self.refused: list[tuple[BacklogRefusal, float, int]] = []
        self.room = True
        self.before: dict[int, Callable[[], None]] = {}
        self.backlog = Backlog(limits, self._refuse)
        self.turns = Turns()
        self.times = AnswerTimes()
        router = SlowlyRefusing(self)
        router.add(GetMaxOffset, self._slow, may_wait=True)
        router.add(GetMinOffset, self._quick)
        self.router = router

    def connect(self) -> tuple[Wire, KeptAnswers]:
        connection, transport = (
            ServedRequests(
                self.router, backlog=self.backlog, turns=self.turns, times=self.times
            ).wire,
            KeptAnswers(),
        )
        connection.connection_made(transport)
        return connection, transport

    def requests(self, first: int, count: int, **more: Any) -> bytes:
        return b"".join(
            frame(GetMaxOffset(topic="t", queue_id=0), number, self.body, **more)
            for number in range(first, first + count)
        )

    def _slow(self, _request: GetMaxOffset, context: RequestContext) -> Outcome:
        self.before.get(context.opaque, does_nothing)()
        if not self.room:
            return NO_ROOM
        if context.opaque in self.long:
            context.served.took_long()
            self.loop.now += self.long_cost
        else:
            self.loop.now += self.cost
        self.handled.append(context.opaque)
        return Response()

    def _quick(self, _request: GetMinOffset, context: RequestContext) -> Outcome:
        self.others.append(context.opaque)
        self.loop.now += self.quick_cost
        return Response()

    def _refuse(self, why: BacklogRefusal, waited: float, left: int) -> Response:
        self.refused.append((why, round(waited, 3), left))
        return Response(code=ResponseCode.SYSTEM_BUSY, remark=why.name)


class SlowlyRefusing(Router):
    """Router that takes the stage's time for each refusal."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def refuse_frame(
        self, frame: Frame, answer: Callable[[int], bytes], connection: PeerRequests
    ) -> None:
        self._stage.loop.now += self._stage.refusal_cost
        super().refuse_frame(frame, answer, connection)
