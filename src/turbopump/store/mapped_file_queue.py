"""Row of equally sized mapped files. Together they hold one long run of bytes, such as a commit log
or a consume queue.

Each file is named by the offset of its first byte. The meaning of the bytes is unknown here. A row
may lie in several directories (roots), on several disks. File k goes into root number k mod n, of
the n roots that are not full, as in Apache's ``MultiPathMappedFileQueue``. A thread makes the next
file ahead of need, so that a new file does not stall a send.

Rows with ``open_files`` are sparse (``sparse_files.py``). All other files are allocated whole and
stay mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import cast

from turbopump.disk.disk import Disk, Segment, SparseSegment
from turbopump.errors import StoreDamagedError
from turbopump.store.files import segment_name, segment_offset
from turbopump.store.holes import STEP, data_runs, data_steps, is_all_zeros, kept_open
from turbopump.store.mapped_file import MappedFile
from turbopump.store.sparse_files import OpenFiles, grown


class MappedFileQueue:
    """Row of equally sized files. Together they hold one long run of bytes.

    - ``roots``: directories of the files, each of which has ``file_size`` bytes.
    - ``read_only``: directories whose files are used, and in which no new file is made.
    - ``ahead``: True to keep a spare next file. It lies beside its directory, which may
      contain only complete names. If the directory is a file system of its own, the spare lies
      in it under its final name, as with Apache's broker.
    - ``full_roots``: returns the directories in which no file should be made.
    - ``aligned``: True if the row begins at a multiple of ``file_size``, as Apache's broker
      assumes. An existing unaligned row continues.
    - ``open_files``: mapped files of all sparse rows; None if the files of this row are not
      sparse.
    - ``unit_size``: size in bytes of the units that are written to a sparse row.

    ``load`` raises StoreDamagedError if a file other than the last has another size, or if files do
    not follow each other.
    """

    def __init__(
        self,
        disk: Disk,
        roots: Sequence[Path],
        file_size: int,
        *,
        read_only: Sequence[Path] = (),
        ahead: bool = False,
        aligned: bool = False,
        full_roots: Callable[[], Collection[Path]] = tuple,
        open_files: OpenFiles | None = None,
        unit_size: int = 1,
    ) -> None:
        self._disk = disk
        self._open_files = open_files
        self._unit_size = unit_size
        self.roots: list[Path] = [*dict.fromkeys((*roots, *read_only))]
        self._writable = sorted(root for root in roots if root not in read_only) or sorted(roots)
        self._full_roots = full_roots
        self.file_size = file_size
        self.files: list[MappedFile] = []
        self._ahead = ahead
        self._aligned = aligned
        self._read_ahead = True
        self.spare: Segment | None = None
        self._spare_in_making = False
        self.on_spare: Callable[[], None] | None = None
        """Called when the spare file exists or could not be made.

        If it is None, a needed file is made at once, in the caller's thread.
        """
        self._closed = False

    def load(self) -> None:
        """Open the existing files of the row.

        A short and blank last file is removed, because its creation was interrupted. A short last
        file of the log is filled up with zeros. Raises StoreDamagedError if the files do not belong
        together.
        """
        if self._open_files is not None and self._load_sparse():
            return
        found = self._found()
        for start, path in found:
            size = self._disk.file_size(path) or 0
            is_last = path == found[-1][1]
            if size != self.file_size:
                if is_last and self._is_unfinished(path, size):
                    self._disk.remove(path)
                    continue
                if self._aligned and start % self.file_size and len(found) == 1:
                    raise StoreDamagedError(
                        f"{path} has {size} bytes and begins at {start}, which is no "
                        f"multiple of mappedFileSizeCommitLog={self.file_size}: set it to "
                        "the size that the log was begun with"
                    )
                if not (is_last and self._ahead and size < self.file_size):
                    raise StoreDamagedError(
                        f"{path} has {size} bytes; files here have {self.file_size}: set "
                        "mappedFileSizeCommitLog or mappedFileSizeConsumeQueue to the size the "
                        "store was written with, or move the file away"
                    )
                self._lengthen(path, size)
            elif self.files and self.files[-1].end != start:
                where = ", ".join(map(str, self.roots))
                hint = ": is a directory missing in storePathCommitLog, or a disk not mounted?"
                raise StoreDamagedError(
                    f"{path} does not follow {self.files[-1].segment.path}: a file between them "
                    f"is missing; it was looked for in {where}{hint if self._ahead else ''}"
                )
            if self._open_files is None:
                file = MappedFile(start, self._disk.open_segment(path))
            else:
                file = MappedFile(start, self._disk.open_sparse(path, self.file_size), sparse=True)
            self.files.append(file)

    def _load_sparse(self) -> bool:
        """Load an undamaged row of one directory, in a third of the usual time.

        For any other row, change nothing and return False.
        """
        (root,) = self.roots
        disk = self._disk
        size = self.file_size
        directory = str(root)
        files: list[MappedFile] = []
        for name in disk.list_directory(root):
            start = segment_offset(name)
            if start is None:
                continue
            path = f"{directory}/{name}"
            if disk.file_size(path) != size or (files and files[-1].end != start):
                return False
            files.append(MappedFile(start, disk.open_sparse(path, size), sparse=True))
        self.files = files
        return True

    def read_ahead(self, *, enabled: bool) -> None:
        """Allow or forbid the operating system to read ahead in the files of this row.

        The setting holds for later files too. Reading ahead is allowed by default.
        """
        self._read_ahead = enabled
        for file in self.files:
            file.segment.read_ahead(enabled=enabled)

    def __iter__(self) -> Iterator[MappedFile]:
        return iter(self.files)

    def __bool__(self) -> bool:
        return bool(self.files)

    @property
    def start(self) -> int:
        """Offset of the first byte of the row, or 0 if there is no file."""
        return self.files[0].start if self.files else 0

    def at(self, offset: int) -> MappedFile | None:
        """Return the file with the byte at ``offset``, or None if the row does not contain the
        byte."""
        files = self.files
        if not files:
            return None
        last = files[-1]
        if last.start <= offset < last.end:
            return last
        number = (offset - files[0].start) // self.file_size
        return files[number] if 0 <= number < len(files) else None

    def append_file(self, start: int) -> MappedFile:
        """Add the file that begins at ``start`` to the end of the row.

        The spare file is used if it is ready. Raises OSError, for example on a full disk.
        """
        assert not self.files or self.files[-1].end == start
        if self.spare is not None and self.spare.lost(by_name=True) is not None:
            self._discard_spare()  # the spare file, which is empty, was deleted or cut
        spare = self.spare
        if spare is not None:
            path = self._spare_root / segment_name(start)
            if spare.path != path:
                self._disk.rename_segment(spare, path)
            self.spare = None
        else:
            spare = self._create(start)
        if not self._read_ahead:
            spare.read_ahead(enabled=False)
        file = MappedFile(start, spare, sparse=self._open_files is not None)
        self.files.append(file)
        return file

    def make_room(self, begin: int, end: int) -> MappedFile:
        """Make the range from ``begin`` to ``end`` of a sparse row writable.

        Missing files are made, and the range is allocated and mapped. Return the file with the
        first byte of the range. Raises OSError, for example on a full disk.
        """
        if not self.files:
            self.append_file(begin - begin % self.file_size)
        while self.files[-1].end < end:
            self.append_file(self.files[-1].end)
        first = file = self.at(begin)
        while file is not None and file.start < end:
            self._make_room_in(file, min(end, file.end))
            file = self.at(file.end)
        assert first is not None
        return first

    def room_missing(self, end: int) -> int:
        """Return the most bytes of disk space that ``make_room`` up to ``end`` can need.

        The row must be sparse.
        """
        last = self.files[-1] if self.files else None
        if last is not None and end <= last.room:
            return 0
        start = last.start if last is not None and end <= last.end else end - end % self.file_size
        there = last.room - start if last is not None and last.start == start else 0
        return grown(end - start, self.file_size) - there

    def note_written(self, file: MappedFile) -> None:
        """Record a write to a clean file. The file must be synced later."""
        if self._open_files is None:
            file.dirty = True
        else:
            self._open_files.written(file)

    @property
    def has_spare(self) -> bool:
        """True if the next file exists or is being made. It then needs no more disk space."""
        return self.spare is not None or self._spare_in_making

    @property
    def wait_for_spare(self) -> bool:
        """True if a spare file is being made, and ``on_spare`` will be called afterwards."""
        return self._spare_in_making and self.on_spare is not None

    def prepare_next(self) -> None:
        """Start to make a spare file in a thread.

        The call does nothing if a spare file exists or is being made.
        """
        if not self._ahead or self.spare is not None or self._spare_in_making or not self.files:
            return
        # The root is chosen now, and kept for ``append_file``: a spare file can only be renamed
        # within its file system. A file of the same name may be left from an earlier run.
        self._spare_in_making = True
        start = self.files[-1].end
        self._spare_root = self._root_for(start)
        path = self._beside(self._spare_root) or self._spare_root / segment_name(start)
        made: list[Segment] = []

        def make() -> None:
            self._disk.remove(path)
            made.append(self._disk.create_segment(path, self.file_size))

        def done(error: OSError | None) -> None:
            self._spare_in_making = False
            if error is None and not self._closed:
                self.spare = made[0]
            elif error is None:
                made[0].close()  # after an error the next roll tries again, and reports it
            if self.on_spare is not None and not self._closed:
                self.on_spare()

        self._disk.start(make, done)

    def truncate(self, offset: int) -> None:
        """Cut the row off at ``offset``.

        Files that begin there or later are deleted, except the first file of the row. The rest of
        the file that contains ``offset`` is filled with zeros.
        """
        while self.files and self.files[-1].start >= offset and len(self.files) > 1:
            self._drop(self.files.pop())
        if self.files:
            last = self.files[-1]
            if last.start <= offset < last.end:
                self._zero_rest(last, offset - last.start)

    def remove_last(self) -> None:
        """Delete the newest file of the row."""
        self._drop(self.files.pop())

    def forget_first(self, file: MappedFile | None = None) -> None:
        """Take the oldest file out of the row, after its deletion from the disk.

        With ``file``, the call does so only if this is the oldest file.
        """
        if file is None or self.files[:1] == [file]:
            self._close(self.files.pop(0))

    def dirty_segments(self) -> list[Segment]:
        """Return the segments that were written after the last call. From now on these segments
        count as clean."""
        segments = []
        for file in reversed(self.files):
            if file.dirty:
                file.dirty = False
                segments.append(file.segment)
            elif segments:
                break
        segments.reverse()
        return segments

    def close(self) -> None:
        self._closed = True
        self._discard_spare()
        for file in self.files:
            self._close(file)
        self.files.clear()

    def remove_all(self) -> None:
        """Close and delete every file of the row, and delete its directories if they are then
        empty."""
        self._closed = True
        self._discard_spare()
        while self.files:
            self._drop(self.files.pop())
        for root in self.roots:
            for name in self._disk.list_directory(root):
                if segment_offset(name) is not None:  # a row that could not be loaded
                    self._disk.remove(root / name)
            if not self._disk.list_directory(root):
                self._disk.remove(root)

    def emptied(self) -> MappedFileQueue:
        """Return a row with the settings of this row, but without files."""
        return MappedFileQueue(
            self._disk,
            self.roots,
            self.file_size,
            ahead=self._ahead,
            aligned=self._aligned,
            open_files=self._open_files,
            unit_size=self._unit_size,
        )

    def _found(self) -> list[tuple[int, Path]]:
        """Return offset and path of every existing file, ordered by offset.

        Raises StoreDamagedError for an offset with two files.
        """
        found: dict[int, Path] = {}
        for root in self.roots:
            for name in self._disk.list_directory(root):
                start = segment_offset(name)
                if start is None:
                    continue
                if start in found:
                    raise StoreDamagedError(
                        f"{found[start]} and {root / name} are the same part of the log: move "
                        "the one that is an old copy away"
                    )
                found[start] = root / name
        return sorted(found.items())

    def _root_for(self, start: int) -> Path:
        """Return the directory for the file that begins at ``start``."""
        full = self._full_roots()
        roots = [root for root in self._writable if root not in full] or self._writable
        return roots[start // self.file_size % len(roots)]

    def _create(self, start: int) -> Segment:
        """Make a file in its directory, or in another directory if there is no space.

        If no directory has space, the error of the first one is raised.
        """
        first = self._root_for(start)
        if not self._ahead:
            self._disk.make_directory(first)
        failure: OSError | None = None
        sparse = self._open_files is not None
        create = self._disk.create_sparse if sparse else self._disk.create_segment
        for root in (first, *(root for root in self._writable if root != first)):
            try:
                return create(root / segment_name(start), self.file_size)
            except OSError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _beside(self, root: Path) -> Path | None:
        """Return a path beside a directory, for a file that is not yet part of the row.

        Return None if that path would be on another disk.
        """
        if not self._disk.same_file_system(root, root.parent):
            return None
        return root.with_name(root.name + ".spare")

    def _is_unfinished(self, path: Path, size: int) -> bool:
        """Return True if the creation of this file was interrupted. Such a file is short and
        contains only zeros."""
        if not 0 < size < self.file_size:
            return size == 0
        segment = self._disk.open_segment(path)
        try:
            return all(is_all_zeros(segment.read(at, STEP)) for at in range(0, size, STEP))
        finally:
            segment.close()

    def _lengthen(self, path: Path, size: int) -> None:
        """Replace a file that is too short by a copy of full size, filled up with zeros."""
        # The copy gets the final name only after it is synced. A crash before that leaves the short
        # file, and the next start copies it again. The original is never written.
        spare = self._beside(path.parent) or path.with_name(path.name + ".whole")
        self._disk.remove(spare)
        whole = self._disk.create_segment(spare, self.file_size)
        short = self._disk.open_segment(path)
        for at in range(0, size, STEP):
            piece = short.read_cold(at, min(STEP, size - at))
            whole.buffer[at : at + len(piece)] = piece
        short.close()
        whole.sync()
        self._disk.rename_segment(whole, path)
        whole.close()

    def _make_room_in(self, file: MappedFile, end: int) -> None:
        assert self._open_files is not None
        if file.buffer is None:
            self._open_files.map(file)
        if end > file.room:
            # Earlier bytes were written and have their blocks, unless the file was damaged. Mapping
            # the file makes sure of that.
            at = file.room - file.start
            goal = grown(end - file.start, file.segment.size)
            cast(SparseSegment, file.segment).allocate(at, goal - at)
            file.room = file.start + goal - goal % self._unit_size

    def _zero_rest(self, file: MappedFile, at: int) -> None:
        """Overwrite the bytes from ``at`` to the end of the file with zeros.

        Holes are left alone. The call examines the file without its map, because reading a whole
        segment through the map would fill the memory.
        """
        if self._open_files is None:
            for start in data_steps(file.segment, at):
                piece = min(STEP, file.segment.size - start)
                if not is_all_zeros(file.segment.read_cold(start, piece)):
                    file.buffer[start : start + piece] = bytes(piece)
            file.dirty = True
            return
        with kept_open(file.segment):
            for start, end in data_runs(file.segment, at):
                if not is_all_zeros(file.segment.read_cold(start, end - start)):
                    if file.buffer is None:
                        self._open_files.map(file)
                    file.buffer[start:end] = bytes(end - start)
                    if not file.dirty:
                        self._open_files.written(file)

    def _close(self, file: MappedFile) -> None:
        if self._open_files is None:
            file.segment.close()
        else:
            self._open_files.close(file)

    def _drop(self, file: MappedFile) -> None:
        self._close(file)
        self._disk.remove(file.segment.path)

    def _discard_spare(self) -> None:
        if self.spare is not None:
            self.spare.close()
            self._disk.remove(self.spare.path)
            self.spare = None
