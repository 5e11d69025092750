"""Creating and listing topics over the wire, and what a restart finds."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.talking import Talk, converse, talking

from turbopump.errors import StoreLockedError
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.topics import TopicConfigSerializeWrapper
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from turbopump.protocol.requests.topics import CreateTopic, GetAllTopicConfig


async def table(talk: Talk) -> TopicConfigSerializeWrapper:
    answer = await talk.client.ask(GetAllTopicConfig())
    assert answer.ext is not None
    wrapper = fastjson.decode(answer.body, TopicConfigSerializeWrapper)
    assert answer.ext["totalTopicNum"] == str(len(wrapper.topic_config_table))
    return wrapper


def test_a_created_topic_is_as_asked_and_a_change_takes_the_next_version(tmp_path: Path) -> None:
    async def scene(talk: Talk) -> None:
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
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.order) == (3, 2, 4, True)
        assert (topic.topic_sys_flag, topic.attributes, found.data_version.counter) == (1, {"message.type": "FIFO"}, before + 1)
        assert await talk.client.code(request) == (0, "")
        assert (await table(talk)).data_version.counter == before + 1, "the same again changes nothing"
        await talk.client.ask(CreateTopic(topic="T", attributes="-message.type,+a=b"))
        assert (await table(talk)).topic_config_table["T"].attributes == {"a": "b"}

    converse(tmp_path, scene)


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"topic": "a b"}, "holds a character outside"),
        ({"topic": "../../x"}, "holds a character outside"),
        ({"topic": ""}, "empty"),
        ({"topic": "TBW102"}, "conflict with system topic"),
        ({"topic": "rmq_sys_x"}, "conflict with system topic"),
        ({"read_queue_nums": -1}, "readQueueNums is -1"),
        ({"write_queue_nums": 65536}, "writeQueueNums is 65536"),
        ({"perm": 16}, "perm is 16"),
        ({"perm": -1}, "perm is -1"),
        ({"topic_filter_type": "X"}, "topicFilterType is 'X'"),
        ({"attributes": "message.type=FIFO"}, "attribute change 'message.type=FIFO' cannot be read"),
        ({"attributes": "+novalue"}, "cannot be read"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_the_reason(tmp_path: Path, fields: dict[str, Any], remark: str) -> None:
    async def scene(talk: Talk) -> None:
        before = await table(talk)
        code, said = await talk.client.code(CreateTopic(**{"topic": "T", **fields}))
        assert code == ResponseCode.INVALID_PARAMETER
        assert remark in said
        assert await table(talk) == before

    converse(tmp_path, scene)


def test_the_system_s_topics_are_there_from_the_start(tmp_path: Path) -> None:
    async def scene(talk: Talk) -> None:
        topics = (await table(talk)).topic_config_table
        assert (topics["TBW102"].write_queue_nums, topics["TBW102"].perm) == (8, 7)
        assert topics["SCHEDULE_TOPIC_XXXX"].write_queue_nums == 18
        assert topics["BenchmarkTest"].write_queue_nums == 1024
        assert (topics["DefaultCluster"].perm, topics["broker-a"].perm) == (7, 1)

    async def without(talk: Talk) -> None:
        topics = (await table(talk)).topic_config_table
        assert "TBW102" not in topics

    converse(tmp_path / "a", scene, broker_topic_enable=False)
    converse(tmp_path / "b", without, auto_create_topic_enable=False)


def test_no_number_in_a_topic_keeps_a_broker_from_its_next_start(tmp_path: Path) -> None:
    async def create_odd_ones(talk: Talk) -> None:
        for number in (2**31 - 1, -(2**31), 2**31, 2**63, 10**30):
            await talk.client.ask(CreateTopic(topic=f"T{abs(number) % 97}", topic_sys_flag=number))

    async def look(talk: Talk) -> None:
        assert len((await table(talk)).topic_config_table) > 9

    converse(tmp_path, create_odd_ones)
    converse(tmp_path, look)


def test_a_restart_keeps_topics_groups_offsets_and_messages(tmp_path: Path) -> None:
    query = QueryConsumerOffset(consumer_group="g", topic="T", queue_id=1, set_zero_if_not_found=False)

    async def before(talk: Talk) -> None:
        await talk.client.create(queues=2)
        for number in range(40):
            await talk.client.send(b"%d" % number + bytes(number), queue_id=1)
        await talk.client.send(b"auto", "made-by-sending")
        await talk.client.join("c")
        await talk.client.ask(UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=1, commit_offset=17))

    async def after(talk: Talk) -> None:
        assert await talk.client.all_bodies("T", 1) == [b"%d" % number + bytes(number) for number in range(40)]
        assert await talk.client.all_bodies("made-by-sending") == [b"auto"]
        assert (await talk.client.ask(query)).ext == {"offset": "17"}
        topics = (await table(talk)).topic_config_table
        assert (topics["T"].write_queue_nums, topics["%RETRY%g"].write_queue_nums) == (2, 1)
        assert talk.broker._groups.knows("g")
        assert (await talk.client.send(b"next", queue_id=1)).queue_offset == 40
        assert await talk.client.members() == []

    converse(tmp_path, before)
    for name in ("topics", "subscriptionGroup", "consumerOffset"):
        assert (tmp_path / "config" / f"{name}.json").exists()
    assert not (tmp_path / "abort").exists()
    converse(tmp_path, after)


def test_the_version_of_the_topics_only_grows_over_restarts(tmp_path: Path) -> None:
    versions: list[int] = []

    async def scene(talk: Talk) -> None:
        versions.append((await table(talk)).data_version.counter)
        await talk.client.create(f"T{len(versions)}")

    for _ in range(3):
        converse(tmp_path, scene)
    assert versions == sorted(set(versions))


def test_a_second_broker_on_the_same_directory_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    async def scene(talk: Talk) -> None:
        await talk.client.send(b"mine")
        with pytest.raises(StoreLockedError, match="in use by another broker"):
            async with talking(tmp_path):
                pass
        await talk.client.send(b"still mine")
        assert await talk.client.all_bodies() == [b"mine", b"still mine"]

    converse(tmp_path, scene)


def test_tables_that_cannot_be_read_do_not_stop_the_start_and_are_kept(tmp_path: Path) -> None:
    async def scene(talk: Talk) -> None:
        assert await talk.client.send(b"works")

    converse(tmp_path, scene)
    names = {path.name for path in (tmp_path / "config").iterdir() if path.suffix == ".json"}
    for path in (tmp_path / "config").iterdir():
        path.write_bytes(b"{torn")
    converse(tmp_path, scene)
    assert {path.name for path in (tmp_path / "config").glob("*.damaged")} == {f"{name}.damaged" for name in names}
    assert {path.read_bytes() for path in (tmp_path / "config").glob("*.damaged")} == {b"{torn"}
