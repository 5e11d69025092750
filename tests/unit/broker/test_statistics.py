"""What a broker counts: by walking its queues every ten seconds, and three numbers a pull."""

import asyncio
import tracemalloc
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Talk, converse, in_virtual_time

from turbopump.broker.statistics import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC,
    DAY,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    QUEUE_PUT_NUMS,
    SAMPLE_S,
    SPANS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    UNITS_AT_ONCE,
    Statistics,
    StatsItem,
    sizes_in_units,
)
from turbopump.disk.system_disk import SystemDisk
from turbopump.protocol import fastjson
from turbopump.protocol.requests.namesrv import KVTable
from turbopump.protocol.requests.send import ConsumerSendMsgBack, RecallMessage
from turbopump.protocol.requests.statistics import (
    BrokerStatsData,
    BrokerStatsItem,
    GetBrokerRuntimeInfo,
    ViewBrokerStatsData,
)
from turbopump.protocol.requests.topics import DeleteTopic, GetTopicStatsInfo, TopicStatsTable
from turbopump.remoting.turns import finished
from turbopump.store.append_latency import NAMES
from turbopump.store.queues.consume_queue import ConsumeQueue


class Scene:
    """Some queues, a clock that stands still, and the counts of all."""

    def __init__(
        self, directory: Path, *, detail: bool = True, queues: Sequence[str] = ("T", "rmq_sys_X")
    ) -> None:
        self.now = 1000.0
        self.wall_ms = 1_700_000_000_000
        disk = SystemDisk()
        self.queues = [
            ConsumeQueue(disk, directory / name / "0", name, 0, 20 * 60_000) for name in queues
        ]
        self.statistics = Statistics(self.queues, self, "C", detail=detail)

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return self.wall_ms

    def put(self, count: int, size: int = 100, queue: int = 0) -> None:
        target = self.queues[queue]
        for _ in range(count):
            target.append(target.max_index, target.max_index * size, size, 0)

    def ticks(self, count: int = 1) -> int:
        """Let that many samples be taken; how many steps the longest took."""
        longest = 0
        for _ in range(count):
            self.now += SAMPLE_S
            longest = max(longest, 1 + sum(1 for _ in self.statistics.sample()))
        return longest

    def over(self, name: str, key: str) -> list[tuple[int, float, float]]:
        found = self.statistics.find(name, key)
        assert found is not None
        return [(each.sum, round(each.tps, 6), each.avgpt) for each in found]


def test_what_came_into_a_queue_is_counted_for_its_topic_and_the_broker(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.put(30, size=200)
    scene.put(5, queue=1)
    assert scene.statistics.find(TOPIC_PUT_NUMS, "T") is None, (
        "RocketMQ: nothing before the first sample"
    )
    scene.ticks()
    assert scene.over(TOPIC_PUT_NUMS, "T")[0] == (30, 3.0, 1.0)
    assert scene.over(TOPIC_PUT_SIZE, "T")[0] == (6000, 600.0, 200.0)
    assert scene.over(QUEUE_PUT_NUMS, "T@0")[0] == (30, 3.0, 1.0)
    assert scene.over(BROKER_PUT_NUMS, "C")[0][0] == 35
    assert scene.over(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC, "C")[0][0] == 30
    assert scene.statistics.totals[:2] == (35, 6500)


def test_a_minute_is_six_samples_and_what_is_older_falls_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for _ in range(6):
        scene.put(10)
        scene.ticks()
    assert scene.over(TOPIC_PUT_NUMS, "T")[0] == (60, 1.0, 1.0)
    scene.ticks(3)
    assert scene.over(TOPIC_PUT_NUMS, "T")[0] == (30, 0.5, 1.0)
    scene.ticks(3)
    assert scene.over(TOPIC_PUT_NUMS, "T")[0] == (0, 0.0, 0.0)
    scene.put(6)
    scene.ticks()
    assert scene.over(TOPIC_PUT_NUMS, "T")[0] == (6, 0.1, 1.0)


def test_an_hour_is_sampled_every_ten_minutes_and_a_day_every_hour(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.put(600)
    scene.ticks(59)
    assert scene.over(TOPIC_PUT_NUMS, "T")[1:] == [(0, 0.0, 0.0)] * 2
    scene.ticks()
    assert scene.over(TOPIC_PUT_NUMS, "T")[1:] == [(600, 1.0, 1.0), (0, 0.0, 0.0)]
    scene.ticks(300)
    assert scene.over(TOPIC_PUT_NUMS, "T")[1:] == [
        (600, round(600 / 3600, 6), 1.0),
        (600, round(600 / 3600, 6), 1.0),
    ]
    scene.ticks(60)
    assert scene.over(TOPIC_PUT_NUMS, "T")[1][0] == 0, "an hour later it is forgotten there"
    assert scene.over(TOPIC_PUT_NUMS, "T")[2][0] == 600
    scene.ticks(360 * 24)
    assert scene.over(TOPIC_PUT_NUMS, "T")[2][0] == 0


def test_what_a_group_was_given_is_counted_by_message_byte_and_pull(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for _ in range(4):
        scene.statistics.count_pull("g", "T", 0, 5, 5, 500)
    scene.ticks()
    assert scene.over(GROUP_GET_NUMS, "T@g")[0] == (20, 2.0, 5.0)
    assert scene.over(GROUP_GET_SIZE, "T@g")[0] == (2000, 200.0, 500.0)
    assert scene.over(BROKER_GET_NUMS, "C")[0][0] == 20
    scene.statistics.count_pull("g", "T", 0, 1, 1, 1)
    scene.ticks()
    assert scene.over(GROUP_GET_NUMS, "T@g")[0] == (21, 1.05, 21 / 5)
    assert (scene.statistics.totals.found, scene.statistics.totals.given) == (5, 21)


def test_many_messages_are_summed_in_steps_of_a_bounded_size(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.put(UNITS_AT_ONCE * 2 + 7, size=3)
    assert scene.ticks() >= 3
    assert scene.over(TOPIC_PUT_NUMS, "T")[0][0] == UNITS_AT_ONCE * 2 + 7
    assert scene.over(TOPIC_PUT_SIZE, "T")[0][0] == 3 * (UNITS_AT_ONCE * 2 + 7)


def test_many_queues_that_have_grown_are_counted_in_steps_of_a_bounded_number(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, queues=[f"T{number}" for number in range(100)])
    for number in range(100):
        scene.put(1, queue=number)
    assert scene.ticks() > 100
    assert scene.over(BROKER_PUT_NUMS, "C")[0][0] == 100
    assert scene.over(TOPIC_PUT_NUMS, "T99")[0][0] == 1


def test_many_items_are_sampled_in_steps_of_a_bounded_size(tmp_path: Path) -> None:
    scene = Scene(tmp_path, detail=False)
    for number in range(3000):
        scene.statistics.add("SNDBCK_PUT_NUMS", f"T@{number}", 1)
    assert scene.ticks() > 3000
    assert scene.over("SNDBCK_PUT_NUMS", "T@7")[0][0] == 1


def test_what_was_there_before_the_start_does_not_count(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.put(50)
    scene.queues[0].opened_at = 50
    scene.put(3)
    scene.ticks()
    assert scene.over(TOPIC_PUT_NUMS, "T")[0][0] == 3


def test_a_deleted_topic_s_counts_are_gone_and_the_broker_s_stay(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.put(3)
    scene.statistics.count_pull("g", "T", 0, 1, 1, 1)
    scene.ticks()
    scene.statistics.forget_topic("T")
    assert [
        scene.statistics.find(name, key)
        for name, key in ((TOPIC_PUT_NUMS, "T"), (GROUP_GET_NUMS, "T@g"))
    ] == [None, None]
    assert scene.over(BROKER_PUT_NUMS, "C")[0][0] == 3


def test_the_first_sample_of_a_day_notes_what_there_was(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.wall_ms = int(datetime(2024, 5, 1, 23, 59).timestamp() * 1000)
    scene.put(5)
    scene.ticks()
    for day, expected in ((2, (0, 5)), (3, (5, 7))):
        scene.put(2) if day == 3 else None
        scene.wall_ms = int(datetime(2024, 5, day, 0, 0, 1).timestamp() * 1000)
        scene.ticks(2)
        assert (
            scene.statistics.midnight_totals.put_yesterday,
            scene.statistics.midnight_totals.put_today,
        ) == expected


@pytest.mark.parametrize("sizes", [[], [1], [0x7FFFFFFF], [91, 0x7FFFFFFF, 5], [2**22] * 600])
def test_sizes_are_summed_without_gaps(sizes: list[int]) -> None:
    units = b"".join(bytes(8) + size.to_bytes(4) + b"\xff" * 8 for size in sizes)
    assert sum(sizes_in_units(units)) == sum(size for size in sizes if size != 0x7FFFFFFF)


@in_loop(converse)
async def test_an_administrator_sees_the_figures_over_the_wire(talk: Talk, /) -> None:
    await talk.client.create()
    await talk.client.create("gone")
    for _ in range(3):
        await talk.client.send(b"x" * 100)
    await talk.client.send(topic="gone")
    assert len(await talk.client.messages()) == 3
    assert await talk.client.messages(3) == []
    view = ViewBrokerStatsData(stats_name=TOPIC_PUT_NUMS, stats_key="T")
    code, remark = await talk.client.code(view)
    assert (code, remark[:36]) == (1, "The stats <TOPIC_PUT_NUMS> <T> not exist"[:36])
    sample(talk)
    data = fastjson.decode((await talk.client.ask(view)).body, BrokerStatsData)
    assert data.stats_minute is not None
    assert (data.stats_minute.sum, data.stats_minute.avgpt, data.stats_hour) == (
        3,
        1.0,
        BrokerStatsItem(),
    )
    view = ViewBrokerStatsData(stats_name=GROUP_GET_NUMS, stats_key="T@g")
    data = fastjson.decode((await talk.client.ask(view)).body, BrokerStatsData)
    assert data.stats_minute is not None
    assert (data.stats_minute.sum, data.stats_minute.avgpt) == (3, 3.0)
    stats = fastjson.decode(
        (await talk.client.ask(GetTopicStatsInfo(topic="T"))).body, TopicStatsTable
    )
    assert stats.topic_put_tps == pytest.approx(0.3)
    offset = (await talk.client.messages())[0].commit_log_offset
    for level in (0, -1):
        assert await talk.client.code(
            ConsumerSendMsgBack(offset=offset, group="g", delay_level=level)
        ) == (0, "")
    sample(talk)
    view = ViewBrokerStatsData(stats_name="SNDBCK_PUT_NUMS", stats_key="T@g")
    data = fastjson.decode((await talk.client.ask(view)).body, BrokerStatsData)
    assert data.stats_minute is not None
    assert data.stats_minute.sum == 2
    await talk.client.ask(DeleteTopic(topic="gone"))
    assert (
        await talk.client.code(ViewBrokerStatsData(stats_name=TOPIC_PUT_NUMS, stats_key="gone"))
    )[0] == 1


@in_loop(converse)
async def test_a_broker_tells_of_itself_under_apache_s_keys(talk: Talk, /) -> None:
    await talk.client.create()
    empty = await runtime_info(talk)
    assert empty["earliestMessageTimeStamp"] == "-1"
    before = talk.broker.clock.now_ms()
    for _ in range(20):
        await talk.client.send(b"x" * 100)
    await talk.client.messages()
    sample(talk)
    talk.broker.store.latency.add_slow(4.5)  # longer than any append on a loaded machine
    talk.broker.store.latency.end_minute()
    table = await runtime_info(talk)
    assert before <= int(table["earliestMessageTimeStamp"]) <= talk.broker.clock.now_ms()
    assert (
        table["putMessageTimesTotal"],
        table["msgPutTotalTodayNow"],
        table["msgGetTotalTodayNow"],
    ) == ("20", "20", "20")
    assert table["putTps"] == "2.0 2.0 2.0", (
        "no older sample: all three are of the last ten seconds"
    )
    assert table["getTransferredTps"].split()[0] == "2.0"
    classes = dict(part.rsplit(":", 1) for part in table["putMessageDistributeTime"].split())
    assert list(classes) == list(NAMES)
    assert (sum(map(int, classes.values())), int(classes[NAMES[10]]) > 0) == (20, True)
    assert (table["putLatency99"], table["putMessageEntireTimeMax"]) == ("5000.00", "4500")
    assert (table["brokerVersionDesc"], table["commitLogMaxOffset"]) == (
        "V5_3_3",
        str(talk.broker.store.log.end),
    )
    assert 0 < float(table["commitLogDiskRatio"]) <= 1
    assert table["commitLogDirCapacity"].startswith("Total : ")
    assert table["runtime"].startswith("[ 0 days, 0 hours, 0 minutes,")
    assert set(table) >= APACHES_KEYS, APACHES_KEYS - set(table)
    await talk.client.send(properties="DELAY\x0118\x02")
    table = await runtime_info(talk)
    assert (table["scheduleMessageOffset_1"], table["scheduleMessageOffset_18"]) == ("0,0", "0,1")
    talk.broker.parts.stored.runtime_info.add_source(lambda: {"timerReadBehind": "7"})
    assert (await runtime_info(talk))["timerReadBehind"] == "7"


async def told(talk: Talk) -> tuple[str, ...]:
    table = await runtime_info(talk)
    return tuple(
        table[f"timer{name}"]
        for name in ("CongestNum", "OffsetBehind", "ReadBehind", "EnqueueTps", "DequeueTps")
    )


@in_loop(in_virtual_time)
async def test_a_broker_reports_what_waits_in_its_timers_their_rates_and_what_is_late(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    assert await told(talk) == ("0", "0", "0", "0.0", "0.0")
    for number in range(60):
        seconds = 30 if number < 30 else 300 + number
        sent = await talk.client.send(
            properties=f"UNIQ_KEY\x01U{number}\x02TIMER_DELAY_SEC\x01{seconds}\x02"
        )
    await asyncio.sleep(12)
    waiting, behind, late, came, went = await told(talk)
    assert (waiting, behind, late, went) == ("60", "0", "0", "0.0")
    assert float(came) == pytest.approx(6.0)
    assert (
        await talk.client.ask(RecallMessage(topic="T", recall_handle=sent.recall_handle))
    ).code == 0
    await asyncio.sleep(30)
    waiting, behind, late, came, went = await told(talk)
    assert (waiting, behind, late) == ("29", "0", "0"), (
        "those that were delivered and the one recalled do not wait"
    )
    assert float(went) == pytest.approx(30 / 40)
    await asyncio.sleep(120)
    assert (await told(talk))[3:] == ("0.0", "0.0"), "the rates are of the last minute"
    assert talk.broker.parts.delivering.timers is not None
    await talk.broker.parts.delivering.timers.stop()
    await talk.client.send(properties="UNIQ_KEY\x01last\x02TIMER_DELAY_SEC\x0130\x02")
    assert (await told(talk))[:3] == ("29", "1", "0")
    await asyncio.sleep(300)
    waiting, behind, late, *_ = await told(talk)
    assert (waiting, behind) == ("29", "1")
    assert 100 < int(late) < 200


async def runtime_info(talk: Talk) -> dict[str, str]:
    return fastjson.decode((await talk.client.ask(GetBrokerRuntimeInfo())).body, KVTable).table


def sample(talk: Talk) -> None:
    """Take the next sample now."""
    finished(talk.broker.parts.stored.statistics.sample())


_KEYS = """
bootTimestamp runtime putMessageEntireTimeMax putMessageTimesTotal putMessageFailedTimes
putMessageSizeTotal putMessageDistributeTime putMessageAverageSize dispatchMaxBuffer
getMessageEntireTimeMax putTps getFoundTps getMissTps getTotalTps getTransferredTps putLatency99
putLatency999 commitLogDiskRatio consumeQueueDiskRatio commitLogMinOffset commitLogMaxOffset
brokerActive brokerVersionDesc brokerVersion msgPutTotalYesterdayMorning msgPutTotalTodayMorning
msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow
dispatchBehindBytes pageCacheLockTimeMills earliestMessageTimeStamp
startAcceptSendRequestTimeStamp timerReadBehind timerOffsetBehind timerCongestNum timerEnqueueTps
timerDequeueTps remainTransientStoreBufferNumbs remainHowManyDataToFlush commitLogDirCapacity
sendThreadPoolQueueSize sendThreadPoolQueueCapacity pullThreadPoolQueueSize
pullThreadPoolQueueCapacity litePullThreadPoolQueueSize litePullThreadPoolQueueCapacity
queryThreadPoolQueueSize queryThreadPoolQueueCapacity ackThreadPoolQueueSize
ackThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills
litePullThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueHeadWaitTimeMills
EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity
"""
APACHES_KEYS = frozenset(_KEYS.split())


def test_a_day_of_samples_of_one_count_takes_a_kilobyte_and_a_half() -> None:
    """Two counts for each queue: 5,000 topics with 8 queues have 80,000."""
    item = StatsItem(0)
    tracemalloc.start()
    try:
        for tick in range(1, DAY.ticks * DAY.samples + 1):
            item.value, item.times = tick * 1_000_000, tick
            for span in SPANS:
                if tick % span.ticks == 0:
                    item.sample(span, tick)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1500
    assert item.over(DAY, DAY.ticks * DAY.samples).sum == 1_000_000 * DAY.ticks * DAY.samples
