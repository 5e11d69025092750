"""Apache RocketMQ in Python: producers and consumers for asyncio, brokers, a data source for Spark.

::

    async with Producer("127.0.0.1:9876") as producer:
        await producer.send("orders", b"body")

``turbopump.blocking`` has the same clients without asyncio, ``turbopump.testing`` a broker for
tests. ``turbopump --help`` prints the documentation's address. A page that is named as
``docs/guide/tls.md`` is ``guide/tls.html`` there; the first is ``docs/guide/getting-started.md``.
"""

# The public names are imported on first use, so that ``import turbopump`` is cheap.
from __future__ import annotations

import logging

TYPE_CHECKING = False  # as in `typing`, without importing that module
if TYPE_CHECKING:
    from turbopump.admin.admin import Admin
    from turbopump.auth.signatures import Credentials
    from turbopump.client.consumer.delivery import Delivery, Retry
    from turbopump.client.consumer.offsets import ConsumeFrom
    from turbopump.client.consumer.pop import PoppedMessage
    from turbopump.client.consumer.pull import PullResult, PullStatus
    from turbopump.client.consumer.ready_messages import NoMoreMessages
    from turbopump.client.consumer.subscription import Sql, Tags
    from turbopump.client.hooks import SendHook
    from turbopump.client.idempotence import (
        IdempotentConsumer,
        MemoryStore,
        RedisStore,
        SqliteStore,
    )
    from turbopump.client.lite_pull_consumer import LitePullConsumer
    from turbopump.client.message_finder import FoundMessages, MessageFinder
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
    from turbopump.config.tls import ClientTls
    from turbopump.errors import (
        BodyError,
        CallTimeoutError,
        ClientError,
        ClientErrorCode,
        ConfigError,
        ConnectError,
        ConnectionLostError,
        CopyError,
        DataLossError,
        FrameError,
        HeaderError,
        LakeError,
        LakeInUseError,
        MessageError,
        MessageNotFoundError,
        MirrorError,
        MissingExtraError,
        NotFoundError,
        NotStartedError,
        OffsetGapError,
        PipelineError,
        ProtocolError,
        ReadsRefusedError,
        RemotingError,
        ReplyError,
        RequestError,
        RequestTimeoutError,
        ResendError,
        ResponseError,
        RoomInMakingError,
        RouteNotFoundError,
        SendError,
        StoreClosedError,
        StoreDamagedError,
        StoredMessageError,
        StoreError,
        StoreLockedError,
        TopicNotFoundError,
        TurbopumpError,
        WriteError,
    )
    from turbopump.message.message import Message, MessageQueue, ReceivedMessage
    from turbopump.stop_signals import StopEvent, stop_on_signals

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AutoBatch",
    "BackPressure",
    "BodyError",
    "CallTimeoutError",
    "ClientError",
    "ClientErrorCode",
    "ClientTls",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "ConsumeFrom",
    "CopyError",
    "Credentials",
    "DataLossError",
    "Delivery",
    "FoundMessages",
    "FrameError",
    "HeaderError",
    "IdempotentConsumer",
    "LakeError",
    "LakeInUseError",
    "LatencyFaults",
    "LitePullConsumer",
    "MemoryStore",
    "Message",
    "MessageError",
    "MessageFinder",
    "MessageNotFoundError",
    "MessageQueue",
    "MirrorError",
    "MissingExtraError",
    "NoMoreMessages",
    "NotFoundError",
    "NotStartedError",
    "OffsetGapError",
    "PipelineError",
    "PoppedMessage",
    "Producer",
    "ProtocolError",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReadsRefusedError",
    "ReceivedMessage",
    "RedisStore",
    "RemotingError",
    "ReplyError",
    "RequestError",
    "RequestTimeoutError",
    "ResendError",
    "ResponseError",
    "Retry",
    "RoomInMakingError",
    "RouteNotFoundError",
    "SendError",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "Sql",
    "SqliteStore",
    "StopEvent",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreError",
    "StoreLockedError",
    "StoredMessageError",
    "Tags",
    "TopicNotFoundError",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "TurbopumpError",
    "WriteError",
    "__version__",
    "stop_on_signals",
]

_HOME = {
    name: module
    for module, names in {
        "turbopump.admin.admin": "Admin",
        "turbopump.client.consumer.delivery": "Delivery Retry",
        "turbopump.client.consumer.offsets": "ConsumeFrom",
        "turbopump.client.consumer.pop": "PoppedMessage",
        "turbopump.client.consumer.pull": "PullResult PullStatus",
        "turbopump.client.consumer.ready_messages": "NoMoreMessages",
        "turbopump.client.consumer.subscription": "Sql Tags",
        "turbopump.client.hooks": "SendHook",
        "turbopump.client.idempotence": "IdempotentConsumer MemoryStore RedisStore SqliteStore",
        "turbopump.auth.signatures": "Credentials",
        "turbopump.client.lite_pull_consumer": "LitePullConsumer",
        "turbopump.client.message_finder": "FoundMessages MessageFinder",
        "turbopump.client.producer": "Producer",
        "turbopump.client.pull_consumer": "PullConsumer",
        "turbopump.client.push_consumer": "PushConsumer",
        "turbopump.client.sending.accumulator": "AutoBatch",
        "turbopump.client.sending.back_pressure": "BackPressure",
        "turbopump.client.sending.queue_chooser": "LatencyFaults",
        "turbopump.client.sending.send_result": "SendResult SendStatus",
        "turbopump.client.simple_consumer": "SimpleConsumer",
        "turbopump.client.transaction_producer": """
            TransactionProducer TransactionResult TransactionState
        """,
        "turbopump.config.tls": "ClientTls",
        "turbopump.errors": """
            BodyError CallTimeoutError ClientError ClientErrorCode ConfigError ConnectError
            ConnectionLostError CopyError DataLossError FrameError HeaderError LakeError
            LakeInUseError MessageError MessageNotFoundError MirrorError NotFoundError
            NotStartedError OffsetGapError MissingExtraError PipelineError ProtocolError
            ReadsRefusedError RemotingError ReplyError RequestError RequestTimeoutError
            ResendError ResponseError
            RoomInMakingError RouteNotFoundError SendError StoreClosedError StoreDamagedError
            StoreError StoreLockedError StoredMessageError TopicNotFoundError TurbopumpError
            WriteError
        """,
        "turbopump.message.message": "Message MessageQueue ReceivedMessage",
        "turbopump.stop_signals": "StopEvent stop_on_signals",
    }.items()
    for name in names.split()
}

logging.getLogger("turbopump").addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'turbopump' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
