"""Times of answers: one reading of the clock for a turn, and the kinds that are told apart."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops import in_loop
from tests.unit.remoting.hand_clock import HandClock, play
from tests.unit.remoting.slow_server import Stage

from turbopump.metrics.family import Distribution
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.remoting.answer_times import BOUNDS_MS, KEPT_MAX, AnswerKind, AnswerTimes, answer_key
from turbopump.remoting.backlog import BacklogLimits

SEND = 310


def kinds(times: AnswerTimes) -> dict[AnswerKind, Distribution]:
    return dict(times.read())


def test_all_answers_of_a_turn_have_its_time() -> None:
    times = AnswerTimes()
    times.begin_turn(100.0, 100.0)
    times.turn.append(SEND)
    times.turn.append(SEND)
    times.turn.append(answer_key(11, 19))
    times.begin_turn(100.004, 100.006)
    times.turn.append(SEND)
    times.end_turn(100.0045)
    found = kinds(times)
    sent = AnswerKind(SEND, 0, False, False, False)
    assert found[sent].counts == (1, 0, 0, 2, 0, 0, 0, 0, 0, 0), "two after 6 ms, one at once"
    assert found[sent].total == 12
    assert found[AnswerKind(11, 19, False, False, False)].total == 6


def test_answers_at_once_are_counted_also_when_there_are_many() -> None:
    times = AnswerTimes()
    for number in range(KEPT_MAX + 10):
        times.begin_turn(float(number), float(number))
        times.turn.append(SEND + number % 2)
        times.end_turn(number + 0.0009)
    assert len(times.turn) < 10
    assert [sum(one.counts) for one in kinds(times).values()] == [(KEPT_MAX + 10) // 2] * 2
    assert [one.counts[0] for one in kinds(times).values()] == [(KEPT_MAX + 10) // 2] * 2


@given(st.integers(0, 5000))
def test_whole_milliseconds_are_counted_in_the_bucket_up_to_and_including_them(ms: int) -> None:
    times = AnswerTimes()
    arrived = 1_234_567.891
    times.count(SEND, arrived, arrived + ms / 1000)
    ((_, distribution),) = times.read()
    assert distribution.total == ms
    assert distribution.counts.index(1) == sum(bound < ms for bound in BOUNDS_MS)


@pytest.mark.parametrize("code", [-1, 1 << 20, 1 << 40, (1 << 20) - 1])
def test_numbers_that_are_no_request_codes_share_one_kind(code: int) -> None:
    times = AnswerTimes()
    times.count(answer_key(code, 3, oneway=True, suspended=True, failed=True), 0.0, 0.0)
    assert list(kinds(times)) == [AnswerKind(-1, 3, True, True, True)]


@in_loop(play)
async def test_requests_of_the_backlog_count_from_their_arrival_and_refused_ones_as_busy(
    loop: HandClock, /
) -> None:
    stage = Stage(loop, BacklogLimits(size=1000, wait_s=0.1))
    stage.cost = 0.01
    connection, transport = stage.connect()
    connection.data_received(stage.requests(0, 1000))
    while len(transport.answers) < 1000:
        await asyncio.sleep(0)
    found = kinds(stage.times)
    handled = found[AnswerKind(int(GetMaxOffset.code), 0, False, False, False)]
    refused = found[AnswerKind(int(GetMaxOffset.code), 2, False, False, False)]
    assert sum(handled.counts) == len(stage.handled) > 0
    assert sum(handled.counts) + sum(refused.counts) == 1000
    assert sum(refused.counts[:5]) == 0, "each of them waited 100 ms"
    assert refused.total >= 100 * sum(refused.counts)
