"""The client for code without an event loop: the same Producer, consumers and MessageFinder, each method a plain call that waits.

One rule: there is one implementation, the asyncio one; a call here runs there, on one background thread with one loop per process,
and brings back its result. It must not know brokers. Handing over and back costs some tens of µs (``make bench`` has the figure).

After a ``fork`` the thread is gone: a Producer, PullConsumer or MessageFinder starts afresh in the child by itself at its next call; a
PushConsumer refuses, for the messages in its hands belong to the parent.
"""

from __future__ import annotations

from turbopump.blocking.message_finder import MessageFinder
from turbopump.blocking.on_loop_thread import Surrounding
from turbopump.blocking.producer import Producer, ProducerSettings
from turbopump.blocking.pull_consumer import PullConsumer
from turbopump.blocking.push_consumer import PushConsumer, PushConsumerSettings
from turbopump.client.accumulator import AutoBatch
from turbopump.client.back_pressure import BackPressure
from turbopump.client.delivery import Delivery, Retry
from turbopump.client.fault_strategy import LatencyFaults
from turbopump.client.found_messages import FoundMessages
from turbopump.client.hooks import SendHook
from turbopump.client.identity import Credentials
from turbopump.client.offset_store import ConsumeFrom
from turbopump.client.pull_consumer import PullResult, PullStatus
from turbopump.client.send_result import SendResult, SendStatus
from turbopump.message.message import Message
from turbopump.message.message_queue import MessageQueue

__all__ = [
    "AutoBatch",
    "BackPressure",
    "ConsumeFrom",
    "Credentials",
    "Delivery",
    "FoundMessages",
    "LatencyFaults",
    "Message",
    "MessageFinder",
    "MessageQueue",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerSettings",
    "Retry",
    "SendHook",
    "SendResult",
    "SendStatus",
    "Surrounding",
]
