"""The benchmarks of clients run against our broker alone, small: what they count is checked, not
how fast it was."""

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import generator
from bench.brokers import OURS, RunningBroker, running_broker
from bench.bystander import TOPIC as BYSTANDER_TOPIC
from bench.bystander import running_bystander, window_of
from bench.cases import CASES, TOPIC_QUEUES
from bench.clients.consuming import MODES, QUEUES, TOPIC, fill
from bench.clients.programs import ClientError, Window, judged, running_client
from bench.cores import Cores
from bench.held_polls import hold
from bench.remote import call, create_topic
from bench.sql_pulls import PullError, Reader
from bench.sql_pulls import fill as fill_with_properties

GET_MAX_OFFSET = 30
MESSAGES = 256
needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="the load generator is compiled by gcc"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(OURS, tmp_path_factory.mktemp("broker"), Cores.of_this_machine()) as broker:
        yield broker


@needs_gcc
def test_a_backlog_is_consumed_by_every_kind_of_handler(broker: RunningBroker) -> None:
    create_topic(broker.port, TOPIC, QUEUES)
    assert fill(broker.port, MESSAGES, min(Cores.of_this_machine().broker)) == MESSAGES
    with running_client(
        sys.executable, "-m", "bench.clients.consumer_program", broker.namesrv, TOPIC
    ) as client:
        for mode in MODES:
            window = client.measure(mode, MESSAGES)
            assert (window.messages, window.error) == (MESSAGES, None)
            assert window.seconds > 0


@needs_gcc
@pytest.mark.skipif(
    not Path("/usr/include/openssl/ssl.h").exists(), reason="it is compiled with OpenSSL's headers"
)
def test_the_load_generator_speaks_tls(broker: RunningBroker) -> None:
    (case,) = (case for case in CASES if case.tls)
    create_topic(broker.port, case.topic, TOPIC_QUEUES)
    arguments = [*case.arguments(), "--limit", str(MESSAGES)]
    assert generator.fill(broker.port, arguments, core=0) >= MESSAGES


def test_a_program_that_fails_is_told_of(broker: RunningBroker) -> None:
    with (
        running_client(sys.executable, "-c", "input()") as client,
        pytest.raises(ClientError, match="coroutine 5: the program ended with 0"),
    ):
        client.measure("coroutine", 5)


@pytest.mark.parametrize("mode", ["async-64", "blocking-1", "no-batch", "auto-batch"])
def test_a_producer_s_sends_are_counted_and_each_has_its_own_result(
    broker: RunningBroker, mode: str
) -> None:
    create_topic(broker.port, mode, QUEUES)
    with running_client(
        sys.executable, "-m", "bench.clients.program", broker.namesrv, mode
    ) as client:
        window = client.measure(mode, 128, 0.3)
    queues = [{"topic": mode, "queueId": str(queue_id)} for queue_id in range(QUEUES)]
    stored = sum(int(call(broker.port, GET_MAX_OFFSET, queue)["offset"]) for queue in queues)
    assert stored == window.messages + 1, "one more before the window"
    assert 0 < window.p50_us <= window.p99_us


def test_paced_messages_reach_their_handler(broker: RunningBroker) -> None:
    create_topic(broker.port, "bench-latency", QUEUES)
    with running_client(
        sys.executable, "-m", "bench.clients.latency_program", broker.namesrv, "bench-latency"
    ) as client:
        window = client.measure(200, 0.5)
    assert window.messages == 100
    assert 0 < window.p50_us <= window.p99_us


def test_held_polls_are_answered_where_a_message_arrives_and_nowhere_else(tmp_path: Path) -> None:
    with running_broker(OURS, tmp_path, Cores.of_this_machine()) as broker:
        held = asyncio.run(hold(broker, connections=20, polls=3, arrivals=4))
    # each queue is held by both groups
    assert (held.polls, held.woken, held.woken_wrongly) == (60, 8, 0)
    assert len(held.wake_ms) == 4


def test_a_bystander_counts_its_sends_and_the_longest_of_their_waits(broker: RunningBroker) -> None:
    create_topic(broker.port, BYSTANDER_TOPIC, 1)
    with running_bystander(broker.port, broker.pid) as bystander:
        window = window_of(bystander)
    stored = int(
        call(broker.port, GET_MAX_OFFSET, {"topic": BYSTANDER_TOPIC, "queueId": "0"})["offset"]
    )
    assert (window.sends > 0, stored > window.sends) == (True, True), "the first window had one"
    assert (window.refused, window.lost) == (0, 0)
    assert 0 < window.p99_ms <= window.p999_ms <= window.longest_ms


def test_filtered_pulls_are_counted_message_by_message(broker: RunningBroker) -> None:
    fill_with_properties(broker.port, 200)
    for text, wanted in (("n < 1", 2), ("n < 50", 100)):
        reader = Reader(broker, text, 200)
        reader.introduce()
        window = reader.window(0.2)
        assert window.matches >= wanted
        assert window.read >= 200
        reader.close()
    reader = Reader(broker, "n < 2", 200)
    reader._wanted += 1
    reader.introduce()
    with pytest.raises(PullError, match=r"n < 2: 4 messages of queue \d came, 5 match"):
        reader.window(10)
    reader.close()


def test_a_ratio_is_judged_by_the_median_pair() -> None:
    windows = [
        (
            Window(messages=rate, seconds=1.0, cpu_s=1.0),
            Window(messages=100, seconds=1.0, cpu_s=1.0),
        )
        for rate in (70, 90, 300)
    ]
    ((_, _, ours, theirs, ratio, _, verdict),) = judged("t", (("rate", ">=", 0.8),), windows)
    assert (ours, theirs, ratio, verdict) == ("90.0", "100.0", "0.90 (0.70-3.00)", "reached")
