"""Creating and listing topics over the wire, and what a restart finds."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Talk, converse, in_virtual_time, pull, talking, watched
from tests.waits import until_count

from turbopump.errors import StoreLockedError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from turbopump.protocol.requests.pull import PullMessage
from turbopump.protocol.requests.topics import (
    CreateTopic,
    CreateTopicList,
    CreateTopicListRequestBody,
    DeleteTopic,
    GetAllTopicConfig,
    GetTopicConfig,
    GetTopicStatsInfo,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicConfigSerializeWrapper,
    TopicStatsTable,
)


async def table(talk: Talk) -> TopicConfigSerializeWrapper:
    answer = await talk.client.ask(GetAllTopicConfig())
    assert answer.ext is not None
    wrapper = fastjson.decode(answer.body, TopicConfigSerializeWrapper)
    assert answer.ext["totalTopicNum"] == str(len(wrapper.topic_config_table))
    return wrapper


@in_loop(converse)
async def test_a_created_topic_is_as_asked_and_a_change_takes_the_next_version(
    talk: Talk, /
) -> None:
    before = (await table(talk)).data_version.counter
    request = CreateTopic(
        topic="T",
        read_queue_nums=3,
        write_queue_nums=2,
        perm=4,
        order=True,
        topic_sys_flag=1,
        attributes="+message.type=FIFO",
    )
    assert await talk.client.code(request) == (0, "")
    found = await table(talk)
    topic = found.topic_config_table["T"]
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.order) == (
        3,
        2,
        4,
        True,
    )
    assert (topic.topic_sys_flag, topic.attributes, found.data_version.counter) == (
        1,
        {"message.type": "FIFO"},
        before + 1,
    )
    assert await talk.client.code(request) == (0, "")
    assert (await table(talk)).data_version.counter == before + 1, "the same again changes nothing"
    await talk.client.ask(CreateTopic(topic="T", attributes="+message.type=DELAY"))
    assert (await table(talk)).topic_config_table["T"].attributes == {"message.type": "DELAY"}
    await talk.client.ask(CreateTopic(topic="T", attributes="-message.type"))
    assert (await table(talk)).topic_config_table["T"].attributes == {}


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"topic": "a b"}, "holds a character outside"),
        ({"topic": "../../x"}, "holds a character outside"),
        ({"topic": ""}, "empty"),
        ({"topic": "TBW102"}, "conflict with system topic"),
        ({"topic": "rmq_sys_x"}, "conflict with system topic"),
        ({"topic": "DefaultCluster"}, "conflict with system topic"),
        ({"topic": "DefaultCluster_REPLY_TOPIC"}, "conflict with system topic"),
        ({"topic": "broker-a"}, "conflict with system topic"),
        ({"read_queue_nums": -1}, "readQueueNums is -1"),
        ({"write_queue_nums": 65536}, "writeQueueNums is 65536"),
        ({"perm": 16}, "perm is 16"),
        ({"perm": -1}, "perm is -1"),
        ({"attributes": "+message.type=MIXED"}, "MIXED message type is not supported."),
    ],
)
@in_loop(converse)
async def test_a_topic_that_cannot_be_is_refused_with_the_reason(
    talk: Talk, /, fields: dict[str, Any], remark: str
) -> None:
    before = await table(talk)
    code, said = await talk.client.code(CreateTopic(**{"topic": "T", **fields}))
    assert code == ResponseCode.INVALID_PARAMETER
    assert remark in said
    assert await table(talk) == before


@pytest.mark.parametrize(
    ("odd", "remark"),
    [
        ({"perm": None}, "field perm is missing"),
        ({"perm": "x"}, "field perm has the unusable value 'x'"),
        (
            {"readQueueNums": "2147483648"},
            "field read_queue_nums (readQueueNums) has the unusable value '2147483648'",
        ),
        ({"writeQueueNums": None}, "field writeQueueNums is missing"),
        ({"topicFilterType": "X"}, "topicFilterType is 'X'"),
    ],
)
@in_loop(converse)
async def test_a_request_for_a_topic_without_its_numbers_is_refused_and_not_filled_with_others(
    talk: Talk, /, odd: dict[str, str | None], remark: str
) -> None:
    class Odd(CreateTopic):
        def to_ext(self) -> dict[str, str]:
            return {
                name: value
                for name, value in {**super().to_ext(), **odd}.items()
                if value is not None
            }

    before = await table(talk)
    code, said = await talk.client.code(Odd(topic="T"))
    assert (code, remark in said) == (ResponseCode.SYSTEM_ERROR, True), said
    assert await table(talk) == before


@pytest.mark.parametrize(
    ("attributes", "remark"),
    [
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        (" +message.type=FIFO", "add/alter attribute format is wrong:  +message.type"),
        (",+message.type=FIFO", "delete attribute format is wrong: "),
        ("+novalue", "delete attribute format is wrong: +novalue"),
        ("+message.type=", "kv string format wrong."),
        ("+a+b=c", "kv string format wrong."),
        ("+message.type=FIFO,+message.type=DELAY", "key duplication: +message.type"),
        ("+message.type=DELAY,-message.type", "alter duplication key. key: message.type"),
        ("+unknown=1", "unsupported key: unknown"),
        (
            "+message.type=fifo",
            "value is not in set: [UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION, MIXED]",
        ),
        ("-cleanup.policy", "attempt to delete a nonexistent key: cleanup.policy"),
        (
            "+cleanup.policy=COMPACTION",
            "attempt to update an unchangeable attribute. key: cleanup.policy",
        ),
        ("+reserve.time=5", "Update topic reserveTime not supported"),
        ("+queue.type=BatchCQ", "attempt to update an unchangeable attribute. key: queue.type"),
    ],
)
@in_loop(converse)
async def test_an_attribute_that_cannot_be_is_refused_in_apache_s_words(
    talk: Talk, /, attributes: str, remark: str
) -> None:
    await talk.client.create()
    before = await table(talk)
    code, said = await talk.client.code(CreateTopic(topic="T", attributes=attributes))
    assert (code, said[: len(remark)]) == (ResponseCode.SYSTEM_ERROR, remark)
    assert await table(talk) == before


@in_loop(converse)
async def test_attributes_of_a_new_topic_can_only_be_added(talk: Talk, /) -> None:
    code, said = await talk.client.code(CreateTopic(topic="T", attributes="-message.type"))
    assert (code, said[:52]) == (1, "only add attribute is supported while creating topic")
    await talk.client.create("T", attributes="+queue.type=SimpleCQ,+cleanup.policy=DELETE")
    await talk.client.create("T", attributes="+queue.type=SimpleCQ")


@in_loop(converse)
async def test_of_a_list_of_topics_all_are_made_or_none(talk: Talk, /) -> None:
    def body(*names: str) -> bytes:
        topics = [
            TopicConfig(topic_name=name, perm=4, attributes={"+message.type": "FIFO"})
            for name in names
        ]
        return fastjson.encode(CreateTopicListRequestBody(topic_config_list=topics))

    assert await talk.client.code(CreateTopicList(), body("A", "B")) == (0, "")
    topics = (await table(talk)).topic_config_table
    assert [(topics[name].perm, topics[name].attributes) for name in "AB"] == [
        (4, {"message.type": "FIFO"})
    ] * 2
    assert await talk.client.code(CreateTopicList(), body("A", "C")) == (0, ""), (
        "RocketMQ: C is forgotten after A"
    )
    assert "C" in (await table(talk)).topic_config_table
    assert (await talk.client.code(CreateTopicList(), body("D", "a b")))[
        0
    ] == ResponseCode.INVALID_PARAMETER
    assert "D" not in (await table(talk)).topic_config_table
    assert (await talk.client.code(CreateTopicList(), b"no list"))[0] == ResponseCode.SYSTEM_ERROR


@in_loop(converse)
async def test_one_topic_can_be_asked_for(talk: Talk, /) -> None:
    await talk.client.create("T", 3, attributes="+message.type=FIFO")
    answer = await talk.client.ask(GetTopicConfig(topic="T", logical=True))
    found = fastjson.decode(answer.body, TopicConfigAndQueueMapping)
    assert (found.topic_name, found.write_queue_nums, found.attributes) == (
        "T",
        3,
        {"message.type": "FIFO"},
    )
    code, remark = await talk.client.code(GetTopicConfig(topic="none"))
    assert (code, remark[:35]) == (
        ResponseCode.TOPIC_NOT_EXIST,
        "No topic in this broker. topic: non",
    )


@in_loop(converse)
async def test_a_topic_tells_where_its_queues_begin_and_end(talk: Talk, /) -> None:
    await talk.client.create("T", 3)
    before = talk.broker.clock.now_ms()
    for _ in range(2):
        await talk.client.send(queue_id=1)
    answer = await talk.client.ask(GetTopicStatsInfo(topic="T"))
    queues = fastjson.decode(answer.body, TopicStatsTable).offset_table
    assert {
        queue.queue_id: (found.min_offset, found.max_offset) for queue, found in queues.items()
    } == {0: (0, 0), 1: (0, 2), 2: (0, 0)}
    assert {queue.broker_name for queue in queues} == {"broker-a"}
    times = [found.last_update_timestamp for found in queues.values()]
    assert times[0] == times[2] == 0
    assert before <= times[1] <= talk.broker.clock.now_ms()
    assert (await talk.client.code(GetTopicStatsInfo(topic="none")))[
        0
    ] == ResponseCode.TOPIC_NOT_EXIST


@in_loop(watched)
async def test_a_deleted_topic_is_gone_with_its_queues_and_offsets_and_begins_anew(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path) as talk:
        await talk.client.create("T", 2)
        await talk.client.create("other")
        await talk.client.join("c")
        for topic in ("T", "%RETRY%g_T", "other"):
            await talk.client.send(b"old", topic)
        await talk.client.ask(
            UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
        )
        assert await talk.client.code(DeleteTopic(topic="T")) == (0, "")
        topics = (await table(talk)).topic_config_table
        assert "T" not in topics
        assert "other" in topics
        assert talk.broker.tables.offsets.groups_of("T") == []
        assert not (tmp_path / "consumequeue" / "T").exists()
        assert (
            await talk.client.code(
                PullMessage(consumer_group="g", topic="T", queue_id=0, queue_offset=0)
            )
        )[0] == 17
        assert await talk.client.all_bodies("other") == [b"old"]
        await talk.client.create("T", 1)
        assert (await talk.client.send(b"new")).queue_offset == 0
        assert await talk.client.all_bodies("T") == [b"new"]
        assert await talk.client.code(DeleteTopic(topic="none")) == (0, ""), (
            "RocketMQ: what is not there is deleted"
        )
        for topic in ("TBW102", "broker-a", "", "a b"):
            assert (await talk.client.code(DeleteTopic(topic=topic)))[
                0
            ] == ResponseCode.INVALID_PARAMETER
    async with talking(tmp_path) as talk:
        assert await talk.client.all_bodies("T") == [b"new"]
        assert await talk.client.all_bodies("other") == [b"old"]


@in_loop(converse)
async def test_a_pull_that_waits_for_a_deleted_topic_is_answered_and_goes_on_with_the_new_one(
    talk: Talk, /
) -> None:
    await talk.client.create()
    await talk.client.send(b"old")
    await talk.client.join("c")
    waiting = asyncio.create_task(talk.another().pull(1, suspend_ms=1_000_000))
    await until_count(talk.broker.parts.delivering.held_pulls, 1)
    await talk.client.ask(DeleteTopic(topic="T"))
    answer, header = await waiting
    assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    await talk.client.create()
    await talk.client.send(b"new")
    assert await talk.client.all_bodies() == [b"new"]


@in_loop(in_virtual_time)
async def test_what_waited_when_its_topic_was_deleted_comes_when_the_name_is_made_again(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    for body, properties in (
        (b"level", "DELAY\x013\x02"),
        (b"time", "TIMER_DELAY_SEC\x0120\x02"),
        (b"gone", ""),
    ):
        await talk.client.send(body, properties=f"UNIQ_KEY\x01{body.decode()}\x02{properties}")
    await talk.client.ask(DeleteTopic(topic="T"))
    await asyncio.sleep(30)
    assert (await talk.client.ask(pull(0))).code == ResponseCode.TOPIC_NOT_EXIST
    await talk.client.create()
    assert await talk.client.all_bodies() == [b"level", b"time"]


@in_loop(watched)
async def test_the_system_s_topics_are_there_from_the_start(tmp_path: Path) -> None:
    async with talking(tmp_path / "a", broker_topic_enable=False) as talk:
        topics = (await table(talk)).topic_config_table
        assert (topics["TBW102"].write_queue_nums, topics["TBW102"].perm) == (8, 7)
        assert topics["SCHEDULE_TOPIC_XXXX"].write_queue_nums == 18
        assert topics["BenchmarkTest"].write_queue_nums == 1024
        assert (topics["DefaultCluster"].perm, topics["broker-a"].perm) == (7, 1)
        # Go's client drops its traces for ever where it finds no such topic
        assert (
            topics["RMQ_SYS_TRACE_TOPIC"].write_queue_nums,
            topics["RMQ_SYS_TRACE_TOPIC"].perm,
        ) == (1, 6)
    async with talking(
        tmp_path / "b", auto_create_topic_enable=False, trace_topic_enable=False
    ) as talk:
        topics = (await table(talk)).topic_config_table
        assert "TBW102" not in topics
        assert "RMQ_SYS_TRACE_TOPIC" not in topics


@in_loop(watched)
async def test_no_number_in_a_topic_keeps_a_broker_from_its_next_start(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        for number in (2**31 - 1, -(2**31), 2**31, 2**63, 10**30):
            await talk.client.ask(CreateTopic(topic=f"T{abs(number) % 97}", topic_sys_flag=number))
    async with talking(tmp_path) as talk:
        assert len((await table(talk)).topic_config_table) > 9


@in_loop(watched)
async def test_a_restart_keeps_topics_groups_offsets_and_messages(tmp_path: Path) -> None:
    query = QueryConsumerOffset(
        consumer_group="g", topic="T", queue_id=1, set_zero_if_not_found=False
    )

    async with talking(tmp_path) as talk:
        await talk.client.create(queues=2)
        for number in range(40):
            await talk.client.send(b"%d" % number + bytes(number), queue_id=1)
        await talk.client.send(b"auto", "made-by-sending")
        await talk.client.join("c")
        await talk.client.ask(
            UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=1, commit_offset=17)
        )
    for name in ("topics", "subscriptionGroup", "consumerOffset"):
        assert (tmp_path / "config" / f"{name}.json").exists()
    assert not (tmp_path / "abort").exists()
    async with talking(tmp_path) as talk:
        assert await talk.client.all_bodies("T", 1) == [
            b"%d" % number + bytes(number) for number in range(40)
        ]
        assert await talk.client.all_bodies("made-by-sending") == [b"auto"]
        assert (await talk.client.ask(query)).ext == {"offset": "17"}
        topics = (await table(talk)).topic_config_table
        assert (topics["T"].write_queue_nums, topics["%RETRY%g"].write_queue_nums) == (2, 1)
        assert talk.broker.tables.groups.get("g")
        assert (await talk.client.send(b"next", queue_id=1)).queue_offset == 40
        assert await talk.client.members() == []


@in_loop(watched)
async def test_the_version_of_the_topics_only_grows_over_restarts(tmp_path: Path) -> None:
    versions: list[int] = []
    for _ in range(3):
        async with talking(tmp_path) as talk:
            versions.append((await table(talk)).data_version.counter)
            await talk.client.create(f"T{len(versions)}")
    assert versions == sorted(set(versions))


@in_loop(converse)
async def test_a_second_broker_on_the_same_directory_is_refused_and_harms_nothing(
    talk: Talk, /, tmp_path: Path
) -> None:
    await talk.client.send(b"mine")
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        async with talking(tmp_path):
            pass
    await talk.client.send(b"still mine")
    assert await talk.client.all_bodies() == [b"mine", b"still mine"]


@in_loop(watched)
async def test_tables_that_cannot_be_read_do_not_stop_the_start_and_are_kept(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path) as talk:
        await talk.client.send(b"works")
    names = {path.name for path in (tmp_path / "config").iterdir() if path.suffix == ".json"}
    for path in (tmp_path / "config").iterdir():
        path.write_bytes(b"{torn")
    async with talking(tmp_path) as talk:
        await talk.client.send(b"works")
    assert {path.name for path in (tmp_path / "config").glob("*.damaged")} == {
        f"{name}.damaged" for name in names
    }
    assert {path.read_bytes() for path in (tmp_path / "config").glob("*.damaged")} == {b"{torn"}


@in_loop(converse)
async def test_a_producer_that_sends_first_leaves_a_topic_alone_that_is_there(
    talk: Talk, /
) -> None:
    await talk.client.create("theirs", queues=7)
    for name in ("theirs", "fresh"):
        wish = CreateTopic(topic=name, read_queue_nums=4, write_queue_nums=4, if_absent=True)
        assert await talk.client.code(wish) == (0, "")
    found = talk.broker.tables.topics.find("theirs")
    assert found is not None
    assert (found.read_queue_nums, found.write_queue_nums) == (7, 7)
    found = talk.broker.tables.topics.find("fresh")
    assert found is not None
    assert (found.write_queue_nums, found.perm) == (4, 6)


@in_loop(converse, auto_create_topic_enable=False)
async def test_a_producer_makes_no_topic_where_sending_makes_none(talk: Talk, /) -> None:
    wish = CreateTopic(topic="fresh", read_queue_nums=4, write_queue_nums=4, if_absent=True)
    assert (await talk.client.code(wish))[0] == ResponseCode.NO_PERMISSION
    assert talk.broker.tables.topics.find("fresh") is None
