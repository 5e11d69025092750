"""Return of failed messages to their broker. The broker delivers them again later through the
group's retry topic. After too many attempts it makes dead letters of them.

One rule: a message is sent back only when a broker has confirmed it; until then this member keeps
it. If its own broker refuses, it is sent as a plain message to the retry topic on any broker that
accepts it. Source: apache/rocketmq ``DefaultMQPushConsumerImpl.sendMessageBack``.
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
    "messages not sent back, this consumer keeps and retries them group=%s msg_id=%s cause=%s",
)

TIMEOUT_S: Final = 5.0
PLAIN_TIMEOUT_S: Final = 3.0
PLAIN_ATTEMPTS: Final = 3
FIRST_LEVEL: Final = 3
"""Delay level of a first retry that is sent as a plain message; brokers use the same."""
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
    """Sender that returns failed messages of one group to their brokers.

    - ``attempts_max``: number of retries before a message becomes a dead letter. None for the
      group's setting at the broker.
    - ``namespace``: prefix that is removed from the topics that users see.
    """

    instance: ClientInstance
    group: str
    attempts_max: int | None
    namespace: str | None = None

    def __post_init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def send_back_later(
        self,
        message: ReceivedMessage,
        queue: MessageQueue | None,
        level: int,
        settled: Callable[[bool], None],
    ) -> None:
        """Send a message back to its broker in the background.

        - ``queue``: queue from which the message was pulled. None gives the message up.
        - ``level``: delay level of the retry. With 0 the broker chooses, longer each time. Below 0
          the message becomes a dead letter now.
        - ``settled``: called with True if a broker has confirmed the message, or else with False.

        A message that is given up is sent as a plain message to the retry topic with one more
        attempt. A broker makes a dead letter of it. Ordered consumers do this
        (``ConsumeMessageOrderlyService.sendMessageBack``).
        """

        async def work() -> None:
            settled(await self._send_back(message, queue, level))

        task = self.instance.spawn(work(), name=f"send back {message.msg_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, patience: float) -> None:
        """Wait at most ``patience`` seconds for messages that are being sent back."""
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
                "the message arrived in an inner batch, so the log has no separate entry for it"
            )
        address = self.instance.routes.require_address(queue.broker_name, topic=queue.topic)
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
        attempts_max = self.attempts_max
        if level < 0:
            attempts_max = 0  # the broker makes a dead letter of it
        if level <= 0:
            level = FIRST_LEVEL + message.reconsume_times
        properties[names.DELAY_TIME_LEVEL] = str(level)
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
            max_reconsume_times=attempts_max,
            batch=False,
            broker_name=queue.broker_name,
        )


def _failure(message: ReceivedMessage) -> str | None:
    return message.failure if isinstance(message, Delivery) else None
