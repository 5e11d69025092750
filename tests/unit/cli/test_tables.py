"""Tables of answers: plain text, CSV, JSON, YAML, and a terminal."""

import csv
import io
import json
import sys

import click
import pytest
import yaml
from tests.stand_ins import returns

from turbopump.cli import frame
from turbopump.cli.changes import Change, show_changes
from turbopump.cli.frame import show
from turbopump.cli.tables import BYTES, TIME, Column, Table, size_text

ROWS = [
    {"topic": "orders", "queues": 4, "size": 1536, "written": 1_700_000_000_000, "groups": ["a"]},
    {"topic": 'a, "b"', "queues": 16, "size": None, "written": 0, "order": True},
]
COLUMNS = (
    Column("topic"),
    Column("queues"),
    Column("size", unit=BYTES),
    Column("written", "last write", TIME),
    Column("groups"),
    Column("order"),
    Column("behind", unit="messages"),
)
PARTS = ["before", Table(COLUMNS, ROWS), "after"]
VALUE = {"topics": ROWS}


def test_plain_text_has_headings_units_and_columns_in_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show("table", VALUE, PARTS)
    assert capsys.readouterr().out.splitlines() == [
        "before",
        "TOPIC   QUEUES     SIZE  LAST WRITE                GROUPS  ORDER  BEHIND (messages)",
        "orders       4  1.5 KiB  2023-11-14T22:13:20.000Z  a       -      -",
        'a, "b"      16        -  -                         -       yes    -',
        "after",
    ]


def test_csv_has_keys_and_plain_values(capsys: pytest.CaptureFixture[str]) -> None:
    show("csv", VALUE, PARTS)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == [column.key for column in COLUMNS]
    assert [row["size"] for row in rows] == ["1536", ""]
    assert rows[1]["topic"] == ROWS[1]["topic"]
    assert (rows[0]["groups"], rows[1]["order"]) == ("a", "true")
    with pytest.raises(click.UsageError, match="no form csv"):
        show("csv", VALUE, ["only lines"])


def test_json_and_yaml_have_the_whole_answer(capsys: pytest.CaptureFixture[str]) -> None:
    show("json", VALUE, PARTS)
    assert json.loads(capsys.readouterr().out) == VALUE
    show("yaml", VALUE, PARTS)
    assert yaml.safe_load(capsys.readouterr().out) == VALUE


def test_a_terminal_gets_the_same_cells(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", returns(True))
    monkeypatch.setenv("COLUMNS", "200")
    show("table", VALUE, PARTS)
    text = click.unstyle(capsys.readouterr().out)
    assert text.split() == [*frame_words(PARTS)]


def frame_words(parts: list[str | Table]) -> list[str]:
    lines = [line for part in parts for line in ([part] if isinstance(part, str) else part.lines())]
    return " ".join(lines).split()


def test_a_table_without_rows_has_no_headings(capsys: pytest.CaptureFixture[str]) -> None:
    show("table", {}, [Table(COLUMNS, [])])
    assert capsys.readouterr().out == ""
    show("csv", {}, [Table(COLUMNS, [])])
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 40, "3.0 TiB"), (-2048, "-2.0 KiB")],
)
def test_sizes_are_in_binary_units(size: int, text: str) -> None:
    assert size_text(size) == text


def test_changes_are_shown_as_old_and_new(capsys: pytest.CaptureFixture[str]) -> None:
    changes = [Change("broker-a", "brokerPermission", 6, 4), Change("broker-b", "perm", None, 4)]
    assert show_changes("table", changes, dry_run=True) == 0
    assert capsys.readouterr().out.splitlines() == [
        "WHERE     WHAT              OLD  NEW",
        "broker-a  brokerPermission    6    4",
        "broker-b  perm                -    4",
        "dry run: nothing was changed",
    ]
    failed = [Change("broker-a", "perm", 6, 4, "refused")]
    assert show_changes("json", failed, dry_run=False) == 1
    row = {"where": "broker-a", "what": "perm", "old": 6, "new": 4, "fault": "refused"}
    assert json.loads(capsys.readouterr().out) == {"dry_run": False, "changes": [row]}
    assert show_changes("table", [], dry_run=False) == 0
    assert capsys.readouterr().out == "nothing changes\n"


def test_the_forms_are_those_of_the_option() -> None:
    assert frame.FORMS == ("table", "json", "yaml", "csv")
