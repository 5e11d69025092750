"""Which entries must carry a whole-entry CRC: those that Turbopump wrote (``store/provenance.py`` remembers which)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from turbopump.store.disk import Disk
from turbopump.store.files import StorePaths
from turbopump.store.inspection.tables import RunState
from turbopump.store.provenance import Provenance
from turbopump.store.read_only_disk import ReadOnlyDisk


def crc_rule(disk: ReadOnlyDisk, paths: StorePaths, state: RunState) -> Callable[[int], bool] | None:
    """Whether the entry at an offset of the log was written with a CRC, so that its absence is damage. None: none is known to be ours."""
    if disk.file_size(paths.provenance) is None:
        return None
    provenance = Provenance(cast(Disk, disk), paths.provenance)  # ``load`` only reads
    provenance.load(crashed_here=state.abort and state.ours, clean=not state.abort)
    return provenance.requires_crc
