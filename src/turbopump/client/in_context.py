"""``async with`` for whatever is started and closed: each client, and what is made of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class InContext(ABC):
    """Started on the way in, closed on the way out, however that is."""

    @abstractmethod
    async def start(self) -> None:
        """Make ready."""

    @abstractmethod
    async def close(self) -> None:
        """Close. May be called twice."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
