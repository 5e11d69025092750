"""Metrics of the store: sizes, what is not on the disk, the oldest message, and full disks."""

import asyncio

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.metrics.reading import distribution, series, value
from tests.unit.broker.replicas import eventually
from tests.unit.broker.talking import Talk, in_virtual_time, take_nothing
from tests.unit.metrics.reading import series_of

from turbopump.broker.counters.labels import LOCAL_DISK
from turbopump.broker.metrics.all_metrics import metrics_of
from turbopump.broker.metrics.storage import (
    DISK_USED,
    DISPATCH_BEHIND,
    FLUSH_BEHIND,
    RESERVE_TIME,
    SIZE,
    SYNC_SECONDS,
    WRITABLE,
)


@in_loop(in_virtual_time)
async def test_the_age_of_the_oldest_message_grows_with_time(
    talk: Talk, simulation: Simulation, /
) -> None:
    metrics = metrics_of(talk.broker.parts)
    assert series_of(metrics, RESERVE_TIME) == {}, "there is no message"
    await talk.client.create()
    await talk.client.send()
    await asyncio.sleep(10)
    await talk.client.send()
    await eventually(series_of, metrics, RESERVE_TIME)  # the first reads the disk
    ((labels, age),) = series_of(metrics, RESERVE_TIME).items()
    assert labels == LOCAL_DISK
    assert isinstance(age, int)
    assert 10_000 <= age <= 10_500


@in_loop(in_virtual_time)
async def test_bytes_are_behind_until_they_are_on_the_disk(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    metrics = metrics_of(talk.broker.parts)
    assert sum(distribution(series_of(metrics, SYNC_SECONDS)[()]).counts) == 0
    await talk.client.send(b"x" * 1000)
    behind = series_of(metrics, FLUSH_BEHIND)[LOCAL_DISK]
    assert isinstance(behind, int)
    assert behind > 1000
    assert series_of(metrics, DISPATCH_BEHIND) == {LOCAL_DISK: 0}
    await asyncio.sleep(1)
    assert series_of(metrics, FLUSH_BEHIND) == {LOCAL_DISK: 0}
    assert sum(distribution(series_of(metrics, SYNC_SECONDS)[()]).counts) == 1


@in_loop(in_virtual_time)
async def test_the_use_of_each_file_system_is_a_share(
    talk: Talk, simulation: Simulation, /
) -> None:
    await asyncio.sleep(3)
    used = series(talk.broker, DISK_USED)
    assert ("/store/commitlog",) in used
    assert all(isinstance(share, float) and 0 <= share <= 1 for share in used.values())
    assert value(talk.broker, SIZE) >= 0


@in_loop(in_virtual_time)
async def test_a_store_without_space_is_not_writable(talk: Talk, simulation: Simulation, /) -> None:
    assert value(talk.broker, WRITABLE) == 1
    take_nothing(talk.broker, "full")
    assert value(talk.broker, WRITABLE) == 0
