"""What a producer or consumer that traces has beside it: the dispatcher that collects its records,
and the producer that sends them.

One rule: traces go out under a group of their own, on the connections that are there. It must not
know what a record says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol
from zlib import crc32

from turbopump.client.identity import InstanceSettings
from turbopump.client.setting_rules import TRACE_RULES, check
from turbopump.client.surroundings import Surroundings
from turbopump.client.traces.consume_traces import ConsumeTraces
from turbopump.client.traces.trace import GROUP_PREFIX, TRACE_TOPIC
from turbopump.client.traces.trace_dispatcher import TraceDispatcher
from turbopump.message.ids import UniqueIds
from turbopump.message.message import Message
from turbopump.message.rules import GROUP_SIZE_MAX

SEND_TIMEOUT_S = 5.0


class _Producer(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def send(self, message: Message, /) -> Awaitable[object]: ...


def trace_topic(trace: bool | str) -> str | None:
    """Where traces go by the setting ``trace``: nowhere, to Apache's topic, or to the one named.
    Raises ConfigError."""
    check(TRACE_RULES, {"trace": trace})
    return TRACE_TOPIC if trace is True else trace or None


def trace_group(group: str, kind: str) -> str:
    """The group that the traces of ``group`` are sent under, as Apache names it; of a long name
    there is the beginning and a checksum of the whole, for this too may have no more than 120
    characters."""
    room = GROUP_SIZE_MAX - len(f"{GROUP_PREFIX}--{kind}-1")
    if len(group) > room:
        group = f"{group[: room - 9]}-{crc32(group.encode()):08x}"
    return f"{GROUP_PREFIX}-{group}-{kind}-1"


class Tracing:
    """``make`` makes the producer; ``group`` is that of the one that is traced, ``topic`` where the
    traces go, ``kind`` what is traced: PRODUCE or CONSUME."""

    def __init__(
        self,
        make: Callable[..., _Producer],
        settings: InstanceSettings,
        surroundings: Surroundings,
        *,
        group: str,
        topic: str,
        namespace: str | None,
        kind: str = "PRODUCE",
    ) -> None:
        self._producer = make(
            list(settings.name_servers),
            group=trace_group(group, kind),
            instance_name=settings.instance_name,
            unit_name=settings.unit_name,
            credentials=settings.credentials,
            namespace_v2=settings.namespace_v2,
            send_timeout=SEND_TIMEOUT_S,
            clock=surroundings.clock,
            random=surroundings.random,
            local_ip=surroundings.ip,
        )
        self._surroundings = surroundings
        self._group = group
        self._namespace = namespace
        now_ms = surroundings.clock.now_ms
        self.dispatcher = TraceDispatcher(
            self._producer.send, topic=topic, namespace=namespace, now_ms=now_ms
        )

    def of_consumer(self) -> ConsumeTraces:
        """What a consumer tells of its messages."""
        around = self._surroundings
        ids = UniqueIds(
            around.clock, ip=around.ip, token=around.random.getrandbits(32), pid=around.pid()
        )
        return ConsumeTraces(
            self.dispatcher.append,
            group=self._group,
            namespace=self._namespace,
            next_id=ids.next,
            now_ms=around.clock.now_ms,
        )

    async def start(self) -> None:
        """Before the first record."""
        await self._producer.start()

    async def finish(self, timeout: float) -> None:
        """Send what is held, for ``timeout`` seconds at most."""
        await self.dispatcher.close(timeout)

    async def close(self) -> None:
        """Send what is held, unless that was done, for five seconds at most, then close."""
        await self.dispatcher.close()
        await self._producer.close()


def consumer_tracing(
    make: Callable[..., _Producer],
    settings: InstanceSettings,
    surroundings: Surroundings,
    topic: str | None,
    *,
    group: str,
    namespace: str | None,
) -> Tracing | None:
    """What a consumer that traces to ``topic`` has beside it; None if it does not trace."""
    if topic is None:
        return None
    return Tracing(
        make, settings, surroundings, group=group, topic=topic, namespace=namespace, kind="CONSUME"
    )
