"""`turbopump store`: what it prints, and the exit code that tells clean from damaged from
unreadable."""

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from tests.unit.store.inspected import changed, flip, numbered_store

from turbopump.cli import main
from turbopump.cli.json_lines import read_message
from turbopump.store.inspection import KINDS

COUNT = 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return numbered_store(tmp_path / "store", COUNT).paths.root


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def objects(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines(capsys)]


def first_segment(root: Path) -> Path:
    return root / "commitlog" / ("0" * 20)


def test_a_clean_store_is_verified_with_exit_code_zero(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "verify", str(root)]) == 0
    shown = lines(capsys)
    assert shown[-1] == "clean"
    assert f"{COUNT} messages" in shown[-2]


def test_damage_is_told_by_place_and_by_exit_code_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with changed(first_segment(root), flip(60)):
        assert main(["store", "verify", str(root)]) == 1
        shown = lines(capsys)
        assert shown[0].startswith("damage log_damaged: commitlog/00000000000000000000 offset 0–")
        assert shown[-1] == "damaged: 5 faults"
        assert main(["store", "verify", "--output", "json", "--findings", "1", str(root)]) == 1
        (report,) = objects(capsys)
    assert report["clean"] is False
    assert report["counts"] == {"log_damaged": 1, "index_wrong": 3, "unit_wrong": 1}
    assert report["not_shown"] == 4
    (finding,) = report["findings"]  # type: ignore[misc]
    assert finding["kind"] == "log_damaged"
    assert (finding["file"], finding["offset"]) == ("commitlog/00000000000000000000", 0)


def test_a_store_is_inspected_as_text_and_as_json(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{}}}')
    assert main(["store", "inspect", str(root)]) == 0
    text = "\n".join(" ".join(line.split()) for line in lines(capsys))
    for part in (
        "TOPIC QUEUE FIRST END FILES",
        "T 1 0 15 ",
        "topics.json 29 B 1",
        "abort file none",
        "lock free",
        "2023-11-14T22:13:20.000Z",
    ):
        assert part in text
    assert main(["store", "inspect", "--output", "json", str(root)]) == 0
    (summary,) = objects(capsys)
    assert [
        (queue["topic"], queue["queue_id"], queue["max_index"]) for queue in summary["queues"]
    ] == [  # type: ignore[attr-defined]
        ("T", 0, 15),
        ("T", 1, 15),
    ]


def test_a_running_broker_is_noticed(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = numbered_store(tmp_path / "other", 5)
    store = directory.open()
    try:
        assert main(["store", "inspect", str(directory.paths.root)]) == 0
        assert main(["store", "verify", str(directory.paths.root)]) == 0
        out, err = capsys.readouterr()
        # a message that is just being written: its first bytes are there
        with changed(first_segment(directory.paths.root), flip(store.log.end + 3)):
            assert main(["store", "inspect", str(directory.paths.root)]) == 0
            assert main(["store", "verify", str(directory.paths.root)]) == 0
            assert main(["store", "dump", str(directory.paths.root)]) == 0
    finally:
        store.close()
    notice = "notice running: lock: a broker has the store open"
    assert sum(line.startswith(notice) for line in out.splitlines()) == 2
    assert out.splitlines()[-1] == "clean"
    assert err == ""
    assert capsys.readouterr().err.startswith(notice)


@pytest.mark.parametrize("action", ["inspect", "verify", "dump"])
def test_a_wrong_directory_is_one_sentence_and_exit_code_two(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", action, str(tmp_path / "none")]) == 2
    assert main(["store", action, str(tmp_path)]) == 2
    assert main(["store", action]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[0] == f"turbopump: {tmp_path / 'none'} is not a directory"
    assert "is no store directory" in said[1]


def test_messages_are_dumped_as_lines_that_produce_reads_back(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "dump", str(root)]) == 0
    shown = lines(capsys)
    assert [json.loads(line)["body"] for line in shown] == [
        f"body-{number}" for number in range(COUNT)
    ]
    message = read_message(shown[7].encode(), "T", number=1).message
    assert (message.body, message.tags, message.keys) == (b"body-7", "tag1", ["k7", "both"])


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["--topic", "T", "--queue", "1", "--from", "12"], [25, 27, 29]),
        (["--topic", "T", "--from", "14"], [28, 29]),
        (["--queue", "0", "--count", "2"], [0, 2]),
        (["--keys", "k7", "--keys", "ID000011"], [7, 11]),
        (["--keys", "both", "--queue", "1", "--count", "1"], [1]),
        (["--keys", "ot"], []),
        (["--topic", "T", "--queue", "7"], []),
        (["--from", "1", "--count", "1"], [1]),
        (["--from", "99999999"], []),
    ],
)
def test_messages_are_picked_by_topic_queue_place_and_key(
    root: Path, arguments: list[str], numbers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["store", "dump", str(root), *arguments])
    assert [one["body"] for one in objects(capsys)] == [f"body-{number}" for number in numbers]
    assert code == (1 if arguments[:2] == ["--from", "1"] else 0)  # byte 1 is no message's begin


def test_a_dump_of_a_topic_that_the_store_does_not_know_says_so(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"orders":{}}}')
    assert main(["store", "dump", str(root), "--topic", "ordrs"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("turbopump: the store has no topic ordrs (did you mean orders?); ")
    assert main(["store", "dump", str(root), "--topic", "orders"]) == 0
    assert capsys.readouterr() == ("", "")  # a topic without messages
    with changed(first_segment(root), flip(60)):
        assert main(["store", "dump", str(root), "--topic", "x"]) == 1
    assert "the store has no topic x; " in capsys.readouterr().err


def test_a_dump_needs_no_queues(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = root / "consumequeue" / "T" / "1" / ("0" * 20)
    with changed(file, flip(41, 3)):
        assert (
            main(
                [
                    "store",
                    "dump",
                    "--topic",
                    "T",
                    "--queue",
                    "1",
                    "--from",
                    "2",
                    "--count",
                    "1",
                    str(root),
                ]
            )
            == 0
        )
    assert objects(capsys)[0]["body"] == "body-5"


def test_damaged_messages_are_passed_over_and_said(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with changed(first_segment(root), flip(60)):
        assert main(["store", "dump", "--output", "table", str(root)]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == COUNT - 1
    assert "T/1 0 2023-11-14T22:13:20.000Z ID000001 tags=tag1 keys=k1 both b'body-1'" in out
    assert err.startswith("turbopump: passed over offset 0–")


def test_one_entry_is_shown_in_hex(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = first_segment(root).read_bytes()[: int.from_bytes(first_segment(root).read_bytes()[:4])]
    assert main(["store", "dump", "--hex", "0", str(root)]) == 0
    (shown,) = objects(capsys)
    assert (shown["hex"], shown["size"], shown["fault"]) == (entry.hex(), len(entry), None)
    assert main(["store", "dump", "--hex", "0", "--output", "table", str(root)]) == 0
    shown_lines = lines(capsys)
    assert len(shown_lines) == -(-len(entry) // 16)
    assert shown_lines[0].startswith(f"{0:020}  {entry[:16].hex(' ')}")
    assert main(["store", "dump", "--hex", "3", str(root)]) == 1
    assert "no valid message at offset 3" in capsys.readouterr().err
    assert main(["store", "dump", "--hex", "99999999", str(root)]) == 3
    assert "no segment holds this offset" in capsys.readouterr().err


def test_queues_indexes_checkpoint_and_abort_file_elsewhere_are_named_by_options(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = []
    for option, name in (
        ("--consume-queue", "consumequeue"),
        ("--index", "index"),
        ("--checkpoint", "checkpoint"),
    ):
        (root / name).rename(elsewhere / name)
        options += [option, str(elsewhere / name)]
    for option, code in ((options, 0), ([], 1)):
        assert main(["store", "verify", *option, str(root)]) == code
    capsys.readouterr()
    (elsewhere / "abort").write_bytes(b"1")
    assert main(["store", "inspect", *options, "--abort", str(elsewhere / "abort"), str(root)]) == 0
    shown = capsys.readouterr().out
    assert main(["store", "inspect", *options, str(root)]) == 0
    assert "unclean" in shown
    assert "unclean" not in capsys.readouterr().out


def test_segments_elsewhere_are_named_by_an_option(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "commitlog").rename(tmp_path / "elsewhere")
    assert main(["store", "verify", "--commit-log", f"{tmp_path / 'elsewhere'}", str(root)]) == 0
    assert lines(capsys)[-1] == "clean"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_directory_of_segments_that_is_named_twice_counts_once(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = root / "commitlog"
    assert main(["store", "verify", str(root), "--commit-log", f"{log},{log}/"]) == 0
    assert "clean" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--commit-log", "--consume-queue", "--index", "--checkpoint"])
@pytest.mark.parametrize("what", ["nothing", "another kind"])
def test_an_option_that_names_no_such_place_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, what: str
) -> None:
    place = tmp_path / "nowhere"
    if what == "another kind":
        place = root if option == "--checkpoint" else root / "checkpoint"
    assert main(["store", "verify", str(root), option, str(place)]) == 2
    kind = "file" if option == "--checkpoint" else "directory"
    assert f"{place} is not a {kind}" in capsys.readouterr().err


def test_a_terminal_sees_how_far_the_check_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["store", "verify", str(root)]) == 0
    assert "checking" in terminal.getvalue()
    assert "100%" in terminal.getvalue()


def test_every_kind_of_finding_has_its_line_in_the_docs() -> None:
    page = (
        Path(__file__)
        .parents[3]
        .joinpath("docs", "reference", "store-findings.md")
        .read_text("utf-8")
    )
    rows = re.findall(r"^\| `(\w+)` \| (damage|notice) \| (.+) \|$", page, flags=re.MULTILINE)
    assert rows == [
        (name, "damage" if kind.damage else "notice", kind.meaning) for name, kind in KINDS.items()
    ]


def test_without_an_action_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store"]) == 2
    assert "inspect" in capsys.readouterr().err


def test_a_dump_that_tells_of_damaged_files_ends_so_too(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "commitlog" / "strange").touch()
    assert main(["store", "dump", "--count", "1", str(root)]) == 1
    assert "damage foreign_file" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 names only")
@pytest.mark.parametrize("what", ["inspect", "verify"])
def test_json_stays_json_whatever_a_foreign_file_is_called(
    root: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    with open(os.fsencode(root / "commitlog") + b"/\xff\xfe", "wb"):
        pass
    assert main(["store", what, "--output", "json", str(root)]) == 1
    out = capsys.readouterr().out
    assert out.isascii()
    (finding,) = (one for one in json.loads(out)["findings"] if one["kind"] == "foreign_file")
    assert finding["file"] == "commitlog/\udcff\udcfe"
