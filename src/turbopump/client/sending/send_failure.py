"""What a person reads when no broker took a message: every attempt, and what to do. Values in, an
error out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from turbopump.client.sending.send_result import AnswerUnreadError, SendResult
from turbopump.errors import CallTimeoutError, ConnectError, RemotingError, ResponseError, SendError
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.codes import ResponseCode


class NotWrittenError(CallTimeoutError):
    """There was no room on the connection in time: nothing of the message was sent."""


class ProducerClosedError(RemotingError):
    """The producer was closed before the message was written."""


def no_time(msg_id: str, topic: str, timeout: float) -> SendError:
    """The error of a message whose deadline had passed before anything was done for it: somebody's
    own, most likely."""
    head = (
        f"message {msg_id[:80]} to topic {topic!r} was not sent: {timeout=} leaves no time for it"
    )
    return SendError(f"{head}. Nothing was stored; give it more seconds", topic=topic)


def no_room(msg_id: str, topic: str, why: str, spent_ms: float) -> SendError:
    """The error of a message that waited in vain among too many."""
    return SendError(
        f"message {msg_id[:80]} to topic {topic!r} was not sent: {why}",
        topic=topic,
        spent_ms=spent_ms,
    )


def no_queue(queue: object) -> TypeError:
    """The error of what was given as a queue and is none."""
    return TypeError(
        f"queue={queue!r:.80} is no MessageQueue; take one of `await "
        "producer.publish_queues(topic)`"
    )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One queue, and what became of it there: ``error``, or ``result`` if it was stored less safely
    than was wished."""

    queue: MessageQueue
    address: str
    outcome: str
    error: RemotingError | None
    result: SendResult | None = None

    @property
    def broker_name(self) -> str:
        return self.queue.broker_name


def is_queue_gone(error: RemotingError | None) -> bool:
    """Whether the broker has no queue of this id, and therefore stored nothing. Source:
    apache/rocketmq ``AbstractSendMessageProcessor.msgCheck``: code 29, in 4.x 1, which mean other
    things as well."""
    if not isinstance(error, ResponseError) or error.code not in (
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.SYSTEM_ERROR,
    ):
        return False
    return _QUEUE_GONE.match(error.remark) is not None


_QUEUE_GONE: Final = re.compile(r"request queueId\[\d+\] is illegal")


def failure(
    msg_id: str,
    topic: str,
    tried: list[Attempt],
    spent_ms: float,
    *,
    closed: bool = False,
    queues: int | None = None,
) -> SendError:
    """The error of a send that nobody took. ``closed``: nobody else was tried, for the producer has
    been closed. ``queues``: how many the topic has at the last broker, by the newest route."""
    attempts = "1 attempt" if len(tried) == 1 else f"{len(tried)} attempts"
    each = "; ".join(_told(tried))
    last = tried[-1].error
    remedy = _fewer_queues(tried[-1].queue, topic, queues) if is_queue_gone(last) else _remedy(last)
    head = (
        f"message {msg_id[:80]} to topic {topic!r} was not acknowledged: {attempts} in "
        f"{spent_ms:.0f} ms: {each}"
    )
    return SendError(
        f"{head}. {'The producer was closed meanwhile. ' if closed else ''}{remedy}",
        topic=topic,
        brokers=tuple(attempt.broker_name for attempt in tried),
        spent_ms=spent_ms,
        code=last.code if isinstance(last, ResponseError) else None,
    )


def _told(tried: list[Attempt]) -> list[str]:
    """What each broker said, in its last words: one that refuses three times for the same reason
    says so once."""
    alike: dict[object, list[Attempt]] = {}
    for attempt in tried:
        what = attempt.error.code if isinstance(attempt.error, ResponseError) else attempt.outcome
        alike.setdefault((attempt.broker_name, attempt.address, what), []).append(attempt)
    return [
        f"{last.broker_name} ({last.address}) {last.outcome}"
        + (f" ({len(each)} times)" if len(each) > 1 else "")
        for each in alike.values()
        for last in each[-1:]
    ]


def _fewer_queues(queue: MessageQueue, topic: str, queues: int | None) -> str:
    if queues is None or queues > queue.queue_id:
        return (
            "The broker has fewer queues of the topic than the name servers say: try again in "
            "a moment"
        )
    count = "1 queue" if queues == 1 else f"{queues} queues"
    return (
        f"The topic has only {count} on {queue.broker_name} now: take one of `await "
        f"producer.publish_queues({topic!r})`"
    )


def _remedy(last: RemotingError | None) -> str:
    if isinstance(last, ConnectError):
        return (
            "Check that the broker runs and that the address it advertises (brokerIP1, "
            "--advertise) can be reached from here"
        )
    if isinstance(last, NotWrittenError):
        return "Nothing was stored. Check the broker's load and disk, or give a longer send_timeout"
    if isinstance(last, ProducerClosedError):
        return "Wait for what was started before you close it, or give a longer send_timeout"
    if isinstance(last, CallTimeoutError):
        return (
            "The message may be stored all the same. Check the broker's load and disk, or "
            "give a longer send_timeout"
        )
    if isinstance(last, ResponseError):
        return _REMEDIES.get(last.code, "The broker's log has the details")
    if isinstance(last, AnswerUnreadError):
        return (
            "The message is most likely stored: sent again, it would be there twice. Check "
            "what it is that answers at this address"
        )
    return "The message may be stored all the same. Check the network and the broker's log"


_REMEDIES: Final[dict[int, str]] = {
    ResponseCode.TOPIC_NOT_EXIST: "Create the topic (turbopump topic create), or let the broker "
    "do it (autoCreateTopicEnable=true)",
    ResponseCode.NO_PERMISSION: "Check the permission of the topic and of the broker "
    "(brokerPermission), and with access control the "
    "credentials and what they may do",
    ResponseCode.SYSTEM_ERROR: "The broker's log has the details; with access control check the "
    "credentials",
    ResponseCode.SYSTEM_BUSY: "The broker is overloaded: send less at once, or check its disk",
    ResponseCode.SERVICE_NOT_AVAILABLE: "The broker takes no writes: check its disk space and "
    "its log",
    ResponseCode.MESSAGE_ILLEGAL: "Check the message's size, properties and topic",
    ResponseCode.GO_AWAY: "The broker is being stopped: wait for it, or send to another",
}
