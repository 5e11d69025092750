"""What peers put into names does not forge lines of the log, nor fill it."""

import logging
import sys

import pytest

from turbopump.cli.serving import MESSAGE_SIZE, TRACEBACK_SIZE, LineFormatter

FORMATTER = LineFormatter("%(levelname)s %(message)s")


def line(text: str, *args: object, **more: object) -> str:
    record = logging.LogRecord("turbopump", logging.WARNING, "f", 1, text, args, None)
    record.__dict__.update(more)
    return FORMATTER.format(record)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a\nERROR forged", r"a\nERROR forged"),
        ("a\r\x1b[31mred", r"a\r\x1b[31mred"),
        ("\x85\u2028\u202egnp.exe", r"\x85\u2028\u202egnp.exe"),
        ("\ud800half", r"\ud800half"),
        ("Aufträge 订单 😀", "Aufträge 订单 😀"),
    ],
)
def test_what_is_not_plain_text_is_escaped(name: str, written: str) -> None:
    assert line("topic=%s", name) == f"WARNING topic={written}"
    assert line(f"topic={name}") == f"WARNING topic={written}"


def test_long_text_is_cut_but_for_what_a_server_says_of_itself() -> None:
    cut = line("broker registered %s", "\n" * 15_000_000)
    assert len(cut) < 3 * MESSAGE_SIZE
    assert cut.endswith("… (15000018 characters)")
    assert line("configuration %s", "k=v " * 5000, is_whole=True).count("k=v") == 5000


def test_a_traceback_is_indented_and_cut_in_the_middle() -> None:
    try:
        raise ValueError("first\nWARNING forged\x1b[0m" + "x" * 20_000 + "\n" + "y" * 3000)
    except ValueError:
        written = line("failed", exc_info=sys.exc_info())
    first, *further = written.split("\n")
    assert first == "WARNING failed"
    assert further[0] == "  Traceback (most recent call last):"
    assert all(each.startswith("  ") for each in further)
    assert r"forged\x1b[0m" in written
    assert len(written) < TRACEBACK_SIZE + 100
