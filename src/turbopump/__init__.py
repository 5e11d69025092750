"""Turbopump: Apache RocketMQ in Python. The public names are imported on first use, so that
``import turbopump`` is cheap."""

from __future__ import annotations

import logging

TYPE_CHECKING = False  # as `typing` has it, which need not be imported for that
if TYPE_CHECKING:
    from turbopump.client.consumer.delivery import Retry
    from turbopump.client.consumer.offsets import ConsumeFrom
    from turbopump.client.consumer.pop import PoppedMessage
    from turbopump.client.consumer.pull import FoundMessages
    from turbopump.client.consumer.subscription import Sql
    from turbopump.client.hooks import SendHook
    from turbopump.client.idempotence import (
        IdempotentConsumer,
        MemoryStore,
        RedisStore,
        SqliteStore,
    )
    from turbopump.client.identity import Credentials
    from turbopump.client.lite_pull_consumer import LitePullConsumer
    from turbopump.client.message_finder import MessageFinder
    from turbopump.client.producer import Producer
    from turbopump.client.pull_consumer import PullConsumer
    from turbopump.client.push_consumer import PushConsumer
    from turbopump.client.sending.accumulator import AutoBatch
    from turbopump.client.sending.back_pressure import BackPressure
    from turbopump.client.sending.queue_chooser import LatencyFaults
    from turbopump.client.sending.send_result import SendResult, SendStatus
    from turbopump.client.simple_consumer import SimpleConsumer
    from turbopump.client.transaction_producer import (
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )
    from turbopump.errors import TurbopumpError
    from turbopump.message.message import Message, MessageQueue, ReceivedMessage

__version__ = "0.1.0"

__all__ = [
    "AutoBatch",
    "BackPressure",
    "ConsumeFrom",
    "Credentials",
    "FoundMessages",
    "IdempotentConsumer",
    "LatencyFaults",
    "LitePullConsumer",
    "MemoryStore",
    "Message",
    "MessageFinder",
    "MessageQueue",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RedisStore",
    "Retry",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "Sql",
    "SqliteStore",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "TurbopumpError",
    "__version__",
]

_HOME = {
    "AutoBatch": "turbopump.client.sending.accumulator",
    "BackPressure": "turbopump.client.sending.back_pressure",
    "Credentials": "turbopump.client.identity",
    "LatencyFaults": "turbopump.client.sending.queue_chooser",
    "LitePullConsumer": "turbopump.client.lite_pull_consumer",
    "SendHook": "turbopump.client.hooks",
    "ConsumeFrom": "turbopump.client.consumer.offsets",
    "IdempotentConsumer": "turbopump.client.idempotence",
    "MemoryStore": "turbopump.client.idempotence",
    "RedisStore": "turbopump.client.idempotence",
    "SqliteStore": "turbopump.client.idempotence",
    "FoundMessages": "turbopump.client.consumer.pull",
    "Message": "turbopump.message.message",
    "MessageFinder": "turbopump.client.message_finder",
    "MessageQueue": "turbopump.message.message",
    "PoppedMessage": "turbopump.client.consumer.pop",
    "Producer": "turbopump.client.producer",
    "PullConsumer": "turbopump.client.pull_consumer",
    "PushConsumer": "turbopump.client.push_consumer",
    "ReceivedMessage": "turbopump.message.message",
    "Retry": "turbopump.client.consumer.delivery",
    "SendResult": "turbopump.client.sending.send_result",
    "SendStatus": "turbopump.client.sending.send_result",
    "SimpleConsumer": "turbopump.client.simple_consumer",
    "Sql": "turbopump.client.consumer.subscription",
    "TransactionProducer": "turbopump.client.transaction_producer",
    "TransactionResult": "turbopump.client.transaction_producer",
    "TransactionState": "turbopump.client.transaction_producer",
    "TurbopumpError": "turbopump.errors",
}

logging.getLogger("turbopump").addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'turbopump' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
