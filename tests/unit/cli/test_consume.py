"""`turbopump consume`: for a group, and beside all groups; and what it says when it has to wait."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.stand_ins import returns

from turbopump.blocking import Producer
from turbopump.cli import main
from turbopump.testing.broker_in_loop import BrokerThread

Consume = Callable[[str], tuple[int, list[str], str]]
Run = Callable[..., subprocess.CompletedProcess[str]]


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
        ("--no-group --count 10", ALL),
        ("--no-group --count 5 --tags odd", ["1", "3", "5", "7", "9"]),
        ("--no-group --count 10 --from 1h", ALL),
        ("--no-group --idle 0.3 --from last", []),
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


def test_whoever_names_no_group_is_told_at_a_terminal_that_it_shares_one(
    consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert consume("orders --count 1")[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", returns(True))
    code, lines, err = consume("orders --count 3")
    assert (code, len(lines)) == (0, 3)
    assert err.startswith(
        "turbopump: reading as the group turbopump-consume, whose offset is shared"
    )
    assert "use --group NAME for your own, --no-group to read all" in err
    assert consume("orders --group turbopump-consume --count 1")[2] == ""


def test_a_group_that_is_new_begins_at_a_time(consume: Consume) -> None:
    assert consume("orders --group since --from 1h --count 10") == (0, ALL, "")
    assert consume("orders --group after --from 2999-01-01 --idle 0.3") == (0, [], "")


def test_a_group_that_is_not_new_goes_on_and_that_is_said(consume: Consume) -> None:
    assert consume("orders --group known --from first --count 10") == (0, ALL, "")
    code, lines, err = consume("orders --group known --from first --idle 0.3")
    assert (code, lines) == (0, [])
    assert err.startswith("turbopump: the group known continues at its offset in orders")
    assert "Use --no-group to read from there, or `turbopump offset reset known orders`" in err
    assert consume("orders --group known --idle 0.3") == (0, [], "")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("orders --offset 3", 2, "--offset is of one queue: give --queue too"),
        ("orders --queue 0 --offset 3 --from first", 2, "--offset and --from both say where"),
        ("orders --no-group --group g", 2, "--group and --no-group do not go together"),
        ("orders --queue 0 --group g", 2, "--group and --queue do not go together"),
        (
            "orders --from yesterday",
            2,
            "'yesterday' is not a time: expected first, last, now, 2026",
        ),
        ("orders --queue 0 --offset 6", 2, "offset 6 is outside of orders@broker-test:0, which "),
        ("orders --queue 2", 1, "orders has no queue 2; it has broker-test:0 to broker-test:1"),
        ("ordesr --no-group", 1, "it does not exist (did you mean orders?)"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    consume: Consume, options: str, code: int, words: str
) -> None:
    ended, lines, err = consume(options)
    assert (ended, lines, words in err, err.count("\n")) == (code, [], True, 1)


@pytest.mark.parametrize("log", ["", "--log-file", "--log-level"])
def test_that_it_waits_for_a_topic_is_said_once_with_the_nearest_name(
    broker: BrokerThread, run: Run, log: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    value = {"": [], "--log-file": [str(tmp_path_factory.mktemp("log") / "log")]}
    options = [log, *value.get(log, ["error"])] if log else []
    named = ("ordesr", "--group", "waits", "--idle", "1.5")
    done = run("consume", *named, "-n", broker.namesrv, *options)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(
        "turbopump: no queues to consume yet, division is repeated group="
    )
    assert "it does not exist (did you mean orders?)" in done.stderr
    assert done.stderr.count("\n") == 1
