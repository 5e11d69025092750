"""What a broker takes from producers, and how long a send or a transaction may take.

Its one rule is that of `broker_config.py`, of which this is a part: a field's key, default, unit
and meaning stand here alone.
"""

from dataclasses import dataclass, field

from turbopump.config.setting import LONG_MAX, setting
from turbopump.config.store_keeping import StoreKeeping

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending(StoreKeeping):
    """The part of a broker's configuration that says what is done with sends."""

    # Sending.
    max_message_size: int = field(
        default=4 * _MIB,
        metadata=setting("maxMessageSize", "largest message body", "bytes", low=1, high=512 * _MIB),
    )
    start_accept_send_request_time_stamp: int = field(
        default=0,
        metadata=setting(
            "startAcceptSendRequestTimeStamp",
            "sends are refused before",
            "ms since 1970",
            high=LONG_MAX,
        ),
    )
    send_thread_pool_queue_capacity: int = field(
        default=10_000,
        metadata=setting(
            "sendThreadPoolQueueCapacity",
            "sends that may wait to be stored; more are refused",
            "messages",
            low=1,
        ),
    )
    wait_time_mills_in_send_queue: int = field(
        default=200,
        metadata=setting(
            "waitTimeMillsInSendQueue",
            "a send that waits longer is refused",
            "ms",
            low=1,
            high=LONG_MAX,
        ),
    )
    broker_fast_failure_enable: bool = field(
        default=True,
        metadata=setting("brokerFastFailureEnable", "false: a send may wait as long as it takes"),
    )
    os_page_cache_busy_time_out_mills: int = field(
        default=1000,
        metadata=setting(
            "osPageCacheBusyTimeOutMills",
            "sends behind an append, or the making of a file, that takes longer are refused",
            "ms",
            low=1,
            high=LONG_MAX,
        ),
    )
    region_id: str = field(
        default="DefaultRegion", metadata=setting("regionId", "region named in answers to sends")
    )
    trace_on: bool = field(
        default=True, metadata=setting("traceOn", "clients may trace; told in answers to sends")
    )
    trace_topic_enable: bool = field(
        default=True,
        metadata=setting(
            "traceTopicEnable",
            "the topic of traces is there from the start; off by default with Apache",
        ),
    )
    msg_trace_topic_name: str = field(
        default="RMQ_SYS_TRACE_TOPIC",
        metadata=setting("msgTraceTopicName", "the topic of traces that is there from the start"),
    )
    store_reply_message_enable: bool = field(
        default=True,
        metadata=setting(
            "storeReplyMessageEnable",
            "replies to requests are kept in the cluster's reply topic, too",
        ),
    )

    # Transactions.
    reject_transaction_message: bool = field(
        default=False,
        metadata=setting("rejectTransactionMessage", "messages of transactions are refused"),
    )
    transaction_time_out: int = field(
        default=6000,
        metadata=setting(
            "transactionTimeOut",
            "a transaction is not asked about before",
            "ms",
            low=1,
            high=LONG_MAX,
        ),
    )
    transaction_check_max: int = field(
        default=15,
        metadata=setting(
            "transactionCheckMax",
            "so often a transaction is asked about; then it goes to TRANS_CHECK_MAX_TIME_TOPIC",
            low=1,
        ),
    )
    transaction_check_interval: int = field(
        default=30_000,
        metadata=setting(
            "transactionCheckInterval", "time between rounds of asking", "ms", low=1, high=LONG_MAX
        ),
    )
    transaction_op_msg_max_size: int = field(
        default=4096,
        metadata=setting(
            "transactionOpMsgMaxSize",
            "so much about ended transactions is written down at once",
            "bytes",
        ),
    )
    transaction_op_batch_interval: int = field(
        default=3000,
        metadata=setting(
            "transactionOpBatchInterval",
            "that a transaction has ended is written down within",
            "ms",
        ),
    )
