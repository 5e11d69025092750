"""Requests that wait for their turn: a connection that brings thousands at once does not keep the
loop, and no wait has no end."""

import asyncio
import json
from collections.abc import Callable, Container
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops import in_loop
from tests.unit.remoting.hand_clock import HandClock, play, turns
from tests.unit.remoting.serving import frame
from tests.unit.remoting.slow_server import Stage
from tests.waits import has_count

from turbopump.protocol.codes import FLAG_RESPONSE, ResponseCode
from turbopump.protocol.command import Command, encode_command
from turbopump.protocol.frame import JSON, ROCKETMQ, frame_head
from turbopump.protocol.requests.offsets import GetMaxOffset, GetMinOffset
from turbopump.remoting.backlog import REFUSED_TOGETHER, TURN_S, BacklogLimits, BacklogRefusal
from turbopump.remoting.response import encode_response, encoder_of, refusal


class Bystander:
    """A client that sends every 10 ms, once its last request is answered."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._connection, self._wire = stage.connect()
        self._sent, self._asked = 0, 0.0
        self.longest_wait = 0.0

    def go_on(self) -> None:
        waited = self._stage.loop.now - self._asked
        if len(self._wire.answers) < self._sent:
            self.longest_wait = max(self.longest_wait, waited)
        elif waited >= 0.01:
            self._asked = self._stage.loop.now
            self._sent += 1
            self._connection.data_received(self._stage.requests(1_000_000, 1))


async def until(condition: Callable[..., object], *arguments: object) -> None:
    for _ in range(10_000):
        if condition(*arguments):
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


@pytest.mark.parametrize("serialize_type", [0, 1])
@in_loop(play)
async def test_thousands_of_requests_in_one_read_take_a_share_of_each_turn_and_keep_their_order(
    loop: HandClock, /, serialize_type: int
) -> None:
    stage = Stage(loop, BacklogLimits(wait_s=None))
    connection, transport = stage.connect()
    before = loop.now
    connection.data_received(stage.requests(1, 3000, serialize_type=serialize_type))
    assert loop.now - before < TURN_S + 0.1, "a look is due every 16 KiB"
    longest = 0.0
    while len(stage.handled) < 3000:
        before = loop.now
        await asyncio.sleep(0)
        longest = max(longest, loop.now - before)
    assert longest <= TURN_S + 2 * stage.cost
    await turns()
    assert stage.handled == list(range(1, 3001))
    assert [answer.opaque for answer in transport.answers] == stage.handled
    assert len(stage.backlog) == 0
    assert not stage.backlog.busy


@in_loop(play)
async def test_many_connections_share_one_turn_and_one_line(loop: HandClock, /) -> None:
    stage = Stage(loop)
    stage.body = b"x" * 500
    pairs = [stage.connect() for _ in range(5)]
    before = loop.now
    for number, (connection, _) in enumerate(pairs):
        connection.data_received(stage.requests(number * 100, 40))
    assert loop.now - before < 0.15, "a look is due every 64 KiB"
    assert len(stage.backlog) > 0
    waiting = len(stage.backlog)
    pairs[4][0].data_received(frame(GetMinOffset(topic="t", queue_id=0), 999))
    assert stage.others == [], "this turn has had its share"
    await asyncio.sleep(0)
    assert (stage.others, len(stage.backlog) > waiting // 2) == ([999], True), "not behind the line"
    await until(has_count, stage.handled, 200)
    assert stage.handled == [number * 100 + one for number in range(5) for one in range(40)]
    assert stage.refused == []


@in_loop(play)
async def test_requests_that_stand_in_no_line_leave_others_their_turn_too(
    loop: HandClock, /
) -> None:
    """Each takes a millisecond; five connections bring 300 of them each."""
    stage = Stage(loop)
    stage.quick_cost = 0.001
    pairs = [stage.connect() for _ in range(5)]
    before = loop.now
    for number, (connection, _) in enumerate(pairs):
        many = range(number * 1000, number * 1000 + 300)
        request = GetMinOffset(topic="t", queue_id=0)
        connection.data_received(b"".join(frame(request, one, b"x" * 900) for one in many))
    assert loop.now - before < TURN_S + 0.1, "a look is due every 64 KiB"
    longest = 0.0
    while len(stage.others) < 1500:
        before = loop.now
        await asyncio.sleep(0)
        longest = max(longest, loop.now - before)
    assert longest <= TURN_S + 2 * stage.quick_cost
    for number in range(5):
        mine = [one for one in stage.others if one // 1000 == number]
        assert mine == list(range(number * 1000, number * 1000 + 300)), "in their order"
    assert stage.refused == []


@in_loop(play)
async def test_who_waits_too_long_is_refused_and_was_not_handled(loop: HandClock, /) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect()
    connection.data_received(stage.requests(1, 600))
    await until(has_count, stage.backlog, 0)
    await turns()
    handled, refused = (
        set(stage.handled),
        {answer.opaque for answer in transport.answers if answer.code == 2},
    )
    assert handled | refused == set(range(1, 601))
    assert not handled & refused
    assert {why for why, _, _ in stage.refused} == {BacklogRefusal.WAITED}
    assert min(waited for _, waited, _ in stage.refused) >= 0.2
    assert stage.backlog.refused == {BacklogRefusal.WAITED: len(refused)}
    assert len(transport.answers) == 600


@in_loop(play)
async def test_refusing_takes_a_share_of_each_turn_too(loop: HandClock, /) -> None:
    stage = Stage(loop)
    connection, _ = stage.connect()
    stage.room = False
    connection.data_received(stage.requests(1, 600))
    loop.now += 0.3
    stage.refusal_cost = 0.001
    stage.backlog.release_held()
    longest = 0.0
    while stage.backlog.refused.total() < 600:
        before = loop.now
        await asyncio.sleep(0)
        longest = max(longest, loop.now - before)
    assert longest <= TURN_S + REFUSED_TOGETHER * stage.refusal_cost
    assert stage.handled == []


@in_loop(play)
async def test_the_line_has_as_much_of_a_turn_as_what_comes_meanwhile(loop: HandClock, /) -> None:
    """Else it grows, and who stands in it waits for many turns to be refused."""
    stage = Stage(loop, BacklogLimits(wait_s=None))
    connection, _ = stage.connect()
    connection.data_received(stage.requests(1, 600))
    await asyncio.sleep(0)
    before = len(stage.handled)
    loop.now += 0.1
    await asyncio.sleep(0)
    assert 100 <= len(stage.handled) - before <= 102


@pytest.mark.parametrize(("makers", "crowd"), [(1, 0), (5, 0), (1, 40)])
@in_loop(play)
async def test_who_sends_little_does_not_wait_for_all_the_long_requests_of_others(
    loop: HandClock, /, makers: int, crowd: int
) -> None:
    """`makers` make 300 topics each by their first sends, 100 outstanding; another client sends
    every 10 ms. `crowd`: so many others send ten requests at a time, so that there is a line."""
    stage = Stage(loop, BacklogLimits(wait_s=None))
    stage.cost, stage.long = 0.0001, range(makers * 1000)
    pairs = [stage.connect() for _ in range(makers)]
    many, bystander = [stage.connect()[0] for _ in range(crowd)], Bystander(stage)
    for first in range(0, 300, 100):
        for one in many:
            one.data_received(stage.requests(10_000, 10))
        for number, (connection, _) in enumerate(pairs):
            connection.data_received(stage.requests(number * 1000 + first, 100))
        while any(len(transport.answers) < first + 100 for _, transport in pairs):
            bystander.go_on()
            await asyncio.sleep(0)
    assert bystander.longest_wait <= TURN_S
    for number in range(makers):
        mine = [one for one in stage.handled if one < 10_000 and one // 1000 == number]
        assert mine == list(range(number * 1000, number * 1000 + 300)), "in their order"
    assert stage.refused == []


@in_loop(play)
async def test_what_waits_in_a_connection_keeps_its_order_beside_a_line(loop: HandClock, /) -> None:
    stage = Stage(loop)
    stage.quick_cost = 0.001
    (aside, _), (lined, _) = stage.connect(), stage.connect()
    request = GetMinOffset(topic="t", queue_id=0)
    aside.data_received(b"".join(frame(request, one, b"x" * 900) for one in range(300)))
    await turns(5)
    assert len(stage.others) < 300
    for number in range(5):
        lined.data_received(stage.requests(1000 + 100 * number, 100))
        await turns()
    await until(has_count, stage.others, 300)
    assert stage.others == list(range(300))


@in_loop(play)
async def test_the_line_is_bounded_and_a_refused_one_way_request_gets_no_answer(
    loop: HandClock, /
) -> None:
    stage = Stage(loop, BacklogLimits(size=10))
    connection, transport = stage.connect()
    stage.room = False
    connection.data_received(stage.requests(1, 12) + stage.requests(13, 3, oneway=True))
    assert len(stage.backlog) == 10
    assert stage.backlog.refused == {BacklogRefusal.FULL: 5}
    await turns()
    assert [answer.opaque for answer in transport.answers] == [11, 12]


@in_loop(play)
async def test_a_handler_that_waits_for_room_is_called_again_in_order_when_there_is_some(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    (one, _), (other, _) = stage.connect(), stage.connect()
    one.data_received(stage.requests(1, 2))
    stage.room = False
    one.data_received(stage.requests(3, 2))
    other.data_received(stage.requests(5, 2))
    other.data_received(frame(GetMinOffset(topic="t", queue_id=0), 99))
    assert (stage.handled, stage.others) == ([1, 2], [99])
    stage.backlog.release_held()  # there is none yet
    await turns()
    assert stage.handled == [1, 2]
    stage.room = True
    stage.backlog.release_held()
    await turns()
    assert stage.handled == [1, 2, 3, 4, 5, 6]
    one.data_received(stage.requests(7, 1))
    assert stage.handled[-1] == 7, "the line is gone: at once again"


@in_loop(play)
async def test_who_waits_for_room_is_refused_after_its_time_and_later_ones_at_once(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect()
    stage.room = False
    connection.data_received(stage.requests(1, 1))
    loop.now += 0.199
    connection.data_received(stage.requests(2, 1))
    await turns()
    assert stage.refused == []
    loop.now += 0.011
    await until(len, stage.refused)
    assert stage.refused == [(BacklogRefusal.WAITED, 0.21, 1)]
    loop.now += 0.8
    connection.data_received(stage.requests(3, 1))
    await until(has_count, stage.refused, 3)
    assert [why for why, _, _ in stage.refused[1:]] == [
        BacklogRefusal.NO_ROOM,
        BacklogRefusal.WAITED,
    ]
    stage.room = True
    stage.backlog.release_held()
    await turns()
    connection.data_received(stage.requests(4, 1))
    await turns()
    assert stage.handled == [4]
    assert [(answer.opaque, answer.code) for answer in transport.answers] == [
        (1, 2),
        (3, 2),
        (2, 2),
        (4, 0),
    ]


def stall(loop: HandClock, stage: Stage) -> None:
    loop.now += 1.5
    stage.backlog.stood_still(1.5)


@in_loop(play)
async def test_what_waited_behind_a_stalled_append_is_refused_and_what_comes_later_is_not(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    connection, transport = stage.connect()

    stage.before[3] = partial(stall, loop, stage)
    connection.data_received(stage.requests(1, 6))
    assert stage.handled == [1, 2, 3], "what was begun is done"
    assert {why for why, _, _ in stage.refused} == {BacklogRefusal.STOOD_STILL}
    connection.data_received(stage.requests(7, 2))
    await turns()
    assert stage.handled == [1, 2, 3, 7, 8]
    assert [(answer.opaque, answer.code) for answer in transport.answers] == [
        *[(number, 0) for number in (1, 2, 3)],
        *[(number, 2) for number in (4, 5, 6)],
        *[(number, 0) for number in (7, 8)],
    ]


@in_loop(play)
async def test_a_stall_while_the_line_moves_refuses_the_line_and_not_the_one_that_stalled(
    loop: HandClock, /
) -> None:
    stage = Stage(loop)
    connection, _ = stage.connect()
    stage.room = False
    connection.data_received(stage.requests(1, 4))
    stage.room = True

    stage.before[2] = partial(stall, loop, stage)
    stage.backlog.release_held()
    await turns()
    assert stage.handled == [1, 2]
    assert stage.backlog.refused == {BacklogRefusal.STOOD_STILL: 2}


@in_loop(play)
async def test_without_a_longest_wait_nobody_is_refused_for_having_waited(
    loop: HandClock, /
) -> None:
    stage = Stage(loop, BacklogLimits(wait_s=None))
    connection, _ = stage.connect()
    stage.room = False
    connection.data_received(stage.requests(1, 3))
    loop.now += 0.9
    stage.backlog.stood_still(0.9)
    await turns()
    stage.room = True
    stage.backlog.release_held()
    await turns()
    assert (stage.handled, stage.refused) == ([1, 2, 3], [])


@pytest.mark.parametrize("long", [(), range(100, 151)], ids=["usual", "long"])
@in_loop(play)
async def test_at_the_end_what_waits_is_handled_or_refused(
    loop: HandClock, /, long: Container[int]
) -> None:
    stage = Stage(loop)
    stage.body, stage.long = b"x" * 1000, long
    connection, transport = stage.connect()
    connection.data_received(stage.requests(1, 150))
    assert len(stage.backlog) > 0
    stage.cost = stage.long_cost = 0.0
    stage.backlog.finish_all()
    assert stage.handled == list(range(1, 151))
    stage.room = False
    connection.data_received(stage.requests(151, 2))
    stage.backlog.finish_all()
    await turns()
    assert stage.backlog.refused == {BacklogRefusal.ENDING: 2}
    assert len(transport.answers) == 152


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from(ResponseCode),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_a_refusal_is_encoded_as_any_answer(opaque: int, code: ResponseCode, remark: str) -> None:
    wanted = encode_command(Command(code, opaque=opaque, flag=FLAG_RESPONSE, remark=remark))
    assert encode_response(opaque, refusal(code, remark)) == wanted
    assert encoder_of(refusal(code, remark))(opaque) == wanted


HEADERS = {
    "as Java and we write it": (",", ":", ["code", "flag", "extFields", "opaque"]),
    "with spaces": (", ", ": ", ["code", "flag", "extFields", "opaque"]),
    "in another order": (",", ":", ["opaque", "extFields", "flag", "code"]),
}


@pytest.mark.parametrize("written", HEADERS.values(), ids=HEADERS.keys())
@in_loop(play)
async def test_a_request_may_wait_however_its_header_is_written(
    loop: HandClock, /, written: tuple[str, str, list[str]]
) -> None:
    stage = Stage(loop)
    connection, _ = stage.connect()
    stage.room = False
    comma, colon, order = written
    fields = {"flag": 0, "extFields": {"topic": "t", "queueId": "0"}, "opaque": 1}
    for code in (GetMaxOffset.code, GetMinOffset.code):
        head = {key: {**fields, "code": int(code)}[key] for key in order}
        header = json.dumps(head, separators=(comma, colon)).encode()
        connection.data_received(frame_head(len(header), 0) + header)
    assert (len(stage.backlog), stage.others) == (1, [1])


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
@in_loop(play)
async def test_a_refused_request_of_any_form_is_answered_under_its_number(
    loop: HandClock, /, form: int
) -> None:
    stage = Stage(loop, BacklogLimits(size=0))
    connection, transport = stage.connect()
    stage.room = False
    connection.data_received(stage.requests(7, 2, serialize_type=form))
    connection.data_received(stage.requests(9, 1, serialize_type=form, oneway=True))
    await turns()
    assert [answer.opaque for answer in transport.answers] == [8]
    assert transport.answers[0].remark == "FULL"


@pytest.mark.parametrize(("slower", "longest_s"), [(1, 0.36), (4, 1.8)])
@in_loop(play)
async def test_under_ten_times_too_much_nearly_half_of_what_can_be_handled_is(
    loop: HandClock, /, slower: int, longest_s: float
) -> None:
    """25 clients send 40 requests each, and again when all are answered. Reading, refusing and
    handling one take what ten requests take a broker; or four times as long, where other programs
    have most of the processor: then all that wait would be late before the line has its turn."""
    stage = Stage(loop)
    reading, stage.refusal_cost, stage.cost = 80e-6 * slower, 120e-6 * slower, 300e-6 * slower
    stage.body = b"x" * 1024
    clients = [stage.connect() for _ in range(25)]
    bursts, sent, longest = [0] * len(clients), [0.0] * len(clients), 0.0
    many, began = stage.requests(1, 40), loop.now
    while loop.now < began + 4:
        for number, (connection, transport) in enumerate(clients):
            if len(transport.answers) == 40 * bursts[number]:
                longest = max(longest, loop.now - (sent[number] or loop.now))
                sent[number] = loop.now
                bursts[number] += 1
                loop.now += 40 * reading
                connection.data_received(many)
        await asyncio.sleep(0)
    assert len(stage.handled) > 0.45 * 4 / (reading + stage.cost)
    assert longest < longest_s
