"""Keys of a log line that one argument of the call brings, such as the identity of a broker."""

from __future__ import annotations


class LogKeys(dict[str, object]):
    """Keys with their values, for a bare ``%s`` in the template of a log call.

    ``log.info("broker left %s", LogKeys(broker="a", id=0))`` logs ``broker left broker=a id=0``.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.items())
