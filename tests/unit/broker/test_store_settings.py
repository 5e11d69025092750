"""Settings that change what the store writes: on by default, and honoured when set."""

from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, talking, watched
from tests.unit.store.looked_up import find_by_key

from turbopump.broker.store_settings import memory_size
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import StoreDamagedError
from turbopump.message.batch import encode_batch
from turbopump.message.codec import entry_fault
from turbopump.message.message import Message
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.store.log.scanner import EntryWalk

ALWAYS = (0, 1 << 60)


def entries(talk: Talk) -> list[bytes]:
    store = talk.broker.store
    found = [store.log.read(mark.offset, mark.size) for mark in EntryWalk(store.log).entries()]
    return [entry for entry in found if entry is not None]


async def send_one_and_a_batch(talk: Talk) -> None:
    await talk.client.create()
    await talk.client.send(b"alone", properties="KEYS\x01red green\x02UNIQ_KEY\x01ID1\x02")
    batch = encode_batch([Message("T", b"a", keys=["red"]), Message("T", b"b", keys=["blue"])])
    answer = await talk.client.ask(SendMessageV2(topic="T", queue_id=0, batch=True), batch)
    assert answer.code == 0


def test_both_are_on_by_default() -> None:
    config = BrokerConfig()
    assert config.enabled_append_prop_crc
    assert config.message_index_enable


@pytest.mark.parametrize("on", [False, True])
@in_loop(watched)
async def test_entries_carry_a_crc_over_all_of_them_if_told_to(tmp_path: Path, on: bool) -> None:
    async with talking(tmp_path, enabled_append_prop_crc=on) as talk:
        await send_one_and_a_batch(talk)
        written = entries(talk)
        assert len(written) == 3
        assert [b"__CRC32#" in entry for entry in written] == [on] * 3
        assert [entry_fault(entry, crc_required=on) for entry in written] == [None] * 3
        assert await talk.client.all_bodies() == [b"alone", b"a", b"b"]
    async with talking(tmp_path, enabled_append_prop_crc=on) as talk:
        assert await talk.client.all_bodies() == [b"alone", b"a", b"b"]


@in_loop(watched)
async def test_the_log_may_lie_in_several_directories_and_is_refused_without_one_of_them(
    tmp_path: Path,
) -> None:
    roots = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    config: dict[str, Any] = {
        "store_path_commit_log": f"{roots[0]},{roots[1]}",
        "store_path_consume_queue": str(tmp_path / "queues"),
        "store_path_index": str(tmp_path / "indexes"),
        "store_checkpoint": str(tmp_path / "marks" / "checkpoint"),
        "abort_file": str(tmp_path / "marks" / "abort"),
        "mapped_file_size_commit_log": 1 << 16,
        "max_message_size": 4096,
    }
    bodies = [b"%d " % number + b"x" * 1000 for number in range(200)]

    home = tmp_path / "home"
    async with talking(home, **config) as talk:
        await talk.client.create()
        for body in bodies:
            await talk.client.send(body)
        assert (tmp_path / "marks" / "abort").exists()
    assert all(len(list(root.iterdir())) == 2 for root in roots[:2])
    assert [path.name for path in (tmp_path / "queues").iterdir()] == ["T"]
    assert list((tmp_path / "indexes").iterdir())
    async with talking(home, **config) as talk:
        assert await talk.client.all_bodies() == bodies
    with pytest.raises(
        StoreDamagedError,
        match=r"is a directory missing in storePathCommitLog, "
        r"or a disk not mounted\?",
    ):
        async with talking(home, **{**config, "store_path_commit_log": str(roots[0])}):
            pass
    changed = {
        "store_path_commit_log": f"{roots[1]},{roots[2]}",
        "read_only_commit_log_store_paths": str(roots[0]),
    }
    async with talking(home, **{**config, **changed}) as talk:
        assert await talk.client.all_bodies() == bodies


@pytest.mark.parametrize("on", [False, True])
@in_loop(watched)
async def test_messages_are_indexed_if_told_to(tmp_path: Path, on: bool) -> None:
    async with talking(
        tmp_path, message_index_enable=on, max_hash_slot_num=100, max_index_num=1000
    ) as talk:
        await send_one_and_a_batch(talk)
        found = {
            key: len(find_by_key(talk.broker.store.lookup, "T", key, *ALWAYS))
            for key in ("ID1", "red", "green", "blue", "x")
        }
        assert found == (
            {"ID1": 1, "red": 2, "green": 1, "blue": 1, "x": 0} if on else dict.fromkeys(found, 0)
        )
    assert len(list(tmp_path.glob("**/index/*"))) == on


def write_groups(root: Path, groups: str, limits: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("groups", "limits", "size"),
    [
        ("0::/\n", {"memory.max": "5000"}, 5000),
        ("0::/system.slice/a.service\n", {"system.slice/memory.max": "5000"}, 5000),
        (
            "0::/system.slice/a.service\n",
            {"system.slice/a.service/memory.max": "max", "system.slice/memory.max": "6000"},
            6000,
        ),
        (
            "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/docker/1\n",
            {"memory/memory.limit_in_bytes": "7000", "cpu,cpuacct/memory.max": "1"},
            7000,
        ),
    ],
    ids=["container", "slice", "service and slice", "container with cgroups 1"],
)
def test_hot_messages_fit_into_the_memory_limit_of_a_container_or_service(
    tmp_path: Path, groups: str, limits: dict[str, str], size: int
) -> None:
    write_groups(tmp_path, groups, limits)
    assert memory_size(tmp_path) == size


def test_without_a_limit_the_whole_memory_counts(tmp_path: Path) -> None:
    whole = memory_size(tmp_path)
    write_groups(tmp_path, "0::/\n", {"memory.max": "max"})
    assert memory_size(tmp_path) == whole > 1 << 28
