"""What broke in other stores (docs/explanations/durability.md): every row names tests that exist;
those without a home elsewhere are here."""

import re
from pathlib import Path
from zlib import crc32

import pytest
from tests.unit.store.directory import HOST, Directory, bodies

from turbopump.disk.system_disk import SystemDisk
from turbopump.message.entry import CRC_SUFFIX_SIZE
from turbopump.store.message_store import MessageStore, NewMessage

ROOT = Path(__file__).parents[3]
TABLE = (
    (ROOT / "docs" / "explanations" / "durability.md")
    .read_text()
    .partition("## What broke elsewhere")[2]
)
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and "::" in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_tests_that_exist(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
    assert named
    for path, name in named:
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (
            f"{path} has no {name}"
        )


def test_every_row_is_read() -> None:
    assert len(ROWS) >= 18


def put_with_flag(store: MessageStore, body: bytes, flag: int) -> int:
    """The offset behind the message."""
    message = NewMessage(body, b"", 0, flag)
    return store.put(
        "T", 0, message, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST
    ).log_end


def crc(entry: bytes, flag: int) -> int:
    return crc32(entry[:16] + flag.to_bytes(4) + entry[20:])


def flag_for_crc_zero(entry: bytes) -> int:
    """The flag with which this entry's CRC is 0: a CRC is linear, so the 32 bits of the flag are 32
    unknowns (Gauss)."""

    base = crc(entry, 0)
    rows: dict[int, tuple[int, int]] = {}  # highest bit of the CRC change to (change, flag bits)
    for bit in range(32):
        change, flags = crc(entry, 1 << bit) ^ base, 1 << bit
        while change and (top := change.bit_length()) in rows:
            change, flags = change ^ rows[top][0], flags ^ rows[top][1]
        if change:
            rows[change.bit_length()] = change, flags
    solution = 0
    for top in range(32, 0, -1):
        if base >> (top - 1) & 1:
            base, solution = base ^ rows[top][0], solution ^ rows[top][1]
    assert crc(entry, solution) == 0
    return solution


def test_a_crc_that_is_zero_is_a_crc_and_not_its_absence(tmp_path: Path) -> None:
    """R#9121: good data was truncated."""
    body = bytes.fromhex("9d0ad96d")
    assert crc32(body) == 0
    trial = Directory(tmp_path / "trial", with_crc=True)
    store = trial.open()
    end = put_with_flag(store, body, 0)
    store.close()
    entry = (trial.paths.commit_log / f"{0:020d}").read_bytes()[: end - CRC_SUFFIX_SIZE]
    flag = flag_for_crc_zero(entry)

    directory = Directory(tmp_path / "store", with_crc=True)
    store = directory.open()
    assert put_with_flag(store, body, flag - (1 << 32) if flag >= 1 << 31 else flag) == end
    put_with_flag(store, b"after", 0)
    twin = directory.copy(tmp_path / "killed")
    store.close()
    assert (twin.paths.commit_log / f"{0:020d}").read_bytes()[end - 11 : end] == b"0000000000\x02"
    found = twin.open()
    assert found.recovery is not None
    assert (found.recovery.damages, found.recovery.torn) == ((), None)
    assert bodies(found) == [body, b"after"]
    found.close()


def test_a_segment_has_all_its_blocks_before_it_is_mapped(tmp_path: Path) -> None:
    """R#3511: a page of a hole on a full disk is SIGBUS, which ends the process."""
    segment = SystemDisk().create_segment(tmp_path / "a", 1 << 20)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 1 << 20
    segment.close()
