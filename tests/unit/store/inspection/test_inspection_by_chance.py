"""Stores that lived a random life, were killed, and lost files of a queue and what was noted: units
that are reported as behind come back with the next start."""

import json
import random
import shutil
from pathlib import Path

import pytest
from tests.crash.in_memory import ROOT, START_MS, Image
from tests.fuzzing import some
from tests.unit.store.ended_queues import (
    BACKUP,
    RECORD,
    TOPICS,
    files_of,
    live,
    open_store,
    state,
    without,
)
from tests.unit.store.inspected import verified


def written(image: Image, root: Path, topics: set[str]) -> Path:
    """The image on the real disk, as left by another process."""
    shutil.rmtree(root, ignore_errors=True)
    for path, data in image.items():
        file = root / path.relative_to(ROOT)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (root / "abort").write_bytes(b"1 turbopump")
    (root / "config").mkdir(exist_ok=True)
    (root / "config/topics.json").write_text(
        json.dumps({"topicConfigTable": {topic: {} for topic in topics}})
    )
    return root


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize("seed", [*some(range(12)), 24, 116])
def test_units_reported_as_behind_come_back_with_the_next_start(
    tmp_path: Path, seed: int, deleting: bool
) -> None:
    source = random.Random(seed)
    found = open_store({})
    for _ in range(4):
        live(found, source, deleting=deleting)
        expected, now = state(found), found.clock.ms - START_MS + 1000
        image = without(found.image(), RECORD, BACKUP)
        found.disk.kill()
        unknown = set("abc") - set(expected)
        for topic in sorted(topic for topic, (first, end, _) in expected.items() if first < end)[
            :2
        ]:
            files = files_of(image, topic)
            damaged = without(image, *source.choice([files, files[-1:]]))
            forgotten = unknown | ({topic} if source.random() < 0.5 else set())
            findings = verified(
                written(damaged, tmp_path / "store", set(TOPICS) - forgotten)
            ).findings.kept
            said = {finding.kind for finding in findings if finding.topic == topic} & {
                "queue_behind",
                "unit_missing",
            }
            opened = open_store(damaged, at_ms=now, unknown=forgotten)
            after = opened.store.max_offset(topic, 0)
            if after < expected[topic][1]:
                assert said <= {"unit_missing"}, f"{topic} of {expected}"
            opened.disk.kill()
        found = open_store(image, at_ms=now, unknown=unknown)
        unknown.clear()
    found.disk.kill()
