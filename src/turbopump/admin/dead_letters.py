"""Dead letters of a cluster: listing them, and sending them again."""

from __future__ import annotations

from turbopump.client.dead_letters import DeadGroup, DeadLetter, DeadLetters
from turbopump.client.dead_letters.dead_letter import LetterFilter


class GroupDeadLetters:
    """Dead letters of consumer groups: list, and send again."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters

    async def groups(self) -> list[DeadGroup]:
        """Return the groups that have dead letters, with their number and age.

        Raises RemotingError.
        """
        return await self._dead_letters.groups()

    async def letters(
        self, group: str, max_letters: int = 32, wanted: LetterFilter | None = None
    ) -> list[DeadLetter]:
        """Return dead letters of a group, the oldest of each queue first.

        - ``wanted``: a function that selects letters. None selects all.

        Sends PULL_MESSAGE (11). Raises MessageNotFoundError if the group has none, and
        RemotingError.
        """
        found: list[DeadLetter] = []
        async for letter in self._dead_letters.letters(group, wanted):
            found.append(letter)
            if len(found) >= max_letters:
                break
        return found
