"""Small tables in one file: replaced in one step, read back whole, never lost."""

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from turbopump.errors import StoreDamagedError
from turbopump.store.disk import SystemDisk
from turbopump.store.json_table import JsonTable
from turbopump.testing.simulation import Simulation, simulate


def table(path: Path, failures: list[str] | None = None) -> JsonTable:
    return JsonTable(SystemDisk(), path, (failures if failures is not None else []).append)


def load(path: Path, failures: list[str] | None = None) -> Any:
    return table(path, failures).load(json.loads, dict)


def test_what_is_saved_is_loaded_and_the_one_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    one = table(path)
    assert one.load(json.loads, dict) == {}
    one.save(b'{"a":1}')
    one.save(b'{"a":2}')
    assert load(path) == {"a": 2}
    assert (tmp_path / "config" / "topics.json.bak").read_bytes() == b'{"a":1}'
    assert sorted(each.name for each in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_a_table_is_never_saved_before_it_was_loaded(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"precious":1}')
    for save in (JsonTable.save, JsonTable.save_now):
        with pytest.raises(AssertionError, match="loaded before it is saved"):
            save(table(path), b"{}")
    assert load(path) == {"precious": 1}


def test_a_file_cut_at_any_byte_falls_back_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    one = table(path)
    one.load(json.loads, dict)
    one.save(b'{"offset":1}')
    one.save(b'{"offset":2}')
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        failures: list[str] = []
        assert load(path, failures) == {"offset": 1}
        assert "t.json.bak is used instead" in failures[0]
    path.unlink()
    failures = []
    assert load(path, failures) == {"offset": 1}
    assert failures == []


def test_files_that_cannot_be_read_at_all_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"{torn")
    with pytest.raises(StoreDamagedError, match=r"t\.json cannot be read .*repair the file, or move it away"):
        load(path)
    (tmp_path / "t.json.bak").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreDamagedError, match=r"t\.json\.bak cannot be read"):
        load(path)
    assert path.read_bytes() == b"{torn", "nothing is overwritten"


def test_empty_files_are_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"\n")
    assert load(path) == {}


def test_of_several_saves_under_way_the_last_one_counts() -> None:
    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk("h")
        one = JsonTable(disk.mount(), Path("/c/t.json"), list[str]().append)
        one.load(json.loads, dict)
        for number in range(20):
            one.save(b'{"n":%d}' % number)
        await asyncio.sleep(1)
        assert disk.files[Path("/c/t.json")].content == b'{"n":19}'
        assert disk.files[Path("/c/t.json.bak")].content == b'{"n":0}', "the ones between were never written"

    simulate(1, scenario)


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_during_a_save_leaves_the_old_or_the_new(seed: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk("h")
        path = Path("/c/t.json")
        one = JsonTable(disk.mount(), path, list[str]().append)
        one.load(json.loads, dict)
        for number in range(3):
            one.save(b'{"n":%d}' % number)
            await asyncio.sleep(1)
        disk.on_power_cut = None
        disk.cut_power_at(nth=seed % 6 + 1)
        one.save(b'{"n":3}')
        await asyncio.sleep(1)
        if disk.mounted is not None:
            disk.power_cut()
        found = JsonTable(disk.mount(), path, list[str]().append).load(json.loads, dict)
        assert found in ({"n": 2}, {"n": 3})

    simulate(seed, scenario)


@pytest.mark.parametrize("nth", range(1, 10))
def test_a_power_cut_in_the_first_save_after_a_fall_back_loses_nothing(nth: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk("h")
        path = Path("/c/t.json")
        before = disk.mount()
        before.make_directory(path.parent)
        before.write_file(path, b"{torn")
        before.write_file(path.with_name("t.json.bak"), b'{"n":1}')
        disk.power_cut()
        one = JsonTable(disk.mount(), path, list[str]().append)
        assert one.load(json.loads, dict) == {"n": 1}
        disk.on_power_cut = None
        disk.cut_power_at(nth=nth)
        one.save(b'{"n":2}')
        await asyncio.sleep(1)
        if disk.mounted is not None:
            disk.power_cut()
        assert JsonTable(disk.mount(), path, list[str]().append).load(json.loads, dict) in ({"n": 1}, {"n": 2})

    simulate(nth, scenario)


def test_a_save_that_fails_is_reported_and_the_file_stays_as_it_was() -> None:
    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk("h")
        path, failures = Path("/c/t.json"), list[str]()
        one = JsonTable(disk.mount(), path, failures.append)
        one.load(json.loads, dict)
        one.save(b'{"n":1}')
        await asyncio.sleep(1)
        disk.fail("write", errno.ENOSPC)
        one.save(b'{"n":2}')
        await asyncio.sleep(1)
        assert "could not be saved (No space left on device)" in failures[0]
        assert disk.files[path].content == b'{"n":1}'
        one.save(b'{"n":3}')
        await asyncio.sleep(1)
        assert disk.files[path].content == b'{"n":3}'

    simulate(1, scenario)
