"""Digest of a range of the log, for the comparison of two logs (``comparison.py``)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from turbopump.disk.disk import Disk, Piece, read_now
from turbopump.replication.comparison import Range
from turbopump.store.log.commit_log import CommitLog


def start_digest(
    log_: CommitLog, disk: Disk, wanted: Range, done: Callable[[bytes | OSError], None]
) -> None:
    """Compute the digest of a range of the log in a thread. Call ``done`` with the digest or an
    error.

    The digest is SHA-256. The range may span several files.
    """
    pieces = list[Piece]()
    offset, end = wanted.offset, wanted.offset + wanted.size
    while offset < end:
        file = log_.files.at(offset)
        if file is None:
            done(OSError(f"the file of the log at offset {offset} was deleted meanwhile"))
            return
        size = min(end, file.end) - offset
        pieces.append(Piece(file.segment, offset - file.start, size))
        offset += size
    digest = hashlib.sha256()

    def read() -> None:
        for piece in pieces:
            found = read_now(piece)
            if isinstance(found, OSError):
                raise found
            digest.update(found)

    def has_read(error: OSError | None) -> None:
        for piece in pieces:
            piece.segment.release()
        done(digest.digest() if error is None else error)

    for piece in pieces:
        piece.segment.hold(reading=True)
    disk.start(read, has_read)
