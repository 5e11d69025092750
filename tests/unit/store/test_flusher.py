"""What a sync proves, and what a failed one means, on a disk that fails and is slow on command."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation, simulate
from tests.unit.store.directory import HOST

from turbopump.errors import StoreClosedError
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage, PutResult
from turbopump.store.store_config import StoreConfig


class World:
    """One store on a simulated disk."""

    def __init__(self, simulation: Simulation, *, flushed_only: bool) -> None:
        self.simulation = simulation
        self.disk = simulation.disk("h")
        self.failures: list[str] = []
        self.paths = StorePaths(Path("/store"))
        self.config = StoreConfig(
            self.paths, segment_size=4096, queue_file_size=200, flushed_only=flushed_only
        )
        self.store = self.open()

    def open(self) -> MessageStore:
        self.store = MessageStore.open(
            self.config, self.disk.mount(), self.simulation.clock("h"), self.failures.append
        )
        return self.store

    def put(self, body: bytes) -> PutResult:
        return self.store.put(
            "T",
            0,
            NewMessage(body, b"", 0),
            sys_flag=0,
            born_timestamp=0,
            born_host=HOST,
            store_host=HOST,
        )

    def power_cut(self) -> MessageStore:
        self.disk.power_cut()
        return self.open()

    @property
    def clean(self) -> bool:
        return self.paths.abort not in self.disk.files


def tell(
    scene: Callable[[World], Coroutine[Any, Any, None]],
    *,
    flushed_only: bool = False,
    seed: int = 1,
) -> None:
    simulate(seed, lambda simulation: scene(World(simulation, flushed_only=flushed_only)))


@in_loop(tell)
async def test_flushed_moves_to_what_the_log_had_when_the_sync_began(world: World, /) -> None:
    first = world.put(b"first")
    world.store.flusher.flush_log()
    second = world.put(b"second")
    assert world.store.durable.value == 0
    await asyncio.sleep(0.1)
    assert world.store.durable.value == first.log_end
    world.store.flusher.flush_log()
    await asyncio.sleep(0.1)
    assert world.store.durable.value == second.log_end
    assert len(world.power_cut().get("T", 0, 0, 32).data) == second.log_end


@in_loop(tell)
async def test_what_is_asked_for_during_a_sync_is_done_by_one_more(world: World, /) -> None:
    world.put(b"0")
    await asyncio.sleep(0.1)  # files are made
    before = world.disk.operations
    for number in range(6):
        placed = world.put(b"%d" % number)
        world.store.flusher.flush_log()
    await asyncio.sleep(0.2)
    assert world.store.durable.value == placed.log_end
    assert world.disk.operations - before == 2, "two syncs, not six"
    at_rest = world.disk.operations
    world.store.flusher.flush_log()
    await asyncio.sleep(0.1)
    assert world.disk.operations == at_rest, "nothing new to sync"


@in_loop(tell, flushed_only=True)
async def test_a_message_of_a_flushing_store_is_seen_only_once_it_is_on_the_disk(
    world: World, /
) -> None:
    world.put(b"first")
    assert (world.store.max_offset("T", 0), world.store.get("T", 0, 0, 32).count) == (0, 0)
    world.store.flusher.flush_log()
    world.put(b"second")
    await asyncio.sleep(0.1)
    assert (world.store.max_offset("T", 0), world.store.get("T", 0, 0, 32).count) == (1, 1)
    assert world.put(b"third").queue_offset == 2, "unseen messages count"
    world.store.close()
    assert world.disk.mounted is not None
    world.disk.kill()
    assert world.open().max_offset("T", 0) == 3


@in_loop(tell, flushed_only=True)
async def test_a_failed_sync_of_the_log_is_final(world: World, /) -> None:
    store = world.store
    safe = world.put(b"safe")
    store.flusher.flush_log()
    await asyncio.sleep(0.1)
    lost = world.put(b"lost")
    woken: list[Exception | None] = []
    store.durable.when(lost.log_end, lambda: woken.append(store.durable.error))
    world.disk.fail("sync", errno.EIO)
    store.flusher.flush_log()
    await asyncio.sleep(0.1)
    assert store.durable.value == safe.log_end
    assert woken == [store.durable.error]
    assert "the store is read-only until a restart" in str(store.durable.error)
    assert world.failures == [str(store.durable.error)]
    with pytest.raises(StoreClosedError, match="fdatasync of the commit log failed"):
        world.put(b"refused")
    assert store.max_offset("T", 0) == 1, "what did not reach the disk is not shown"

    before = world.disk.operations
    for _ in range(3):
        store.flusher.flush_log()
        store.flusher.flush_queues()
        await asyncio.sleep(0.1)
    assert world.disk.operations == before, "no sync is tried again: a second one would lie"
    store.close()
    assert not world.clean, "the next start must look at everything"
    found = world.power_cut()
    assert found.max_offset("T", 0) in (1, 2)
    assert found.durable.error is None


@in_loop(tell)
async def test_a_sync_that_fails_while_the_store_closes_is_not_forgotten(world: World, /) -> None:
    world.put(b"makes the first segment, which is noted")
    await asyncio.sleep(1)
    world.put(b"lost")
    world.disk.fail("sync", errno.EIO)
    world.store.flusher.flush_log()
    world.store.finish_background()
    world.store.close()
    await asyncio.sleep(1)
    assert "fdatasync of the commit log failed" in world.failures[0]
    assert not world.clean


@in_loop(tell)
async def test_what_was_under_way_at_a_close_is_done_with_and_harms_nothing(
    world: World, /
) -> None:
    world.put(b"one")
    world.store.flusher.flush_log()
    world.put(b"two")
    world.store.flusher.flush_log()
    world.store.flusher.flush_queues()
    world.store.close()
    await asyncio.sleep(1)
    assert world.failures == []
    assert world.clean
    assert world.power_cut().max_offset("T", 0) == 2


@in_loop(tell)
async def test_a_failed_sync_at_a_close_leaves_the_stop_unclean(world: World, /) -> None:
    world.put(b"one")
    await asyncio.sleep(1)  # what is noted of its file is saved
    world.disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        world.store.close()
    assert not world.clean
    world.disk.kill()
    assert world.open().max_offset("T", 0) == 1, "the directory is released"


@in_loop(tell)
async def test_a_failed_sync_of_a_queue_is_reported_and_made_good_from_the_log(
    world: World, /
) -> None:
    for number in range(30):
        world.put(b"%d" % number)
    world.store.flusher.flush_log()
    await asyncio.sleep(0.1)
    world.disk.fail("sync", errno.EIO)
    world.store.flusher.flush_queues()
    await asyncio.sleep(0.1)
    assert "fdatasync of a consume queue failed" in world.failures[0]

    world.simulation.clock("h").jump(100_000)
    for number in range(30, 80):
        world.put(b"%d" % number)
    world.store.flusher.flush_log()
    await asyncio.sleep(0.1)
    world.store.flusher.flush_queues()
    await asyncio.sleep(0.1)
    world.store.close()
    assert not world.clean
    found = world.power_cut()
    assert found.max_offset("T", 0) == 80
    assert found.recovery is not None
    assert found.recovery.begun_at == 0, "the checkpoint never claimed the queue that failed"


@in_loop(tell)
async def test_the_checkpoint_says_what_is_on_the_disk_and_no_more(world: World, /) -> None:
    clock = world.simulation.clock("h")
    world.put(b"one")
    stored = clock.now_ms()
    world.store.flusher.flush_log()
    world.store.flusher.flush_queues()
    await asyncio.sleep(0.1)
    content = world.disk.files[world.paths.checkpoint].content
    assert int.from_bytes(content[:8]) <= stored
    assert (
        int.from_bytes(content[8:16]) <= int.from_bytes(content[:8])
        or int.from_bytes(content[:8]) == 0
    )


@pytest.mark.parametrize("seed", range(8))
@in_loop(tell)
async def test_a_wall_clock_that_jumps_back_does_not_hide_messages_from_recovery(
    world: World, /, seed: int
) -> None:
    clock = world.simulation.clock("h")
    world.put(b"before the jump")
    world.store.flusher.flush_log()
    await asyncio.sleep(0.1)
    world.store.flusher.flush_queues()
    await asyncio.sleep(0.1)

    clock.jump(-3_600_000)  # apache/rocketmq#9455
    for number in range(40):
        world.put(b"%d" % number + b"x" * 100)
    other = NewMessage(b"x" * 3900, b"", 0)  # the last segment holds nothing of T
    world.store.put("U", 0, other, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST)
    world.store.flusher.flush_log()
    await asyncio.sleep(0.1)
    found = world.power_cut()  # the log is on the disk, the queues are not
    assert found.max_offset("T", 0) == 41
    assert found.max_offset("U", 0) == 1
