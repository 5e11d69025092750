"""Settings of producers, with the rule of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from turbopump.client.environment import program_name
from turbopump.client.hooks import SendHook
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.outgoing import COMPRESS_FROM, COMPRESSION_KINDS, Compression
from turbopump.client.sending.queue_chooser import LatencyFaults
from turbopump.client.sending.send_result import RETRYABLE_CODES
from turbopump.client.sending.sender import RETRIES, SEND_TIMEOUT_S, SendRules
from turbopump.client.setting_rules import (
    FUNCTION,
    SECONDS,
    SWITCH,
    SettingRule,
    is_collection,
    is_whole,
    setting,
    whole_between,
    whole_from,
)
from turbopump.client.settings import TRACE, GroupSettings
from turbopump.errors import ConfigError
from turbopump.message.compression import DECOMPRESSED_SIZE_MAX
from turbopump.message.message import BODY_SIZE_MAX, ReceivedMessage
from turbopump.message.rules import topic_fault

DEFAULT_GROUP: Final = f"{program_name()}-producer"
"""Default producer group. The name is the same in every run of a program, and differs between
programs. RocketMQ: all producers without a group share one, so brokers may ask the wrong program
about a transaction."""
APACHES_DEFAULT: Final = "DEFAULT_PRODUCER"

Executor = Callable[..., object]
"""Function ``executor(message, arg)`` that does the local work of a transaction. It returns a
TransactionState, or None for UNKNOWN. A coroutine function runs on the event loop, a plain function
in a thread."""
Checker = Callable[[ReceivedMessage], object]
"""Function ``checker(message)`` that looks up the local work of a half message and returns its
TransactionState. Another process may have sent the message."""


def _made_as(kind: type, example: str) -> SettingRule:
    wants = f"must be made as {kind.__name__}, as in {example}, or None to go without"
    return SettingRule(lambda value: value is None or isinstance(value, kind), wants)


_RETRY_CODES: Final = SettingRule(
    lambda value: is_collection(value) and all(map(is_whole, value)),
    "must be a collection of response codes, as in (2, 14)",
)
_TOPICS: Final = SettingRule(
    lambda value: (
        is_collection(value)
        and all(isinstance(topic, str) and topic_fault(topic) is None for topic in value)
    ),
    "must be a list of topics, as in ['orders']",
)
_COMPRESS_FROM: Final = SettingRule(
    lambda size: size is None or (is_whole(size) and size >= 0),
    "must be a number of bytes, 0 or more, or None to compress nothing",
    "bytes",
)
_COMPRESSION: Final = SettingRule(
    lambda kind: isinstance(kind, str) and kind in COMPRESSION_KINDS,
    f"must be one of {', '.join(COMPRESSION_KINDS)}",
)
_BODY_SIZE: Final = SettingRule(
    whole_between(1, DECOMPRESSED_SIZE_MAX),
    f"must be a number of bytes above 0 and at most {DECOMPRESSED_SIZE_MAX}, the longest body that "
    "consumers decompress",
    "bytes",
)
_HOOKS: Final = SettingRule(
    lambda value: is_collection(value) and all(isinstance(hook, SendHook) for hook in value),
    "must be a list of SendHook objects, as in [YourHook()]; the class of each inherits SendHook",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(GroupSettings):
    """Settings of a ``Producer``.

    Raises ConfigError for unusable settings.
    """

    group: str = DEFAULT_GROUP
    """Name of the producer group. ``DEFAULT_PRODUCER``, the default group of Apache's producers, is
    refused. Java: ``producerGroup``."""
    topics: Sequence[str] = setting((), _TOPICS)
    """Topics whose routes are fetched at the start. The start fails if one of them has no queue to
    send to. Without this setting, the first send to such a topic fails."""
    send_timeout: float = setting(SEND_TIMEOUT_S, SECONDS)
    """Timeout of the whole send: route, connection and every retry. Until then a send also waits
    for a master: see docs/guide/producing.md#a-broker-without-a-master. ``send(..., timeout=)``
    sets it for one message. Java: ``sendMsgTimeout``."""
    attempt_timeout: float | None = setting(None, SECONDS.or_none())
    """Timeout of one attempt while others may follow. By default there is no limit, but a broker
    that hangs is given up after two thirds of ``send_timeout``: see
    docs/guide/producing.md#a-broker-that-hangs. A number below the broker's ``syncFlushTimeout`` (5
    s), or a replica's deadline, stores messages twice when disk or replica are slow. Java:
    ``sendMsgMaxTimeoutPerRequest``."""
    retries: int = setting(RETRIES, whole_from(0))
    """Maximum number of retries, on another broker if there is one. Attempts that reached no master
    do not count. Java: ``retryTimesWhenSendFailed``."""
    retry_codes: Collection[int] = setting(RETRYABLE_CODES, _RETRY_CODES)
    """Response codes after which a send is retried. Any other code ends the send. Java:
    ``retryResponseCodes``."""
    retry_unless_ok: bool = setting(False, SWITCH)
    """True also tries another broker when the message is stored but ``status`` is not ``OK``. The
    message may then be stored twice. Java: ``retryAnotherBrokerWhenNotStoreOK``."""
    latency_faults: LatencyFaults | None = setting(None, _made_as(LatencyFaults, "LatencyFaults()"))
    """``LatencyFaults()`` avoids slow brokers for a while: see
    docs/guide/producing.md#avoid-slow-brokers. Java: ``sendLatencyFaultEnable``."""
    compress_from: int | None = setting(COMPRESS_FROM, _COMPRESS_FROM)
    """Size from which bodies are compressed. None compresses no body. Batches are not compressed.
    Bodies from 64 KiB on are compressed in a thread before ``send_timeout`` begins. Java:
    ``compressMsgBodyOverHowmuch``."""
    compression: str = setting("zlib", _COMPRESSION)
    """Kind of compression: ``zlib``, ``lz4`` (a frame) or ``zstd``. Go's client reads zlib only;
    Java's 4.9.8 reads all three. Java: ``compressType``."""
    compression_level: int | None = None
    """Level of compression: 0–9 for zlib, 0–16 for lz4, 1–22 for zstd. By default it is 5, or 0 for
    lz4. Java: ``compressLevel``."""
    body_size_max: int = setting(BODY_SIZE_MAX, _BODY_SIZE)
    """Maximum body size, at most 64 MiB, the limit of consumers. Larger bodies are refused before
    they are sent. Change it together with the broker's ``maxMessageSize``. Java:
    ``maxMessageSize``."""
    back_pressure: BackPressure | None = setting(
        None, _made_as(BackPressure, "BackPressure(messages=1000)")
    )
    """``BackPressure(messages=10_000, size=100 << 20)`` limits the messages in flight. A send waits
    until there is room. Java: ``backPressureForAsyncSendNum``, ``backPressureForAsyncSendSize``."""
    auto_batch: AutoBatch | None = setting(None, _made_as(AutoBatch, "AutoBatch()"))
    """``AutoBatch(hold=0.01, size=32 << 10, total_size=32 << 20)`` sends messages in automatic
    batches: see docs/guide/producing.md#send-in-automatic-batches. Java: ``autoBatch``."""
    hooks: Sequence[SendHook] = setting((), _HOOKS)
    """``SendHook`` objects, which are called for every send: see
    docs/guide/producing.md#observe-sends. The integration of OpenTelemetry is one."""
    trace: bool | str = setting(False, TRACE)
    """True sends traces to ``RMQ_SYS_TRACE_TOPIC``. A name sends them to the topic of that name:
    see docs/guide/tracing.md. Java: ``enableTrace``."""

    def __post_init__(self) -> None:
        GroupSettings.__post_init__(self)
        if self.group == APACHES_DEFAULT:
            raise ConfigError(
                f"group={self.group!r} is the group of Apache's producers without one: give a "
                "group of your own, or omit it"
            )
        level = self.compression_level
        _, low, high, _ = COMPRESSION_KINDS[self.compression]
        if level is not None and not (is_whole(level) and low <= level <= high):
            raise ConfigError(
                f"compression_level={level!r} must be a whole number from {low} to "
                f"{high} for {self.compression}"
            )

    @property
    def rules(self) -> SendRules:
        """Retry rules according to these settings."""
        return SendRules(
            self.send_timeout,
            self.attempt_timeout,
            self.retries,
            frozenset(self.retry_codes),
            self.retry_unless_ok,
        )

    @property
    def packing(self) -> Compression:
        """Compression rules according to these settings."""
        return Compression(self.compress_from, self.compression, self.compression_level)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionProducerSettings(ProducerSettings):
    """Settings of a ``TransactionProducer``.

    Raises ConfigError for unusable settings, and for the default producer group.
    """

    group: str
    """Name of the group of producers that may answer for each other. All of them need the same
    checker."""
    checker: Checker = field(metadata={"rule": FUNCTION})
    """Function that returns the ``TransactionState`` of a half message when a broker asks for it.
    Java: ``TransactionListener.checkLocalTransaction``."""
    executor: Executor | None = setting(None, FUNCTION.or_none())
    """Function that does the local work. ``send_in_transaction(…, executor=)`` sets another one for
    one message. Java: ``TransactionListener.executeLocalTransaction``."""
    threads: int = setting(8, whole_from(1, " of functions at once"))
    """Number of threads for plain executors, and again for plain checkers."""
    topics: Sequence[str] = setting((), _TOPICS)
    """Topics whose brokers learn of the producer from its start on. The start does not wait for
    them. Other brokers learn of the producer at its first send to them."""

    def __post_init__(self) -> None:
        if self.group in (DEFAULT_GROUP, APACHES_DEFAULT):
            raise ConfigError(
                f"group={self.group!r} is the group of producers without one, which cannot "
                "answer for transactions: give a group of your own"
            )
        ProducerSettings.__post_init__(self)
