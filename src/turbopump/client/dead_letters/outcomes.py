"""One attempt to send a dead letter, and what its end means: it is stored, it is not, or nobody
knows. It must not know what follows."""

from __future__ import annotations

from typing import Final, NamedTuple

from turbopump.client.dead_letters.dead_letter import DeadLetter
from turbopump.client.instance import ClientInstance
from turbopump.errors import ConnectError, MessageError, RemotingError, ResponseError
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.codes import ResponseCode

TIMEOUT_S: Final = 5.0
_STORED: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Stored, though not yet as safely as promised."""
_BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
"""Not stored; it may be later."""
_REFUSED: Final = frozenset(
    {
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)
"""Not stored, nor would it be later."""


class Outcome(NamedTuple):
    """``final``: trying again is of no use. Neither stored nor in doubt: it was not stored."""

    stored: bool = False
    in_doubt: bool = False
    final: bool = False
    why: str = ""


async def send_once(instance: ClientInstance, letter: DeadLetter, queue: MessageQueue) -> Outcome:
    """Send it to ``queue``, once."""
    address = instance.routes.known[queue.topic].master(queue.broker_name)
    if address is None:
        return Outcome(why=f"broker {queue.broker_name} has no master now")
    try:
        await instance.remoting.call(
            address, letter.request(queue), letter.message.stored_body, timeout=TIMEOUT_S
        )
    except (ConnectError, MessageError) as error:
        return Outcome(final=isinstance(error, MessageError), why=str(error))
    except ResponseError as error:
        if error.code in _STORED:
            return Outcome(stored=True)
        return Outcome(
            in_doubt=error.code not in _BUSY | _REFUSED,
            final=error.code in _REFUSED,
            why=str(error),
        )
    except RemotingError as error:
        return Outcome(in_doubt=True, why=str(error))
    return Outcome(stored=True)
