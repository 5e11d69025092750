"""Tests may leave stores open: no descriptor outlives its test."""

from pathlib import Path

from tests.file_descriptors import open_count
from tests.unit.store.directory import Directory, bodies, put
from tests.unit.store.left_open import letting_go


def test_a_store_that_is_left_open_is_let_go_as_if_it_were_killed(tmp_path: Path) -> None:
    directory, before = Directory(tmp_path / "store"), open_count()
    with letting_go():
        store = directory.open()
        put(store, b"kept")
        assert open_count() > before
    assert open_count() == before
    again = directory.open()
    assert again.recovery is not None
    assert not again.recovery.clean
    assert bodies(again) == [b"kept"]


def test_a_file_that_somebody_still_reads_is_let_go_too(tmp_path: Path) -> None:
    directory, before = Directory(tmp_path / "store"), open_count()
    with letting_go():
        store = directory.open()
        put(store, b"kept")
        for file in store.log.files:
            file.segment.hold()
    assert open_count() == before
