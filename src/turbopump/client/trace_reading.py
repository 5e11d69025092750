"""Reading of message traces: what clients have recorded about a message.

``trace.py`` has the encoding. A record that cannot be read is left out, as Apache's may be newer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from turbopump.client.trace import ERROR, FIELD_END, RECORD_END, ContextCode


class TraceKind(StrEnum):
    """Kind of a traced action (apache/rocketmq ``TraceType``).

    - ``SENT``, ``RECALLED``, ``TRANSACTION_ENDED``: by a producer.
    - ``HANDLING``, ``HANDLED``: a consumer began to handle the message, and ended.
    """

    SENT = "Pub"
    HANDLING = "SubBefore"
    HANDLED = "SubAfter"
    TRANSACTION_ENDED = "EndTransaction"
    RECALLED = "Recall"


@dataclass(frozen=True, slots=True)
class TracedAction:
    """One action on a message, as a client has recorded it.

    - ``client``: address of the client. ``group``: its group, "" in records of old consumers.
    - ``time_ms``: time of the action in ms since 1970 UTC. It is 0 if an old consumer ended.
    - ``success``: True if it succeeded, None if the kind has no outcome.
    - ``cost_ms``: duration of a send or of handling, in ms.
    - ``request_id``: the same for the begin and the end of handling.
    - ``attempt``: number of deliveries before this one, at the begin of handling.
    - ``outcome``: outcome of handling. ``error`` is its reason, if our consumer failed.
    - ``transaction_state``: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
    """

    kind: TraceKind
    msg_id: str
    client: str
    group: str = ""
    time_ms: int = 0
    topic: str | None = None
    success: bool | None = None
    cost_ms: int | None = None
    request_id: str | None = None
    attempt: int | None = None
    outcome: ContextCode | None = None
    error: str | None = None
    transaction_state: str | None = None


def read_actions(body: bytes, client: str = "") -> Iterator[TracedAction]:
    """Yield the actions in the body of a trace message.

    - ``client``: address of the client that has sent it.
    """
    for record in body.decode(errors="replace").split(RECORD_END):
        fields = record.split(FIELD_END)
        try:
            action = _action(fields, client)
        except (ValueError, IndexError):
            continue
        if action is not None:
            yield action


_KINDS: Final = {kind.value: kind for kind in TraceKind}


def _action(fields: Sequence[str], client: str) -> TracedAction | None:
    kind = _KINDS.get(fields[0])
    match kind:
        case None:
            return None
        case TraceKind.HANDLED:
            timed = len(fields) > 8
            error = fields[9].removeprefix(ERROR) if len(fields) > 9 else None
            return TracedAction(
                kind,
                fields[2],
                client,
                fields[8] if timed else "",
                int(fields[7]) if timed else 0,
                success=fields[4] == "true",
                cost_ms=int(fields[3]),
                request_id=fields[1],
                outcome=ContextCode(int(fields[6])) if len(fields) > 6 else None,
                error=error,
            )
        case TraceKind.HANDLING:
            return TracedAction(
                kind,
                fields[5],
                client,
                fields[3],
                int(fields[1]),
                request_id=fields[4],
                attempt=int(fields[6]),
            )
    _, time, _, group, topic, msg_id, *more = fields
    success = cost = state = None
    if kind is TraceKind.SENT:
        success = more[7 if len(more) > 7 else 6] == "true"
        cost = int(more[4])
    elif kind is TraceKind.TRANSACTION_ENDED:
        state = more[5]
    else:
        success = more[0] == "true"
    return TracedAction(
        kind,
        msg_id,
        client,
        group,
        int(time),
        topic,
        success=success,
        cost_ms=cost,
        transaction_state=state,
    )
