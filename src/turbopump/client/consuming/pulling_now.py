"""What is at a place of a queue now: one pull for somebody who belongs to no group.

One rule: it waits for nothing and leaves no trace on the broker. It must not know who asks.
"""

from __future__ import annotations

from typing import Final

from turbopump.client.consuming.pulled_messages import pulled_messages
from turbopump.client.instance import ClientInstance
from turbopump.errors import ConnectError, ResponseError
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group that every broker has for tools; Apache's mqadmin reads under its name."""
TIMEOUT_S: Final = 10.0
_OUTCOMES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


async def pull_now(
    instance: ClientInstance, queue: MessageQueue, offset: int, count: int
) -> tuple[list[ReceivedMessage], PullMessageReply]:
    """The good messages from ``offset`` on, if any (a broker gives 32 at most by default), and the
    reply, which says where to go on and what offsets the queue has. Raises a RemotingError."""
    address = (await instance.routes.get(queue.topic)).readable_address(queue.broker_name)
    if address is None:
        raise ConnectError(
            f"topic {queue.topic!r} has no queue on a broker {queue.broker_name!r}; its queues: "
            "turbopump topic route"
        )
    request = PullMessage(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        subscription="*",
        expression_type="TAG",
    )
    answer = await instance.remoting.exchange(address, request, timeout=TIMEOUT_S)
    if answer.code not in _OUTCOMES:
        raise ResponseError(answer.code, answer.remark, request="PullMessage", address=address)
    reply = answer.header(PullMessageReply)
    if answer.code != ResponseCode.SUCCESS:
        return [], reply
    messages, _ = pulled_messages(
        answer.body, queue, offset, reply.next_begin_offset, ReceivedMessage
    )
    for message in messages:
        message.broker_name = queue.broker_name
    return messages, reply
