"""Lines of a command's log: logfmt for people and parsers, or JSON.

The template of a log call is an event, then items, separated by blanks: ``key=%s``, or a bare
``%s`` for ``LogKeys``. Both kinds of lines are made from the template and its arguments, so the
calls know of neither. A text line is::

    2026-11-29T07:15:02.123Z INFO turbopump.broker.registration registered namesrv=127.0.0.1:9876

The event and each value are written as a string of JSON if they would not parse back otherwise. For
an event that is a ``=``, a ``"`` or a control character in it; for a value also a blank, or that it
is empty. The destination of lines is unknown here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import re
import time
from typing import Any, Final, NamedTuple

from turbopump.log_keys import LogKeys

TEXT_SIZE: Final = 2000
TRACEBACK_SIZE: Final = 8000
"""Maximum number of characters written of an event or a value, and of a traceback."""
TEMPLATES_KEPT: Final = 1000
_JSON: Final = json.JSONEncoder(ensure_ascii=False).encode

_ITEM: Final = r"(?:[A-Za-z_][\w./-]*=\S+|%s)"
_TEMPLATE: Final = re.compile(rf"(?P<event>.*?)(?P<items>(?: {_ITEM})*)", re.DOTALL)
_SPEC: Final = re.compile(r"%[#0\- +]*\d*(?:\.\d+)?[a-zA-Z]")
_NUMBER_SPEC: Final = re.compile(r"%\d*(?:\.\d+)?[df]")
_NOT_PLAIN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that are escaped: line ends, control codes, text-direction marks, and lone
surrogates."""
_NOT_IN_EVENT: Final = re.compile(f'[="]|{_NOT_PLAIN.pattern}')
_NOT_IN_VALUE: Final = re.compile(rf'[\s="]|^$|{_NOT_PLAIN.pattern}')

Value = str | int | float | bool | None


class Part(NamedTuple):
    """Part of the template of a log call: the event, or one item after it.

    - ``key``: empty for the event, and for a bare ``%s``.
    - ``text``: the ``%`` text.
    - ``arguments``: number of arguments of the text.
    """

    key: str
    text: str
    arguments: int


class Template(NamedTuple):
    """Parts of the template of a log call."""

    event: Part
    items: list[Part]


@functools.lru_cache(TEMPLATES_KEPT)
def divide(template: str) -> Template:
    """Divide the template of a log call. A template of any other form is an event alone."""
    found = _TEMPLATE.fullmatch(template)
    assert found is not None, "an event may be any text"
    items = [item.rpartition("=")[::2] for item in found["items"].split(" ")[1:]]
    return Template(_part("", found["event"]), [_part(key, text) for key, text in items])


def _part(key: str, text: str) -> Part:
    return Part(key, text, len(_SPEC.findall(text.replace("%%", ""))))


class Line(NamedTuple):
    """Content of one log line."""

    event: str
    values: dict[str, Value]


def line_of(record: logging.LogRecord) -> Line:
    """Return the content of a log record."""
    if not record.args or not isinstance(record.msg, str):
        return Line(_cut(record.getMessage()), {})
    # logging takes a single mapping for the arguments themselves
    left: list[Any] = list(record.args) if isinstance(record.args, tuple) else [record.args]
    template = divide(record.msg)
    event = _filled(template.event, left)
    values: dict[str, Value] = {}
    for item in template.items:
        if item.key:
            values[item.key] = _value(item, left)
        elif isinstance(left[0], LogKeys):
            values.update((name, _typed(value)) for name, value in left.pop(0).items())
        else:
            event += f" {left.pop(0)}"
    return Line(_cut(event), values)


def _filled(part: Part, left: list[Any]) -> str:
    """Return a part of a template with its arguments, which are removed from ``left``."""
    taken = tuple(left[: part.arguments])
    del left[: part.arguments]
    return part.text % taken


def _value(item: Part, left: list[Any]) -> Value:
    if item.text == "%s":
        return _typed(left.pop(0))
    filled = _filled(item, left)
    if _NUMBER_SPEC.fullmatch(item.text):
        with contextlib.suppress(ValueError):  # nan, inf
            return float(filled) if "." in filled else int(filled)
    return _cut(filled)


def _typed(value: object) -> Value:
    """Return a number, a boolean or None unchanged, and anything else as text."""
    if isinstance(value, str):
        return _cut(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = str(value)
    # an enumeration of numbers may have names as its texts
    return int(value) if isinstance(value, int) and text == str(int(value)) else _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_SIZE else f"{text[:TEXT_SIZE]}… ({len(text)} characters)"


class LineFormatter(logging.Formatter):
    """Formatter that writes a record as a line of text, which parses back.

    Names from peers cannot forge lines, and long text is cut. Only a traceback has further lines,
    which are indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = line_of(record)
        event = _quoted(line.event) if _NOT_IN_EVENT.search(line.event) else line.event
        parts = [_time(record), record.levelname, record.name, event]
        parts += [f"{key}={_text(value)}" for key, value in line.values.items()]
        return " ".join(parts) + _indented_traceback(record)


class JsonFormatter(logging.Formatter):
    """Formatter that writes a record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = line_of(record)
        content: dict[str, Value] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": line.event,
        }
        content.update(line.values)
        if record.exc_info:
            content["exception"] = _traceback(record)
        return _escaped(_JSON(content))


class SentenceFormatter(logging.Formatter):
    """Formatter that writes a record as a sentence for a person at the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return f"turbopump: {_plain(_cut(record.getMessage()))}" + _indented_traceback(record)


def _text(value: Value) -> str:
    if isinstance(value, str):
        return _quoted(value) if _NOT_IN_VALUE.search(value) else value
    return _JSON(value)


def _quoted(text: str) -> str:
    return _escaped(_JSON(text))


def _escaped(text: str) -> str:
    """Escape the characters in JSON that are valid there, but not on a line of text."""
    return _NOT_PLAIN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(text: str) -> str:
    return _NOT_PLAIN.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text
    )


def _time(record: logging.LogRecord) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{moment}.{int(record.msecs):03d}Z"


def _traceback(record: logging.LogRecord) -> str:
    """Return the traceback of a record, without the middle of a long one."""
    assert record.exc_info
    text = logging.Formatter().formatException(record.exc_info)
    text = "\n".join(map(_cut, text.split("\n")))
    if len(text) <= TRACEBACK_SIZE:
        return text
    half = TRACEBACK_SIZE // 2
    return f"{text[:half]}\n…\n{text[-half:]}"


def _indented_traceback(record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    return "".join(f"\n  {_plain(line)}" for line in _traceback(record).split("\n"))
