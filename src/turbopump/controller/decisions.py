"""Interface to the place where decisions of controllers are durable.

One controller leads and alone writes. With one controller that is a file (`decision_file.py`), and
it always leads. Several controllers need a place that they share and that knows the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from turbopump.controller.groups import Group
from turbopump.errors import TurbopumpError


class NotLeaderError(TurbopumpError):
    """Raised when this controller does not lead, or leads no longer.

    The outcome of a decision is then unknown: it may be in force, or may come into force. The
    controller answers the request with 2007, and a broker must treat this answer as a lost one.
    """


class ConflictError(TurbopumpError):
    """Raised when the stored group is not the expected one: another controller has written it.

    The storage has not changed.
    """


class Decisions(Protocol):
    """Durable groups of all broker names."""

    @property
    def leader(self) -> str | None:
        """Address of the leading controller, as given to its ``open``. None while there is
        none."""

    async def open(self, address: str, on_change: Callable[[], None]) -> None:
        """Take part as the controller that brokers reach at ``address``.

        ``on_change`` is called after each change of ``leader``. Raises ConfigError if the decisions
        cannot be used; the text says what to do.
        """

    async def load(self) -> dict[str, Group]:
        """Return the groups by broker name. The leader calls it when it begins to lead.

        Raises NotLeaderError.
        """

    async def replace(self, name: str, old: Group | None, new: Group | None) -> None:
        """Make a decision durable: ``new`` replaces ``old``. None is a group that does not exist.

        The call returns when the decision is durable. A failure that may pass is tried again.
        Raises ConflictError if the stored group is not ``old``, and NotLeaderError.
        """

    async def close(self) -> None:
        """Give up leadership, and end. Unfinished calls raise NotLeaderError."""
