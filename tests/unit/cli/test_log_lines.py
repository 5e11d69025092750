"""Lines of the log parse back, as text and as JSON, with any text that peers put into names."""

import ast
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import turbopump
from turbopump.cli.log_lines import (
    TEXT_SIZE,
    TRACEBACK_SIZE,
    JsonFormatter,
    LineFormatter,
    SentenceFormatter,
    divide,
)
from turbopump.log_keys import LogKeys

SOURCE = Path(turbopump.__file__).parent
TAKEN = {"time", "level", "logger", "message", "exception"}
PAGE = Path(__file__).parents[3] / "docs" / "guide" / "monitoring.md"


def record(text: str, *args: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("turbopump.x", logging.WARNING, "f", 1, text, args, None)
    made.created, made.msecs = 1764400502.123, 123.9
    made.__dict__.update(more)
    return made


def text_line(text: str, *args: object, **more: Any) -> str:
    return LineFormatter().format(record(text, *args, **more)).partition(" turbopump.x ")[2]


def json_line(text: str, *args: object, **more: Any) -> dict[str, Any]:
    line = JsonFormatter().format(record(text, *args, **more))
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    return parsed


@pytest.fixture(scope="module")
def parse() -> Callable[[str], tuple[str, str, str, str, dict[str, str]]]:
    """The function with which a page has a line of text read."""
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    names: dict[str, Any] = {}
    exec(example, names)
    parse: Callable[[str], tuple[str, str, str, str, dict[str, str]]] = names["parse"]
    return parse


def test_a_line_has_the_time_the_level_the_logger_the_event_and_the_keys() -> None:
    made = record("registered namesrv=%s topics=%d", "127.0.0.1:9876", 3)
    assert LineFormatter().format(made) == (
        "2025-11-29T07:15:02.123Z WARNING turbopump.x registered namesrv=127.0.0.1:9876 topics=3"
    )
    assert JsonFormatter().format(made) == (
        '{"time": "2025-11-29T07:15:02.123Z", "level": "WARNING", "logger": "turbopump.x", '
        '"message": "registered", "namesrv": "127.0.0.1:9876", "topics": 3}'
    )
    assert SentenceFormatter().format(made) == (
        "turbopump: registered namesrv=127.0.0.1:9876 topics=3"
    )


@pytest.mark.parametrize(
    ("spec", "value", "text", "typed"),
    [
        ("%s", "plain", "plain", "plain"),
        ("%s", "", '""', ""),
        ("%s", "two words", '"two words"', "two words"),
        ("%s", 'say "x"', r'"say \"x\""', 'say "x"'),
        ("%s", "a=b", '"a=b"', "a=b"),
        ("%s", r"C:\x", r"C:\x", r"C:\x"),
        ("%s", True, "true", True),
        ("%s", None, "null", None),
        ("%s", 7, "7", 7),
        ("%d", 7.9, "7", 7),
        ("%.1f", 0.25, "0.2", 0.2),
        ("%.0f", 312.4, "312", 312),
        ("%s", float("nan"), "nan", "nan"),
        ("%.1f", float("inf"), "inf", "inf"),
        ("%04o", 0o640, "0640", "0640"),
        ("%s", Path("/a b"), '"/a b"', "/a b"),
        ("%r", ValueError("x"), "ValueError('x')", "ValueError('x')"),
        ("%s", logging.Logger("x"), '"<Logger x (NOTSET)>"', "<Logger x (NOTSET)>"),
    ],
)
def test_a_value_is_quoted_if_needed_and_keeps_its_type(
    spec: str, value: object, text: str, typed: object
) -> None:
    assert text_line(f"event key={spec} last=%s", value, 1) == f"event key={text} last=1"
    assert json_line(f"event key={spec} last=%s", value, 1)["key"] == typed


def test_a_value_may_have_several_parts() -> None:
    assert text_line("ready address=%s:%d", "127.0.0.1", 9876) == "ready address=127.0.0.1:9876"


def test_keys_that_one_argument_brings_are_keys_of_the_line() -> None:
    keys = LogKeys(broker="a b", id=0)
    for args in (keys,), (keys, "lost"):
        text = "broker left %s cause=%s" if args[1:] else "broker left %s"
        assert text_line(text, *args).startswith('broker left broker="a b" id=0')
        assert json_line(text, *args)["id"] == 0
    assert str(keys) == "broker=a b id=0"
    assert text_line("%s failed %s cause=%s", "pull", keys, "x").startswith("pull failed broker=")


def test_an_event_that_would_not_parse_back_is_quoted() -> None:
    assert text_line("store: %s", "sends are refused: it is full") == (
        "store: sends are refused: it is full"
    )
    assert text_line("store: %s", "below diskFreeSpaceMin=5") == '"store: below diskFreeSpaceMin=5"'
    assert text_line("no arguments: 100 % key=value") == '"no arguments: 100 % key=value"'


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a\nERROR forged", r'"a\nERROR forged"'),
        ("a\r\x1b[31mred", r'"a\r\u001b[31mred"'),
        ("\x85\u2028\u202egnp.exe", r'"\u0085\u2028\u202egnp.exe"'),
        ("\ud800half", r'"\ud800half"'),
        ("Aufträge订单😀", "Aufträge订单😀"),
    ],
)
def test_what_is_not_plain_text_is_escaped(name: str, written: str) -> None:
    assert text_line("forged topic=%s", name) == f"forged topic={written}"
    if written.startswith('"'):
        assert text_line(name) == written
    assert json_line("forged topic=%s", name)["topic"] == name
    assert "\n" not in SentenceFormatter().format(record(name))


VALUES = st.text() | st.integers() | st.floats() | st.booleans() | st.none()


@given(event=st.text(), one=VALUES, other=VALUES)
def test_any_line_of_text_parses_back_to_what_its_json_says(
    parse: Callable[[str], tuple[str, str, str, str, dict[str, str]]],
    event: str,
    one: object,
    other: object,
) -> None:
    for args in ("event %s one=%s other=%s", event, one, other), (event or "-",):
        text, *values = args
        *head, keys = parse(LineFormatter().format(record(str(text), *values)))
        said = json_line(str(text), *values)
        assert head == [said[name] for name in ("time", "level", "logger", "message")]
        assert keys == {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in said.items()
            if key not in TAKEN
        }


def test_long_text_is_cut() -> None:
    cut = text_line("broker registered name=%s", "\n" * 15_000_000)
    assert len(cut) < 3 * TEXT_SIZE
    assert cut.endswith('… (15000000 characters)"')
    assert text_line("x" * 3000).endswith("x… (3000 characters)")


def test_a_traceback_is_indented_and_cut_in_the_middle() -> None:
    try:
        raise ValueError("first\nWARNING forged\x1b[0m" + "x" * 20_000 + "\n" + "y\n" * 3000)
    except ValueError:
        found = sys.exc_info()
        written = text_line("failed", exc_info=found)
        exception = json_line("failed", exc_info=found)["exception"]
    first, *further = written.split("\n")
    assert first == "failed"
    assert further[0] == "  Traceback (most recent call last):"
    assert all(each.startswith("  ") for each in further)
    assert r"forged\x1b[0m" in written
    assert TRACEBACK_SIZE / 2 < len(exception) < TRACEBACK_SIZE + 10
    assert exception.startswith("Traceback (most recent call last):\n")
    assert "\nWARNING forged\x1b[0m" in exception


# --- the templates of all log calls in src


def templates() -> Iterator[tuple[str, str, int | None]]:
    """Place, template and number of arguments (None: not known) of each log call."""
    for file in sorted(SOURCE.rglob("*.py")):
        place = str(file.relative_to(SOURCE))
        tree = ast.parse(file.read_text())
        assigned = [
            (node.lineno, target.id, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        ]
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                for template, count in templates_of(call):
                    if isinstance(template, ast.Name):
                        before = [
                            (line, value)
                            for line, name, value in assigned
                            if name == template.id and line < call.lineno
                        ]
                        template = max(before, key=itemgetter(0))[1]
                    where = f"{place}:{call.lineno}"
                    if isinstance(template, ast.Constant):
                        yield where, str(template.value), count
                    else:
                        yield where, f"\N{CROSS MARK} {ast.unparse(template)}", None


def templates_of(call: ast.Call) -> Iterator[tuple[ast.expr, int | None]]:
    function = call.func
    if isinstance(function, ast.Name) and function.id == "RepeatedLine":
        yield call.args[2], None
    if isinstance(function, ast.Name) and function.id == "LogKeys":
        names = " ".join(f"{one.arg}=%s" for one in call.keywords if one.arg)
        yield ast.Constant(f"keys {names}".strip()), None
    if isinstance(function, ast.Name) and function.id == "RetryingTask":
        yield from ((one.value, None) for one in call.keywords if one.arg in ("failing", "again"))
    if not isinstance(function, ast.Attribute) or not re.fullmatch(
        r"(self\.)?(_?log|audit)", ast.unparse(function.value)
    ):
        return
    if function.attr in ("debug", "info", "warning", "error", "exception", "log"):
        _, *args = call.args if function.attr != "log" else call.args[1:]
        count = None if any(isinstance(one, ast.Starred) for one in args) else len(args)
        yield call.args[function.attr == "log"], count


LINE_OF_LINES = "repeated_line.py"
"""Its templates are those of RepeatedLine, which are checked, and the number of repetitions."""


def test_each_log_call_divides_into_an_event_and_its_keys() -> None:
    found = list(templates())
    assert len(found) > 230
    for where, template, count in found:
        if where.startswith(LINE_OF_LINES):
            continue
        assert not template.startswith("\N{CROSS MARK}"), f"{where}: not a constant: {template}"
        (_, event, _), items = divide(template)
        assert event.strip(), f"{where}: no event: {template}"
        assert not re.search(r"\w=", event), f"{where}: text after the first key: {template}"
        keys = [item.key for item in items if item.key]
        assert len(keys) == len(set(keys)), f"{where}: a key comes twice: {template}"
        assert not TAKEN.intersection(keys), f"{where}: a key of every line: {template}"
        if count is not None:
            specs = len(re.findall("%", template.replace("%%", "")))
            assert specs == count, f"{where}: {count} arguments: {template}"
