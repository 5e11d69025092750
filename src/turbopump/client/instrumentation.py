"""Telemetry of all clients of this process, if ``opentelemetry-instrument`` or the program has
turned it on.

The clients ask this module when they start. Without telemetry they get None, and pay nothing. This
module must not import OpenTelemetry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from turbopump.client.hooks import SendHook
from turbopump.errors import ConfigError

if TYPE_CHECKING:
    from turbopump.client.consumer.delivery import Delivery
    from turbopump.message.message import ReceivedMessage


class Reading(Protocol):
    """Observer of messages that a program reads without a handler. Any thread may call it."""

    def began(self, message: Delivery) -> None: ...

    def ended(self, message: Delivery, *, ok: bool, seconds: float) -> None: ...


class Telemetry(SendHook, ABC):
    """Telemetry of clients, such as ``turbopump.client.open_telemetry.OpenTelemetry``.

    It is a hook of producers, and observes consumers by its other methods.
    """

    @abstractmethod
    def traced(
        self, handler: Any, *, group: str | None = None, broadcast: bool | None = None
    ) -> Callable[[Any], object]:
        """Return an observed handler. It has the attribute ``OBSERVED``."""

    @abstractmethod
    def reading(self, group: str, *, broadcast: bool) -> Reading:
        """Return the observer of a consumer that has no handler."""

    @abstractmethod
    def receiving(self, group: str) -> AbstractContextManager[list[ReceivedMessage]]:
        """Observe a call that receives messages. The caller puts them into the yielded list."""

    @abstractmethod
    def settling(
        self, messages: Sequence[ReceivedMessage], group: str
    ) -> AbstractContextManager[object]:
        """Observe a call that acknowledges messages."""


OBSERVED: Final = "_turbopump_telemetry"
"""Attribute of a handler that ``Telemetry.traced`` has returned."""

_made: Telemetry | None = None
_make: Callable[[], Telemetry] | None = None


class TurbopumpInstrumentor:
    """Switch for the telemetry of all clients, as ``opentelemetry-instrument`` expects it.

    A program may use it too: ``TurbopumpInstrumentor().instrument()``. It has the methods of
    OpenTelemetry's ``BaseInstrumentor``. Clients that have started already are not affected.
    """

    def instrument(self, **options: Any) -> None:
        """Turn on the telemetry of clients that start from now on. A second call does nothing.

        - ``tracer_provider``, ``meter_provider``: by default those of the process.

        Other options are ignored. Raises ConfigError without OpenTelemetry's API.
        """
        global _make
        if _make is not None:
            return
        try:
            import opentelemetry.metrics  # noqa: F401
        except ImportError:
            raise ConfigError(
                "telemetry needs opentelemetry, which is not installed: "
                "pip install 'turbopump[otel]'"
            ) from None
        providers = options.get("tracer_provider"), options.get("meter_provider")
        # Made when the first client starts: opentelemetry-instrument runs in every Python process.
        _make = partial(_open_telemetry, *providers)

    def uninstrument(self, **_options: Any) -> None:
        """Turn off the telemetry of clients that start from now on."""
        global _made, _make
        _made = _make = None

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """True after ``instrument``."""
        return _make is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no dependencies: the instrumented package is this one."""
        return ()


def _open_telemetry(tracer_provider: Any, meter_provider: Any) -> Telemetry:
    from turbopump.client.open_telemetry import OpenTelemetry

    return OpenTelemetry(tracer_provider, meter_provider)


def telemetry() -> Telemetry | None:
    """Return the telemetry of all clients, or None."""
    global _made
    if _made is None and _make is not None:
        _made = _make()
    return _made


def with_telemetry(hooks: Sequence[SendHook]) -> list[SendHook]:
    """Return the hooks of a producer, and the telemetry unless they include one."""
    found = telemetry()
    if found is None or any(isinstance(hook, Telemetry) for hook in hooks):
        return list(hooks)
    return [*hooks, found]


def handler_with_telemetry(handler: Any, group: str, *, broadcast: bool) -> Any:
    """Return a handler that the telemetry observes, unless the program has wrapped it already."""
    found = telemetry()
    if found is None or hasattr(handler, OBSERVED):
        return handler
    return found.traced(handler, group=group, broadcast=broadcast)


def receiving(group: str) -> AbstractContextManager[list[Any]]:
    """Observe a call that receives messages. The caller puts them into the yielded list."""
    found = telemetry()
    return nullcontext([]) if found is None else found.receiving(group)


def settling(messages: Sequence[ReceivedMessage], group: str) -> AbstractContextManager[object]:
    """Observe a call that acknowledges messages."""
    found = telemetry()
    return nullcontext() if found is None else found.settling(messages, group)
