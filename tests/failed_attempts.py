"""A hook of producers that counts the attempts that failed."""

from collections import Counter

from turbopump.client.hooks import SendContext, SendHook


class FailedAttempts(SendHook):
    """``of``: how many, by message id."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def after(self, context: SendContext) -> None:
        if context.error is not None:
            self.of[context.msg_id] += 1
