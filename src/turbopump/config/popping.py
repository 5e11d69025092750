"""How a broker serves POP, and what it says to consumers that ask it for their queues.

Its one rule is that of `broker_config.py`, of which this is a part: a field's key, default, unit
and meaning stand here alone.
"""

import enum
from dataclasses import dataclass, field

from turbopump.config.cold_flow import ColdFlowSettings
from turbopump.config.setting import LONG_MAX, setting


class DefaultRequestMode(enum.StrEnum):
    """How a group reads a topic unless it was told otherwise (401)."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Popping(ColdFlowSettings):
    """The part of a broker's configuration that says what is done with pops."""

    # Popping.
    revive_queue_num: int = field(
        default=8,
        metadata=setting(
            "reviveQueueNum",
            "queues of the topic of checkpoints and acknowledgements",
            "queues",
            low=1,
            high=998,
        ),
    )
    pop_polling_size: int = field(
        default=1024,
        metadata=setting("popPollingSize", "pops that may wait for one queue of a group", "pops"),
    )
    max_pop_polling_size: int = field(
        default=100_000, metadata=setting("maxPopPollingSize", "pops that may wait in all", "pops")
    )
    pop_from_retry_probability: int = field(
        default=20,
        metadata=setting(
            "popFromRetryProbability",
            "so often the retry topic is popped before the topic, else after it",
            "%",
            high=100,
        ),
    )
    enable_retry_topic_v2: bool = field(
        default=False,
        metadata=setting(
            "enableRetryTopicV2",
            "what was not acknowledged goes to `%RETRY%group+topic`, not `%RETRY%group_topic`",
        ),
    )
    retrieve_message_from_pop_retry_topic_v1: bool = field(
        default=True,
        metadata=setting(
            "retrieveMessageFromPopRetryTopicV1",
            "if enableRetryTopicV2, `%RETRY%group_topic` is popped all the same",
        ),
    )
    pop_response_return_actual_retry_topic: bool = field(
        default=False,
        metadata=setting(
            "popResponseReturnActualRetryTopic",
            "messages that come again are answered with their retry topic, not the topic",
        ),
    )
    enable_pop_message_threshold: bool = field(
        default=False,
        metadata=setting("enablePopMessageThreshold", "popInflightMessageThreshold counts"),
    )
    pop_inflight_message_threshold: int = field(
        default=10_000,
        metadata=setting(
            "popInflightMessageThreshold",
            "a group that has popped more than that of a queue, and neither acknowledged it nor "
            "let its time pass, gets no more of it",
            "messages",
            high=LONG_MAX,
        ),
    )
    init_pop_offset_by_check_msg_in_mem: bool = field(
        default=True,
        metadata=setting(
            "initPopOffsetByCheckMsgInMem",
            "a new group that wants to begin at the end begins at the first message if that is "
            "still in memory",
        ),
    )

    # Assignment.
    server_load_balancer_enable: bool = field(
        default=True,
        metadata=setting(
            "serverLoadBalancerEnable", "false: every consumer that asks the broker gets all queues"
        ),
    )
    load_balance_poll_name_server_interval: int = field(
        default=30_000,
        metadata=setting(
            "loadBalancePollNameServerInterval",
            "so long a route that an assignment was made from is relied upon",
            "ms",
            low=1,
        ),
    )
    default_message_request_mode: DefaultRequestMode = field(
        default=DefaultRequestMode.PULL,
        metadata=setting(
            "defaultMessageRequestMode",
            "PULL or POP: how a group reads a topic unless it was told otherwise",
        ),
    )
    default_pop_share_queue_num: int = field(
        default=-1,
        metadata=setting(
            "defaultPopShareQueueNum",
            "if defaultMessageRequestMode=POP: how many other consumers share the queues of one; "
            "0 or less: all share all",
            low=-1,
        ),
    )
