"""Every refusal of a send, in Apache's order: a send that breaks a rule and all that come after it
is answered by that rule."""

from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, converse, take_nothing, talking, watched

from turbopump.message.batch import encode_batch
from turbopump.message.message import Message
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import GetAllGroups, SubscriptionGroupWrapper
from turbopump.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic

TOO_LARGE = bytes(5001)
BATCH = encode_batch([Message("T", b"x")])
NOT_YET = {"start_accept_send_request_time_stamp": 9_999_999_999_999}
READ_ONLY = {"broker_permission": 4}
CHECKED = {"enable_topic_message_type_check": True}
FULL = {"full": True}
NO_GROUPS = {"auto_create_subscription_group": False}

# (what is odd about the broker, the send, its body, code, how the remark begins); a rule's rows
# break what is below them as well, as far as one send can. RocketMQ: SendMessageProcessor.preSend,
# AbstractSendMessageProcessor.msgCheck, sendMessage, HookUtils.
ORDER: list[tuple[dict[str, Any], dict[str, Any], bytes, int, str]] = [
    (
        NOT_YET | READ_ONLY | FULL,
        {"topic": "ordered", "queue_id": 99},
        TOO_LARGE,
        1,
        "broker unable to service, until 2286-11-20",
    ),
    (NOT_YET, {"topic": "a b"}, b"", 1, "broker unable to service, until"),
    (
        READ_ONLY | FULL,
        {"topic": "ordered", "queue_id": 99},
        TOO_LARGE,
        16,
        "the broker[127.0.0.1] sending message is forbidden",
    ),
    (
        READ_ONLY | FULL,
        {"topic": "", "queue_id": 99},
        TOO_LARGE,
        29,
        "The specified topic is blank",
    ),
    (
        READ_ONLY | FULL,
        {"topic": "a b" * 99, "queue_id": 99},
        TOO_LARGE,
        29,
        "The specified topic contains illegal characters",
    ),
    (
        READ_ONLY | FULL,
        {"topic": "t" * 128, "queue_id": 99},
        b"",
        29,
        "The specified topic is longer than topic max length",
    ),
    (
        FULL,
        {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 99},
        b"",
        16,
        "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
    ),
    (
        FULL,
        {"topic": "new", "default_topic": "none", "queue_id": 99},
        b"",
        17,
        "topic[new] not exist, apply first please!",
    ),
    (
        CHECKED | FULL,
        {"topic": "ordered", "queue_id": 99},
        b"",
        29,
        "request queueId[99] is illegal",
    ),
    (FULL, {"topic": "%RETRY%g", "queue_id": 99}, b"", 29, "request queueId[99] is illegal"),
    (
        CHECKED | FULL,
        {"topic": "no-writes", "queue_id": -1},
        b"",
        29,
        "request queueId[-1] is illegal, topic no-writes has no queue",
    ),
    (
        FULL,
        {"topic": "no-writes", "queue_id": -7, "batch": True},
        BATCH,
        29,
        "request queueId[-7] is illegal, topic no-writes has no",
    ),
    (
        FULL,
        {"topic": "no-writes", "queue_id": 2},
        b"",
        29,
        "request queueId[2] is illegal, topic no-writes has 2 queues",
    ),
    (
        FULL,
        {"topic": "none", "default_topic_queue_nums": 0, "queue_id": 0},
        b"",
        29,
        "request queueId[0] is illegal, topic none has no",
    ),
    (FULL | NO_GROUPS, {"topic": "%RETRY%none"}, b"", 26, "subscription group not exist, none"),
    (FULL, {"topic": "%RETRY%"}, b"", 26, "subscription group not exist, "),
    (
        FULL,
        {"topic": "%RETRY%none", "batch": True},
        BATCH,
        13,
        "batch request does not support retry group %RETRY%none",
    ),
    (
        FULL,
        {"topic": "%RETRY%" + "g" * 121, "batch": True},
        BATCH,
        13,
        "message topic length too long 128",
    ),
    (
        CHECKED | FULL,
        {"topic": "compacted-fifo"},
        TOO_LARGE,
        13,
        "TopicMessageType validate failed, the expected type is FIFO",
    ),
    (FULL, {"topic": "compacted"}, TOO_LARGE, 13, "Required message key is missing"),
    (FULL, {"sys_flag": 128}, TOO_LARGE, 13, "the message is an inner batch"),
    (
        FULL,
        {"properties": "p\x01" + "v" * 32_767},
        TOO_LARGE,
        14,
        "service not available now: the disk is full",
    ),
    (
        FULL,
        {"batch": True, "sys_flag": 4},
        BATCH,
        14,
        "service not available now: the disk is full",
    ),
    (FULL, {"batch": True}, TOO_LARGE, 14, "service not available now: the disk is full"),
    (FULL, {}, b"x", 14, "service not available now: the disk is full"),
    (
        {},
        {"properties": "p\x01" + "v" * 32_767},
        TOO_LARGE,
        13,
        "the message is illegal, maybe msg body or properties length",
    ),
    (
        {},
        {"batch": True},
        TOO_LARGE,
        13,
        "the message is illegal, maybe msg body or properties length not matched",
    ),
    (
        {},
        {"batch": True, "sys_flag": 4},
        b"no batch",
        13,
        "the message is illegal, maybe msg body or properties length not matched: sysFlag 4",
    ),
    (
        {},
        {"batch": True, "properties": "DELAY\x011\x02"},
        b"no batch",
        13,
        "delayed messages (property DELAY) are not allowed in a batch",
    ),
    ({}, {}, b"", 1, "the message body is empty"),
    (
        {},
        {"properties": "p\x01" + "v" * 32_767},
        b"x",
        13,
        "the message is illegal, maybe msg body or properties length",
    ),
]


async def change(talk: Talk, topic: str, readable: int, writable: int) -> None:
    request = CreateTopic(topic=topic, read_queue_nums=readable, write_queue_nums=writable)
    assert (await talk.client.ask(request)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(("broker", "fields", "body", "code", "begins"), ORDER)
@in_loop(watched)
async def test_the_first_rule_that_a_send_breaks_answers_it(
    tmp_path: Path,
    broker: dict[str, Any],
    fields: dict[str, Any],
    body: bytes,
    code: int,
    begins: str,
) -> None:
    config = {key: value for key, value in broker.items() if key != "full"}

    async with talking(tmp_path, max_message_size=5000, **config) as talk:
        await talk.client.create()
        await talk.client.create("ordered", order=True, attributes="+message.type=FIFO")
        await talk.client.create("compacted", attributes="+cleanup.policy=COMPACTION")
        await change(talk, "no-writes", 2, 0)
        await talk.client.create(
            "compacted-fifo", attributes="+cleanup.policy=COMPACTION,+message.type=FIFO"
        )
        if config.get("auto_create_subscription_group", True):
            await talk.client.join("c")
        if broker.get("full"):
            take_nothing(talk.broker, "the disk is full: free some space")
        end = talk.broker.store.log.end
        request = SendMessageV2(**{"topic": "T", "queue_id": 0, **fields})
        answer = await talk.client.code(request, body)
        assert (answer[0], answer[1][: len(begins)]) == (code, begins)
        assert len(answer[1]) > len(begins), "and goes on with what to do"
        assert talk.broker.store.log.end == end


@pytest.mark.parametrize("kind", [SendMessage, SendMessageV2, SendBatchMessage])
@in_loop(converse)
async def test_a_send_to_any_queue_is_refused_where_there_is_no_queue_to_choose(
    talk: Talk, /, kind: type[SendMessage]
) -> None:
    await talk.client.join("c")
    batch = kind is SendBatchMessage
    for topic in ("T",) if batch else ("T", "%RETRY%c"):
        await change(talk, topic, 2, 2)
        send = kind(topic=topic, queue_id=-1, batch=batch)
        assert (await talk.client.code(send, BATCH))[0] == 0
        end = talk.broker.store.log.end
        for readable in (2, 0):
            await change(talk, topic, readable, 0)
            code, remark = await talk.client.code(send, BATCH)
            assert (code, "give it some" in remark) == (ResponseCode.INVALID_PARAMETER, True), (
                remark
            )
        assert talk.broker.store.log.end == end


@pytest.mark.parametrize("properties", ["", "UNIQ_KEY\x01U\x02"])
@pytest.mark.parametrize(
    "odd",
    [
        {"sys_flag": 4},
        {"sys_flag": 8},
        {"sys_flag": 12 | 1},
        {"properties": "TRAN_MSG\x01true\x02PGROUP\x01p\x02"},
        {"properties": "DELAY\x011\x02"},
        {"properties": "TIMER_DELIVER_MS\x01" + "9" * 13 + "\x02"},
    ],
)
@in_loop(converse)
async def test_a_delayed_or_transactional_batch_is_refused_and_not_acknowledged_and_lost(
    talk: Talk, /, odd: dict[str, Any], properties: str
) -> None:
    await talk.client.create()
    fields = {**odd, "properties": odd.get("properties", "") + properties}
    code, remark = await talk.client.code(
        SendMessageV2(topic="T", queue_id=0, batch=True, **fields), BATCH
    )
    assert (code, "batch" in remark) == (ResponseCode.MESSAGE_ILLEGAL, True), remark
    assert (await talk.client.send(topic="T")).queue_offset == 0


@in_loop(converse)
async def test_a_batch_is_taken_whose_properties_only_look_like_a_delay_or_a_transaction(
    talk: Talk, /
) -> None:
    await talk.client.create()
    for properties in ("DELAY\x010\x02", "MODEL\x01DEL-TRAN_MSG\x02", "TRAN_MSG\x01false\x02"):
        assert await talk.client.code(
            SendMessageV2(topic="T", queue_id=0, batch=True, properties=properties), BATCH
        ) == (0, "")
    assert await talk.client.all_bodies() == [b"x"] * 3


@in_loop(converse)
async def test_a_send_makes_a_new_retry_topic_with_the_queues_that_any_new_topic_gets(
    talk: Talk, /
) -> None:
    sent = await talk.client.send(topic="%RETRY%new", queue_id=2)
    assert (sent.queue_id, sent.queue_offset) == (2, 0), (
        "Java's producer has chosen from the default topic's queues"
    )
    no_model = SendMessageV2(topic="%RETRY%other", default_topic="none", queue_id=1)
    code, remark = await talk.client.code(no_model, b"x")
    assert (code, "has 1 queues" in remark) == (ResponseCode.INVALID_PARAMETER, True), (
        "without one to copy it has one queue"
    )
    await talk.client.send(topic="%RETRY%other")


async def groups(talk: Talk) -> set[str]:
    answer = await talk.client.ask(GetAllGroups())
    return set(fastjson.decode(answer.body, SubscriptionGroupWrapper).subscription_group_table)


@in_loop(converse)
async def test_a_send_to_a_retry_topic_makes_the_group_of_its_whole_name_as_apaches_brokers_do(
    talk: Talk, /
) -> None:
    before = await groups(talk)
    # 4.9.7 and 5.3.3 make it, too, though POP calls a retry topic so
    await talk.client.send(topic="%RETRY%g_orders")
    assert await groups(talk) - before == {"g_orders"}
    code, _ = await talk.client.code(SendMessageV2(topic="%RETRY%g+orders", queue_id=0), b"x")
    assert (code, await groups(talk) - before) == (ResponseCode.INVALID_PARAMETER, {"g_orders"})


KINDS = {
    "NORMAL": "",
    "FIFO": "__SHARDINGKEY\x01k\x02",
    "DELAY": "TIMER_DELAY_SEC\x019\x02",
    "TRANSACTION": "TRAN_MSG\x01true\x02__SHARDINGKEY\x01k\x02",
}


@in_loop(converse, enable_topic_message_type_check=True, enable_mixed_message_type=True)
async def test_a_message_of_another_type_than_its_topic_s_is_refused_where_that_is_asked_for(
    talk: Talk, /
) -> None:
    wrong = "TopicMessageType validate failed"
    for expected in (*KINDS, "MIXED", "UNSPECIFIED"):
        await talk.client.create(expected, attributes=f"+message.type={expected}")
        for kind, properties in KINDS.items():
            request = SendMessageV2(topic=expected, queue_id=0, properties=properties)
            code, remark = await talk.client.code(request, b"x")
            if expected in (kind, "MIXED"):
                assert not remark.startswith(wrong)
            else:
                assert code == ResponseCode.MESSAGE_ILLEGAL
                assert remark.startswith(
                    f"{wrong}, the expected type is {expected}, but actual type is {kind}"
                )
    moved = SendMessageV2(topic="FIFO", queue_id=0, properties="TRANSFER_FLAG\x01x\x02")
    assert await talk.client.code(moved, b"x") == (0, "")
    await talk.client.create("plain")
    fifo = SendMessageV2(topic="plain", queue_id=0, properties=KINDS["FIFO"])
    assert (await talk.client.code(fifo, b"x"))[0] == ResponseCode.MESSAGE_ILLEGAL, (
        "RocketMQ: without an attribute it is NORMAL"
    )


@in_loop(converse)
async def test_a_broker_takes_every_type_by_default_as_apache_s_does(talk: Talk, /) -> None:
    await talk.client.create("FIFO", attributes="+message.type=FIFO")
    await talk.client.send(b"x", "FIFO")


@in_loop(watched)
async def test_a_topic_s_messages_need_keys_only_while_it_is_to_be_compacted(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path) as talk:
        await talk.client.create("C", attributes="+cleanup.policy=COMPACTION")
        await talk.client.send(b"x", "C", properties="KEYS\x01k\x02")
        for properties in (None, "KEYS\x01 \x02"):
            request = SendMessageV2(topic="C", queue_id=0, properties=properties)
            assert (await talk.client.code(request, b"x"))[0] == ResponseCode.MESSAGE_ILLEGAL
        assert await talk.client.all_bodies("C") == [b"x"]
    async with talking(tmp_path) as talk:
        request = SendMessageV2(topic="C", queue_id=0)
        assert (await talk.client.code(request, b"x"))[0] == ResponseCode.MESSAGE_ILLEGAL, (
            "the rule is there after a restart"
        )
