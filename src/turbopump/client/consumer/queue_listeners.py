"""Listeners for changes of a topic's queues. RocketMQ: ``TopicMessageQueueChangeListener``.

One rule: each listener runs in a separate task or thread, so that a slow one does not block others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap, unwrapped
from turbopump.client.topic_route import TopicRoute
from turbopump.client.user_function import NotCalledError, UserFunction
from turbopump.errors import RouteNotFoundError
from turbopump.message.message import MessageQueue

log = logging.getLogger(__name__)

QueueListener = Callable[[str, Sequence[MessageQueue]], object]
"""Function that is called with a topic and its readable queues, sorted. It is a coroutine function
or a plain one."""


class QueueListeners:
    """Listeners of one consumer: functions to call when the queues of a topic change.

    The listeners get topic names without ``namespace``.
    """

    def __init__(self, namespace: str | None) -> None:
        self._namespace = namespace
        self._listeners: dict[str, list[UserFunction]] = {}
        self._known: dict[str, tuple[MessageQueue, ...]] = {}
        self._instance: ClientInstance | None = None

    async def add_listener(self, topic: str, listener: QueueListener) -> None:
        """Add a function that is called when the queues of ``topic`` change.

        ``topic`` is the name that brokers know. Listeners are called only after ``run`` was called.
        """
        self._listeners.setdefault(topic, []).append(
            UserFunction(listener, threads=1, name="queue-listener")
        )
        if self._instance is not None:
            await self._learn_queues(topic, self._instance)

    async def run(self, instance: ClientInstance) -> None:
        """Fetch the routes of all topics with listeners, at intervals. Runs until cancelled.

        A topic that does not exist yet has no queues, and its route is requested again.
        """
        self._instance = instance
        while True:
            for topic in list(self._listeners):
                await self._learn_queues(topic, instance)
            await asyncio.sleep(instance.route_interval)

    def route_changed(self, route: TopicRoute) -> None:
        """Call the listeners if the topic's queues have changed."""
        if (
            self._instance is None
            or route.topic not in self._known
            or self._known[route.topic] == route.subscribe_queues
        ):
            return
        self._known[route.topic] = route.subscribe_queues
        queues = [unwrapped(self._namespace, queue) for queue in route.subscribe_queues]
        for listener in self._listeners[route.topic]:
            self._instance.spawn(
                self._call(listener, unwrap(self._namespace, route.topic), queues),
                name="queue listener",
            )

    def close(self) -> None:
        """Stop calling listeners until the next ``run``."""
        self._instance = None
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.close()
            listeners[:] = [listener.anew() for listener in listeners]

    async def _learn_queues(self, topic: str, instance: ClientInstance) -> None:
        try:
            route = await instance.routes.get(topic)
            self._known.setdefault(topic, route.subscribe_queues)
        except RouteNotFoundError:
            self._known.setdefault(topic, ())

    async def _call(self, listener: UserFunction, topic: str, queues: list[MessageQueue]) -> None:
        try:
            await listener.call(topic, queues)
        except NotCalledError:
            pass  # the consumer is closed
        except Exception:
            log.exception("listener for queues failed topic=%s", topic)
