"""Idempotent handlers, which handle each business key once.

Copies of finished messages are skipped, and messages with the same key wait for each other. One
rule: a key is done only after its handler has succeeded, and is recorded before the message is
done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from turbopump.client.consumer.delivery import Delivery, Retry, is_retry
from turbopump.client.consumer.handling import Handler
from turbopump.client.consumer.settings import ONE_BY_ONE
from turbopump.client.environment import RANDOM, SYSTEM_RANDOM
from turbopump.client.idempotence.store import STORE_METHODS, Claim, IdempotenceStore
from turbopump.client.setting_rules import (
    FUNCTION,
    SECONDS_OR_0,
    SettingRule,
    check_settings,
    has_methods,
    is_name,
    is_text,
    number_between,
    setting,
    whole_from,
)
from turbopump.client.settings import keywords_of
from turbopump.client.user_function import UserFunction, is_coroutine_function
from turbopump.documentation import page_url
from turbopump.message.message import ReceivedMessage

log = logging.getLogger(__name__)

BusinessKey = str | Callable[[ReceivedMessage], str | None]

LEAST_S: Final = 0.001
"""Minimum of settings that are durations, in seconds. Stores count milliseconds."""
MOST_S: Final = 1e9
"""Maximum of settings that are durations, in seconds. It is 31 years."""
POLL_S: Final = 0.25
"""Time in seconds between two attempts to claim a key that another process has claimed."""
FINISH_ATTEMPTS: Final = 3


class TwinWaitError(Exception):
    """Raised when a message has waited longer than ``wait`` for another message with the same key.

    The waiting message has to be delivered again.
    """


@dataclass(frozen=True, slots=True)
class HeldKey:
    """Business key that this consumer has claimed for a message.

    - ``owner``: random id of the claim in the store.
    - ``renewal``: task that renews the lease.
    """

    key: str
    owner: str
    renewal: asyncio.Task[None]


_KEY: Final = SettingRule(
    lambda value: is_name(value) or callable(value),
    "must be the name of a property, as in 'order_id', or a function of a message that returns its "
    "key",
)
_STORE: Final = SettingRule(
    has_methods(*STORE_METHODS),
    "must be a store: SqliteStore('done.db'), RedisStore(url), MemoryStore() or one of your own",
)
_NAME: Final = SettingRule(is_text, "must be text, in valid Unicode")
_SECONDS: Final = SettingRule(
    number_between(LEAST_S, MOST_S),
    f"must be a number of seconds from {LEAST_S} to {MOST_S:.0f}",
    "s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotenceSettings:
    """Settings of an ``IdempotentConsumer``.

    Raises ConfigError for unusable settings.
    """

    key: BusinessKey = field(metadata={"rule": _KEY})
    """Business key of a message: the name of a property, or a function of the message. A message
    whose key is None or empty is always handled."""
    store: IdempotenceStore = field(metadata={"rule": _STORE})
    """Store of the keys: ``MemoryStore``, ``SqliteStore``, ``RedisStore``, or your own."""
    name: str = setting("", _NAME)
    """Name that separates the keys of several groups in one store. Use a different one for each
    group."""
    keep: float = setting(86_400.0, _SECONDS)
    """Time for which a finished key is remembered. It must be longer than the largest delay of a
    copy."""
    lease: float = setting(30.0, _SECONDS)
    """Time after which the key of a dead consumer becomes free. The lease is renewed while the
    handler runs."""
    wait: float = setting(30.0, SECONDS_OR_0)
    """Time for which a message waits while another message with the same key is handled. After that
    it is sent back and delivered again later."""
    threads: int = setting(20, whole_from(1, " of handlers at once"))
    """Number of threads for handlers that are plain functions."""
    random: Random | None = setting(None, RANDOM)
    """Replacement of the system's random numbers, for tests."""

    def __post_init__(self) -> None:
        check_settings(self)


class IdempotentConsumer:
    """Wrapper of a message handler. It skips a message if the message's business key is already
    done.

    Use it as ``PushConsumer(…, handler=IdempotentConsumer(key="order_id",
    store=SqliteStore("done.db"))(handle))``. The keywords are the fields of
    ``IdempotenceSettings``. Raises ConfigError for unusable settings, and for a handler that is no
    function.

    **Guaranteed**, as long as the store keeps its records: a message whose key is done is not
    handled again within ``keep``. Messages with the same key are handled one at a time. If a
    handler raises, returns ``Retry`` or calls ``message.retry()``, its message is not done, and the
    next message with that key is handled.

    **Not guaranteed**: if the process dies or the store fails *between the handler's success and
    its record*, the message is handled again after the lease. The same happens if a process is
    stopped, or cut off from the store, for longer than its lease while another takes over. Only the
    handler can prevent that: write the key in the same transaction as the effect. A message that
    has waited in vain for its key is delivered again and has used an attempt. After the last
    attempt it becomes a dead letter.
    """

    @keywords_of(IdempotenceSettings)
    def __init__(self, settings: IdempotenceSettings) -> None:
        self._key = settings.key
        self._store = settings.store
        self._name = settings.name.replace("\\", r"\\").replace(":", r"\:")
        self._keep = settings.keep
        self._lease = settings.lease
        self._wait = settings.wait
        self._threads = settings.threads
        self._random = settings.random or SYSTEM_RANDOM
        self._here: dict[str, asyncio.Event] = {}
        """Events by key that this object has claimed or asks the store for. Other messages of this
        process with such a key wait for the event and do not ask the store."""

    def __call__(self, handler: Handler) -> Callable[[Delivery], Awaitable[object]]:
        """Wrap ``handler`` for a PushConsumer, of asyncio or of ``turbopump.blocking``. Return the
        wrapped handler.

        A plain function runs in a thread, a coroutine function on the event loop.
        """
        FUNCTION.check("handler", handler)
        function = UserFunction(handler, threads=self._threads, name="idempotent")
        in_thread = not is_coroutine_function(handler)

        async def handle(message: Delivery) -> object:
            try:
                visit = await self.claim(message)
            except TwinWaitError:
                return Retry()
            if visit is None:
                return None
            done: bool | None = False
            try:
                result = await function.call(message)
                # a late message that was sent back is not settled by the handler itself
                if message.settled and not message.given_back_late:
                    done = not message.again
                else:
                    done = not is_retry(result)
            except Exception:
                # the handler may have called done() before it failed
                done = message.settled and not message.again
                raise
            except asyncio.CancelledError:
                if in_thread:
                    done = None
                raise
            finally:
                await self.end_claim(visit, done=done)
            return result

        async def always(message: Delivery) -> object:
            if not isinstance(message, ReceivedMessage):
                raise TypeError(
                    "an IdempotentConsumer wraps handlers of single messages, and was given "
                    f"several: see {page_url('docs/guide/idempotence.md')}"
                )
            keyless = self.key_of(message) is None
            return await (function.call(message) if keyless else handle(message))

        setattr(always, ONE_BY_ONE, True)
        return always

    @asynccontextmanager
    async def handling(self, message: ReceivedMessage) -> AsyncIterator[bool]:
        """Return a context manager for a message of ``async for``. Its value is True if the message
        has to be handled.

        Use it as ``async with idempotent.handling(message) as first: if first: …``. The key of the
        message is claimed until the block ends. ``first`` is always True for a message without a
        key. An exception in the block means that the message is not done.

        Raises TwinWaitError if another consumer has claimed the key for longer than ``wait``.
        """
        if self.key_of(message) is None:
            yield True
            return
        visit = await self.claim(message)
        if visit is None:
            yield False
            return
        done = False
        try:
            yield True
            done = True
        finally:
            await self.end_claim(visit, done=done)

    def key_of(self, message: ReceivedMessage) -> str | None:
        """Return the store's name for the key of this message.

        The result is None if the message has no key.
        """
        by = self._key
        key = message.properties.get(by) if isinstance(by, str) else by(message)
        # the first colon without a backslash ends the name
        return f"{self._name}:{key}" if key else None

    async def claim(self, message: ReceivedMessage) -> HeldKey | None:
        """Claim the key of a message, or return None if the key is done.

        The call waits while another message with the key is handled. Call ``end_claim`` afterwards.
        Raises TwinWaitError if the wait is longer than ``wait``.
        """
        # Messages wait in two ways. Messages of this process with the same key wait for an event in
        # ``_here``; only the first of them asks the store. If another process has the key, the
        # store cannot wake this one, so it is asked every POLL_S. The event is put in place
        # *before* the store is asked: the answer takes a while, and a second message would ask
        # meanwhile. It is removed on every outcome except YOURS, also on an error, or later
        # messages would wait for an event that nobody sets.
        key = self.key_of(message)
        assert key is not None
        owner = f"{self._random.getrandbits(96):024x}"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait
        while True:
            here = self._here.get(key)
            if here is None:
                # before the store answers, so that messages with the same key wait here
                self._here[key] = asyncio.Event()
                claim = Claim.HELD
                try:
                    claim = await self._store.claim(key, owner, self._lease)
                finally:
                    if claim is not Claim.YOURS:
                        self._wake_twins(key)
                if claim is Claim.YOURS:
                    name = f"turbopump lease of {key[:80]}"
                    renewal = loop.create_task(self._renew(key, owner), name=name)
                    return HeldKey(key, owner, renewal)
                if claim is Claim.DONE:
                    return None
            patience = deadline - loop.time()
            if patience <= 0:
                raise TwinWaitError(
                    f"another message with the key {key[:200]!r} is in hand for longer than "
                    f"{self._wait} s"
                )
            if here is None:
                await asyncio.sleep(min(POLL_S, patience))
                continue
            try:
                async with asyncio.timeout(patience):
                    await here.wait()
            except TimeoutError:
                pass

    async def end_claim(self, visit: HeldKey, *, done: bool | None) -> None:
        """End a claim, and record the key as done if the handler has succeeded.

        - ``done``: True if the handler has succeeded. None if the handler was abandoned and its
          thread may still run, so that nobody else may have the key before the lease expires.

        A failure of the store is logged, not raised: the message has been handled, and the lease
        expires.
        """
        visit.renewal.cancel()
        try:
            if done:
                await self._finish(visit)
            elif done is not None:
                await self._store.release(visit.key, visit.owner)
        except Exception as error:
            consequence = "will be handled again" if done else "waits for the lease to end"
            log.error(
                "key not recorded in the idempotence store, its next copy %s key=%s cause=%s",
                consequence,
                visit.key[:200],
                error,
            )
        finally:
            self._wake_twins(visit.key)

    async def _finish(self, visit: HeldKey) -> None:
        for attempt in range(1, FINISH_ATTEMPTS + 1):
            try:
                mine = await self._store.finish(visit.key, visit.owner, self._keep)
            except Exception:
                if attempt == FINISH_ATTEMPTS:
                    raise
                await asyncio.sleep(POLL_S * attempt)
            else:
                break
        if not mine:
            log.warning(
                "handler ran longer than its lease, another message with the key may "
                "have been handled key=%s",
                visit.key[:200],
            )

    async def _renew(self, key: str, owner: str) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                if not await self._store.renew(key, owner, self._lease):
                    return
            except Exception as error:
                log.warning("lease not renewed key=%s cause=%s", key[:200], error)

    def _wake_twins(self, key: str) -> None:
        self._here.pop(key).set()
