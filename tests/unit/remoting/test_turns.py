"""Long work has a share of each turn of the loop, whoever asks for it, and waits for the next."""

from collections.abc import Callable, Generator

from tests.loops import in_loop
from tests.unit.remoting.hand_clock import HandClock, play, turns
from tests.unit.remoting.serving import frame
from tests.unit.remoting.transports import SlowTransport

from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.topics import DeleteTopic
from turbopump.remoting.connection_memory import ConnectionMemory
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.served_requests import LONG_WORK_MAX, ServedRequests
from turbopump.remoting.turns import SLICE_MAX_S, SLICE_MIN_S, Turns


class SlowWork:
    """A handler whose one step takes a third of a slice. ``done``: the topics, by turn."""

    def __init__(self, loop: HandClock) -> None:
        self.loop = loop
        self.turn = 0
        self.done: list[tuple[int, str]] = []
        self.turns = Turns()
        self._router = Router()
        self._router.add(DeleteTopic, self._handle)

    def connect(self) -> tuple[ServedRequests, SlowTransport]:
        served = ServedRequests(self._router, memory=ConnectionMemory(), turns=self.turns)
        transport = SlowTransport(served.wire)
        transport.reading = True
        return served, transport

    async def work(self, until: Callable[[], bool]) -> None:
        while not until():
            self.turn += 1
            await turns(1)

    def _handle(
        self, request: DeleteTopic, _context: RequestContext
    ) -> Generator[None, None, Response[None]]:
        yield
        self.loop.now += SLICE_MIN_S / 3 + 0.0001
        self.done.append((self.turn, request.topic))
        if request.topic == "broken":
            raise ValueError("a mistake")
        return refusal(ResponseCode.SYSTEM_ERROR, request.topic)


def deletions(names: list[str]) -> bytes:
    return b"".join(frame(DeleteTopic(topic=name), number) for number, name in enumerate(names))


@in_loop(play)
async def test_a_share_of_each_turn_is_used_in_the_order_of_arrival(loop: HandClock, /) -> None:
    work = SlowWork(loop)
    served, transport = work.connect()
    names = [*map(str, range(10)), "broken"]
    served.wire.data_received(deletions(names))
    await work.work(lambda: len(transport.answers) == len(names))
    assert [name for _, name in work.done] == names
    each = [turn for turn, _ in work.done]
    assert [each.count(turn) for turn in dict.fromkeys(each)] == [3, 3, 3, 2]
    assert [answer.remark for answer in transport.answers][:10] == names[:10]
    assert "internal error ValueError" in (transport.answers[10].remark or "")


@in_loop(play)
async def test_a_peer_that_asks_for_too_much_long_work_is_not_read_and_gets_all_of_it(
    loop: HandClock, /
) -> None:
    work = SlowWork(loop)
    served, transport = work.connect()
    names = [str(number) for number in range(5 * LONG_WORK_MAX)]
    served.wire.data_received(deletions(names))
    assert work.turns.waiting(served) <= LONG_WORK_MAX + 1
    assert transport.is_paused
    await work.work(lambda: len(transport.answers) == len(names))
    await turns()
    assert [answer.remark for answer in transport.answers] == names
    assert not transport.is_paused


def steps(done: list[float], loop: HandClock) -> Generator[None, None, None]:
    while True:
        loop.now += 0.0001
        done.append(loop.now)
        yield


@in_loop(play)
async def test_a_slice_is_as_long_as_the_loop_had_for_other_work_within_bounds(
    loop: HandClock, /
) -> None:
    done: list[float] = []

    Turns().run("somebody", steps(done, loop))
    slices: list[float] = []
    for rested in (0.0, 0.004, 0.5, 0.0):
        loop.now += rested
        before = loop.now
        await turns(1)
        slices.append(round(loop.now - before, 4))
    expected = [SLICE_MIN_S, 0.004, SLICE_MAX_S, SLICE_MIN_S]
    assert all(abs(took - wanted) <= 0.00011 for took, wanted in zip(slices, expected, strict=True))
