"""Results and errors of sends. Values in, values out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

from turbopump import errors
from turbopump.client.sending.outgoing import Outgoing
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, TypedJsonHeader
from turbopump.protocol.request import header_from_ext
from turbopump.protocol.requests.send import SendMessageReply

DEFAULT_REGION: Final = "DefaultRegion"


class SendStatus(Enum):
    """Status of a stored message.

    Any status but OK means that the broker could not flush or replicate in time as configured.
    """

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True):
    """Result of sending a message or a batch.

    - ``msg_id``: unique id, made by the producer.
    - ``queue``, ``queue_offset``: position of the message, or of the first message of a batch.
    - ``offset_msg_id``: id made by the broker, for lookups.
    - ``region_id``, ``trace_on``: the broker's settings for traces.
    - ``batch_ids``: see ``msg_ids``.

    For a batch, each id has the ids of all messages, separated by commas.
    """

    status: SendStatus
    msg_id: str
    queue: MessageQueue
    queue_offset: int
    offset_msg_id: str
    transaction_id: str | None = None
    recall_handle: str | None = None
    region_id: str = DEFAULT_REGION
    trace_on: bool = True
    batch_ids: tuple[str, ...] = ()

    @property
    def msg_ids(self) -> tuple[str, ...]:
        """Unique ids of a batch's messages in order, as consumers see them.

        There is one id for a single message, or for a batch that the broker stores as one entry.
        """
        return self.batch_ids or (self.msg_id,)

    def moved_to(self, queue: MessageQueue) -> SendResult:
        """Return a copy of the result whose queue is ``queue``. Its topic has no namespace
        prefix."""
        return msgspec.structs.replace(self, queue=queue)


class SendAnswer(SendMessageReply, kw_only=True):
    """Header fields of the answer to a send. The class adds the fields that only clients read."""

    region_id: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: str | None = msgspec.field(default=None, name="TRACE_ON")


AnswerKind = msgspec.json.Decoder[TypedJsonHeader[SendAnswer]]
SEND_ANSWER: Final = msgspec.json.Decoder(TypedJsonHeader[SendAnswer], strict=False)
"""Decoder of the answer to a send that may be retried on another broker."""
ONE_BROKER_SEND_ANSWER: Final = msgspec.json.Decoder(TypedJsonHeader[SendAnswer], strict=False)
"""Decoder of the answer to a send that may be retried, to a topic that only one broker has."""
BOUND_SEND_ANSWER: Final = msgspec.json.Decoder(TypedJsonHeader[SendAnswer], strict=False)
"""Decoder of the answer to a send that is not retried."""
"""All three decode the whole header of a valid answer in one pass."""

STATUS_BY_CODE: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Status by response code, for codes of stored messages (apache/rocketmq
``MQClientAPIImpl.processSendResponse``)."""

RETRYABLE_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Response codes after which another broker is tried (apache/rocketmq
``DefaultMQProducer.retryResponseCodes``)."""


class AnswerUnreadError(errors.RemotingError):
    """Raised when a message is stored, but the broker's answer has no readable position.

    A retry would store the message twice.
    """


def result_of(
    answer: TypedJsonHeader[SendAnswer] | Command,
    outgoing: Outgoing,
    queue: MessageQueue,
    address: str,
) -> SendResult:
    """Return the result that a broker's answer contains.

    Raises ResponseError if the message is not stored, and AnswerUnreadError if its offset is
    unknown.
    """
    status = STATUS_BY_CODE.get(answer.code)
    if status is None:
        raise errors.ResponseError(
            answer.code, answer.remark, request="SendMessage", address=address
        )
    if isinstance(answer, Command):
        try:
            reply = header_from_ext(SendAnswer, answer.ext or {})
        except errors.HeaderError as error:
            raise AnswerUnreadError(
                f"stored the message, but the header of its answer cannot be read: {error}"
            ) from None
    else:
        reply = answer.ext
    if reply.queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, reply.queue_id)
    whole = reply.batch_uniq_id  # of an inner batch: the broker keeps it as one entry
    return SendResult(
        status,
        outgoing.msg_id if whole is None else whole,
        queue,
        reply.queue_offset,
        reply.msg_id,
        reply.transaction_id,
        reply.recall_handle,
        reply.region_id or DEFAULT_REGION,
        reply.trace_on != "false",
        outgoing.batch_ids if whole is None else (),
    )


# Text of the error when every attempt failed: the attempts, and advice.


class NotWrittenError(errors.CallTimeoutError):
    """Raised when the connection had no room for the message in time. Nothing of the message was
    sent."""


class BrokerHangsError(errors.CallTimeoutError):
    """Raised when the broker has stopped answering. As after a timeout, the message may be
    stored."""


class MasterMovedError(errors.CallTimeoutError):
    """Raised when the broker has not answered and another address is its master now. As after a
    timeout, the message may be stored."""


class ProducerClosedError(errors.RemotingError):
    """Raised when the producer was closed before the message was written."""


def no_time(msg_id: str, topic: str, timeout: float) -> errors.SendError:
    """Return the error for a message whose timeout left no time for a first attempt."""
    return errors.SendError(
        f"message {msg_id[:80]} to topic {topic!r} was not sent: {timeout=} leaves no time for it. "
        "Nothing was stored; give it more seconds",
        topic=topic,
    )


def no_room(
    msg_id: str, topic: str, why: str, spent_ms: float, code: int | None = None
) -> errors.SendError:
    text = f"message {msg_id[:80]} to topic {topic!r} was not sent: {why}"
    return errors.SendError(text, topic=topic, spent_ms=spent_ms, code=code)


def no_queue(queue: object) -> TypeError:
    take = "take one of `await producer.publish_queues(topic)`"
    return TypeError(f"queue={queue!r:.80} must be a MessageQueue; {take}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Attempt to send a message, with its outcome.

    - ``outcome``: text of the error or status.
    - ``error``: error of the attempt, or None.
    - ``result``: result if the message was stored with a status other than OK, or None.
    """

    queue: MessageQueue
    address: str
    outcome: str
    error: errors.RemotingError | None
    result: SendResult | None = None

    @property
    def broker_name(self) -> str:
        return self.queue.broker_name


def is_queue_gone(error: errors.RemotingError | None) -> bool:
    """Return True if the error says that the broker has no such queue. Nothing was stored in that
    case.

    Such a broker answers with code 29, or 1 in 4.x. Both codes have other meanings too. Source:
    apache/rocketmq ``AbstractSendMessageProcessor.msgCheck``.
    """
    codes = (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
    if not isinstance(error, errors.ResponseError) or error.code not in codes:
        return False
    return re.match(r"request queueId\[\d+\] is illegal", error.remark) is not None


def send_failure(
    msg_id: str,
    topic: str,
    tried: list[Attempt],
    spent_ms: float,
    *,
    closed: bool = False,
    queues: int | None = None,
    stalled: str = "",
    without_master: str = "",
) -> errors.SendError:
    """Return the error of a send whose attempts have all failed.

    - ``closed``: True if the producer was closed, so that no other broker was tried.
    - ``queues``: number of the topic's queues at the last broker, by the newest route.
    - ``stalled``: sentence about an event loop that was blocked meanwhile.
    - ``without_master``: name of the broker for whose master the send waited in vain.
    """
    attempts = "1 attempt" if len(tried) == 1 else f"{len(tried)} attempts"
    last = tried[-1].error
    if is_queue_gone(last):
        remedy = _fewer_queues(tried[-1].queue, topic, queues)
    else:
        remedy = stalled or _remedy(last)
    if without_master:
        remedy = (
            f"The send waited for a master of {without_master}, but name servers named none. "
            f"{remedy}"
        )
    return errors.SendError(
        f"message {msg_id[:80]} to topic {topic!r} was not acknowledged: {attempts} in "
        f"{spent_ms:.0f} ms: {'; '.join(_last_errors(tried))}. "
        f"{'The producer was closed meanwhile. ' if closed else ''}{remedy}",
        topic=topic,
        brokers=tuple(attempt.broker_name for attempt in tried),
        spent_ms=spent_ms,
        code=getattr(last, "code", None),
    )


def _last_errors(tried: list[Attempt]) -> list[str]:
    """Return the last error of each broker as text. Equal errors are listed once."""
    alike: dict[object, list[Attempt]] = {}
    for attempt in tried:
        error = attempt.error
        what = error.code if isinstance(error, errors.ResponseError) else attempt.outcome
        alike.setdefault((attempt.broker_name, attempt.address, what), []).append(attempt)
    return [
        f"{each[-1].broker_name} ({each[-1].address}) {each[-1].outcome}"
        + (f" ({len(each)} times)" if len(each) > 1 else "")
        for each in alike.values()
    ]


def _fewer_queues(queue: MessageQueue, topic: str, queues: int | None) -> str:
    if queues is None or queues > queue.queue_id:
        what = "The broker has fewer queues of the topic than the name servers say"
        return f"{what}: try again in a moment"
    count = "1 queue" if queues == 1 else f"{queues} queues"
    return (
        f"The topic has only {count} on {queue.broker_name} now: take one of `await "
        f"producer.publish_queues({topic!r})`"
    )


def _remedy(last: errors.RemotingError | None) -> str:
    if isinstance(last, errors.ResponseError):
        return _CODE_REMEDIES.get(last.code, "The broker's log has the details")
    fitting = (text for kind, text in _REMEDIES.items() if isinstance(last, kind))
    default = "The message may be stored nevertheless. Check the network and the broker's log"
    return next(fitting, default)


_REMEDIES: Final[dict[type[errors.RemotingError], str]] = {
    errors.ConnectError: "Check that the broker runs and that the address it advertises "
    "(brokerIP1, --advertise) can be reached from here; `turbopump doctor` shows more",
    NotWrittenError: "Nothing was stored. Check the broker's load and disk, or set a longer "
    "send_timeout",
    ProducerClosedError: "Wait for started sends before you close it, or set a longer send_timeout",
    errors.CallTimeoutError: "The message may be stored nevertheless. Check the broker's load and "
    "disk, or set a longer send_timeout",
    AnswerUnreadError: (
        "The message is most likely stored, and sending it again would store it twice. Check "
        "which program answers at this address"
    ),
}
"""Advice by kind of error. The first match is used."""
_CODE_REMEDIES: Final[dict[int, str]] = {
    ResponseCode.TOPIC_NOT_EXIST: "Create the topic (turbopump topic create), or let the broker do "
    "it (autoCreateTopicEnable=true); `turbopump doctor -t TOPIC` shows more",
    ResponseCode.NO_PERMISSION: (
        "Check the permission of the topic and of the broker (brokerPermission), and with "
        "access control the credentials and their permissions; `turbopump doctor -t TOPIC` "
        "shows more"
    ),
    ResponseCode.SYSTEM_ERROR: "The broker's log has the details; with access control check the "
    "credentials",
    ResponseCode.SYSTEM_BUSY: "The broker is overloaded: send less at once, or check its disk",
    ResponseCode.SERVICE_NOT_AVAILABLE: "The broker takes no writes: check its disk space and its "
    "log",
    ResponseCode.MESSAGE_ILLEGAL: "Check the message's size, properties and topic",
    ResponseCode.GO_AWAY: "The broker is being stopped: wait for it, or send to another",
}


# How a producer's sends went, by broker: sums that only grow, no distribution, for a count costs a
# send well under a microsecond. A rate is the difference of two readings.


@dataclass(slots=True, repr=False, eq=False)
class BrokerSends:
    """Counts of the attempts to send to one broker.

    A batch counts as one attempt, and so does each retry. Oneway sends are not counted.
    """

    stored: int = 0
    """Attempts that stored the message."""
    failed: int = 0
    """Attempts that were refused, timed out or had no connection."""
    stored_s: float = 0.0
    """Total seconds of stored attempts, from the call to the answer."""
    longest_s: float = 0.0

    @property
    def mean_ms(self) -> float:
        """Mean time of a stored attempt in ms, or 0 if there was none."""
        return self.stored_s * 1000 / self.stored if self.stored else 0.0

    def __repr__(self) -> str:
        return (
            f"<stored={self.stored} failed={self.failed} mean={self.mean_ms:.3f} ms "
            f"longest={self.longest_s * 1000:.1f} ms>"
        )


@dataclass(slots=True, repr=False, eq=False)
class SendStatistics:
    """Counts of the sends of one producer.

    ``brokers`` has the counts of attempts by broker name.
    """

    brokers: dict[str, BrokerSends] = field(default_factory=dict)
    given_up: int = 0
    """Sends that failed after all attempts. A batch counts as one. A message that timed out in an
    automatic batch counts as one too."""

    @property
    def stored(self) -> int:
        """Attempts that stored the message, at all brokers."""
        return sum(broker.stored for broker in self.brokers.values())

    @property
    def failed(self) -> int:
        """Attempts that failed, at all brokers."""
        return sum(broker.failed for broker in self.brokers.values())

    def count_stored(self, broker_name: str, seconds: float) -> None:
        """Count a successful attempt. The call takes about 0.15 µs."""
        broker = self.brokers.get(broker_name)
        if broker is None:
            broker = self.brokers[broker_name] = BrokerSends()
        broker.stored += 1
        broker.stored_s += seconds
        if seconds > broker.longest_s:
            broker.longest_s = seconds

    def count_failed(self, broker_name: str) -> None:
        self.brokers.setdefault(broker_name, BrokerSends()).failed += 1

    def __repr__(self) -> str:
        return (
            f"SendStatistics(stored={self.stored}, failed={self.failed}, "
            f"given_up={self.given_up}, brokers={self.brokers})"
        )
