"""What the transcripts of the roles are written with: the bytes of both sides."""

from turbopump.replication.master import LogSpan, MasterSettings, SlaveConnection
from turbopump.replication.stream import REPORT, TRANSFER_HEAD

SEGMENT = 1000


def report(*offsets: int) -> bytes:
    """What a slave says."""
    return b"".join(map(REPORT.pack, offsets))


def frame(offset: int, data: bytes = b"") -> bytes:
    """What a master says; without data a heartbeat."""
    return TRANSFER_HEAD.pack(offset, len(data)) + data


def span(end: int, start: int = 0, written: int | None = None) -> LogSpan:
    """What the master's log has."""
    return LogSpan(start, end, end if written is None else written, SEGMENT)


def connected(slave: str = "10.0.0.2", now: float = 0.0, **settings: object) -> SlaveConnection:
    """A slave has connected and said nothing yet."""
    return SlaveConnection(MasterSettings(**settings), slave, now)  # type: ignore[arg-type]
