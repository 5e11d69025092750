"""Units of the schedule topic hold the time of delivery: as written live, as recovered, as built
anew, and as ``verify`` wants them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.stand_ins import does_nothing
from tests.unit.store.directory import HOST, Directory
from tests.unit.store.inspected import SMALL_FILES, changed, verified

from turbopump.message.delivery_time import SCHEDULE_TOPIC, DelayLevels
from turbopump.message.java import tags_code
from turbopump.message.properties import encode_properties
from turbopump.store.disk_space import SpaceLevel
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.retention import NextStep

LEVELS = DelayLevels((1000, 60_000))


def wait(store: MessageStore, level: str, queue_id: int = 0, *, size: int = 1) -> None:
    text = encode_properties({"TAGS": "paid", **({"DELAY": level} if level else {})})
    message = NewMessage(b"x" * size, text.encode(), tags_code("paid"))
    store.put(
        SCHEDULE_TOPIC,
        queue_id,
        message,
        sys_flag=0,
        born_timestamp=0,
        born_host=HOST,
        store_host=HOST,
    )


def units(store: MessageStore, queue_id: int = 0) -> list[tuple[int, int, int]]:
    queue = store.queues.find_or_make(SCHEDULE_TOPIC, queue_id)
    found = [queue.unit(index) for index in range(queue.max_index)]
    return [unit for unit in found if unit is not None]


def test_a_unit_holds_when_its_message_is_due_and_is_built_again_the_same(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a", delay_levels=LEVELS)
    store = directory.open()
    now = directory.clock.now
    for level in ("1", "2", "9", "0", "x", ""):
        wait(store, level)
        directory.clock.now += 7
    before = units(store)
    plain = tags_code("paid")
    assert [tags for _, _, tags in before] == [
        now + 1000,
        now + 7 + 60_000,
        now + 14 + 60_000,
        plain,
        plain,
        plain,
    ]
    killed = directory.copy(tmp_path / "b")
    store.close()
    store = killed.open()
    assert units(store) == before
    store.close()
    shutil.rmtree(killed.paths.consume_queues)
    store = killed.open()
    assert units(store) == before
    store.close()


def earlier(data: bytearray) -> None:
    data[20 + 18] ^= 1


def test_verify_wants_a_delay_after_the_time_of_storing_whatever_the_table(tmp_path: Path) -> None:
    directory = Directory(tmp_path, **SMALL_FILES, delay_levels=LEVELS)
    store = directory.open()
    for level in ("1", "2", "2", ""):
        wait(store, level)
    store.close()
    result = verified(tmp_path)
    assert set(result.findings.counts) <= {"no_index"}
    path = tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0" / f"{0:020}"

    with changed(path, earlier):
        (finding,) = [one for one in verified(tmp_path).findings.kept if one.kind != "no_index"]
        assert (finding.kind, finding.queue_id, finding.index) == ("unit_wrong", 0, 1)
        assert "no delay level after" in finding.what


@pytest.mark.parametrize("needed", [True, False])
def test_a_segment_with_a_message_that_still_waits_is_not_deleted_however_short_space_is(
    tmp_path: Path, needed: bool
) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    for _ in range(12):
        wait(store, "1", size=900)
    store.flusher.flush_log()
    store.flusher.flush_queues()
    seventh = units(store)[6][0]
    store.retention.needed_from.append(does_nothing)
    store.retention.needed_from.append(lambda: seventh if needed else None)
    store.space.level = SpaceLevel.CLEAN_FORCIBLY
    assert store.retention.begin_round()
    following = [NextStep.AT_ONCE]
    while following[-1] is not NextStep.NOTHING:
        store.retention.delete_next(following.append)
    assert store.log.start == (seventh // 4096 * 4096 if needed else 3 * 4096)
    store.close()
