"""Which messages a replica shows to readers when it has just started."""

from pathlib import Path

import pytest
from tests.unit.store.directory import Directory, put


@pytest.mark.parametrize(("was_replica", "shown"), [(False, 1), (True, 0)])
def test_a_replica_without_a_checkpoint_shows_no_message_that_it_wrote_as_one(
    tmp_path: Path, was_replica: bool, shown: int
) -> None:
    """It was killed before its first checkpoint. What no controller has managed before, all have
    seen."""
    store = Directory(tmp_path).open()
    put(store, b"x")
    store.close()
    directory = Directory(tmp_path, is_replica=True)
    if was_replica:
        directory.paths.epochs.write_bytes(b"1\n0\n1-0\n")
    replica = directory.open()
    assert replica.max_offset("T", 0) == shown
    replica.close()
