"""Offsets that only grow, and who waits for them."""

from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turbopump.store.watermark import Watermark


def test_waiters_wake_when_their_threshold_is_reached_lowest_first_then_oldest_first() -> None:
    mark, woken = Watermark(), list[str]()
    for threshold, name in ((5, "five"), (3, "three"), (5, "five again"), (9, "nine")):
        mark.when(threshold, lambda name=name: woken.append(name))  # type: ignore[misc]
    mark.advance(2)
    assert woken == []
    mark.advance(5)
    assert woken == ["three", "five", "five again"]
    mark.advance(9)
    assert woken == ["three", "five", "five again", "nine"]
    assert mark.waiting == 0


def test_a_watermark_never_goes_back() -> None:
    mark = Watermark(10)
    mark.advance(4)
    assert mark.value == 10


def test_a_cancelled_waiter_sleeps_on() -> None:
    mark, woken = Watermark(), list[int]()
    waiter = mark.when(1, partial(woken.append, 1))
    mark.when(1, partial(woken.append, 2))
    waiter.cancel()
    waiter.cancel()
    mark.advance(1)
    assert woken == [2]


def test_a_failed_watermark_wakes_everyone_in_order_and_says_why() -> None:
    mark, woken = Watermark(), list[object]()
    mark.when(7, lambda: woken.append((7, mark.error)))
    mark.when(2, lambda: woken.append((2, mark.error)))
    mark.when(3, partial(woken.append, 3)).cancel()
    fault = OSError("gone")
    mark.fail(fault)
    assert woken == [(2, fault), (7, fault)]
    assert mark.value == 0


def again(mark: Watermark, woken: Any) -> None:
    mark.when(2, partial(woken.append, 2))


def test_who_is_woken_may_wait_again() -> None:
    mark, woken = Watermark(), list[int]()

    mark.when(1, partial(again, mark, woken))
    mark.advance(1)
    assert woken == []
    mark.advance(2)
    assert woken == [2]


def test_waits_given_up_on_a_queue_that_never_grows_are_forgotten() -> None:
    mark, woken = Watermark(), list[int]()
    mark.when(100, partial(woken.append, 100))
    for _ in range(10_000):  # a consumer's long polls, one after the other
        mark.when(1, partial(woken.append, 1)).cancel()
    assert mark.waiting < 100
    mark.advance(100)
    assert woken == [100]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=60),
    st.lists(st.integers(0, 25)),
)
def test_everyone_not_cancelled_wakes_exactly_once_when_it_is_time(
    waits: list[tuple[int, bool]], steps: list[int]
) -> None:
    mark, woken = Watermark(), list[int]()
    waiters = [
        mark.when(threshold, lambda number=number: woken.append(number))  # type: ignore[misc]
        for number, (threshold, _) in enumerate(waits)
    ]
    for waiter, (_, cancelled) in zip(waiters, waits, strict=True):
        if cancelled:
            waiter.cancel()
    for step in steps:
        mark.advance(step)
    reached = max([0, *steps])
    assert sorted(woken) == [
        n
        for n, (threshold, cancelled) in enumerate(waits)
        if threshold <= reached and not cancelled
    ]
