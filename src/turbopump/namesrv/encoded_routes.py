"""Cache of encoded routes of a name server."""

from typing import Final

ROUTES_SIZE_MAX: Final = 64 * 1024 * 1024
"""Maximum total size of the encoded routes in the cache, in bytes."""
RouteKey = tuple[str, bool, str | None]
"""Key of a route in the cache.

The key is the topic, True for standard JSON, and the queues of an ordered topic or None.
"""


class EncodedRoutes:
    """Cache of encoded routes. The encoding of a route with 200 brokers takes milliseconds.

    ``changes`` counts route changes. A route that was encoded while this number grew may be wrong
    and is not cached.
    """

    def __init__(self) -> None:
        self._bodies: dict[str, dict[RouteKey, bytes]] = {}
        self._size = 0
        self.changes = 0

    def find_body(self, key: RouteKey) -> bytes | None:
        bodies = self._bodies.get(key[0])
        return None if bodies is None else bodies.get(key)

    def keep_body(self, key: RouteKey, body: bytes) -> None:
        if self._size + len(body) > ROUTES_SIZE_MAX:
            self.forget_routes(None)
        self._size += len(body)
        self._bodies.setdefault(key[0], {})[key] = body

    def forget_routes(self, topic: str | None) -> None:
        """Remove the routes of a changed topic from the cache. If ``topic`` is None, remove all
        routes."""
        self.changes += 1
        if topic is None:
            self._bodies.clear()
            self._size = 0
        else:
            self._size -= sum(map(len, self._bodies.pop(topic, {}).values()))
