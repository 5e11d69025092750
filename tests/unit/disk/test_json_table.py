"""Small tables in one file: replaced in one step, read back whole, never lost."""

import asyncio
import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation

from turbopump.disk.json_table import JsonTable, before_the_damage
from turbopump.disk.system_disk import SystemDisk


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


def test_of_unreadable_files_the_part_before_the_damage_is_used_and_they_are_kept(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"a":1,"b":{"c":2,"d":3')
    (tmp_path / "t.json.bak").write_bytes(b"\xff\xfe")
    failures: list[str] = []
    one = table(path, failures)
    assert one.load(json.loads, dict) == {"a": 1, "b": {"c": 2}}
    assert re.search(
        r"t\.json cannot be read .*t\.json\.bak cannot be read .*kept as t\.json\.damaged; the "
        r"part before",
        failures[0],
    )
    one.save(b'{"a":1}')
    assert load(path) == {"a": 1}
    assert (tmp_path / "t.json.damaged").read_bytes() == b'{"a":1,"b":{"c":2,"d":3'


def test_members_that_make_no_sense_before_the_damage_are_given_up_too(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"a":1,"b":nonsense,"c":[1,')
    failures: list[str] = []
    assert load(path, failures) == {"a": 1}
    assert "the part before the damage is used" in failures[0]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"a":1,"b":[1,{}]}\0\0\0', {"a": 1, "b": [1, {}]}),
        (b'{"a":1,"b":odd,"c":3', {"a": 1}),
        (b'{"a":"\\",}","b":2,"c', {"a": '",}', "b": 2}),
        (b'{"a":1}}', {"a": 1}),
        (b'{"a":[1,2}', {"a": [1]}),
    ],
)
def test_as_much_as_makes_sense_is_used(tmp_path: Path, data: bytes, found: object) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(data)
    failures: list[str] = []
    assert load(path, failures) == found
    assert "the part before the damage is used, and the rest is lost" in failures[0]


@pytest.mark.parametrize("data", [b"{torn", b"\0" * 100, b"]", b"\n", b""])
def test_a_start_succeeds_without_a_table_of_which_nothing_is_left_and_says_so(
    tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(data)
    failures: list[str] = []
    assert load(path, failures) == {}
    assert "the broker starts WITHOUT this table" in failures[0]


def test_a_file_of_ours_cut_at_any_byte_has_a_backup_from_its_first_save_on(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    one = table(path)
    one.load(json.loads, dict)
    one.save(b'{"offset":1}')
    for cut in range(12):
        path.write_bytes(b'{"offset":1}'[:cut])
        assert load(path) == {"offset": 1}


@given(
    st.recursive(
        st.integers() | st.text(max_size=5) | st.none(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=20,
    ),
    st.integers(0, 10_000),
    st.sampled_from([b"", b"\0\0\0"]),
)
@examples(300)
def test_what_stands_before_a_cut_is_what_was_there(content: Any, cut: int, rest: bytes) -> None:
    whole = {"first": 7, "content": content, "last": 1}
    text = json.dumps(whole).encode()
    piece = next(before_the_damage(text[: 10 + cut % (len(text) - 10)] + rest), None)
    assert piece is None or is_beginning(json.loads(piece), whole)
    assert piece is None or json.loads(piece)["first"] == 7


def is_beginning(part: Any, whole: Any) -> bool:
    """Whether a value is another one that ends early."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(is_beginning(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(is_beginning, part, whole))
    return bool(part == whole)


@in_loop(simulated)
async def test_of_several_saves_under_way_the_last_one_counts(simulation: Simulation, /) -> None:
    disk = simulation.disk("h")
    one = JsonTable(disk.mount(), Path("/c/t.json"), list[str]().append)
    one.load(json.loads, dict)
    for number in range(20):
        one.save(b'{"n":%d}' % number)
    await asyncio.sleep(1)
    assert disk.files[Path("/c/t.json")].content == b'{"n":19}'
    assert disk.files[Path("/c/t.json.bak")].content == b'{"n":0}', (
        "the ones between were never written"
    )


@pytest.mark.parametrize("seed", range(10))
@in_loop(simulated)
async def test_a_power_cut_during_a_save_leaves_the_old_or_the_new(
    simulation: Simulation, /, seed: int
) -> None:
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


@pytest.mark.parametrize("seed", range(1, 10))
@in_loop(simulated)
async def test_a_power_cut_in_the_first_save_after_a_fall_back_loses_nothing(
    simulation: Simulation, /, seed: int
) -> None:
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
    disk.cut_power_at(nth=seed)
    one.save(b'{"n":2}')
    await asyncio.sleep(1)
    if disk.mounted is not None:
        disk.power_cut()
    assert JsonTable(disk.mount(), path, list[str]().append).load(json.loads, dict) in (
        {"n": 1},
        {"n": 2},
    )


@in_loop(simulated)
async def test_a_save_that_fails_is_reported_once_and_repeated_until_it_succeeds(
    simulation: Simulation, /
) -> None:
    disk = simulation.disk("h")
    path, reports, recovered = Path("/c/t.json"), list[str](), list[str]()
    one = JsonTable(disk.mount(), path, reports.append, recovered.append)
    one.load(json.loads, dict)
    one.save(b'{"n":1}')
    await asyncio.sleep(1)
    disk.fail("sync", errno.EIO, times=3)
    one.save(b'{"n":2}')
    for _ in range(3):
        await asyncio.sleep(1)
        assert disk.files[path].content == b'{"n":1}'
        one.repeat_save()
    await asyncio.sleep(1)
    one.repeat_save()
    assert disk.files[path].content == b'{"n":2}'
    assert reports == [f"{path} could not be saved (Input/output error): trying again every second"]
    assert recovered == [f"{path} is saved again, after 3 failures"]


@in_loop(simulated)
async def test_what_failed_never_overwrites_what_was_saved_later(simulation: Simulation, /) -> None:
    disk = simulation.disk("h")
    path = Path("/c/t.json")
    one = JsonTable(disk.mount(), path, list[str]().append)
    one.load(json.loads, dict)
    disk.fail("write", errno.ENOSPC)
    one.save(b'{"n":1}')
    one.save(b'{"n":2}')
    await asyncio.sleep(1)
    one.repeat_save()
    await asyncio.sleep(1)
    assert disk.files[path].content == b'{"n":2}'


@pytest.mark.parametrize("failures", [2, 3])
@in_loop(simulated)
async def test_a_save_at_the_end_is_tried_three_times(
    simulation: Simulation, /, failures: int
) -> None:
    disk = simulation.disk("h")
    path = Path("/c/t.json")
    recovered = list[str]()
    one = JsonTable(disk.mount(), path, list[str]().append, recovered.append)
    one.load(json.loads, dict)
    disk.fail("sync", errno.EIO, times=failures)
    if failures < 3:
        one.save_now(b'{"n":1}')
        assert recovered == [f"{path} is saved again, after 2 failures"]
        assert disk.files[path].content == b'{"n":1}'
    else:
        with pytest.raises(OSError, match="Input/output error"):
            one.save_now(b'{"n":1}')
