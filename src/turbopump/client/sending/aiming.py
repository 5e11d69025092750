"""Where a message is to go, between the user's words and the way of a message: a queue, a selector,
a sharding key; with the namespace put on and taken off again.

One rule: users see names without namespace, the way of a message names with it. It must not know
brokers.
"""

from __future__ import annotations

from collections.abc import Sequence

from turbopump.client.namespace import unwrap, wrap
from turbopump.client.selectors import Selector, by_hash
from turbopump.client.sending.outgoing import refuse_odd
from turbopump.client.sending.send_attempts import Target
from turbopump.errors import ConfigError
from turbopump.message.message import Message
from turbopump.message.message_queue import MessageQueue
from turbopump.message.properties import SHARDING_KEY


class Aiming:
    """For one producer and its namespace."""

    def __init__(self, namespace: str | None) -> None:
        self.namespace = namespace

    def aim(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        sharding_key: object,
    ) -> tuple[Message, Target]:
        """The message, with its sharding key if it has one, and where it is to go. Raises
        ConfigError, TypeError if that is said twice."""
        if sharding_key is not None:
            if selector is not None:
                raise ConfigError(
                    "a selector and a sharding_key were given, and both choose the "
                    "queue; give one of them"
                )
            selector = by_hash(sharding_key)
            try:
                message = message.with_property(SHARDING_KEY, str(sharding_key))
            except (AttributeError, TypeError):
                refuse_odd(message)
                raise
        if selector is None:
            return message, queue
        if queue is not None:
            raise TypeError("a queue and a way to choose one were given; give one of them")
        if not callable(selector):
            raise TypeError(
                f"selector={selector!r:.80} is no function of (queues, message); see "
                "turbopump.client.selectors"
            )
        chosen_by = selector
        return message, lambda queues: self._chosen(chosen_by, queues, message)

    def inside(self, target: Target) -> Target:
        """What the way of a message calls it."""
        return self._wrapped(target) if isinstance(target, MessageQueue) else target

    def outside(self, queue: MessageQueue) -> MessageQueue:
        """What the user calls it."""
        return MessageQueue(unwrap(self.namespace, queue.topic), queue.broker_name, queue.queue_id)

    def _chosen(
        self, selector: Selector, queues: Sequence[MessageQueue], message: Message
    ) -> MessageQueue:
        outside = queues if self.namespace is None else [self.outside(queue) for queue in queues]
        chosen = selector(outside, message)
        if chosen not in outside:
            raise ConfigError(
                f"the selector chose {chosen!r}, which is none of the "
                f"{len(outside)} queues of {message.topic!r}"
            )
        return self._wrapped(chosen)

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        return MessageQueue(wrap(self.namespace, queue.topic), queue.broker_name, queue.queue_id)
