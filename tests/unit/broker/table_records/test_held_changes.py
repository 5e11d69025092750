"""Answers to requests that change tables: sent when replicas have the change, or with an error."""

import asyncio

from tests.loops import in_loop
from tests.stand_ins import raises
from tests.unit.broker.replica.groups import CONTROLLER, HOSTS, Group, with_group
from tests.unit.broker.talking import SMALL, pull

from turbopump.broker.table_records.held_changes import CHANGING
from turbopump.errors import RoomInMakingError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import TABLE_RECORDS_TOPIC
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import LockBatchMq, LockBatchRequestBody
from turbopump.protocol.requests.cleaning import CleanUnusedTopic
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.offsets import UpdateConsumerOffset
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import (
    CreateTopic,
    DeleteTopic,
    GetAllTopicConfig,
    GetSystemTopicsOfBroker,
    TopicConfigSerializeWrapper,
    TopicList,
)


@in_loop(with_group)
async def test_without_other_replicas_the_answer_says_that_the_change_may_be_lost(
    group: Group, /
) -> None:
    master = await group.master_other_than()
    await group.until_in_sync(3)
    client = group.client(master)
    for host in (CONTROLLER, *HOSTS):
        if host != master.host:
            group.cut(host)
    code, remark = await client.code(
        CreateTopic(topic="T", read_queue_nums=1, write_queue_nums=1, perm=6)
    )
    assert code == ResponseCode.SYSTEM_ERROR
    assert "it may be lost if another replica becomes the master" in remark


@in_loop(with_group)
async def test_a_slave_refuses_changes(group: Group, /) -> None:
    """A client with an old route, or one of a master that has just started again."""
    master = await group.master_other_than()
    await group.until_in_sync(3)
    slave = next(one for host, one in group.replicas.items() if host != master.host)
    assert slave.broker is not None
    code, remark = await group.client(slave.broker).code(
        CreateTopic(topic="T", read_queue_nums=1, write_queue_nums=1, perm=6)
    )
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "send the request to the master" in remark


@in_loop(with_group)
async def test_a_refusal_is_not_held(group: Group, /) -> None:
    master = await group.master_other_than()
    await group.until_in_sync(3)
    client = group.client(master)
    await client.create("T")
    for host in (CONTROLLER, *HOSTS):
        if host != master.host:
            group.cut(host)
    began = asyncio.get_running_loop().time()
    code, _ = await client.code(
        CreateTopic(topic="not/valid", read_queue_nums=1, write_queue_nums=1, perm=6)
    )
    assert code == ResponseCode.INVALID_PARAMETER
    assert asyncio.get_running_loop().time() - began < 0.5


@in_loop(with_group)
async def test_many_commits_share_a_record(group: Group, /) -> None:
    master = await group.master_other_than()
    client = group.client(master)
    await client.create("T", queues=8)
    await client.join("c1")
    await asyncio.sleep(1)
    before = master.store.max_offset(TABLE_RECORDS_TOPIC, 0)

    async def commits(queue_id: int) -> None:
        for offset in range(50):
            commit = UpdateConsumerOffset(
                consumer_group="g", topic="T", queue_id=queue_id, commit_offset=offset
            )
            assert (await client.code(commit))[0] == ResponseCode.SUCCESS

    began = asyncio.get_running_loop().time()
    await asyncio.gather(*map(commits, range(8)))
    took = asyncio.get_running_loop().time() - began
    records = master.store.max_offset(TABLE_RECORDS_TOPIC, 0) - before
    assert records <= took / 0.1 + 2


@in_loop(with_group)
async def test_an_idle_group_writes_no_records(group: Group, /) -> None:
    master = await group.master_other_than()
    client = group.client(master)
    await client.create("T")
    await client.join("c1")
    commit = UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
    await client.code(commit)
    await asyncio.sleep(1)
    end = master.store.log.end
    for _ in range(10):
        await client.join("c1")
        await client.code(commit)
        await asyncio.sleep(1)
    assert master.store.log.end == end


@in_loop(with_group)
async def test_nobody_sees_or_uses_the_topic_of_the_records(group: Group, /) -> None:
    master = await group.master_other_than()
    client = group.client(master)
    await client.create("T")
    await client.join("c1")
    name = TABLE_RECORDS_TOPIC
    assert master.store.max_offset(name, 0) > 0
    sent = await client.code(SendMessageV2(topic=name, queue_id=0, default_topic="TBW102"), b"x")
    assert sent[0] == ResponseCode.NO_PERMISSION
    assert (await client.code(pull(0, topic=name)))[0] == ResponseCode.TOPIC_NOT_EXIST
    made = await client.code(CreateTopic(topic=name, read_queue_nums=1, write_queue_nums=1, perm=6))
    assert made[0] == ResponseCode.INVALID_PARAMETER
    assert (await client.code(DeleteTopic(topic=name)))[0] == ResponseCode.INVALID_PARAMETER
    assert (await client.code(CleanUnusedTopic()))[0] == ResponseCode.SUCCESS
    assert master.store.max_offset(name, 0) > 0
    answer = await client.ask(GetAllTopicConfig())
    table = fastjson.decode(answer.body, TopicConfigSerializeWrapper).topic_config_table
    assert "T" in table
    assert name not in table
    answer = await client.ask(GetSystemTopicsOfBroker())
    assert name not in fastjson.decode(answer.body, TopicList).topic_list
    route = await group.client_of("10.0.0.9", port=9876).code(GetRouteInfo(topic=name))
    assert route[0] == ResponseCode.TOPIC_NOT_EXIST


@in_loop(with_group)
async def test_each_held_request_has_a_handler(group: Group, /) -> None:
    master = await group.master_other_than()
    routes = master.parts.listening.router.routes
    assert {code for code in CHANGING if code < 3000} <= set(routes)


@in_loop(with_group)
async def test_a_message_of_a_new_topic_waits_for_the_record_of_the_topic(group: Group, /) -> None:
    """The log may have room for a message and not for the record before it."""
    master = await group.master_other_than()
    records = master.parts.copying.table_records
    assert records is not None
    assert records.writer is not None
    append = records.writer.append
    records.writer.append = raises(RoomInMakingError("no room"))
    request = SendMessageV2(topic="new", queue_id=0, default_topic="TBW102")
    sending = asyncio.ensure_future(group.client(master).code(request, b"1"))
    await asyncio.sleep(1)
    assert master.tables.topics.find("new") is not None
    assert master.store.max_offset("new", 0) == 0

    records.writer.append = append
    records.write()
    master.parts.stored.sends.backlog.release_held()
    assert (await sending)[0] == ResponseCode.SUCCESS
    queues = [master.store.queue(TABLE_RECORDS_TOPIC, 0), master.store.queue("new", 0)]
    record, message = (queue.last_unit for queue in queues if queue is not None)
    assert record is not None
    assert message is not None
    assert record[0] < message[0]


@in_loop(with_group)
async def test_a_holder_renews_its_lock_while_other_changes_are_not_confirmed(
    group: Group, /
) -> None:
    """Else consumers in order would stop whenever a replica is missing."""
    master = await group.master_other_than()
    await group.until_in_sync(3)
    client = group.client(master)
    await client.create("T")
    await client.join("c1")
    queue = MessageQueue("T", SMALL["broker_name"], 0)
    body = fastjson.encode(
        LockBatchRequestBody(consumer_group="g", client_id="c1", mq_set=(queue,))
    )
    assert (await client.code(LockBatchMq(), body))[0] == ResponseCode.SUCCESS
    for host in (CONTROLLER, *HOSTS):
        if host != master.host:
            group.cut(host)
    master.tables.offsets.commit("g", "T", 0, 1)
    began = asyncio.get_running_loop().time()
    assert (await client.code(LockBatchMq(), body))[0] == ResponseCode.SUCCESS
    assert asyncio.get_running_loop().time() - began < 0.5
