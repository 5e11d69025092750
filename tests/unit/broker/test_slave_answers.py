"""What a slave answers beside pulls: queries as its master does; POP and what would have to be
stored it refuses in words."""

from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.replicas import MASTER, SLAVE, Replicas, eventually, same_logs, with_replicas
from tests.unit.broker.talking import Client

from turbopump.message.codec import decode_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.offsets import GetMaxOffset, GetMinOffset, SearchOffset
from turbopump.protocol.requests.pop import AckMessage, ChangeInvisibleTime, PeekMessage, PopMessage
from turbopump.protocol.requests.pull import GetEarliestMsgStoreTime, QueryMessage, ViewMessageById
from turbopump.protocol.requests.send import ConsumerSendMsgBack, SendMessageV2

QUEUE: dict[str, Any] = {"topic": "T", "queue_id": 0}
BY_KEY = QueryMessage(topic="T", key="k3", max_num=5, begin_timestamp=0, end_timestamp=1 << 60)


async def pair(replicas: Replicas) -> tuple[Client, Client]:
    """Clients of a master and of its slave, which have five messages, one a millisecond."""
    master, slave = await replicas.master(), await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    await client.join("c", "g")
    for number in range(5):
        request = SendMessageV2(**QUEUE, properties=f"KEYS\x01k{number}\x02")
        assert (await client.code(request, b"m%d" % number))[0] == 0
    await same_logs(master, slave)
    await eventually(lambda: slave.tables.topics.find("T") and slave.tables.groups.get("g"))
    return client, replicas.client_of(SLAVE)


@pytest.mark.parametrize(
    "request_",
    [
        GetMaxOffset(**QUEUE),
        GetMinOffset(**QUEUE),
        SearchOffset(**QUEUE, timestamp=0),
        SearchOffset(**QUEUE, timestamp=1 << 50),
        GetEarliestMsgStoreTime(**QUEUE),
        BY_KEY,
        ViewMessageById(offset=0),
        PeekMessage(**QUEUE, max_msg_nums=2, consumer_group="g"),
    ],
    ids=lambda request: type(request).__name__,
)
@in_loop(with_replicas)
async def test_a_slave_answers_a_query_as_its_master_does(
    replicas: Replicas, /, request_: Request[Any]
) -> None:
    of_master, of_slave = await pair(replicas)
    wanted, given = await of_master.ask(request_), await of_slave.ask(request_)
    assert (given.code, given.ext, given.body) == (wanted.code, wanted.ext, wanted.body)
    assert given.code == ResponseCode.SUCCESS


@in_loop(with_replicas)
async def test_a_slave_finds_a_message_by_its_key_when_its_master_is_gone(
    replicas: Replicas, /
) -> None:
    _, of_slave = await pair(replicas)
    replicas.kill(MASTER)
    found = decode_entries((await of_slave.ask(BY_KEY)).body)
    assert [message.body for message in found] == [b"m3"]


@in_loop(with_replicas)
async def test_a_slave_lends_nothing_for_it_cannot_note_it(replicas: Replicas, /) -> None:
    of_master, of_slave = await pair(replicas)
    born_ms = replicas.simulation.clock(SLAVE).now_ms()
    asked = PopMessage(
        **QUEUE,
        consumer_group="g",
        max_msg_nums=8,
        invisible_time=30_000,
        poll_time=0,
        born_time=born_ms,
        init_mode=0,
        exp_type="TAG",
        exp="*",
    )
    code, remark = await of_slave.code(asked)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "pop from its master" in remark
    answer = await of_master.ask(asked)
    assert len(list(decode_entries(answer.body))) == 5
    done = {**QUEUE, "consumer_group": "g", "offset": 0, "extra_info": popped(answer.ext)}
    for late in (AckMessage(**done), ChangeInvisibleTime(**done, invisible_time=1000)):
        assert (await of_slave.code(late))[0] != ResponseCode.SUCCESS
        assert (await of_master.code(late))[0] == ResponseCode.SUCCESS


def popped(ext: dict[str, str] | None) -> str:
    """The handle of the first message, as a client makes it."""
    assert ext is not None
    return " ".join(
        ["0", ext["popTime"], ext["invisibleTime"], ext["reviveQid"], "0", "broker-a", "0", "0"]
    )


@in_loop(with_replicas)
async def test_a_message_sent_back_to_a_slave_is_refused_and_makes_no_topic(
    replicas: Replicas, /
) -> None:
    _, of_slave = await pair(replicas)
    back = ConsumerSendMsgBack(offset=0, group="new", delay_level=0)
    code, remark = await of_slave.code(back)
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark.startswith("no master available along with")
    assert replicas.brokers[SLAVE].tables.topics.find("%RETRY%new") is None
