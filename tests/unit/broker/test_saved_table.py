"""Tables kept as files: a change costs the same however many entries there are, and who waits for
it waits for the save that holds it."""

import asyncio
import errno
from collections import deque
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.loops import in_loop, outcome_of, simulated
from tests.simulation.world.simulation import Simulation

from turbopump.broker.groups import GroupTable
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.topics import TopicTable, plain_topic
from turbopump.clock import SystemClock
from turbopump.disk.disk import Disk
from turbopump.disk.json_table import JsonTable
from turbopump.disk.system_disk import SystemDisk
from turbopump.protocol import fastjson
from turbopump.protocol.requests.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from turbopump.protocol.requests.offsets import ConsumerOffsetTable
from turbopump.protocol.requests.topics import TopicConfigSerializeWrapper
from turbopump.remoting.turns import Steps, Turns

PATH = Path("/config/table.json")
NAMES = st.sampled_from(["T", "a", "%RETRY%g", 'qu"ote', "tab\t", "ü", "", "topicConfigTable"])


def file(path: Path, disk: Disk | None = None) -> JsonTable:
    return JsonTable(disk or SystemDisk(), path, list[str]().append)


class OneStepAtATime(Turns):
    """Does a step of the work when the test says so, and all at once before it is ``by_hand``."""

    by_hand = False

    def __init__(self) -> None:
        super().__init__()
        self.work: deque[Steps[Any]] = deque()

    def run(self, _whose: Hashable, steps: Steps[Any], *_outcome: Any) -> None:
        self.work.append(steps)
        while self.work and not self.by_hand:
            self.step()

    def step(self) -> None:
        if next(self.work[0], "over") == "over":
            self.work.popleft()


def loaded_topics(disk: Disk, turns: Turns | None = None) -> TopicTable:
    topics = TopicTable(file(PATH, disk), SystemClock(), auto_create=True, turns=turns)
    topics.load()
    return topics


@given(st.lists(st.tuples(NAMES, st.integers(0, 20) | st.none()), max_size=20))
@examples(100)
def test_a_file_of_topics_put_together_from_entries_is_what_the_whole_is_encoded_to(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int | None]]
) -> None:
    path = tmp_path_factory.mktemp("config") / "topics.json"
    topics = TopicTable(file(path), SystemClock(), auto_create=True)
    topics.load()
    kept = {}
    for name, queues in changes:
        if queues is None:
            topics.delete(name)
            kept.pop(name, None)
        else:
            topics.put(plain_topic(name or "empty", queues))
            kept[name or "empty"] = plain_topic(name or "empty", queues)
    topics.save_now()
    whole = TopicConfigSerializeWrapper(data_version=topics.version, topic_config_table=kept)
    assert path.read_bytes() == fastjson.encode_indented(whole)
    assert fastjson.compact(path.read_bytes()) == fastjson.encode(whole)


@in_loop
async def test_files_of_groups_and_offsets_are_what_the_whole_is_encoded_to(tmp_path: Path) -> None:
    groups = GroupTable(file(tmp_path / "g.json"), SystemClock(), auto_create=True)
    offsets = ConsumerOffsets(file(tmp_path / "o.json"), SystemClock())
    for table in (groups, offsets):
        table.load()
    groups.put(SubscriptionGroupConfig(group_name="one", attributes={"a": '{"b":{}}'}))
    assert groups.find_or_create("two") is not None
    assert groups.delete("one")
    assert groups.find_or_create("one") is not None
    for group, topic, queue_id in (("a", "T", 0), ("b", "T", 1), ("a", "U", 0), ("a", "T", 7)):
        offsets.commit(group, topic, queue_id, queue_id + 1)
    offsets.reset("b", "T", 1, 0)
    offsets.commit("gone", "T", 0, 1)
    outcome_of(offsets.forget_group("gone"))
    for table in (groups, offsets):
        assert await table.saved()
    for name, kind in (("g", SubscriptionGroupWrapper), ("o", ConsumerOffsetTable)):
        text = (tmp_path / f"{name}.json").read_bytes()
        assert text == fastjson.encode_indented(fastjson.decode(text, kind)), name
    found = fastjson.decode((tmp_path / "o.json").read_bytes(), ConsumerOffsetTable)
    assert found.offset_table == {"T@a": {0: 1, 7: 8}, "T@b": {1: 0}, "U@a": {0: 1}}
    assert found.group_topic_map == {"a": ("T", "U"), "b": ("T",)}
    assert found.pending_resets == {"T@b": [1]}


@in_loop(simulated)
async def test_thousands_of_topics_are_encoded_a_step_each_and_saved_at_once(
    simulation: Simulation, /
) -> None:
    disk, turns = simulation.disk("h"), OneStepAtATime()
    topics = loaded_topics(disk.mount(), turns)
    topics.put(plain_topic("T0", 8))
    turns.by_hand = True
    for number in range(1, 5_000):
        topics.put(plain_topic(f"T{number}", 8))
    saved, steps = asyncio.ensure_future(topics.saved()), 0
    while not saved.done():
        await asyncio.sleep(0.001)
        if turns.work:
            assert disk.files[PATH].content.count(b"topicName") == 1, "it is not written in parts"
            turns.step()
            steps += 1
    assert saved.result()
    assert disk.files[PATH].content.count(b"topicName") == 5_000
    assert steps == 5_000, "one for each topic but the first, and one to write"
    topics.put(plain_topic("T7", 9))
    again = asyncio.ensure_future(topics.saved())
    await asyncio.sleep(0)
    turns.step()
    turns.step()
    assert await again
    assert not turns.work, "one changed entry is one step"


@in_loop(simulated)
async def test_what_changes_while_a_save_is_under_way_goes_into_one_more(
    simulation: Simulation, /
) -> None:
    disk = simulation.disk("h")
    topics = loaded_topics(disk.mount())
    waiting = []
    for number in range(1000):
        topics.put(plain_topic(f"T{number}", 1))
        waiting.append(asyncio.ensure_future(topics.saved()))
        await asyncio.sleep(0)
    assert all(await asyncio.gather(*waiting))
    whole = fastjson.decode(disk.files[PATH].content, TopicConfigSerializeWrapper)
    before = fastjson.decode(disk.files[Path(f"{PATH}.bak")].content, TopicConfigSerializeWrapper)
    assert len(whole.topic_config_table) == 1000
    assert len(before.topic_config_table) == 1, "nothing between the first and the last"


async def change_again_and_again(topics: Any) -> None:
    for number in range(10_000):
        topics.put(plain_topic(f"T{number}", 1))
        await asyncio.sleep(0.0001)


@in_loop(simulated)
async def test_who_waits_for_a_change_does_not_wait_for_those_that_come_after_it(
    simulation: Simulation, /
) -> None:
    topics = loaded_topics(simulation.disk("h").mount())

    changing = asyncio.ensure_future(change_again_and_again(topics))
    await asyncio.sleep(0)
    for _ in range(10):
        assert await asyncio.wait_for(topics.saved(), 0.1)
    assert not changing.done()
    changing.cancel()


@in_loop(simulated)
async def test_new_topics_are_unsaved_until_the_save_that_holds_them_is_on_the_disk(
    simulation: Simulation, /
) -> None:
    disk = simulation.disk("h")
    topics = loaded_topics(disk.mount())
    topics.put(plain_topic("one", 1))
    topics.put(plain_topic("two", 1))
    assert topics.unsaved == {"one", "two"}, "two came after the first save had begun"
    assert await topics.new_saving()
    assert topics.unsaved == set()
    disk.fail("sync", errno.EIO, times=2)
    topics.put(plain_topic("three", 1))
    assert not await topics.new_saving()
    assert not await topics.saved(), "at once, while nothing is tried"
    assert topics.unsaved == topics.watched == {"three"}
    topics.put(plain_topic("four", 1))
    assert not await topics.saved()
    topics.put(plain_topic("five", 1))
    assert await topics.saved()
    assert topics.unsaved == set()
