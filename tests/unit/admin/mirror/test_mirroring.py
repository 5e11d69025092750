"""Mirroring between two clusters, in virtual time: what is kept, where it continues, and what is
refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop
from tests.unit.admin.mirror.two_clusters import (
    QUEUE,
    TOPIC,
    TwoClusters,
    missing,
    too_early,
    with_two_clusters,
)
from tests.waits import until

from turbopump.config.broker_config import FlushDiskType
from turbopump.errors import ConfigError
from turbopump.message.compression import compress
from turbopump.message.properties import ZLIB, encode_properties
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import DeleteTopic, GetTopicConfig

EVERY_HOUR = ";".join(map(str, range(24)))


@in_loop(with_two_clusters)
async def test_a_topic_is_made_alike_and_its_messages_stay_what_they_are(
    world: TwoClusters, /
) -> None:
    attributes = "+message.type=FIFO"
    await world.source.client.create(TOPIC, 3, attributes=attributes)
    for number in range(60):
        await world.source.send(
            b"%d" % number, number % 3, TAGS="paid", KEYS=f"k{number} other", price="7"
        )
        await asyncio.sleep(0.01)
    report = await world.mirror()
    assert (report.sent, report.topics, report.queues, report.agrees) == (60, 1, 3, True)
    answer = await world.target.client.ask(GetTopicConfig(topic=TOPIC))
    assert b'"+message.type"' not in answer.body
    assert b'"message.type":"FIFO"' in answer.body.replace(b" ", b"")
    for queue_id in range(3):
        originals = await world.source.messages(queue_id)
        copies = await world.target.messages(queue_id)
        assert [one.body for one in copies] == [one.body for one in originals]
        assert [one.msg_id for one in copies] == [one.msg_id for one in originals]
        for one, original in zip(copies, originals, strict=True):
            mirrored = dict(one.properties)
            assert mirrored.pop("MIRRORED_FROM").startswith(
                f"source/broker-a/{queue_id}/{original.queue_offset}/"
            )
            assert mirrored.pop("__BORNHOST") == "{}:{}".format(*original.born_host)
            born = int(mirrored.pop("BORN_TIMESTAMP", one.born_timestamp))
            assert born == original.born_timestamp
            assert mirrored == {**original.properties, "CLUSTER": "target"}


@in_loop(with_two_clusters)
async def test_a_second_run_copies_what_came_since(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC, 2)
    await world.source.fill(50, queues=2)
    await world.mirror()
    await world.source.fill(30, begin=50, queues=2)
    assert (await world.mirror()).sent == 30
    assert (await world.mirror()).sent == 0
    for queue_id in range(2):
        assert await world.target.bodies(queue_id) == await world.source.bodies(queue_id)


@in_loop(with_two_clusters)
async def test_a_pattern_finds_topics_that_are_made_later(world: TwoClusters, /) -> None:
    await world.source.client.create("orders-1")
    await world.source.client.create("bills")
    async with world.following("orders-*"):
        await world.source.send(b"1", topic="orders-1")
        await world.source.client.create("orders-2")
        await world.source.send(b"2", topic="orders-2")
        store = world.target.broker.store
        await until(lambda: store.max_offset("orders-1", 0) == store.max_offset("orders-2", 0) == 1)
    assert world.target.broker.tables.topics.find("bills") is None


@in_loop(with_two_clusters)
async def test_mirrors_in_both_directions_send_nothing_back(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await world.target.client.create(TOPIC)
    stop = asyncio.Event()
    back = asyncio.create_task(world.mirror(back=True, follow=True, stop=stop))
    async with world.following() as there:
        await world.source.fill(20)
        await world.target.fill(20, begin=100)
        for cluster in (world.source, world.target):
            await until(lambda: cluster.broker.store.max_offset(TOPIC, 0) >= 40)  # noqa: B023
        await asyncio.sleep(60)
    stop.set()
    assert ((await there).sent, (await there).returned) == (20, 20)
    assert ((await back).sent, (await back).returned) == (20, 20)
    for cluster in (world.source, world.target):
        assert len(await cluster.bodies()) == 40
        assert len(set(await cluster.bodies())) == 40


@in_loop(with_two_clusters)
async def test_a_ring_of_clusters_ends_at_the_origin(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await world.source.send(b"1", MIRRORED_FROM="middle/broker-a/0/17/2 target")
    report = await world.mirror()
    assert (report.sent, report.returned, report.agrees) == (0, 1, True)


@in_loop(with_two_clusters)
async def test_a_chain_of_clusters_keeps_its_names(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await world.source.send(b"1", MIRRORED_FROM="first/broker-a/0/17/2 before")
    assert (await world.mirror()).sent == 1
    (message,) = await world.target.messages()
    assert message.properties["MIRRORED_FROM"] == "source/broker-a/0/0/0 first before"


@in_loop(with_two_clusters)
async def test_a_topic_with_too_few_queues_is_named_and_the_others_are_mirrored(
    world: TwoClusters, /
) -> None:
    await world.source.client.create(TOPIC, 4)
    await world.target.client.create(TOPIC, 2)
    await world.source.client.create("bills")
    await world.source.send(b"1", topic="bills")
    report = await world.mirror(TOPIC, "bills", "bils")
    assert report.sent == 1
    assert not report.agrees
    assert report.failed[TOPIC].startswith(
        "topic orders has 2 queues on broker broker-a of cluster target, and 4 at the source"
    )
    assert report.failed["bils"] == "cluster source has no topic bils (did you mean bills?)"


@in_loop(with_two_clusters)
async def test_a_topic_that_may_not_be_written_is_named(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await world.target.client.create(TOPIC, perm=4)
    assert "may not be written" in (await world.mirror()).failed[TOPIC]


@in_loop(with_two_clusters)
async def test_a_source_that_begins_anew_is_noticed(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await world.source.fill(10)
    await world.mirror()
    await world.source.client.ask(DeleteTopic(topic=TOPIC))
    await world.source.client.create(TOPIC)
    await world.source.fill(3)
    report = await world.mirror()
    assert "the source topic was made again" in report.failed[str(QUEUE)]
    assert (await world.mirror(source_name="renewed")).sent == 3


@in_loop(with_two_clusters, source={"file_reserved_time": 1, "delete_when": EVERY_HOUR})
async def test_messages_that_the_source_has_deleted_are_counted_or_an_error(
    world: TwoClusters, /
) -> None:
    await world.source.client.create(TOPIC)
    await world.source.fill(10)
    await world.mirror()
    for number in range(10, 30):
        await world.source.send(b"%d " % number + bytes(200_000))
    await asyncio.sleep(2 * 3600)
    (first, end) = (world.source.broker.store.min_offset(TOPIC, 0), 30)
    assert 10 < first < end
    report = await world.mirror()
    assert report.failed[str(QUEUE)].startswith(
        f"{first - 10} messages of orders@broker-a:0 are gone: the source has deleted those from "
        f"offset 10 to {first - 1} before they were read. --skip-lost"
    )
    report = await world.mirror(skip_lost=True)
    assert (report.lost, report.sent, report.agrees) == (first - 10, end - first, True)


@in_loop(with_two_clusters)
async def test_a_target_that_has_lost_its_store_gets_everything_again(
    world: TwoClusters, /, caplog: pytest.LogCaptureFixture
) -> None:
    await world.source.client.create(TOPIC)
    async with world.following() as running:
        await world.source.fill(300)
        await until(lambda: world.target.broker.store.max_offset(TOPIC, 0) == 300)
        world.target.kill()
        await world.target.up(store_path_root_dir="/another")
        await world.target.client.create(TOPIC)
        await world.source.fill(100, begin=300)
        await until(lambda: world.target.broker.store.max_offset(TOPIC, 0) >= 400)
    assert "target has lost its newest messages" in caplog.text
    assert (await running).agrees
    assert await world.target.bodies() == await world.source.bodies()


@pytest.mark.parametrize("power_cuts", [False, True])
@pytest.mark.parametrize("seed", range(1, 4))
@in_loop(with_two_clusters, target={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
async def test_kills_of_mirror_and_broker_lose_nothing_and_keep_the_order(
    world: TwoClusters, /, seed: int, power_cuts: bool
) -> None:
    assert world.simulation.seed == seed
    random = world.simulation.source("kills")
    await world.source.client.create(TOPIC, 2)
    sent = 0
    for _ in range(6):
        task = asyncio.create_task(world.mirror(follow=True))
        for _ in range(random.randrange(1, 4)):
            count = random.randrange(1, 200)
            await world.source.fill(count, begin=sent, queues=2)
            sent += count
        await asyncio.sleep(random.choice([0, 0.001, 0.05, 1, 20]))
        what = random.choice(["mirror", "broker", "both"])
        if what != "broker":
            task.cancel()
        if what != "mirror":
            world.target.kill(power_cut=power_cuts)
            await asyncio.sleep(random.choice([0.1, 5]))
            await world.target.up(flush_disk_type=FlushDiskType.SYNC_FLUSH)
        await asyncio.sleep(random.choice([0, 0.01, 2, 15]))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    report = await world.mirror()
    assert report.agrees, report
    for queue_id in range(2):
        copies = await world.target.bodies(queue_id)
        assert missing(copies, await world.source.bodies(queue_id)) == []
        assert power_cuts or too_early(copies) == []


@in_loop(with_two_clusters)
async def test_compressed_and_empty_looking_bodies_are_stored_as_they_are(
    world: TwoClusters, /
) -> None:
    await world.source.client.create(TOPIC)
    body, flags = compress(b"a" * 10_000, ZLIB, 5)
    for sys_flag, sent in ((flags, body), (0, b"\0"), (flags, body), (0, b"plain")):
        await world.source.client.ask(
            SendMessageV2(topic=TOPIC, queue_id=0, sys_flag=sys_flag, properties=""), sent
        )
    assert (await world.mirror()).sent == 4
    copies = await world.target.messages()
    assert [one.body for one in copies] == [b"a" * 10_000, b"\0", b"a" * 10_000, b"plain"]
    assert [one.stored_body for one in copies] == [body, b"\0", body, b"plain"]


@in_loop(with_two_clusters)
async def test_a_delayed_message_comes_once_it_is_delivered_and_is_not_delayed_again(
    world: TwoClusters, /
) -> None:
    await world.source.client.create(TOPIC)
    await world.source.send(b"later", DELAY="2")
    deliver_at = world.simulation.clock(world.source.host).now_ms() + 8_000
    await world.source.send(b"timed", TIMER_DELIVER_MS=str(deliver_at))
    assert (await world.mirror()).sent == 0
    await until(lambda: world.source.broker.store.max_offset(TOPIC, 0) == 2)
    assert (await world.mirror()).sent == 2
    for message in await world.target.messages():
        assert not {"DELAY", "TIMER_DELIVER_MS", "TIMER_OUT_MS"} & message.properties.keys()


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("%RETRY%g", "wait for a retry"),
        ("%DLQ%g", "turbopump dlq"),
        ("SCHEDULE_TOPIC_XXXX", "RocketMQ's own"),
    ],
)
@in_loop(with_two_clusters)
async def test_topics_of_the_cluster_itself_are_refused(
    world: TwoClusters, /, topic: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        await world.mirror(topic)


@in_loop(with_two_clusters, target={"broker_cluster_name": "source"})
async def test_two_clusters_of_one_name_need_others(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    await world.source.fill(3)
    with pytest.raises(ConfigError, match="both clusters are called source"):
        await world.mirror()
    assert (await world.mirror(target_name="there")).sent == 3


@in_loop(with_two_clusters, target={"broker_name": "broker-b"})
async def test_the_only_other_broker_is_the_counterpart_or_the_given_one(
    world: TwoClusters, /
) -> None:
    await world.source.client.create(TOPIC)
    await world.source.fill(3)
    report = await world.mirror(brokers={"broker-a": "nobody"})
    assert report.failed[TOPIC] == "cluster target has no broker nobody"
    assert (await world.mirror()).sent == 3
    assert (await world.mirror(brokers={"broker-a": "broker-b"})).sent == 0


@in_loop(with_two_clusters)
async def test_the_properties_of_clients_that_are_no_utf_8_stay(world: TwoClusters, /) -> None:
    await world.source.client.create(TOPIC)
    text = encode_properties({"TAGS": "\udcb2\udce2"})
    await world.source.client.ask(SendMessageV2(topic=TOPIC, queue_id=0, properties=text), b"1")
    await world.mirror()
    answer, _ = await world.target.client.pull(0, topic=TOPIC)
    original, _ = await world.source.client.pull(0, topic=TOPIC)
    assert (b"TAGS\x01\xb2\xe2\x02" in answer.body) == (b"TAGS\x01\xb2\xe2\x02" in original.body)
