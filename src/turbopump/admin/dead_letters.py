"""Dead letters of a cluster: listing them, and sending them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from turbopump.client.dead_letters import (
    DeadGroup,
    DeadLetter,
    DeadLetters,
    InDoubt,
    ResendReport,
    ResendTo,
    resend,
    would_resend,
)
from turbopump.client.dead_letters.dead_letter import LetterFilter
from turbopump.client.trace import TRACE_TOPIC


class GroupDeadLetters:
    """Dead letters of consumer groups: list, and send again."""

    def __init__(self, dead_letters: Callable[[], Awaitable[DeadLetters]]) -> None:
        self._dead_letters = dead_letters

    async def groups(self) -> list[DeadGroup]:
        """Return the groups that have dead letters, with their number and age.

        Raises RemotingError.
        """
        return await (await self._dead_letters()).groups()

    async def letters(
        self, group: str, max_letters: int = 32, wanted: LetterFilter | None = None
    ) -> list[DeadLetter]:
        """Return dead letters of a group, the oldest of each queue first.

        - ``wanted``: a function that selects letters. None selects all.

        Sends PULL_MESSAGE (11). Raises MessageNotFoundError if the group has none, and
        RemotingError.
        """
        found: list[DeadLetter] = []
        async for letter in (await self._dead_letters()).letters(group, wanted):
            found.append(letter)
            if len(found) >= max_letters:
                break
        return found

    async def reason(self, letter: DeadLetter, *, trace_topic: str = TRACE_TOPIC) -> str | None:
        """Return the reason of the last failure of a dead letter, or None if nobody recorded it.

        Our consumers record it in the message. Other consumers record it in their trace, which is
        searched with QUERY_MESSAGE (12).
        """
        return await (await self._dead_letters()).reason(letter, trace_topic=trace_topic)

    async def would_resend(
        self,
        group: str,
        journal: Path,
        to: ResendTo = ResendTo.ORIGIN,
        wanted: LetterFilter | None = None,
    ) -> ResendReport:
        """Return the report that ``resend`` would have, without sending or writing anything.

        Raises MessageNotFoundError if the group has no dead letters, and RemotingError.
        """
        return await would_resend(await self._dead_letters(), group, journal, to, wanted)

    async def resend(
        self,
        group: str,
        journal: Path,
        to: ResendTo = ResendTo.ORIGIN,
        wanted: LetterFilter | None = None,
        *,
        in_doubt: InDoubt = InDoubt.LEAVE,
        rate: float | None = None,
    ) -> ResendReport:
        """Send dead letters of a group again, each once, and return a report.

        A dead letter stays where it is. The journal knows which ones were sent. A run that was
        killed is continued by the next run. Sends SEND_MESSAGE_V2 (310) for each letter, and
        requests that search the target topics.

        - ``journal``: directory of the journals. Keep it as long as the dead letters.
        - ``to``: the original topic, or the group's retry topic.
        - ``wanted``: a function that selects letters. None selects all.
        - ``in_doubt``: treatment of letters that may be in a target queue that cannot be read.
        - ``rate``: maximum number of letters a second.

        Raises ResendError if another operator is resending this group's letters,
        MessageNotFoundError if the group has none, RemotingError, and OSError if the journal cannot
        be written.
        """
        return await resend(
            await self._dead_letters(), group, journal, to, wanted, in_doubt=in_doubt, rate=rate
        )
