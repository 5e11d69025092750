"""What runs beside the loop does not run behind other things that do."""

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from turbopump.disk.json_table import JsonTable
from turbopump.disk.system_disk import SystemDisk


class SlowTables(SystemDisk):
    """A disk on which a saved table does not get ready before `gate` opens."""

    def __init__(self) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.gate = threading.Event()
        super().__init__(self.posted.put)

    def replace_file(self, path: Path, data: bytes) -> None:
        self.gate.wait(30)
        super().replace_file(path, data)


@pytest.mark.parametrize("tables", [1, 5])
def test_a_sync_of_the_log_does_not_wait_for_tables_that_are_being_saved(
    tmp_path: Path, tables: int
) -> None:
    disk = SlowTables()
    segment = disk.create_segment(tmp_path / "log", 4096)
    for number in range(tables):
        table = JsonTable(disk, tmp_path / f"{number}.json", print)
        table.load(bytes, bytes)
        table.save(b"{}")
    told: list[OSError | None] = []
    disk.start_sync([segment], told.append)
    disk.posted.get(timeout=10)()
    assert told == [None]
    disk.gate.set()
    disk.close()
    assert len(list(tmp_path.glob("*.json"))) == tables
    segment.close()
