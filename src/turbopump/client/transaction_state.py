"""How a transaction stands, and what is known of one that was sent. Values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turbopump.client.sending.send_result import SendResult
from turbopump.protocol.requests.transactions import Outcome


class TransactionState(Enum):
    """What the user's code says of its transaction. UNKNOWN: not decided yet, the broker is to
    ask."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"

    @property
    def outcome(self) -> Outcome:
        """As it travels."""
        return Outcome[self.name]


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """``sent`` is what became of the half message, ``state`` what the executor said (ROLLBACK
    without asking it, if the half message is not stored as safely as promised), ``error`` what it
    raised, or a NotStartedError if the producer was closed before it was called (the state is
    UNKNOWN then). ``told``: the broker was told the state; if not, it will ask."""

    sent: SendResult
    state: TransactionState
    error: Exception | None = None
    told: bool = True

    @property
    def transaction_id(self) -> str:
        """The message's property ``__transactionId__`` wherever it is seen: by executor, checker
        and consumers."""
        return self.sent.transaction_id or self.sent.msg_id
