"""Decisions in a file: durable before they are answered, and never read from a damaged file."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import does_nothing

from turbopump.controller.decision_file import FILE_NAME, RETRY_S, DecisionFile, decode, encode
from turbopump.controller.decisions import ConflictError, NotLeaderError
from turbopump.controller.groups import Group, Replica
from turbopump.disk.disk import Disk
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import ConfigError

DIRECTORY, ADDRESS = Path("/controller"), "10.0.0.9:9878"


def group(epoch: int, name: str = "a") -> Group:
    replicas = (Replica(1, "10.0.0.1:10911", "10.0.0.1:10911;17"),)
    return Group(
        cluster_name="c",
        broker_name=name,
        next_id=2,
        replicas=replicas,
        master=1,
        master_epoch=epoch,
        sync_state_set=(1,),
        sync_state_set_epoch=epoch,
        confirm_offset=2**40,
    )


async def opened(disk: Disk | None, directory: Path = DIRECTORY) -> DecisionFile:
    file = DecisionFile(disk, directory)
    await file.open(ADDRESS, does_nothing)
    return file


@in_loop
async def test_decisions_are_there_after_a_start(tmp_path: Path) -> None:
    disk = SystemDisk()
    file = await opened(disk, tmp_path)
    assert (file.leader, await file.load()) == (ADDRESS, {})
    await file.replace("a", None, group(1))
    await file.replace("b", None, group(7, "b"))
    await file.replace("a", group(1), group(2))
    await file.close()
    assert file.leader is None
    file = await opened(disk, tmp_path)
    assert await file.load() == {"a": group(2), "b": group(7, "b")}
    await file.replace("a", group(2), None)
    await file.close()
    file = await opened(disk, tmp_path)
    assert await file.load() == {"b": group(7, "b")}
    await file.close()


@in_loop
async def test_a_group_that_has_changed_meanwhile_is_a_conflict() -> None:
    file = await opened(None)
    await file.replace("a", None, group(1))
    with pytest.raises(ConflictError):
        await file.replace("a", None, group(2))
    assert await file.load() == {"a": group(1)}
    await file.close()
    with pytest.raises(NotLeaderError):
        await file.replace("a", group(1), group(2))


@in_loop
async def test_a_file_cut_at_any_byte_or_with_a_wrong_byte_stops_the_start(tmp_path: Path) -> None:
    path, whole = tmp_path / FILE_NAME, encode({"a": group(3)})
    assert decode(whole) == {"a": group(3)}
    damaged = [whole[:size] for size in range(0, len(whole) - 2, 7)]
    damaged += [whole.replace(b"1099511627776", b"1099511627777"), b"{}", b"\0" * len(whole)]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=r"decisions\.json is damaged .*controller\.html"):
            await opened(SystemDisk(), tmp_path)
    path.unlink()
    path.with_name(f"{FILE_NAME}.bak").write_bytes(whole)
    with pytest.raises(ConfigError, match="it is gone, and only its older copy is there"):
        await opened(SystemDisk(), tmp_path)


@in_loop
async def test_one_controller_uses_a_file_at_a_time(tmp_path: Path) -> None:
    file = await opened(SystemDisk(), tmp_path)
    with pytest.raises(ConfigError, match="in use by another controller"):
        await opened(SystemDisk(), tmp_path)
    await file.close()
    await (await opened(SystemDisk(), tmp_path)).close()


@pytest.mark.parametrize("step", range(1, 9))
@in_loop(simulated)
async def test_a_power_cut_leaves_the_file_before_or_after_a_decision(
    simulation: Simulation, /, step: int
) -> None:
    disk = simulation.disk("h")
    file = await opened(disk.mount())
    await file.replace("a", None, group(1))
    await file.replace("a", group(1), group(2))
    disk.cut_power_at(nth=step)
    disk.on_power_cut = None
    change = asyncio.ensure_future(file.replace("a", group(2), group(3)))
    await asyncio.sleep(1)
    answered = change.done()
    change.cancel()
    if disk.mounted is not None:
        disk.power_cut()
    again = await (await opened(disk.mount())).load()
    assert again in ({"a": group(3)}, {"a": group(2)})
    assert not answered or again == {"a": group(3)}


@in_loop(simulated)
async def test_a_decision_waits_until_it_can_be_written(simulation: Simulation, /) -> None:
    disk = simulation.disk("h")
    file = await opened(disk.mount())
    disk.fail("sync", errno.ENOSPC, times=3)
    began = simulation.loop.time()
    await asyncio.gather(
        file.replace("a", None, group(1)),
        file.replace("b", None, group(1, "b")),
        file.replace("a", group(1), group(2)),
    )
    assert simulation.loop.time() - began > 3 * RETRY_S
    assert decode(bytes(disk.files[file.path].content)) == {"a": group(2), "b": group(1, "b")}


@in_loop(simulated)
async def test_a_decision_that_cannot_be_written_before_the_end_has_no_outcome(
    simulation: Simulation, /
) -> None:
    disk = simulation.disk("h")
    file = await opened(disk.mount())
    disk.fail("sync", errno.ENOSPC, times=1000)
    change = asyncio.ensure_future(file.replace("a", None, group(1)))
    await asyncio.sleep(RETRY_S * 1.5)
    await file.close()
    with pytest.raises(NotLeaderError):
        await change
