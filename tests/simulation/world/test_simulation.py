"""One world from one seed: hosts that boot, die and boot again, and mistakes that do not go
unnoticed."""

import asyncio
from pathlib import Path

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.process import ProcessKilled
from tests.simulation.world.simulation import START_MS, Simulation, run_simulation, simulate
from tests.stand_ins import raises

HOST = "10.0.0.1"
FILE = Path("/data/file")


@in_loop(simulated)
async def test_a_power_cut_takes_process_network_and_unsynced_data_and_a_boot_returns_all(
    simulation: Simulation, /
) -> None:
    mount = simulation.disk(HOST).mount()
    mount.make_directory(FILE.parent)
    mount.write_file(FILE, b"synced")
    process = simulation.boot(HOST)
    outcome = process.start(asyncio.sleep(100))
    simulation.end(HOST, power_cut=True)
    with pytest.raises(ProcessKilled):
        await outcome
    cut = simulation.network.link("10.0.0.2", HOST).cut
    simulation.boot(HOST)
    assert not simulation.network.link("10.0.0.2", HOST).cut
    assert (simulation.disk(HOST).mount().read_file(FILE), cut) == (b"synced", True)


@in_loop(simulated)
async def test_a_kill_leaves_the_machine_and_what_was_written(simulation: Simulation, /) -> None:
    segment_path = FILE.with_name("segment")
    mount = simulation.disk(HOST).mount()
    mount.make_directory(FILE.parent)
    mount.create_segment(segment_path, 512).buffer[0:4] = b"data"
    simulation.boot(HOST)
    simulation.end(HOST, power_cut=False)
    simulation.end(HOST, power_cut=False)  # dead already
    simulation.boot(HOST)
    assert simulation.disk(HOST).mount().open_segment(segment_path).read(0, 4) == b"data"


async def writes(reached: list[str], simulation: Simulation) -> None:
    mount = simulation.disk(HOST).mount()
    mount.make_directory(FILE.parent)
    reached.append("before")
    mount.write_file(FILE, b"data")
    reached.append("after")


@in_loop(simulated)
async def test_a_power_cut_in_the_middle_of_an_operation_kills_the_process_there(
    simulation: Simulation, /
) -> None:
    reached: list[str] = []

    simulation.disk(HOST).cut_power_at("sync")
    with pytest.raises(ProcessKilled):
        await simulation.boot(HOST).start(writes(reached, simulation))
    assert reached == ["before"]


async def breaks_in_a_callback(simulation: Simulation) -> None:
    simulation.loop.call_later(1, raises(LookupError("in a callback")))
    await asyncio.sleep(2)


def test_an_exception_that_nobody_catches_fails_the_run() -> None:
    with pytest.raises(LookupError, match="in a callback") as failure:
        simulate(1, breaks_in_a_callback)
    assert any("Exception in callback" in note for note in failure.value.__notes__)


@in_loop(simulated)
async def test_each_host_has_a_clock_that_jumps_alone(simulation: Simulation, /) -> None:
    simulation.clock(HOST).jump(-5000)
    await asyncio.sleep(10)
    clock = simulation.clock(HOST)
    assert (clock.now_ms(), simulation.clock("10.0.0.2").now_ms(), clock.monotonic()) == (
        START_MS + 5000,
        START_MS + 10_000,
        10.0,
    )


async def traces_its_end(simulation: Simulation) -> None:
    await asyncio.sleep(1.5)
    simulation.loop.trace("the end")


def test_the_trace_is_written_to_the_file_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURBOPUMP_TRACE", str(tmp_path / "trace"))
    simulation = Simulation(1)
    run_simulation(simulation, traces_its_end)
    assert "1.500000000 the end" in (tmp_path / "trace").read_text().splitlines()
    assert len(simulation.loop.trace_hash) == 32
