"""What a person reads when no broker took a message: every attempt, and what to do. Values in, a text out."""

from __future__ import annotations

from typing import Final

from turbopump.client.outgoing import Outgoing
from turbopump.errors import CallTimeoutError, ConnectError, RemotingError, ResponseError
from turbopump.protocol.codes import ResponseCode


def failure_text(outgoing: Outgoing, tried: list[str], spent_ms: float, last: RemotingError) -> str:
    """The text of a SendError: what was tried, how long it took, and what to do about the last failure."""
    attempts = "1 attempt" if len(tried) == 1 else f"{len(tried)} attempts"
    head = f"message {outgoing.msg_id[:80]} to topic {outgoing.topic!r} was not sent: {attempts} in {spent_ms:.0f} ms: {'; '.join(tried)}"
    return f"{head}. {_remedy(last)}"


def _remedy(last: RemotingError) -> str:
    if isinstance(last, ConnectError):
        return "Check that the broker runs and that the address it advertises (brokerIP1, --advertise) can be reached from here"
    if isinstance(last, CallTimeoutError):
        return "The message may be stored all the same. Check the broker's load and disk, or give a longer send_timeout"
    if isinstance(last, ResponseError):
        return _REMEDIES.get(last.code, "The broker's log has the details")
    return "The message may be stored all the same. Check the network and the broker's log"


_REMEDIES: Final[dict[int, str]] = {
    ResponseCode.TOPIC_NOT_EXIST: "Create the topic (turbopump topic create), or let the broker do it (autoCreateTopicEnable=true)",
    ResponseCode.NO_PERMISSION: "Check the permission of the topic and of the broker (brokerPermission)",
    ResponseCode.SYSTEM_BUSY: "The broker is overloaded: send less at once, or check its disk",
    ResponseCode.SERVICE_NOT_AVAILABLE: "The broker takes no writes: check its disk space and its log",
    ResponseCode.MESSAGE_ILLEGAL: "Check the message's size, properties and topic",
}
