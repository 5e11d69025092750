"""What Turbopump noted of a store (``store/provenance.py``): which entries must carry a whole-entry
CRC, which index files there were, and where the log lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from turbopump.store.disk import Disk
from turbopump.store.files import StorePaths
from turbopump.store.provenance import Provenance
from turbopump.store.read_only_disk import ReadOnlyDisk

if TYPE_CHECKING:
    from turbopump.store.inspection.tables import RunState


def crc_rule(
    disk: ReadOnlyDisk, paths: StorePaths, state: RunState
) -> Callable[[int], bool] | None:
    """Whether the entry at an offset of the log was written with a CRC, so that its absence is
    damage. None: none is known to be ours."""
    if disk.file_size(paths.provenance) is None:
        return None
    provenance = Provenance(cast(Disk, disk), paths.provenance)  # ``load`` only reads
    provenance.load(crashed_here=state.ours, clean=not state.unfinished)
    return provenance.requires_crc


def index_names(disk: ReadOnlyDisk, paths: StorePaths) -> set[str] | None:
    """The index files of our last run; None if that is not known."""
    provenance = Provenance(cast(Disk, disk), paths.provenance)
    provenance.load(crashed_here=True, clean=False)
    return set(provenance.index_names) if provenance.index_names is not None else None


def noted_roots(disk: ReadOnlyDisk, paths: StorePaths) -> dict[Path, int]:
    """The directories of the log when that was last noted, each with the offset of its newest
    segment."""
    roots = Provenance(cast(Disk, disk), paths.provenance).read_roots()
    return {Path(root): start for root, start in roots.items()}
