"""Changes of tables that a client was told of. Each survives the death of the master that made
it."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import pytest
from tests.loops import in_loop
from tests.unit.broker.replica.groups import HOSTS, Group, with_group
from tests.unit.broker.replicas import MASTER, SLAVE, SYNC, Replicas, until_joined, with_replicas
from tests.unit.broker.talking import SMALL, Client

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerRole
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.assignment import (
    LockBatchMq,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageRequestMode,
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from turbopump.protocol.requests.groups import (
    CreateGroup,
    DeleteGroup,
    SubscriptionGroupConfig,
    UpdateGroupForbidden,
)
from turbopump.protocol.requests.offsets import CloneGroupOffset, ResetOffset, UpdateConsumerOffset
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic, DeleteTopic

QUEUE: Final = MessageQueue("T", SMALL["broker_name"], 0)
Told = Callable[..., Awaitable[Any]]


async def told(client: Client, request: Request[Any], body: bytes = b"") -> Any:
    """Send a request, and expect that it is done."""
    answer = await client.ask(request, body)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer


async def make_topic(tell: Told) -> None:
    await tell(CreateTopic(topic="T", read_queue_nums=3, write_queue_nums=3, perm=6))


async def make_group(tell: Told, name: str = "g") -> None:
    await tell(CreateGroup(), fastjson.encode(SubscriptionGroupConfig(group_name=name)))


async def make_both(tell: Told) -> None:
    """Make a topic with three messages, and a group that has read two of them."""
    await make_topic(tell)
    await make_group(tell)
    for number in range(3):
        await tell(SendMessageV2(topic="T", queue_id=0), b"%d" % number)
    await commit(tell, 2)


async def change_topic(tell: Told) -> None:
    await make_topic(tell)
    wanted = CreateTopic(topic="T", read_queue_nums=5, write_queue_nums=4, perm=4, order=True)
    wanted.attributes = "+message.type=FIFO"
    await tell(wanted)


async def delete_topic(tell: Told) -> None:
    await make_both(tell)
    await tell(DeleteTopic(topic="T"))


async def make_topic_again(tell: Told) -> None:
    await delete_topic(tell)
    await tell(SendMessageV2(topic="T", queue_id=0, default_topic="TBW102"), b"new")


async def send_to_new_topic(tell: Told) -> None:
    await tell(SendMessageV2(topic="T", queue_id=0, default_topic="TBW102"), b"first")


async def delete_group(tell: Told) -> None:
    await make_both(tell)
    await tell(DeleteGroup(group_name="g", clean_offset=True))


async def ban(tell: Told) -> None:
    await make_both(tell)
    await tell(UpdateGroupForbidden(group="g", topic="T", readable=False))


async def commit(tell: Told, offset: int = 2) -> None:
    await tell(
        UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=offset)
    )


async def reset(tell: Told) -> None:
    await make_both(tell)
    await tell(ResetOffset(topic="T", group="g", timestamp=0, force=True, queue_id=0, offset=1))


async def clone(tell: Told) -> None:
    await make_both(tell)
    await tell(CloneGroupOffset(src_group="g", dest_group="h", topic="T"))


async def set_mode(tell: Told) -> None:
    await make_both(tell)
    mode = SetMessageRequestModeRequestBody(
        topic="T", consumer_group="g", mode=MessageRequestMode.POP
    )
    await tell(SetMessageRequestMode(), fastjson.encode(mode))


async def lock(tell: Told, client_id: str = "c1") -> tuple[MessageQueue, ...]:
    body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=(QUEUE,))
    answer = await tell(LockBatchMq(), fastjson.encode(body))
    return tuple(fastjson.decode(answer.body, LockBatchResponseBody).locked)


async def make_topic_and_lock(tell: Told) -> None:
    await make_topic(tell)
    assert await lock(tell) == (QUEUE,)


def topic_is_made(broker: Broker) -> bool:
    topic = broker.tables.topics.find("T")
    return topic is not None and topic.read_queue_nums == 3


def topic_is_changed(broker: Broker) -> bool:
    topic = broker.tables.topics.find("T")
    return (
        topic is not None
        and (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (5, 4, 4)
        and topic.order
        and topic.attributes == {"message.type": "FIFO"}
    )


def topic_is_gone(broker: Broker) -> bool:
    tables = broker.tables
    return (
        tables.topics.find("T") is None
        and broker.store.max_offset("T", 0) == 0
        and tables.offsets.find("g", "T", 0) is None
    )


def topic_is_new(broker: Broker) -> bool:
    return broker.tables.topics.find("T") is not None and broker.store.max_offset("T", 0) == 1


def group_is_made(broker: Broker) -> bool:
    return broker.tables.groups.get("g") is not None


def group_is_gone(broker: Broker) -> bool:
    tables = broker.tables
    return tables.groups.get("g") is None and tables.offsets.find("g", "T", 0) is None


def group_is_banned(broker: Broker) -> bool:
    return broker.tables.groups.is_banned("g", "T")


def has_offset(offset: int, group: str, broker: Broker) -> bool:
    return broker.tables.offsets.find(group, "T", 0) == offset


def is_reset(broker: Broker) -> bool:
    offsets = broker.tables.offsets
    return offsets.find("g", "T", 0) == 1 and offsets.is_reset("g", "T", 0)


def pops(broker: Broker) -> bool:
    modes = broker.parts.stored.request_modes
    return modes.find("T", "g").mode is MessageRequestMode.POP


def is_locked(broker: Broker) -> bool:
    locks = broker.tables.locks.locks
    return locks.holder("g", QUEUE) == "c1" and locks.any_held("g", broker.clock.monotonic())


CHANGES: Final[dict[str, tuple[Callable[[Told], Awaitable[Any]], Callable[[Broker], object]]]] = {
    "topic made": (make_topic, topic_is_made),
    "topic changed": (change_topic, topic_is_changed),
    "topic deleted": (delete_topic, topic_is_gone),
    "topic made again": (make_topic_again, topic_is_new),
    "topic made by a send": (send_to_new_topic, topic_is_new),
    "group made": (make_group, group_is_made),
    "group deleted": (delete_group, group_is_gone),
    "group forbidden": (ban, group_is_banned),
    "offset committed": (make_both, partial(has_offset, 2, "g")),
    "offset reset": (reset, is_reset),
    "offset cloned": (clone, partial(has_offset, 2, "h")),
    "request mode": (set_mode, pops),
    "queue lock": (make_topic_and_lock, is_locked),
}


@pytest.mark.parametrize("name", CHANGES)
@in_loop(with_group)
async def test_an_answered_change_is_at_the_next_master(group: Group, /, name: str) -> None:
    change, is_there = CHANGES[name]
    first = await group.master_other_than()
    await change(partial(told, group.client(first)))
    group.kill(first.host)
    assert is_there(await group.master_other_than(first.host))


@pytest.mark.parametrize("name", CHANGES)
@in_loop(with_group)
async def test_an_answered_change_is_there_after_a_crash_of_all_replicas(
    group: Group, /, name: str
) -> None:
    change, is_there = CHANGES[name]
    first = await group.master_other_than()
    await change(partial(told, group.client(first)))
    for host in HOSTS:
        group.kill(host)
    for host in HOSTS:
        group.mend(host)
        await group.replica(host)
    assert is_there(await group.master_other_than())


@in_loop(with_replicas)
async def test_without_records_an_answered_topic_is_lost(replicas: Replicas, /) -> None:
    """As with slaves of Apache's (helm#33), which copy tables each ten seconds."""
    master = await replicas.master(**SYNC)
    await replicas.slave()
    await until_joined(master)
    await make_topic(partial(told, replicas.client_of(MASTER)))
    replicas.kill(MASTER)
    await replicas.stop(SLAVE)
    assert not topic_is_made(await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER))


@in_loop(with_group)
async def test_the_topics_of_a_new_master_are_newer_than_the_records_of_the_old_one(
    group: Group, /
) -> None:
    """Name servers keep the topics with the larger version (apache/rocketmq#6316)."""
    first = await group.master_other_than()
    await make_topic(partial(told, group.client(first)))
    old = first.tables.topics.version
    group.kill(first.host)
    second = await group.master_other_than(first.host)
    role = group.replicas[second.host].role
    assert role is not None
    assert second.tables.topics.version.state_version == role.master_epoch > old.state_version
