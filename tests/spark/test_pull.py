"""Reading ranges from a broker that is slow, has lost messages, or answers oddly."""

from __future__ import annotations

import itertools
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.spark.fake_cluster import FakeCluster
from tests.spark.stored_messages import stored_message
from tests.stand_ins import returns

from turbopump.errors import (
    ConfigError,
    ConnectError,
    DataLossError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
)
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.command import Command
from turbopump.remoting.blocking_connection import BlockingConnection
from turbopump.spark.cluster import Cluster
from turbopump.spark.decode import decode
from turbopump.spark.offsets import OffsetRange
from turbopump.spark.options import read_options
from turbopump.spark.reading import connected_in_task, read_range

QUEUE = MessageQueue("T", "broker-a", 0)


def offsets_read(
    fake: FakeCluster, begin: int, end: int, *, batch: int = 32, fail: bool = True
) -> list[int]:
    found: list[int] = []
    with Cluster([fake.address]) as cluster:
        wanted = OffsetRange(QUEUE, begin, end)
        options = read_options({"nameServer": fake.address, "topic": "T"})
        for chunk in read_range(
            cluster,
            wanted,
            replace(options, pull_batch_size=batch, pull_timeout_ms=50, fail_on_data_loss=fail),
        ):
            for record_batch in decode(
                chunk, "broker-a", ("queueOffset",), queue_offsets=range(begin, end)
            ):
                found += record_batch.column(0).to_pylist()
    return found


def test_a_range_is_read_exactly_over_several_pulls_and_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("turbopump.spark.reading.CHUNK_ROWS_MAX", 10)
    with FakeCluster({"T": 1}, pull_max=7) as fake:
        fake.fill("T", 0, 60)
        assert offsets_read(fake, 5, 50) == list(range(5, 50))


def test_a_worker_keeps_its_connections_for_the_next_task_unless_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 5)
        options = read_options({"nameServer": fake.address, "topic": "T"})

        def opened_by_a_task(*, kept: bool = True, fails: bool = False) -> int:
            before = fake.connections
            with suppress(ConfigError), connected_in_task(options, kept=kept) as cluster:
                assert len(list(read_range(cluster, OffsetRange(QUEUE, 0, 5), options))) == 1
                if fails:
                    raise ConfigError("of the task")
            return fake.connections - before

        assert [opened_by_a_task(), opened_by_a_task()] == [1, 0]
        routes = [one for one in fake.requests if one.code == RequestCode.GET_ROUTEINFO_BY_TOPIC]
        assert len(routes) == 2, "each task asks where the queues are"
        assert opened_by_a_task(fails=True) == 0
        assert opened_by_a_task() == 1, "what a task that failed has left is not used"
        monkeypatch.setattr("turbopump.spark.reading.KEPT_S", -1.0)
        assert [opened_by_a_task(), opened_by_a_task()] == [0, 1], "idle for too long"
        monkeypatch.setattr("turbopump.spark.reading.os.getpid", returns(-1))
        assert opened_by_a_task(kept=False) == 1, "a fork uses connections of its own"
        monkeypatch.undo()
        with connected_in_task(options, kept=False):
            """Ends what was kept."""


def fickle(fake: FakeCluster, gives: Any, request: Command) -> Command:
    fake.pull_max = next(gives)
    return fake.usual_answer(request)


def test_pulls_that_fall_short_are_followed_up_and_nothing_is_skipped_or_doubled() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 2000)
        gives = itertools.cycle([32, 32, 32, 32, 5, 32, 32, 1, 17])

        fake.answer = partial(fickle, fake, gives)
        assert offsets_read(fake, 3, 1990, batch=1024) == list(range(3, 1990))


def test_several_pulls_go_out_together_once_it_is_known_how_much_one_gives() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 400)
        assert offsets_read(fake, 0, 400, batch=1024) == list(range(400))
        pulls = [
            request.ext or {}
            for request in fake.requests
            if request.code == RequestCode.PULL_MESSAGE
        ]
        assert [int(pull["queueOffset"]) for pull in pulls] == list(range(0, 400, 32))
        assert [int(pull["maxMsgNums"]) for pull in pulls] == [400, *[32] * 11, 16]


def generous(fake: FakeCluster, request: Command) -> Command:
    if request.code == RequestCode.PULL_MESSAGE:
        assert request.ext is not None
        request.ext["maxMsgNums"] = "32"
    return fake.usual_answer(request)


def test_a_broker_that_gives_more_than_asked_does_not_widen_the_range() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 10)

        fake.answer = partial(generous, fake)
        assert offsets_read(fake, 2, 5) == [2, 3, 4]


def test_messages_deleted_below_the_range_are_loss_that_names_them() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 20)
        fake.queues["T", 0].remove_oldest(8)
        with pytest.raises(
            DataLossError,
            match=r"T@broker-a:0: messages 3 to 7 of the asked 3 "
            r"to 14 .* now holds 8 to 19",
        ):
            offsets_read(fake, 3, 15)


def test_with_fail_on_data_loss_false_what_is_left_is_read_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FakeCluster({"T": 1}) as fake, caplog.at_level(logging.WARNING):
        fake.fill("T", 0, 20)
        fake.queues["T", 0].remove_oldest(8)
        assert offsets_read(fake, 3, 15, fail=False) == list(range(8, 15))
        assert offsets_read(fake, 1, 4, fail=False) == []
    assert "messages 3 to 7" in caplog.text
    assert "messages 1 to 3" in caplog.text


def test_an_end_that_the_broker_no_longer_has_is_loss() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 5)
        with pytest.raises(DataLossError, match="messages 5 to 8"):
            offsets_read(fake, 2, 9)
        with pytest.raises(DataLossError, match="messages 7 to 8"):
            offsets_read(fake, 7, 9)
        assert offsets_read(fake, 2, 9, fail=False) == [2, 3, 4]


def being_removed(fake: FakeCluster, request: Command) -> Command:
    if request.code == RequestCode.PULL_MESSAGE and int((request.ext or {})["queueOffset"]) < 6:
        places = {
            "nextBeginOffset": "6",
            "minOffset": "0",
            "maxOffset": "20",
            "suggestWhichBrokerId": "0",
        }
        return Command(20, ext=places, remark="MESSAGE_WAS_REMOVING")
    return fake.usual_answer(request)


def test_pull_retry_immediately_over_removed_messages_is_loss() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 20)

        fake.answer = partial(being_removed, fake)
        with pytest.raises(DataLossError, match="messages 2 to 5"):
            offsets_read(fake, 2, 10)
        assert offsets_read(fake, 2, 10, fail=False) == [6, 7, 8, 9]


def test_a_busy_broker_is_asked_again() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 5)
        refusals = iter([Command(2, remark="busy"), Command(14, remark="starting")])
        fake.answer = lambda request: (
            (next(refusals, None) if request.code == RequestCode.PULL_MESSAGE else None)
            or fake.usual_answer(request)
        )
        assert offsets_read(fake, 0, 5) == [0, 1, 2, 3, 4]


def test_a_broker_that_leaves_the_route_for_a_moment_is_waited_for() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 5)
        absences = iter(
            [Command(17), Command(17), Command(0, body=b'{"brokerDatas":[],"queueDatas":[]}')]
        )
        fake.answer = lambda request: (
            (next(absences, None) if request.code == 105 else None) or fake.usual_answer(request)
        )
        assert offsets_read(fake, 0, 5) == [0, 1, 2, 3, 4]


def test_a_connection_that_breaks_in_mid_answer_is_made_again() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 5)
        breaks = iter([True])
        fake.answer = lambda request: (
            None
            if request.code == RequestCode.PULL_MESSAGE and next(breaks, False)
            else fake.usual_answer(request)
        )
        assert offsets_read(fake, 0, 5) == [0, 1, 2, 3, 4]


def test_a_refusal_is_told_with_code_and_remark() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.answer = lambda request: (
            fake.usual_answer(request)
            if request.code == 105
            else Command(16, remark="the broker does not permit pulling")
        )
        with pytest.raises(ResponseError, match=r"code 16 to PullMessage .*does not permit"):
            offsets_read(fake, 0, 5)


def test_an_unknown_topic_and_an_absent_name_server_are_told_apart() -> None:
    with (
        FakeCluster({"T": 1}) as fake,
        Cluster([fake.address]) as cluster,
        pytest.raises(RouteNotFoundError, match="no topic 'X'"),
    ):
        cluster.queues("X")
    with (
        Cluster([fake.address], patience=0.1) as cluster,
        pytest.raises(RemotingError, match="no name server answered: no connec"),
    ):
        cluster.queues("T")


def test_a_link_to_nobody_says_to_whom() -> None:
    with FakeCluster({"T": 1}) as gone:
        pass
    with pytest.raises(ConnectError, match=f"no connection to {gone.address}"):
        BlockingConnection(gone.address, timeout=1)


@pytest.mark.parametrize("address", ["mq..example:1", f"{'a' * 64}:1", "a b:1", "mq"])
def test_an_advertised_address_that_is_none_is_one_that_cannot_be_reached(address: str) -> None:
    with pytest.raises(ConnectError, match=f"^no connection to {address}: "):
        BlockingConnection(address, timeout=1)


def test_the_second_name_server_is_asked_when_the_first_is_away() -> None:
    with FakeCluster({"T": 2}) as gone:
        pass
    with FakeCluster({"T": 2}) as fake, Cluster([gone.address, fake.address]) as cluster:
        assert [queue.queue_id for queue in cluster.queues("T")] == [0, 1]


@pytest.mark.parametrize("guess", [0, 3, 4, 5, 9, 10])
@pytest.mark.parametrize(
    ("timestamp", "offset"), [(0, 0), (100, 0), (101, 1), (300, 2), (301, 6), (600, 9), (601, 10)]
)
def test_the_offset_at_a_time_is_right_whatever_the_broker_guesses(
    guess: int, timestamp: int, offset: int
) -> None:
    with FakeCluster({"T": 1}) as fake:
        for stored_ms in (100, 200, 300, 300, 300, 300, 400, 500, 500, 600):
            fake.queues["T", 0].put(b"", stored_ms=stored_ms)
        fake.answer_code(29, Command(0, ext={"offset": str(guess)}))
        with Cluster([fake.address]) as cluster:
            assert cluster.offset_at(QUEUE, timestamp) == offset


def test_a_stored_message_that_is_damaged_stops_the_read() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 3)
        fake.queues["T", 0].entries[1] = stored_message()[:-1]
        with pytest.raises(Exception, match="damaged in the broker's store"):
            offsets_read(fake, 0, 3)


def flipped(entry: bytes, byte: int) -> bytes:
    return entry[:byte] + bytes([entry[byte] ^ 1]) + entry[byte + 1 :]


@pytest.mark.parametrize("byte", [0, 3, 5, 8, -30])
def test_a_damaged_message_is_loss_that_names_it_or_is_left_out(
    byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 100)
        queue = fake.queues["T", 0]
        queue.entries[40] = flipped(stored_message(b"x" * 50, queue_offset=40), byte)
        with pytest.raises(
            DataLossError,
            match=r"damaged in the broker's store: offsets 40 "
            r".*failOnDataLoss",
        ):
            offsets_read(fake, 0, 100)
        with caplog.at_level(logging.WARNING):
            read = offsets_read(fake, 0, 100, fail=False)
        assert read == [*range(40), *range(41, 100)]
        assert "offsets 40" in caplog.text


def test_messages_that_the_broker_passes_over_are_loss() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 20)
        queue = fake.queues["T", 0]
        queue.entries[3] = queue.entries[4] = b""
        with pytest.raises(DataLossError, match=r"offsets 3, 4 \(the broker has skipped them"):
            offsets_read(fake, 0, 20)
        assert offsets_read(fake, 0, 20, fail=False) == [0, 1, 2, *range(5, 20)]
        assert offsets_read(fake, 5, 20) == list(range(5, 20))
