"""The messages of timers in the commit log: read beside the loop, checked, and told what they are
to the timers.

One rule: what cannot be delivered is a sentence in its place, and stops no other. It must not know
slots.
"""

from __future__ import annotations

from typing import Final

from turbopump.broker.asking import read_pieces
from turbopump.broker.schedule.timer_copies import TimerMessage, timer_message
from turbopump.errors import StoredMessageError
from turbopump.message.codec import decode_entry, entry_fault
from turbopump.message.message import ReceivedMessage
from turbopump.store.disk import Piece
from turbopump.store.message_store import MessageStore

READ_ATTEMPTS: Final = 3
"""How often a message that the disk does not give is asked for, a pause between, before it is
passed over."""


class TimerReading:
    """``precision``: of the slots, ms."""

    def __init__(self, store: MessageStore, precision: int) -> None:
        self._store = store
        self._precision = precision
        self._unread: dict[int, int] = {}

    async def read(self, places: list[tuple[int, int]]) -> dict[int, TimerMessage | str]:
        """The messages at (offset, size), by offset; or why one cannot be delivered. Raises OSError
        if the disk does not give one now."""
        found: dict[int, TimerMessage | str] = {}
        pieces: list[Piece] = []
        wanted: list[int] = []
        for offset, size in places:
            file = self._store.log.files.at(offset)
            if file is None or offset + size > file.end:
                found[offset] = "it is not in the log any more"
            else:
                wanted.append(offset)
                pieces.append(Piece(file.segment, offset - file.start, size))
        datas = await read_pieces(self._store.cold_reads, pieces)
        for offset, data in zip(wanted, datas, strict=True):
            if isinstance(data, OSError):
                attempts = self._unread[offset] = self._unread.get(offset, 0) + 1
                if attempts < READ_ATTEMPTS:
                    raise data
                found[offset] = f"the disk does not give it: {data.strerror or data}"
            else:
                found[offset] = self._decode(offset, data)
            self._unread.pop(offset, None)
        return found

    def _decode(self, offset: int, data: bytes) -> TimerMessage | str:
        fault = entry_fault(data, offset, crc_required=self._store.log.requires_crc(offset))
        if fault is not None:
            return fault
        try:
            message: ReceivedMessage = decode_entry(data, check_crc=False)
            return timer_message(message, self._precision)
        except StoredMessageError as error:
            return str(error)
