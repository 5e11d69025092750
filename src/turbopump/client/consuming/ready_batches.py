"""Messages that wait for a handler which takes several at once: those that lie next to each other
and are of one queue go together.

One rule: it is what is there now; nobody waits for a batch to fill. In order, a queue puts its next
batch here as a whole, and it is handed out as a whole. It must not know what becomes of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from turbopump.client.consuming.delivery import Delivery
from turbopump.client.consuming.delivery_batch import DeliveryBatch
from turbopump.client.consuming.ready_messages import Ready


class ReadyBatches(Ready[DeliveryBatch]):
    """Hands out up to ``count`` messages together. ``on_take`` is told of those that are, also by
    threads that take them. ``ordered``: as ``DeliveryBatch`` has it."""

    def __init__(
        self,
        count: int,
        on_take: Callable[[Sequence[Delivery]], None] | None = None,
        *,
        ordered: bool = False,
    ) -> None:
        super().__init__()
        self._count = count
        self._on_take = on_take
        self._ordered = ordered
        self._one_taker = Lock()
        """Of several threads, one looks what goes together. Others take nothing then: where they
        get in each other's way, fewer are quicker (no-op handlers: 2.5 us a message in lists of
        four; 10 if they waited), and where handlers are slow they meet seldom."""

    @property
    def waiting(self) -> int:
        return -(-super().waiting // self._count)

    def give_back(self, message: DeliveryBatch) -> None:
        for one in reversed(message.messages):
            self.put_back(one)

    def begin(self) -> DeliveryBatch | None:
        while True:
            if not self._one_taker.acquire(blocking=False):
                return None
            try:
                messages = [] if self.paused or self._closed else self._together()
            finally:
                self._one_taker.release()
            if not messages:
                return None
            taken = [message for message in messages if self._begin(message)]
            if taken:
                return self._handed(taken)

    def _next(self) -> DeliveryBatch | None:
        messages = [] if self.paused else self._together()
        if not messages:
            return None
        for message in messages:
            message.taken = True
        return self._handed(messages)

    def _together(self) -> list[Delivery]:
        """The next messages, of one queue. In a thread, the loop may put messages in meanwhile, or
        close."""
        ready, together = self._ready, list[Delivery]()
        while len(together) < self._count:
            try:
                message = ready.popleft()
            except IndexError:
                break
            if not message.wanted:
                continue
            if together and not message.goes_with(together[0]):
                ready.appendleft(message)
                break
            together.append(message)
        return together

    def _handed(self, messages: Sequence[Delivery]) -> DeliveryBatch:
        if self._on_take is not None:
            self._on_take(messages)
        return DeliveryBatch(messages, ordered=self._ordered)
