"""What tests pop, and how they tell what they got."""

import asyncio
from typing import Any

from tests.unit.broker.talking import Client

from turbopump.message.codec import decode_entries
from turbopump.message.handles import (
    PopHandle,
    QueueKey,
    decode_numbers,
    decode_offsets,
    queue_key,
    queue_kind_of,
)
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import POP_CK
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.requests.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeReply,
    PopMessage,
    PopMessageReply,
)


class Popped:
    """A message with its receipt, as Apache's client makes it."""

    def __init__(self, message: ReceivedMessage, handle: PopHandle) -> None:
        self.message = message
        self.body = message.body
        self.attempt = message.reconsume_times
        self.handle = handle


def popped(answer: Command, topic: str = "T") -> list[Popped]:
    """The messages of an answer. RocketMQ: ``MQClientAPIImpl.processPopResponse``."""
    header = answer.header(PopMessageReply)
    starts, offsets = (
        decode_numbers(header.start_offset_info),
        decode_offsets(header.msg_offset_info),
    )
    found = []
    for message in decode_entries(answer.body):
        assert message.topic == topic
        receipt = message.properties.get(POP_CK)
        if receipt is None:
            key: QueueKey = queue_key(queue_kind_of(message.topic), message.queue_id)
            assert message.queue_offset in offsets[key]
            handle = PopHandle(
                start_offset=starts[key],
                pop_time_ms=header.pop_time,
                invisible_ms=header.invisible_time,
                revive_queue_id=header.revive_qid,
                kind=key.kind,
                broker_name="broker-a",
                queue_id=message.queue_id,
                queue_offset=message.queue_offset,
            )
        else:
            handle = PopHandle.decode(receipt)
        found.append(Popped(message, handle))
    return found


def pop_request(
    now_ms: int, *, invisible_ms: int = 10_000, poll_ms: int = 0, **fields: Any
) -> PopMessage:
    values: dict[str, Any] = {
        "consumer_group": "g",
        "topic": "T",
        "queue_id": -1,
        "max_msg_nums": 32,
        "init_mode": 0,
    }
    return PopMessage(
        **{**values, **fields}, invisible_time=invisible_ms, poll_time=poll_ms, born_time=now_ms
    )


class Popper:
    """A consumer. ``now_ms`` is the time that the broker has."""

    def __init__(self, client: Client, now_ms: Any, topic: str = "T", group: str = "g") -> None:
        self.client = client
        self.now_ms = now_ms
        self.topic = topic
        self.group = group

    async def pop(self, **fields: Any) -> list[Popped]:
        """What one pop gives; nothing for an answer that says so."""
        return popped(await self.answer(**fields), self.topic)

    async def answer(self, **fields: Any) -> Command:
        request = pop_request(
            self.now_ms(), **{"topic": self.topic, "consumer_group": self.group, **fields}
        )
        answer = await self.client.ask(request, timeout=request.poll_time / 1000 + 10)
        nothing = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)
        assert answer.code == ResponseCode.SUCCESS or (
            answer.code in nothing and not answer.body
        ), answer
        return answer

    async def ack(self, one: Popped) -> int:
        handle = one.handle
        topic = handle.real_topic(self.topic, self.group)
        assert handle.queue_offset is not None
        request = AckMessage(
            consumer_group=self.group,
            topic=topic,
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
        )
        return (await self.client.ask(request)).code

    async def change(self, one: Popped, invisible_ms: int) -> Command:
        handle = one.handle
        assert handle.queue_offset is not None
        request = ChangeInvisibleTime(
            consumer_group=self.group,
            topic=handle.real_topic(self.topic, self.group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
        )
        answer = await self.client.ask(request)
        if answer.code == ResponseCode.SUCCESS:
            reply = answer.header(ChangeInvisibleTimeReply)
            one.handle = PopHandle(
                start_offset=handle.queue_offset if not handle.ordered else handle.start_offset,
                pop_time_ms=reply.pop_time,
                invisible_ms=reply.invisible_time,
                revive_queue_id=reply.revive_qid,
                kind=handle.kind,
                broker_name=handle.broker_name,
                queue_id=handle.queue_id,
                queue_offset=handle.queue_offset,
            )
        return answer

    async def until(self, count: int, seconds: float, **fields: Any) -> list[Popped]:
        """Pop until there are so many, or the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        found: list[Popped] = []
        while len(found) < count and loop.time() < end:
            found += await self.pop(**{"poll_ms": 5000, **fields})
        return found
