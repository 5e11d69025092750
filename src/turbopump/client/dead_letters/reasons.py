r"""Why a consumer could not handle a message, out of the trace records it left.

::

    SubAfter \x01 requestId \x01 msgId \x01 costMs \x01 success \x01 keys \x01 contextCode [\x01
    time \x01 group [\x01 error=text]] \x02

The text is told by our clients only.

Values in, values out. Source: apache/rocketmq ``TraceDataEncoder``, ``ConsumeReturnType``
(contextCode is its ordinal).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from turbopump.client.traces.trace import ERROR, FIELD_END, RECORD_END

REASONS: Final = {
    "1": "the handler took too long (TIME_OUT)",
    "2": "the handler raised an exception (EXCEPTION)",
    "3": "the handler returned nothing (RETURNNULL)",
    "4": "the handler asked to have it again (FAILED)",
}
_SHORT: Final = 7
_WHOLE: Final = 9


def latest_reason(bodies: Iterable[bytes], group: str, msg_id: str) -> str | None:
    """What the latest record of ``group`` says about its failure with ``msg_id``; bodies are those
    of trace messages, oldest first."""
    latest: tuple[int, str] | None = None
    for body in bodies:
        for record in body.decode(errors="replace").split(RECORD_END):
            fields = record.split(FIELD_END)
            if (
                fields[0] != "SubAfter"
                or len(fields) < _SHORT
                or fields[2] != msg_id
                or fields[4] != "false"
            ):
                continue
            if len(fields) >= _WHOLE and fields[8] != group:
                continue
            time = int(fields[7]) if len(fields) >= _WHOLE and fields[7].isdigit() else 0
            reason = REASONS.get(fields[6])
            if reason is not None and len(fields) > _WHOLE and fields[_WHOLE].startswith(ERROR):
                reason += ": " + fields[_WHOLE].removeprefix(ERROR)
            if reason is not None and (latest is None or time >= latest[0]):
                latest = time, reason
    return latest[1] if latest is not None else None
