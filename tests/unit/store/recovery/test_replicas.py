"""Recovery of a replica: what its log must not have is copied again from its master."""

from pathlib import Path

from tests.unit.store.directory import Directory, bodies, put

from turbopump.message.entry import CRC_SUFFIX_SIZE


def killed_after_the_flush(tmp_path: Path) -> tuple[Directory, list[int]]:
    """A store of three messages, all on the disk by its checkpoint; and where each ends."""
    directory = Directory(tmp_path / "store", is_replica=True, with_crc=True)
    store = directory.open()
    ends = [put(store, b"%d" % number, tag="t").log_end for number in range(3)]
    store.flusher.flush_all_now()
    return directory.copy(tmp_path / "killed"), ends


def test_an_entry_whose_end_was_cut_off_with_its_file_is_no_entry(tmp_path: Path) -> None:
    """Without the CRC at its end it looks like one of a broker that writes none."""
    directory, ends = killed_after_the_flush(tmp_path)
    segment = directory.paths.commit_log / "00000000000000000000"
    with segment.open("r+b") as file:
        file.truncate(ends[2] - CRC_SUFFIX_SIZE)
    provenance = directory.paths.provenance  # as at a slave, whose entries need no CRC
    provenance.write_text(provenance.read_text().replace("[[0, null]]", "[]"))
    store = directory.open()
    assert store.log.end == ends[1]
    store.confirmed.note_replicas(ends[1], sole=True)
    assert bodies(store) == [b"0", b"1"]
