"""Blocking Producer, consumers, MessageFinder and Admin, for code without an event loop.

One rule: there is one implementation, the asyncio one. Each call runs on one background thread,
which has one event loop per process, and returns its result. This package must not know brokers. A
call costs some tens of µs for the change of threads (``make bench`` has the figure).

A ``fork`` does not copy the thread to the child. In the child a Producer, PullConsumer or
MessageFinder starts again at its next call. A PushConsumer, LitePullConsumer or SimpleConsumer that
was started raises an error, because its messages belong to the parent. A consumer that was not
started keeps its subscriptions, and can be started in the child.
"""

from __future__ import annotations

from turbopump.auth.signatures import Credentials
from turbopump.blocking.admin import Admin
from turbopump.blocking.clients import (
    IdempotentConsumer,
    LitePullConsumer,
    MessageFinder,
    Producer,
    PullConsumer,
    SimpleConsumer,
    TransactionProducer,
)
from turbopump.blocking.push_consumer import PushConsumer
from turbopump.blocking.stop_signals import StopRequest, stop_on_signals
from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.consumer.pop import PoppedMessage
from turbopump.client.consumer.settings import PushConsumerSettings
from turbopump.client.hooks import SendHook
from turbopump.client.idempotence import MemoryStore, RedisStore, SqliteStore
from turbopump.client.message_finder import FoundMessages
from turbopump.client.pull_consumer import PullResult, PullStatus
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.queue_chooser import LatencyFaults
from turbopump.client.sending.send_result import SendResult, SendStatus
from turbopump.client.sending.settings import ProducerSettings
from turbopump.client.settings import ClientSettings
from turbopump.client.transaction_producer import TransactionResult, TransactionState
from turbopump.message.message import Message, MessageQueue

__all__ = [
    "Admin",
    "AutoBatch",
    "BackPressure",
    "ClientSettings",
    "ConsumeFrom",
    "Credentials",
    "Delivery",
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
    "ProducerSettings",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerSettings",
    "RedisStore",
    "Retry",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SqliteStore",
    "StopRequest",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "stop_on_signals",
]
