"""`turbopump produce`: what its exit code says of messages that are stored, but perhaps not yet on
the disk."""

import threading
from pathlib import Path

import pytest

from turbopump.cli import main
from turbopump.config.broker_config import FlushDiskType
from turbopump.store import disk
from turbopump.testing import BrokerThread


def test_messages_that_may_not_be_on_the_disk_are_told_and_are_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    released = threading.Event()
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    with BrokerThread(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=20) as broker:
        broker.create_topic("T", 1)
        monkeypatch.setattr(disk, "_fdatasync", lambda _fd: released.wait(60))
        monkeypatch.setattr(disk.KernelSyncs, "start", lambda *_: False)
        with lines.open() as standard_input:
            monkeypatch.setattr("sys.stdin", standard_input)
            code = main(["produce", "T", "--raw", "-n", broker.namesrv])
        released.set()
    shown = capsys.readouterr().err
    assert code == 1
    assert "sent 2 messages to T" in shown
    assert "2 with FLUSH_DISK_TIMEOUT" in shown
