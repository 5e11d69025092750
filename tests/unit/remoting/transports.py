"""Transports without a network: one that keeps what is written, and one whose peer reads when the
test says so."""

from __future__ import annotations

import asyncio

from turbopump.protocol.command import Command, decode_command
from turbopump.protocol.frame import FrameReader


class KeptTransport(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = bytearray()

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


class SlowTransport(asyncio.Transport):
    """The peer reads what is written as long as it is ``reading``; then the system takes ``room``
    bytes more. ``answers`` are those that it has read."""

    def __init__(self, protocol: asyncio.Protocol, *, room: int = 0, port: int = 1) -> None:
        super().__init__({"peername": ("127.0.0.1", port)})
        self.reading = False
        self.room = room
        self.writes: list[int] = []
        self.waiting = bytearray()
        self.is_paused = False
        self.aborted = False
        self.answers: list[Command] = []
        self._frames = FrameReader()
        self._writing_paused = False
        self._protocol = protocol
        protocol.connection_made(self)

    def read(self, size: int | None = None) -> None:
        """The peer reads so many bytes of what waits, or all of it."""
        end = len(self.waiting) if size is None else size
        self._deliver(bytes(self.waiting[:end]))
        del self.waiting[:end]
        if not self.waiting and self._writing_paused:
            self._writing_paused = False
            self._protocol.resume_writing()

    def lose(self) -> None:
        """The connection ends."""
        self._protocol.connection_lost(None)

    def _deliver(self, data: bytes) -> None:
        self.answers += [decode_command(one) for one in self._frames.feed(data)]

    def write(self, data: bytes) -> None:  # type: ignore[override]
        assert not self.aborted
        self.writes.append(len(data))
        at_once = 0 if self.waiting else len(data) if self.reading else min(self.room, len(data))
        self.room -= 0 if self.reading else at_once
        self._deliver(data[:at_once])
        self.waiting += data[at_once:]
        if self.waiting and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0, "a server wants to know as soon as anything waits"

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.aborted

    def close(self) -> None:
        self.aborted = True

    def abort(self) -> None:
        self.aborted = True
        self.waiting.clear()
