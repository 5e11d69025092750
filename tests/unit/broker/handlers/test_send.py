"""Sends over the wire: where messages land, what is added to them, and every refusal in Apache's
order."""

from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.ports import free_ports
from tests.unit.broker.talking import Talk, converse
from tests.waits import until

from turbopump.message.batch import encode_batch
from turbopump.message.codec import decode_entries
from turbopump.message.message import Message
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import PullMessage
from turbopump.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.store.log.scanner import EntryWalk

ONE_LETTER, LONG = SendMessageV2, SendMessage


@pytest.mark.parametrize("form", [ONE_LETTER, LONG, SendBatchMessage])
@in_loop(converse)
async def test_a_message_is_stored_where_the_answer_says(talk: Talk, /, form: type[Any]) -> None:
    await talk.client.create(queues=3)
    for number in range(3):
        request = form(
            topic="T",
            queue_id=2,
            properties=f"TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01ID{number}\x02",
            born_timestamp=1234,
            flag=7,
            reconsume_times=1,
        )
        answer = await talk.client.ask(request, b"body %d" % number)
        assert answer.code == 0
        assert answer.ext is not None
        assert answer.ext.pop("msgId").startswith(f"7F000001{talk.broker.port:08X}")
        assert answer.ext == {
            "queueId": "2",
            "queueOffset": str(number),
            "transactionId": f"ID{number}",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
    messages = await talk.client.messages(queue_id=2)
    assert [message.body for message in messages] == [b"body 0", b"body 1", b"body 2"]
    first = messages[0]
    assert (first.born_timestamp, first.flag, first.reconsume_times, first.msg_id) == (
        1234,
        7,
        1,
        "ID0",
    )
    assert (first.born_host[0], first.store_host) == ("127.0.0.1", ("127.0.0.1", talk.broker.port))
    assert first.properties == {
        "TAGS": "a",
        "KEYS": "k",
        "UNIQ_KEY": "ID0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }


@in_loop(converse)
async def test_the_answered_id_is_the_message_s_place(talk: Talk, /) -> None:
    replies = [await talk.client.send(b"%d" % number) for number in range(3)]
    messages = await talk.client.messages()
    assert [reply.msg_id for reply in replies] == [message.offset_msg_id for message in messages]
    assert [reply.transaction_id for reply in replies] == [message.msg_id for message in messages]
    assert len({message.msg_id for message in messages}) == 3, (
        "a unique key is added where there is none"
    )


@in_loop(converse)
async def test_a_unique_key_that_json_must_escape_is_no_danger_to_the_answer(talk: Talk, /) -> None:
    for key in ('"', "\\", '","code":5,"x":"', "é", "\n", "%d%s"):
        await talk.client.send(b"x", properties=f"UNIQ_KEY\x01{key}\x02")
    assert [message.msg_id for message in await talk.client.messages()][:3] == [
        '"',
        "\\",
        '","code":5,"x":"',
    ]


def send(topic: str = "T", queue_id: int = 0, **fields: Any) -> SendMessageV2:
    return SendMessageV2(topic=topic, queue_id=queue_id, **fields)


ILLEGAL, FORBIDDEN = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("request_", "body", "code", "remark"),
    [
        (send("a b"), b"x", ResponseCode.INVALID_PARAMETER, "holds a character outside"),
        (send("../../x"), b"x", ResponseCode.INVALID_PARAMETER, "holds a character outside"),
        (send(""), b"x", ResponseCode.INVALID_PARAMETER, "the topic name is empty"),
        (send("t" * 128), b"x", ResponseCode.INVALID_PARAMETER, "at most 127"),
        (send("%RETRY%" + "g" * 249), b"x", ResponseCode.INVALID_PARAMETER, "at most 255"),
        (send("SCHEDULE_TOPIC_XXXX"), b"x", FORBIDDEN, "is forbidden"),
        (send("RMQ_SYS_TRANS_HALF_TOPIC"), b"x", FORBIDDEN, "is forbidden"),
        (send("RMQ_SYS_TRANS_OP_HALF_TOPIC"), b"x", FORBIDDEN, "is forbidden"),
        (send("TRANS_CHECK_MAX_TIME_TOPIC"), b"x", FORBIDDEN, "is forbidden"),
        (send("SELF_TEST_TOPIC"), b"x", FORBIDDEN, "is forbidden"),
        (send("OFFSET_MOVED_EVENT"), b"x", FORBIDDEN, "is forbidden"),
        (send("new", default_topic="no-such"), b"x", ResponseCode.TOPIC_NOT_EXIST, "apply first"),
        (
            send("new", default_topic="SELF_TEST_TOPIC"),
            b"x",
            ResponseCode.TOPIC_NOT_EXIST,
            "apply first",
        ),
        (send(queue_id=4), b"x", ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
        (send(queue_id=2**31 - 1), b"x", ResponseCode.INVALID_PARAMETER, "is illegal"),
        (send(queue_id=9), b"", ResponseCode.INVALID_PARAMETER, "is illegal"),
        (send(), b"", ResponseCode.SYSTEM_ERROR, "the message body is empty"),
        (send(), bytes(5001), ILLEGAL, "5001 bytes; 5000 are allowed"),
        (send(batch=True), bytes(5001), ILLEGAL, "5001 bytes; 5000 are allowed"),
        (send(batch=True), b"", ResponseCode.SYSTEM_ERROR, "the message body is empty"),
        (send(batch=True), b"no batch", ILLEGAL, "is cut off"),
        (send("%RETRY%g", batch=True), encode_batch([Message("T", b"x")]), ILLEGAL, "retry group"),
        (send(properties="p\x01" + "v" * 32_767), b"x", ILLEGAL, "32747 are allowed"),
        (send(properties="p\x01" + "v" * 32_700), b"x", ILLEGAL, "with those the broker adds"),
        (send(properties="DELAY\x01soon\x02"), b"x", ILLEGAL, "a level from 1 to 18"),
        (send(properties="TRAN_MSG\x01true\x02"), b"x", ILLEGAL, "has no producer group"),
        (
            send(sys_flag=2**31),
            b"x",
            ResponseCode.SYSTEM_ERROR,
            "field sys_flag (f) has the unusable value '2147483648'",
        ),
        (send(sys_flag=-1 << 31), b"x", ResponseCode.SUCCESS, ""),
    ],
)
@in_loop(converse, max_message_size=5000)
async def test_what_may_not_be_sent_is_refused_with_apache_s_code_and_leaves_nothing_behind(
    talk: Talk, /, request_: SendMessageV2, body: bytes, code: int, remark: str
) -> None:
    await talk.client.create("T", queues=4)
    end = talk.broker.store.log.end
    answer = await talk.client.code(request_, body)
    assert answer[0] == code, answer
    assert remark in answer[1]
    if code != ResponseCode.SUCCESS:
        assert talk.broker.store.log.end == end
    await talk.client.send(b"still alive")


@pytest.mark.parametrize(
    "properties",
    [
        "DELAY\x010\x02",
        "DELAY\x01\x02",
        "TRAN_MSG\x01false\x02",
        "MY_DELAY\x015\x02",
        "note\x01DELAY\x02",
        "XTRAN_MSG\x01true",
    ],
)
@in_loop(converse)
async def test_properties_that_only_look_like_a_delay_are_plain(
    talk: Talk, /, properties: str
) -> None:
    await talk.client.send(b"x", properties=properties)
    assert len(await talk.client.messages()) == 1


@in_loop(converse)
async def test_a_receipt_handle_among_the_properties_is_dropped(talk: Talk, /) -> None:
    await talk.client.send(b"x", properties="a\x011\x02POP_CK\x010 1 2\x02b\x012")
    (message,) = await talk.client.messages()
    assert (message.properties["a"], message.properties["b"], message.properties.get("POP_CK")) == (
        "1",
        "2",
        None,
    )


@in_loop(converse, start_accept_send_request_time_stamp=9_999_999_999_999)
async def test_sends_before_the_opening_time_are_refused(talk: Talk, /) -> None:
    answer = await talk.client.code(send(), b"x")
    assert answer[0] == 1
    assert answer[1].startswith(
        "broker unable to service, until 2286-11-20 17:46:39 UTC "
        "(startAcceptSendRequestTimeStamp=99999"
    )


@in_loop(converse, broker_permission=4)
async def test_a_broker_that_may_not_be_written_refuses_ordered_topics_only(talk: Talk, /) -> None:
    await talk.client.create("ordered", order=True)
    await talk.client.create("plain")
    assert (await talk.client.code(send("ordered"), b"x"))[0] == ResponseCode.NO_PERMISSION
    assert (await talk.client.code(send("plain"), b"x"))[0] == ResponseCode.SUCCESS, (
        "RocketMQ: only order topics"
    )


@pytest.mark.parametrize(
    ("asked", "made"), [(1, 1), (4, 4), (8, 8), (9, 8), (2**31 - 1, 8), (0, 0), (-5, 0)]
)
@in_loop(converse)
async def test_a_topic_made_by_sending_has_what_was_asked_for_up_to_the_default_topic_s(
    talk: Talk, /, asked: int, made: int
) -> None:
    code, _ = await talk.client.code(send("new", default_topic_queue_nums=asked), b"x")
    topic = talk.broker.tables.topics.find("new")
    assert topic is not None
    assert (topic.write_queue_nums, topic.read_queue_nums, topic.perm) == (made, made, 6)
    assert code == (ResponseCode.SUCCESS if made else ResponseCode.INVALID_PARAMETER)


@in_loop(converse, auto_create_topic_enable=False)
async def test_no_topic_is_made_by_sending_where_that_is_off(talk: Talk, /) -> None:
    code, remark = await talk.client.code(send("new"), b"x")
    assert code == ResponseCode.TOPIC_NOT_EXIST
    assert "autoCreateTopicEnable=true" in remark
    assert talk.broker.tables.topics.find("new") is None
    await talk.client.create("new")
    await talk.client.send(b"x", "new")
    assert (await talk.client.code(send("%RETRY%g"), b"x"))[0] == ResponseCode.SUCCESS, (
        "retry topics are made anyway"
    )


@in_loop(converse)
async def test_a_dead_letter_topic_is_made_by_sending_as_any_other(talk: Talk, /) -> None:
    await talk.client.send(b"x", "%DLQ%g")
    assert await talk.client.all_bodies("%DLQ%g") == [b"x"]


@in_loop(converse, auto_create_subscription_group=False)
async def test_a_retry_topic_needs_its_group(talk: Talk, /) -> None:
    assert (await talk.client.code(send("%RETRY%unknown"), b"x"))[
        0
    ] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@in_loop(converse)
async def test_queue_ids_below_zero_are_the_broker_s_to_choose(talk: Talk, /) -> None:
    await talk.client.create(queues=4)
    chosen = {(await talk.client.send(queue_id=-1)).queue_id for _ in range(60)}
    assert chosen == {0, 1, 2, 3}


@in_loop(converse)
async def test_the_greater_of_read_and_write_queues_bounds_the_queue_id(talk: Talk, /) -> None:
    await talk.client.ask(CreateTopic(topic="R", read_queue_nums=4, write_queue_nums=2))
    assert (await talk.client.code(send("R", 3), b"x"))[0] == ResponseCode.SUCCESS, (
        "RocketMQ: max(read, write)"
    )
    assert (await talk.client.code(send("R", 4), b"x"))[0] == ResponseCode.INVALID_PARAMETER
    assert {(await talk.client.send(topic="R", queue_id=-1)).queue_id for _ in range(30)} == {0, 1}


@pytest.mark.parametrize("form", [ONE_LETTER, LONG, SendBatchMessage])
@in_loop(converse)
async def test_a_batch_becomes_single_messages_in_a_row(talk: Talk, /, form: type[Any]) -> None:
    await talk.client.send(b"before")
    batch = encode_batch(
        [Message("T", b"%d" % number, tags="ab"[number % 2], flag=number) for number in range(5)]
    )
    answer = await talk.client.ask(
        form(topic="T", queue_id=0, batch=True, properties="UNIQ_KEY\x01U\x02"), batch
    )
    assert answer.code == 0
    assert answer.ext is not None
    messages = await talk.client.messages(1)
    assert [message.body for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.flag for message in messages] == [0, 1, 2, 3, 4]
    assert [message.queue_offset for message in messages] == [1, 2, 3, 4, 5]
    assert answer.ext["msgId"] == ",".join(message.offset_msg_id for message in messages)
    assert answer.ext["queueOffset"] == "1"
    assert messages[0].properties["CLUSTER"] == "DefaultCluster"
    assert "UNIQ_KEY" not in messages[0].properties, (
        "RocketMQ: the batch's own properties are not stored"
    )
    assert [message.body for message in await talk.client.messages(tags="b")] == [b"1", b"3"]


@in_loop(converse)
async def test_a_batch_that_no_commit_log_file_can_hold_is_refused_and_costs_no_disk(
    talk: Talk, /, tmp_path: Path
) -> None:
    await talk.client.send(b"before")
    batch = encode_batch([Message("T", b"x")] * 20_000)
    for _ in range(3):
        code, remark = await talk.client.code(send(batch=True), batch)
        assert code == ResponseCode.MESSAGE_ILLEGAL
        assert "mappedFileSizeCommitLog" in remark
    await talk.client.send(b"after")
    assert await talk.client.all_bodies() == [b"before", b"after"]
    assert len(list((tmp_path / "commitlog").iterdir())) == 1


@in_loop(converse)
async def test_a_batch_with_a_bad_message_stores_none_of_it(talk: Talk, /) -> None:
    await talk.client.create()
    good = encode_batch([Message("T", b"good")])
    for body in (good + encode_batch([Message("T", b"x", delay_level=3)]), good + b"\0" * 21):
        assert (await talk.client.code(send(batch=True), body))[0] == ResponseCode.MESSAGE_ILLEGAL
    assert await talk.client.all_bodies() == []


@in_loop(converse)
async def test_no_flag_of_a_client_s_makes_an_entry_unreadable(talk: Talk, /) -> None:
    for flags in (0x10, 0x20, 0x30, 0x30 | 0x1):
        await talk.client.send(b"flagged", sys_flag=flags)
        await talk.client.ask(
            send(batch=True, sys_flag=flags), encode_batch([Message("T", b"in a batch")])
        )
    messages = await talk.client.messages()
    assert [message.stored_body for message in messages] == [b"flagged", b"in a batch"] * 4
    assert {message.store_host[0] for message in messages} == {"127.0.0.1"}
    assert [message.sys_flag for message in messages] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert [entry.queue_offset for entry in EntryWalk(talk.broker.store.log).entries()] == list(
        range(8)
    ), "a recovery reads them all"


@in_loop(converse, listen_port=free_ports(-2, 0))
async def test_the_vip_port_takes_sends_but_no_pulls(talk: Talk, /) -> None:
    await talk.client.send(b"x")
    vip = talk.another()
    vip.address = f"127.0.0.1:{talk.broker.port - 2}"
    await vip.send(b"by the VIP port")
    assert await talk.client.all_bodies() == [b"x", b"by the VIP port"]
    request = PullMessage(consumer_group="g", topic="T", queue_id=0, queue_offset=0)
    assert await vip.code(request) == (3, " request type 11 not supported")


@in_loop(converse)
async def test_a_oneway_send_is_stored_and_not_answered(talk: Talk, /) -> None:
    await talk.client.create()
    await talk.client.remoting.send_oneway(talk.client.address, send(), b"quiet")
    await talk.client.remoting.send_oneway(talk.client.address, send("new"), b"quiet")
    await talk.client.remoting.send_oneway(talk.client.address, send(queue_id=99), b"lost")
    await talk.client.send(b"loud")
    assert await talk.client.all_bodies() == [b"quiet", b"loud"]
    connection = await talk.client.remoting.connect(talk.client.address)
    assert not connection.calls.waiting


@in_loop(converse, max_message_size=1 << 20)
async def test_a_full_disk_refuses_the_send_and_nothing_else(
    talk: Talk, /, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.client.create()
    await talk.client.send(b"before")

    def no_room(self: object, start: int) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "commitlog" / "1"))

    with monkeypatch.context() as patched:
        patched.setattr("turbopump.store.mapped_file_queue.MappedFileQueue.append_file", no_room)
        code, remark = await talk.client.code(send(), bytes((1 << 20) - 300))
        assert code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (
            f"no space for {1 << 20} bytes in {tmp_path / 'commitlog'} (No space left on device"
        ) in remark
        await until(lambda: talk.broker.store.space.refusal is None)  # the next look finds room
        await talk.client.send(b"small ones fit")
    answer, _ = await talk.client.pull()
    assert [message.body for message in decode_entries(answer.body)] == [
        b"before",
        b"small ones fit",
    ]
