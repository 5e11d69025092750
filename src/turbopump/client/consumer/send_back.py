"""Giving a message back that could not be handled: its broker brings it again later by way of the
group's retry topic, or, after too many attempts, puts it to the dead letters.

One rule: a message is given back when a broker has said that it has it; else it stays ours. A
message that its own broker refuses goes as a plain message to the retry topic, on any broker that
takes it. Source: apache/rocketmq ``DefaultMQPushConsumerImpl.sendMessageBack``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import wrap
from turbopump.errors import MessageError, RemotingError, RouteNotFoundError
from turbopump.message import properties as names
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.properties import SysFlag
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.send import ConsumerSendMsgBack, SendMessageV2
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_not_given_back = RepeatedLine(
    log,
    logging.WARNING,
    "messages cannot be given back, they are kept and tried again here group=%s msg_id=%s cause=%s",
)

TIMEOUT_S: Final = 5.0
PLAIN_TIMEOUT_S: Final = 3.0
PLAIN_ATTEMPTS: Final = 3
FIRST_LEVEL: Final = 3
"""The delay level of a first retry that goes as a plain message; the broker's own rule is the
same."""
INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
_TRANSACTION: Final = "TRAN_MSG"
_KEPT: Final = ~(
    SysFlag.TRANSACTION_PREPARED
    | SysFlag.TRANSACTION_COMMIT
    | SysFlag.BORN_HOST_V6
    | SysFlag.STORE_HOST_V6
    | SysFlag.NEED_UNWRAP
    | SysFlag.INNER_BATCH
)


@dataclass(eq=False)
class SendBack:
    """Gives back the messages of one group. ``attempts_max``: retries before a message is a dead
    letter; None: as the group is set at the broker. ``namespace``: users know the messages' topics
    without it."""

    instance: ClientInstance
    group: str
    attempts_max: int | None
    namespace: str | None = None

    def __post_init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        message: ReceivedMessage,
        queue: MessageQueue | None,
        level: int,
        settled: Callable[[bool], None],
    ) -> None:
        """Give it back and say whether a broker has it. ``queue`` is where it was pulled from.
        ``level``: the delay level until it comes again; 0: the broker chooses, longer each time;
        below 0: it is a dead letter now.

        ``queue`` None: give up on it. It goes as a plain message to the retry topic, one attempt
        further than it was, which a broker turns into a dead letter. Ordered consumers do it so
        (``ConsumeMessageOrderlyService.sendMessageBack``).
        """

        async def work() -> None:
            settled(await self._send_back(message, queue, level))

        task = self.instance.spawn(work(), name=f"send back {message.msg_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, patience: float) -> None:
        """Wait for what is under way, ``patience`` seconds at most."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=patience)

    async def _send_back(
        self, message: ReceivedMessage, queue: MessageQueue | None, level: int
    ) -> bool:
        cause = ""
        if queue is not None:
            try:
                await self._to_its_broker(message, queue, level)
            except RemotingError as error:
                cause = f"{error}; then "
            else:
                return True
        try:
            await self._as_plain_message(message, level)
        except (RemotingError, RouteNotFoundError, MessageError) as error:
            _not_given_back(self.group, message.msg_id, f"{cause}{error}", kind=self.group)
            return False
        return True

    async def _to_its_broker(
        self, message: ReceivedMessage, queue: MessageQueue, level: int
    ) -> None:
        if message.sys_flag & SysFlag.INNER_BATCH:
            raise RemotingError(
                "the log has no entry of this message alone, it came in an inner batch"
            )
        address = self.instance.routes.address_of(queue.broker_name, topic=queue.topic)
        if address is None:
            raise RemotingError(f"no address is known for broker {queue.broker_name}")
        request = ConsumerSendMsgBack(
            offset=message.commit_log_offset,
            group=self.group,
            delay_level=level,
            origin_msg_id=message.msg_id,
            origin_topic=wrap(self.namespace, message.topic),
            max_reconsume_times=self.attempts_max,
            failure=_failure(message),
        )
        await self.instance.remoting.call(address, request, timeout=TIMEOUT_S)

    async def _as_plain_message(self, message: ReceivedMessage, level: int) -> None:
        topic = RETRY_PREFIX + self.group
        route = await self.instance.routes.get(topic)
        queues = {
            queue.broker_name: queue
            for queue in route.publish_queues
            if route.master(queue.broker_name) is not None
        }
        if not queues:
            raise RouteNotFoundError(f"no broker takes messages of {topic} now")
        error: RemotingError | None = None
        for _, queue in zip(range(PLAIN_ATTEMPTS), queues.values(), strict=False):
            address = route.master(queue.broker_name)
            assert address is not None
            try:
                await self.instance.remoting.call(
                    address,
                    self._plain(message, queue, level),
                    message.stored_body,
                    timeout=PLAIN_TIMEOUT_S,
                )
            except RemotingError as refused:
                error = refused
            else:
                return
        assert error is not None
        raise error

    def _plain(self, message: ReceivedMessage, queue: MessageQueue, level: int) -> SendMessageV2:
        attempt = message.reconsume_times + 1
        properties = names.with_failure(message.properties, _failure(message), attempt)
        properties.pop(_TRANSACTION, None)
        properties[names.RETRY_TOPIC] = wrap(self.namespace, message.topic)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.offset_msg_id)
        properties[names.DELAY_TIME_LEVEL] = str(
            level if level > 0 else FIRST_LEVEL + message.reconsume_times
        )
        return SendMessageV2(
            producer_group=INNER_PRODUCER,
            topic=queue.topic,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag & _KEPT,
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=names.encode_properties(properties),
            reconsume_times=attempt,
            unit_mode=False,
            max_reconsume_times=0 if level < 0 else self.attempts_max,
            batch=False,
            broker_name=queue.broker_name,
        )


def _failure(message: ReceivedMessage) -> str | None:
    return message.failure if isinstance(message, Delivery) else None
