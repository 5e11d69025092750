"""A business key is handled once: through twins, failures, deaths and lost stores; the three stores
keep one contract."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.ports import free_ports
from tests.simulation.world.simulation import SimulatedClock, Simulation

from turbopump import blocking
from turbopump.client.consumer.delivery import Delivery, LateHandlerError, Retry
from turbopump.client.idempotence import (
    Claim,
    IdempotenceStore,
    IdempotentConsumer,
    MemoryStore,
    RedisStore,
    SqliteStore,
    TwinWaitError,
)
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.errors import ConfigError
from turbopump.message.message import Message
from turbopump.testing import BrokerThread, running_broker


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class _Owner:
    dropped = False

    def delivery_done(self, message: Delivery) -> None:
        pass

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None:
        pass

    def delivery_abandoned(self, message: Delivery) -> None:
        pass


def delivery(key: str | None, body: bytes = b"") -> Delivery:
    message = Delivery(
        topic="orders",
        stored_body=body,
        properties_text=f"order\x01{key}\x02" if key else "",
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        flag=0,
        sys_flag=0,
        born_timestamp=0,
        born_host=("127.0.0.1", 1),
        store_timestamp=0,
        store_host=("127.0.0.1", 1),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=0,
        store_size=0,
    )
    message.deliver(_Owner(), 1)
    return message


# --- the stores' contract
# -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis of this module's own."""
    pytest.importorskip("redis.asyncio", reason="needs the extra turbopump[redis]")
    program = shutil.which("redis-server")
    if program is None:
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail("there is no redis-server, which .ci/run installs")
        pytest.skip("needs redis-server (Debian: redis-server)")
    port = free_ports(0)
    directory = tmp_path_factory.mktemp("redis")
    arguments = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(directory),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    server = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1),
            ):
                break
            assert time.monotonic() < deadline
            assert server.poll() is None
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


async def pass_by_hand(clock: HandClock, seconds: float) -> None:
    clock.seconds += seconds


async def pass_in_redis(request: pytest.FixtureRequest, seconds: float) -> None:
    """All that Redis keeps for a time ends so much earlier."""
    from redis.asyncio import Redis

    async with Redis.from_url(request.getfixturevalue("redis_url")) as redis:
        for key in await redis.keys():
            if (left_ms := await redis.pttl(key)) > 0:
                await redis.pexpire(key, max(left_ms - int(seconds * 1000), 0))


@contextlib.asynccontextmanager
async def store_of(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, max_keys: int = 1000
) -> AsyncIterator[tuple[IdempotenceStore, Callable[[float], Awaitable[None]]]]:
    """A store, and how to let seconds pass for it."""
    clock = HandClock()

    store: IdempotenceStore
    if kind == "memory":
        store, passing = MemoryStore(max_keys=max_keys, clock=clock), partial(pass_by_hand, clock)
    elif kind == "sqlite":
        store, passing = (
            SqliteStore(tmp_path / "keys.db", max_keys=max_keys, clock=clock),
            partial(pass_by_hand, clock),
        )
    else:
        store, passing = (
            RedisStore(
                request.getfixturevalue("redis_url"), prefix=str(tmp_path), max_keys=max_keys
            ),
            partial(pass_in_redis, request),
        )
    try:
        yield store, passing
    finally:
        await store.close()
        await store.close()


KINDS = pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])


@KINDS
@in_loop
async def test_a_key_is_absent_then_in_hand_then_done_then_forgotten(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with store_of(kind, tmp_path, request) as (store, passing):
        assert await store.claim("k", "a", 60) is Claim.YOURS
        assert await store.claim("k", "b", 60) is Claim.HELD
        assert await store.claim("other", "b", 60) is Claim.YOURS
        await store.release("k", "b")
        assert await store.claim("k", "b", 60) is Claim.HELD, "only its owner gives it back"
        await store.release("k", "a")
        assert await store.claim("k", "b", 60) is Claim.YOURS
        assert await store.finish("k", "b", 60) is True
        assert await store.claim("k", "a", 60) is Claim.DONE
        await store.release("k", "b")
        assert await store.claim("k", "a", 60) is Claim.DONE, "done is done"
        await passing(61)
        assert await store.claim("k", "a", 60) is Claim.YOURS


@KINDS
@in_loop
async def test_a_lease_ends_unless_it_is_renewed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with store_of(kind, tmp_path, request) as (store, passing):
        assert await store.claim("k", "a", 60) is Claim.YOURS
        assert await store.renew("k", "a", 600) is True
        await passing(61)
        assert await store.claim("k", "b", 60) is Claim.HELD
        assert await store.renew("k", "b", 60) is False
        assert await store.renew("k", "a", 60) is True
        await passing(61)
        assert await store.claim("k", "b", 60) is Claim.YOURS, "its owner has died"
        assert await store.renew("k", "a", 60) is False
        assert await store.finish("k", "a", 60) is False, "too late, but done all the same"
        assert await store.claim("k", "c", 60) is Claim.DONE


@KINDS
@in_loop
async def test_so_many_done_keys_are_kept_the_latest(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with store_of(kind, tmp_path, request, max_keys=100) as (store, passing):
        count = 512 if kind == "sqlite" else 150
        for number in range(count):
            assert await store.claim(f"k{number}", "a", 60) is Claim.YOURS
            await store.finish(f"k{number}", "a", 60)
            if number % 25 == 0:
                await passing(0.002)
        kept = [
            await store.claim(f"k{number}", "b", 0.001) is Claim.DONE
            for number in range(count - 120, count)
        ]
        assert sum(kept) == 100
        assert all(kept[-50:])


@in_loop
async def test_keys_whose_time_is_over_leave_the_memory(tmp_path: Path) -> None:
    clock = HandClock()
    store = MemoryStore(clock=clock)
    for number in range(100):
        await store.claim(f"k{number}", "a", 60)
        await store.finish(f"k{number}", "a", 10)
    clock.seconds += 11
    for number in range(30):
        await store.claim(f"new{number}", "a", 60)
    assert len(store) == 30
    file = SqliteStore(tmp_path / "keys.db", clock=clock)
    for number in range(512):
        await file.claim(f"k{number}", "a", 60)
        await file.finish(f"k{number}", "a", 1)
        clock.seconds += 0.1
    await file.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM idempotence").fetchone()[0] <= 11


@in_loop
async def test_a_file_does_not_grow_by_programs_that_each_finish_a_few_keys(tmp_path: Path) -> None:
    clock = HandClock()
    for life in range(20):
        file = SqliteStore(tmp_path / "keys.db", max_keys=50, clock=clock)
        for number in range(30):
            await file.claim(f"k{life}-{number}", "a", 60)
            await file.finish(f"k{life}-{number}", "a", 1000)
        await file.close()
        clock.seconds += 1
    with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM idempotence").fetchone()[0] <= 50 + 30


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@in_loop
async def test_a_redis_that_does_not_answer_has_failed() -> None:
    pytest.importorskip("redis.asyncio", reason="needs the extra turbopump[redis]")

    server = await asyncio.start_server(silence, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = RedisStore(f"redis://127.0.0.1:{port}/0", timeout=0.05)
    with pytest.raises(Exception, match=r"(?i)time"):
        await store.claim("k", "a", 60)
    await store.close()
    server.close()


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for make in (
        partial(MemoryStore, max_keys=0),
        partial(SqliteStore, tmp_path / "f", max_keys=0),
    ):
        with pytest.raises(ConfigError, match="max_keys=0"):
            make()
    with pytest.raises(ConfigError, match="lease=0"):
        IdempotentConsumer(key="order", store=MemoryStore(), lease=0)


# --- handling
# -----------------------------------------------------------------------------------------------


@in_loop(simulated)
async def test_a_done_key_is_passed_over_and_messages_without_a_key_are_not(
    simulation: Simulation, /, tmp_path: Path
) -> None:
    seen: list[bytes] = []

    async def handle(message: Delivery) -> None:
        seen.append(message.body)

    store = MemoryStore(clock=SimulatedClock(asyncio.get_running_loop()))
    wrapped = IdempotentConsumer(key="order", store=store, keep=100)(handle)
    for key, body in [("1", b"a"), ("1", b"b"), ("2", b"c"), (None, b"d"), (None, b"e")]:
        await wrapped(delivery(key, body))
    assert seen == [b"a", b"c", b"d", b"e"]
    other = IdempotentConsumer(
        key=lambda message: message.properties.get("order"), store=store, name="other"
    )(handle)
    await other(delivery("1", b"f"))
    assert seen[-1] == b"f", "another group's keys are its own"
    for name, key in [("a", "b:c"), ("a:b", "c"), ("a\\", "b:c"), ("a\\:b", "c")]:
        named = IdempotentConsumer(key="order", store=store, name=name)(handle)
        await named(delivery(key, f"{name} {key}".encode()))
        assert seen[-1] == f"{name} {key}".encode(), "names are apart whatever is in them"
    await asyncio.sleep(101)
    await wrapped(delivery("1", b"g"))
    assert seen[-1] == b"g"


@pytest.mark.parametrize("failure", ["raises", "returns Retry()", "returns Retry", "calls retry()"])
@in_loop(simulated)
async def test_a_failure_is_not_done(simulation: Simulation, /, failure: str) -> None:
    seen: list[bytes] = []

    async def handle(message: Delivery) -> object:
        seen.append(message.body)
        if len(seen) == 1:
            if failure == "raises":
                raise ValueError("not now")
            if failure == "calls retry()":
                message.retry()
                return None
            return Retry() if failure == "returns Retry()" else Retry
        return None

    wrapped = IdempotentConsumer(key="order", store=MemoryStore())(handle)
    with contextlib.suppress(ValueError):
        assert (await wrapped(delivery("1", b"a")) is None) == (failure == "calls retry()")
    await wrapped(delivery("1", b"b"))
    await wrapped(delivery("1", b"c"))
    assert seen == [b"a", b"b"]


async def retry_when_late(late: Any, says: str, message: Delivery) -> object:
    # as the consumer does meanwhile
    late.retry(level=3, reason=LateHandlerError("its handler had not ended"))
    if says == "retry":
        message.retry()
    return Retry() if says == "Retry" else None


@pytest.mark.parametrize("says", ["nothing", "retry", "Retry"])
@in_loop(simulated)
async def test_a_handler_that_succeeds_after_its_message_was_given_back_has_done_it(
    simulation: Simulation, /, says: str
) -> None:
    """``says``: what it says of the message when it ends at last."""
    store = MemoryStore(clock=SimulatedClock(asyncio.get_running_loop()))

    late = delivery("1")
    consumer = IdempotentConsumer(key="order", store=store)
    await consumer(partial(retry_when_late, late, says))(late)
    async with consumer.handling(delivery("1")) as first:
        assert first is (says != "nothing")


@in_loop(simulated)
async def test_what_was_said_to_be_done_before_a_failure_is_done(simulation: Simulation, /) -> None:
    seen: list[bytes] = []

    async def handle(message: Delivery) -> None:
        seen.append(message.body)
        message.done()
        raise ValueError("afterwards")

    wrapped = IdempotentConsumer(key="order", store=MemoryStore())(handle)
    with pytest.raises(ValueError, match="afterwards"):
        await wrapped(delivery("1", b"a"))
    await wrapped(delivery("1", b"b"))
    assert seen == [b"a"]


async def note(ended: Any, loop: asyncio.AbstractEventLoop, wrapped: Any) -> None:
    with contextlib.suppress(ValueError):
        await wrapped(delivery("1"))
    ended.append(loop.time())


@pytest.mark.parametrize("same", [True, False])
@in_loop(simulated)
async def test_concurrent_twins_wait_and_are_passed_over(
    simulation: Simulation, /, same: bool
) -> None:
    """``same``: whether they meet in one object, or in the store only."""
    loop = asyncio.get_running_loop()
    store = MemoryStore(clock=SimulatedClock(loop))
    running, seen, ended = 0, 0, []

    async def handle(message: Delivery) -> None:
        nonlocal running, seen
        running += 1
        assert running == 1
        seen += 1
        await asyncio.sleep(100)  # longer than a lease: it is renewed
        running -= 1
        if seen == 1:
            raise ValueError("the first fails")

    settings: Any = {"key": "order", "store": store, "lease": 9, "wait": 1000}
    one = IdempotentConsumer(**settings)(handle)
    other = one if same else IdempotentConsumer(**settings)(handle)

    began = loop.time()
    await asyncio.gather(*(note(ended, loop, one if number % 2 else other) for number in range(6)))
    assert seen == 2, "one that failed, one that succeeded"
    assert ended[0] - began == pytest.approx(100, abs=0.1)
    assert ended[-1] - began == pytest.approx(200, abs=1)


@in_loop(simulated)
async def test_a_twin_that_has_waited_long_enough_comes_again_later(
    simulation: Simulation, /
) -> None:
    store = MemoryStore(clock=SimulatedClock(asyncio.get_running_loop()))
    consumer = IdempotentConsumer(key="order", store=store, wait=5)

    async def handle(message: Delivery) -> None:
        await asyncio.sleep(20)

    wrapped = consumer(handle)
    first = asyncio.ensure_future(wrapped(delivery("1")))
    await asyncio.sleep(1)
    assert isinstance(await wrapped(delivery("1")), Retry)
    with pytest.raises(TwinWaitError):
        async with consumer.handling(delivery("1")):
            raise AssertionError
    await first
    async with consumer.handling(delivery("1")) as mine:
        assert mine is False


async def note_began(
    began: Any, loop: asyncio.AbstractEventLoop, seen: list[float], message: Delivery
) -> None:
    seen.append(loop.time() - began)


@in_loop(simulated)
async def test_a_consumer_that_died_gives_its_key_up_with_its_lease(
    simulation: Simulation, /
) -> None:
    loop = asyncio.get_running_loop()
    store = MemoryStore(clock=SimulatedClock(loop))
    assert await store.claim(":1", "the dead", 30) is Claim.YOURS
    began = loop.time()
    seen: list[float] = []

    await IdempotentConsumer(key="order", store=store, wait=60)(
        partial(note_began, began, loop, seen)
    )(delivery("1"))
    assert seen == [pytest.approx(30, abs=0.5)]


async def on_loop(begun: asyncio.Event, message: Delivery) -> None:
    begun.set()
    await asyncio.Event().wait()


def in_thread(
    begun: asyncio.Event,
    loop: asyncio.AbstractEventLoop,
    release: threading.Event,
    message: Delivery,
) -> None:
    loop.call_soon_threadsafe(begun.set)
    release.wait(20)


@in_loop
async def test_a_cancelled_handler_gives_its_key_back_and_a_thread_keeps_it_for_its_lease() -> None:
    store = MemoryStore()
    consumer = IdempotentConsumer(key="order", store=store)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    release = threading.Event()

    for key, handler, claim in (
        ("on_loop", partial(on_loop, begun), Claim.YOURS),
        ("in_thread", partial(in_thread, begun, loop, release), Claim.HELD),
    ):
        begun.clear()
        task = asyncio.ensure_future(consumer(handler)(delivery(key)))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.claim(f":{key}", "next", 1) is claim
    release.set()


@in_loop(simulated)
async def test_a_store_that_fails_before_fails_the_message_and_one_that_fails_after_does_not(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(MemoryStore):
        fails = "claim"

        async def claim(self, key: str, owner: str, lease: float) -> Claim:
            if self.fails == "claim":
                raise OSError("no store")
            return await super().claim(key, owner, lease)

        async def finish(self, key: str, owner: str, keep: float) -> bool:
            raise OSError("store is gone")

    store = Failing()
    seen: list[bytes] = []

    async def handle(message: Delivery) -> None:
        seen.append(message.body)

    wrapped = IdempotentConsumer(key="order", store=store)(handle)
    with pytest.raises(OSError, match="no store"):
        await wrapped(delivery("1", b"a"))
    assert seen == []
    store.fails = "finish"
    await wrapped(delivery("1", b"b"))
    assert seen == [b"b"], "it has been handled, and is not handled again for the store's sake"
    assert "will be handled again key=:1 cause=store is gone" in caplog.text


# --- processes, and whole consumers
# -----------------------------------------------------------------------------------------------


def _handle_all(path: Path, log: Path, keys: int) -> None:
    async def run() -> None:
        store = SqliteStore(path)

        def handle(message: Delivery) -> None:
            with log.open("a") as lines:
                lines.write(message.properties["order"] + "\n")

        wrapped = IdempotentConsumer(key="order", store=store)(handle)
        gate = asyncio.Semaphore(8)

        async def one(key: int) -> None:
            async with gate:
                await wrapped(delivery(str(key)))

        await asyncio.gather(*(one(key) for key in range(keys) for _ in range(2)))
        await store.close()

    asyncio.run(run())


def test_two_processes_on_one_file_handle_each_key_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "handled"
    processes = [
        context.Process(target=_handle_all, args=(tmp_path / "keys.db", log, 60)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert Counter(log.read_text().split()) == {str(key): 1 for key in range(60)}


def count_seen(seen: Counter[str], message: Delivery) -> None:
    seen[message.properties["order"]] += 1


@KINDS
@in_loop
async def test_a_push_consumer_handles_each_business_key_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with running_broker() as broker, store_of(kind, tmp_path, request) as (store, _):
        await broker.create_topic("orders", 4)
        seen: Counter[str] = Counter()
        passed = 0
        idempotent = IdempotentConsumer(key="order", store=store)

        handler = idempotent(partial(count_seen, seen))

        async def counted(message: Delivery) -> object:
            nonlocal passed
            result = await handler(message)
            passed += 1
            return result

        async with Producer(broker.namesrv) as producer:
            for number in range(60):
                await producer.send(Message("orders", b"x", properties={"order": str(number % 20)}))
        async with PushConsumer(
            broker.namesrv,
            group="g",
            topic="orders",
            handler=counted,
            consume_from=ConsumeFrom.FIRST,
        ):
            async with asyncio.timeout(30):
                while passed < 60:
                    await asyncio.sleep(0.01)
        assert seen == {str(number): 1 for number in range(20)}


def test_without_await_it_is_a_with_block(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "keys.db")
    idempotent = blocking.IdempotentConsumer(key="order", store=store)
    with BrokerThread() as broker:
        broker.create_topic("orders", 1)
        with blocking.Producer(broker.namesrv) as producer:
            for number in range(9):
                properties = {"order": str(number % 3)} if number < 8 else {}
                producer.send(blocking.Message("orders", b"%d" % number, properties=properties))
        done: list[bytes] = []
        count = 0
        with blocking.PushConsumer(
            broker.namesrv, group="g", topic="orders", consume_from=blocking.ConsumeFrom.FIRST
        ) as consumer:
            for message in consumer:
                with contextlib.suppress(ValueError), idempotent.handling(message) as first:
                    if first and message.body == b"1":
                        raise ValueError("not this one: its twin will do")
                    if first:
                        done.append(message.body)
                count += 1
                if count == 9:
                    break
    idempotent.close()
    assert done == [b"0", b"2", b"4", b"8"]
