"""Verdicts of the bench of many topics, without its speeds."""

from pathlib import Path

import pytest

from bench.brokers import APACHE
from bench.many_topics import (
    LOADS,
    Figures,
    Held,
    limited,
    memory_rows,
    restart_rows,
    send_rows,
    write_topics,
)
from bench.memory import MIB


def figures(*cpu_us: float, disk_mib: int = 300, descriptors: int = 26) -> Figures:
    cpu = {load: [each] for load, each in zip(LOADS, cpu_us, strict=False)}
    return Figures(disk=disk_mib * MIB, descriptors=descriptors, cpu=cpu)


def verdicts(rows: list[tuple[str, ...]]) -> list[str]:
    return [row[-1] for row in rows]


@pytest.mark.parametrize(
    ("among", "missed"),
    [
        (figures(0, 11.4, 12.9, 19.9), []),
        (figures(0, 11.6, 12.9, 19.9), [0]),
        (figures(0, 11.4, 13.1, 19.9), [1]),
        (figures(0, 11.4, 12.9, 20.1), [2]),
        (figures(0, 11.4, 12.9, 19.9, disk_mib=1025), [3]),
        (figures(0, 11.4, 12.9, 19.9, descriptors=1001), [4]),
    ],
)
def test_sends_to_many_topics_are_judged_by_those_to_one(among: Figures, missed: list[int]) -> None:
    found = verdicts(send_rows(figures(10.0), among))
    assert [number for number, one in enumerate(found) if one != "reached"] == missed


def test_apaches_figures_stand_beside_ours_without_a_goal() -> None:
    rows = send_rows(figures(10.0), figures(0, 50, 50, 50), APACHE)
    assert [row[0].startswith("apache: ") for row in rows] == [True] * 5
    assert {row[2:] for row in rows} == {("", "")}


@pytest.mark.parametrize(
    ("after_mib", "last_mib", "descriptors", "missed"),
    [(51, 53, 30, []), (52, 53, 30, [0]), (51, 55, 30, [1]), (51, 53, 39, [2])],
)
def test_memory_and_descriptors_are_judged_at_the_end_too(
    after_mib: int, last_mib: int, descriptors: int, missed: list[int]
) -> None:
    """Files of the log have a descriptor each."""
    before, after = Held(50 * MIB, 20, 1), Held(after_mib * MIB, 21, 2)
    last = Held(last_mib * MIB, descriptors, 11)
    found = verdicts(memory_rows(before, after, last, messages=1_000_000, sent=2_000_000))
    assert [number for number, one in enumerate(found) if one != "reached"] == missed


def test_restarts_are_judged_by_their_median_pair() -> None:
    ours = Figures(stopped=[1.0, 9.0, 2.0], killed=[2.0, 2.0, 2.0])
    theirs = Figures(stopped=[2.0, 2.0, 2.0], killed=[1.0, 1.0, 1.0])
    assert verdicts(restart_rows(ours, theirs, "Apache's", 1.0)) == ["reached", "MISSED"]


def test_each_broker_begins_with_the_same_table_of_topics(tmp_path: Path) -> None:
    for name in ("one", "another"):
        write_topics(tmp_path / name, 3)
    one, another = (
        (tmp_path / name / "config" / "topics.json").read_text() for name in ("one", "another")
    )
    assert one == another
    assert one.count('"topicName"') == 4


def test_a_broker_may_be_given_few_descriptors() -> None:
    assert limited(0) == ()
    assert limited(1024)[-1] == "1024"
