"""Store directories that go back and forth between our broker and Apache's."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import NamedTuple

from tests.interop.apache import LOOPBACK, NEWEST, NEWEST_4
from tests.interop.patient_apache import PATIENT
from tests.interop.shared_directory import SharedDirectory, Who
from tests.interop.store_ledger import QUEUE_UNITS, SEGMENT, Ledger

SMALL_FILES = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 20 * QUEUE_UNITS,
    "maxMessageSize": SEGMENT - 4096,
    "maxHashSlotNum": 50,
    "maxIndexNum": 120,
    # or Apache's broker, after a kill, forgets the keys of the index file that was not full
    # (store.md, 7)
    "messageIndexSafe": True,
    "diskFreeSpaceMin": 64 << 20,  # ours alone: judge this and not the host's percentage
}


class Kind(NamedTuple):
    """Which Apache, whether it writes the CRC over the whole message as ours does, and the address
    that entries hold."""

    version: str
    with_crc: bool = False
    host: str = LOOPBACK

    def __str__(self) -> str:
        return (
            self.version + ("-crc" if self.with_crc else "") + ("-ipv6" if ":" in self.host else "")
        )


def ipv6_or_4() -> str:
    """A machine without IPv6 still runs everything, and the test's name shows it."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return "::1"
    except OSError:
        return LOOPBACK


KINDS = (Kind(NEWEST), Kind(NEWEST, with_crc=True, host=ipv6_or_4()), Kind(NEWEST_4))


class Hands:
    """One directory and the two brokers that take turns with it."""

    def __init__(self, kind: Kind, directory: Path, **more: str) -> None:
        self.ledger = Ledger(kind.host)
        with_crc = {"enabledAppendPropCRC": True}
        for_both, only_ours = (with_crc, {}) if kind.with_crc else ({}, with_crc)
        settings = {**SMALL_FILES, **PATIENT, **for_both, **more}
        self.shared = SharedDirectory(
            kind.version, directory, settings, only_ours=only_ours, host=kind.host
        )

    def ours(self, end: signal.Signals, *, brim: bool = False, rolled: bool = False) -> None:
        """Our broker's turn: everything is there, more is written, and it is ended by `end`."""
        self._turn("ours", end, brim=brim, rolled=rolled)

    def apache(self, end: signal.Signals, *, brim: bool = False, rolled: bool = False) -> None:
        """Apache's broker's turn."""
        self._turn("apache", end, brim=brim, rolled=rolled)

    def _turn(self, who: Who, end: signal.Signals, *, brim: bool, rolled: bool) -> None:
        async def work(namesrv: str) -> None:
            await self.ledger.check(namesrv, apache=who == "apache", killed=self.shared.killed)
            await self.ledger.write(namesrv)
            if brim or rolled:
                await self.ledger.fill_to_the_brim(namesrv)
            if rolled:
                await self.ledger.begin_the_next_files(namesrv)

        self.shared.turn(who, work, end)

    def index_files(self) -> set[str]:
        return {path.name for path in (self.shared.cluster.store / "index").iterdir()}
