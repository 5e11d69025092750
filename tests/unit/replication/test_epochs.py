"""Epochs of a log: how a list grows, what two lists have in common, and the file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stand_ins import raises

from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import ProtocolError
from turbopump.replication.epochs import (
    NO_COMMON_POINT,
    Epoch,
    EpochFile,
    EpochList,
    common_point,
    decode,
    encode,
    list_of,
    read_epochs,
)


def epochs(*found: tuple[int, int]) -> EpochList:
    return list_of(found)


def test_a_list_grows_by_higher_epochs() -> None:
    assert EpochList().append(1, 0).append(4, 500) == epochs((1, 0), (4, 500))
    with pytest.raises(ValueError, match="epoch 4 does not follow epoch 4"):
        epochs((4, 500)).append(4, 700)


def test_an_epoch_without_a_message_is_replaced_so_that_the_next_one_keeps_its_number() -> None:
    assert epochs((1, 0), (2, 500)).append(3, 500) == epochs((1, 0), (3, 500))
    assert epochs((1, 0)).append(2, 0) == epochs((2, 0))


def test_a_cut_log_keeps_the_epochs_that_begin_up_to_its_end() -> None:
    assert epochs((1, 0), (2, 500), (3, 501)).cut_to(500) == epochs((1, 0), (2, 500))


def test_epochs_whose_last_byte_was_deleted_are_dropped() -> None:
    assert epochs((1, 0), (2, 500), (3, 700)).without_before(500) == epochs((2, 500), (3, 700))
    assert epochs((1, 0), (2, 500)).without_before(499) == epochs((1, 0), (2, 500))


def test_each_byte_belongs_to_one_epoch() -> None:
    known = epochs((1, 100), (3, 500))
    assert known.at(99) is None
    assert known.at(100) == known.at(499) == Epoch(1, 100)
    assert known.at(500) == Epoch(3, 500)
    assert (known.end_of(1, 900), known.end_of(3, 900)) == (500, 900)


@pytest.mark.parametrize(
    ("own", "own_end", "master", "master_end", "point"),
    [
        (((1, 0),), 80, ((1, 0),), 100, 80),
        (((1, 0),), 100, ((1, 0), (2, 90)), 200, 90),  # it wrote on after its end as master
        (((1, 0), (2, 50)), 70, ((1, 0), (3, 60)), 200, 50),
        (((1, 0), (2, 50)), 70, ((1, 0), (2, 50), (3, 60)), 200, 60),
        (((1, 0), (2, 50), (3, 60)), 70, ((1, 0), (4, 55)), 200, 50),
        (((2, 50),), 70, ((2, 51),), 200, NO_COMMON_POINT),
        (((2, 50),), 70, (), 0, NO_COMMON_POINT),
        ((), 0, ((2, 50),), 100, NO_COMMON_POINT),
    ],
)
def test_two_logs_are_the_same_up_to_the_smaller_end_of_their_newest_common_epoch(
    own: tuple[tuple[int, int], ...],
    own_end: int,
    master: tuple[tuple[int, int], ...],
    master_end: int,
    point: int,
) -> None:
    assert common_point(list_of(own), own_end, list_of(master), master_end) == point
    assert common_point(list_of(master), master_end, list_of(own), own_end) == point


def test_a_message_that_only_the_old_master_had_is_cut_after_two_elections_without_messages() -> (
    None
):
    """Master A of epoch 2 wrote 100 to 150, for itself. B became the master at 100, too."""
    shared = epochs((1, 0), (2, 100))
    new = shared.append(3, 100)
    assert common_point(shared, 150, new, 170) == 100


@given(data=st.data())
def test_logs_that_were_written_by_masters_agree_before_their_common_point(
    data: st.DataObject,
) -> None:
    """Replicas take turns as the master, copy a part, and lose their tails with the power."""
    logs = [list[str](), list[str](), list[str]()]
    lists = [EpochList(), EpochList(), EpochList()]
    epoch = 0
    for _ in range(data.draw(st.integers(1, 10))):
        master = data.draw(st.integers(0, 2))
        epoch += 1
        lists[master] = lists[master].append(epoch, len(logs[master]))
        written = data.draw(st.integers(0, 3))
        logs[master] += [f"{epoch}.{number}" for number in range(written)]
        for slave in {0, 1, 2} - {master}:
            if not data.draw(st.booleans()):
                continue
            end = len(logs[slave])
            point = common_point(lists[slave], end, lists[master], len(logs[master]))
            if point == NO_COMMON_POINT:
                point = 0  # the operator empties the store
            assert logs[slave][:point] == logs[master][:point]
            del logs[slave][point:]
            lists[slave] = lists[master]  # also the epochs that it does not reach yet
            copied = data.draw(st.integers(point, len(logs[master])))
            logs[slave] += logs[master][point:copied]
        for one in range(3):
            if data.draw(st.booleans()):  # it is opened again, perhaps after a power cut
                del logs[one][data.draw(st.integers(0, len(logs[one]))) :]
                lists[one] = lists[one].cut_to(len(logs[one]))


def test_the_file_is_apaches_text(tmp_path: Path) -> None:
    data = encode(epochs((7, 7000), (8, 8000)))
    assert data == b"2\n773307083\n7-7000\n8-8000\n"  # as in Apache's CheckpointFile
    assert decode(data) == decode(b"2\n0\n7-7000\n8-8000\n") == epochs((7, 7000), (8, 8000))


@pytest.mark.parametrize(
    "data",
    [b"", b"2\n", b"1\n5\n7-7000\n", b"2\n0\n7-7000\n", b"1\n0\nseven\n", b"2\n0\n8-1\n7-2\n"],
)
def test_a_damaged_file_is_noticed(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


def file_of(directory: Path, *, start: int = 0, end: int = 10_000) -> EpochFile:
    return EpochFile(SystemDisk(), directory / "epochFileCheckpoint", start, end)


def test_a_damaged_or_missing_file_is_read_from_its_copy_which_is_not_older(tmp_path: Path) -> None:
    file_of(tmp_path).save_now(epochs((1, 0)))
    file_of(tmp_path).save_now(epochs((1, 0), (2, 500)))
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(b"2\n7")
    assert file_of(tmp_path).epochs == epochs((1, 0), (2, 500))
    path.unlink()
    assert read_epochs(SystemDisk(), path) == epochs((1, 0), (2, 500))


def test_epochs_outside_the_log_are_dropped_when_it_opens(tmp_path: Path) -> None:
    file_of(tmp_path).save_now(epochs((1, 0), (2, 500), (3, 900)))
    assert file_of(tmp_path, start=500, end=800).epochs == epochs((2, 500))


def test_a_slave_that_is_behind_has_reached_fewer_epochs(tmp_path: Path) -> None:
    one = file_of(tmp_path)
    one.save_now(epochs((1, 0), (2, 500), (3, 900)))
    assert one.reached(500).last_epoch == 2
    assert one.reached(499) == epochs((1, 0))


def test_a_list_that_cannot_be_saved_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = list[OSError | None]()
    one = file_of(tmp_path)
    one.save(epochs((1, 0)), outcomes.append)
    assert one.epochs == epochs((1, 0))
    monkeypatch.setattr(SystemDisk, "replace_file", raises(OSError("full")))
    one.save(epochs((2, 0)), outcomes.append)
    assert [str(error) for error in outcomes] == ["None", "full"]
    assert (
        one.epochs == read_epochs(SystemDisk(), tmp_path / "epochFileCheckpoint") == epochs((1, 0))
    )
