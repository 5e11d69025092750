"""Turbopump: Apache RocketMQ in Python. The public names are imported on first use, so that ``import turbopump`` is cheap."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbopump.client.accumulator import AutoBatch
    from turbopump.client.back_pressure import BackPressure
    from turbopump.client.delivery import Retry
    from turbopump.client.fault_strategy import LatencyFaults
    from turbopump.client.found_messages import FoundMessages
    from turbopump.client.hooks import SendHook
    from turbopump.client.identity import Credentials
    from turbopump.client.message_finder import MessageFinder
    from turbopump.client.offset_store import ConsumeFrom
    from turbopump.client.producer import Producer
    from turbopump.client.pull_consumer import PullConsumer
    from turbopump.client.push_consumer import PushConsumer
    from turbopump.client.send_result import SendResult, SendStatus
    from turbopump.errors import TurbopumpError
    from turbopump.message.message import Message, ReceivedMessage
    from turbopump.message.message_queue import MessageQueue

__version__ = "0.1.0"

__all__ = [
    "AutoBatch",
    "BackPressure",
    "ConsumeFrom",
    "Credentials",
    "FoundMessages",
    "LatencyFaults",
    "Message",
    "MessageFinder",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "Retry",
    "SendHook",
    "SendResult",
    "SendStatus",
    "TurbopumpError",
    "__version__",
]

_HOME = {
    "AutoBatch": "turbopump.client.accumulator",
    "BackPressure": "turbopump.client.back_pressure",
    "Credentials": "turbopump.client.identity",
    "LatencyFaults": "turbopump.client.fault_strategy",
    "SendHook": "turbopump.client.hooks",
    "ConsumeFrom": "turbopump.client.offset_store",
    "FoundMessages": "turbopump.client.found_messages",
    "Message": "turbopump.message.message",
    "MessageFinder": "turbopump.client.message_finder",
    "MessageQueue": "turbopump.message.message_queue",
    "Producer": "turbopump.client.producer",
    "PullConsumer": "turbopump.client.pull_consumer",
    "PushConsumer": "turbopump.client.push_consumer",
    "ReceivedMessage": "turbopump.message.message",
    "Retry": "turbopump.client.delivery",
    "SendResult": "turbopump.client.send_result",
    "SendStatus": "turbopump.client.send_result",
    "TurbopumpError": "turbopump.errors",
}

logging.getLogger("turbopump").addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'turbopump' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
