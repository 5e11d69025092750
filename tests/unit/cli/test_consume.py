"""`turbopump consume`: beside all groups, and for a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from turbopump.blocking import Producer
from turbopump.cli import main
from turbopump.testing.broker_in_loop import BrokerThread

Consume = Callable[[str], tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """With five messages in each of the two queues of `orders`: 0 to 4, and 5 to 9."""
    with BrokerThread() as running:
        running.create_topic("orders", 2)
        with Producer(running.namesrv) as producer:
            queues = producer.publish_queues("orders")
            for number in range(10):
                tags = "odd" if number % 2 else "even"
                producer.send("orders", str(number), queue=queues[number // 5], tags=tags)
        yield running


def run_consume(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str], options: str
) -> tuple[int, list[str], str]:
    code = main(["consume", *options.split(), "--raw", "-n", broker.namesrv])
    told = capsys.readouterr()
    return code, sorted(told.out.split()), told.err


@pytest.fixture
def consume(broker: BrokerThread, capsys: pytest.CaptureFixture[str]) -> Consume:
    """Runs `turbopump consume OPTIONS`: its exit code, the lines of its output in order, and what
    it says."""

    return partial(run_consume, broker, capsys)


ALL = [str(number) for number in range(10)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("--count 10", ALL),
        ("--count 5 --tags odd", ["1", "3", "5", "7", "9"]),
        ("--count 10 --from 1h", ALL),
        ("--idle 0.3 --from last", []),
        ("--queue 0 --count 5", ["0", "1", "2", "3", "4"]),
        ("--queue broker-test:1 --offset 3 --count 2", ["8", "9"]),
        ("--queue 1 --offset 5 --idle 0.3", []),
    ],
)
def test_without_a_group_reading_begins_where_it_is_asked_to(
    consume: Consume, options: str, wanted: list[str]
) -> None:
    for _ in range(2):  # nothing is kept
        assert consume(f"orders {options}") == (0, wanted, "")


def test_two_readers_without_a_group_read_everything_and_leave_no_group(
    broker: BrokerThread, consume: Consume, capsys: pytest.CaptureFixture[str]
) -> None:
    assert consume("orders --count 10") == consume("orders --count 10") == (0, ALL, "")
    assert main(["consumer", "list", "-n", broker.namesrv]) == 0
    assert "turbopump-consume" not in capsys.readouterr().out


def test_a_group_that_is_new_begins_at_a_time(consume: Consume) -> None:
    assert consume("orders --group since --from 1h --count 10") == (0, ALL, "")
    assert consume("orders --group after --from 2999-01-01 --idle 0.3") == (0, [], "")


def test_a_group_that_is_not_new_goes_on_and_that_is_said(consume: Consume) -> None:
    assert consume("orders --group known --from first --count 10") == (0, ALL, "")
    code, lines, err = consume("orders --group known --from first --idle 0.3")
    assert (code, lines) == (0, [])
    assert err.startswith("turbopump: the group known continues at its offset in orders")
    assert "Leave out --group to read from there" in err
    assert consume("orders --group known --idle 0.3") == (0, [], "")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("orders --offset 3", 2, "--offset is of one queue: give --queue too"),
        ("orders --queue 0 --offset 3 --from first", 2, "--offset and --from both say where"),
        ("orders --queue 0 --group g", 2, "--group and --queue do not go together"),
        (
            "orders --from yesterday",
            2,
            "'yesterday' is not a time: expected first, last, now, 2026",
        ),
        ("orders --queue 0 --offset 6", 2, "offset 6 is outside of orders@broker-test:0, which "),
        ("orders --queue 2", 3, "orders has no queue 2; it has broker-test:0 to broker-test:1"),
        ("ordesr", 3, "it does not exist (did you mean orders?)"),
        ("ordesr --count 1 -g new", 3, "it does not exist (did you mean orders?)"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    consume: Consume, options: str, code: int, words: str
) -> None:
    ended, lines, err = consume(options)
    assert (ended, lines, words in err, err.count("\n")) == (code, [], True, 1)
