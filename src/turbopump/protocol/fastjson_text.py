"""Text in the fastjson dialect -> Python builtins, for what a strict JSON parser refuses.

Apache's peers write maps with bare number keys (`{0:"a"}`) and with whole objects as keys
(`{{"topic":"t"}:5}`), and their reader also takes unquoted names, single quotes, stray commas,
comments and `NaN`. This parser reads all of those. Its one rule: everything is bounded (text,
depth, digits, entries), and whatever is wrong is a `FastjsonError`. It must not know any body type;
an object used as a key becomes a tuple of its (name, value) pairs.
"""

from __future__ import annotations

import re
from typing import Any

from turbopump.errors import BodyError

MAX_BYTES = 64 << 20
"""Longest text read at all. A frame is at most 16 MiB; only a broker's own files may be longer."""
MAX_TOLERANT_CHARS = 8 << 20
"""Longest text given to this parser, which is some 50 times slower than the strict one."""
MAX_ENTRIES = 1_000_000
"""Most members and elements of one document, all levels together."""
MAX_TOLERANT_STEPS = 200_000
"""Most members, elements and escapes for this parser, which needs some 5 µs for each."""
MAX_DEPTH = 64
MAX_DIGITS = 400
"""Most characters of one number: more than any double needs, few enough to convert in no time."""

_SPACE = re.compile(r"(?:[ \t\r\n\f\b﻿]++|/\*(?:[^*]++|\*(?!/))*+\*/|//[^\n]*+)*+")
_SPACE_AND_COMMAS = re.compile(r"(?:[ \t\r\n\f\b﻿,]++|/\*(?:[^*]++|\*(?!/))*+\*/|//[^\n]*+)*+")
_NUMBER = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?")
_WORD = re.compile(r"[^\W\d][\w$.@-]*+|[$@][\w$.@-]*+")
_DOUBLE_QUOTED = re.compile(r'[^"\\]*+')
_SINGLE_QUOTED = re.compile(r"[^'\\]*+")
_HEX = {2: re.compile(r"[0-9a-fA-F]{2}"), 4: re.compile(r"[0-9a-fA-F]{4}")}
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_ESCAPES = {
    **{c: c for c in "\"'\\/"},
    **{str(n): chr(n) for n in range(8)},
    **dict(zip("btnvfFr", "\b\t\n\v\f\f\r", strict=True)),
}
_WORDS = {
    **dict.fromkeys(("true", "TRUE"), True),
    **dict.fromkeys(("false", "FALSE"), False),
    **dict.fromkeys(("null", "NULL", "undefined", "NaN", "Infinity")),
}


class FastjsonError(BodyError):
    """A JSON text that cannot be read, that breaks a bound, or that does not fit the expected
    type."""


def parse_tolerant(text: str) -> Any:
    """Read one value: dict, list, str, int, float, bool or None. Keys are str, int (bare numbers)
    or tuples of pairs (object keys). Raises FastjsonError."""
    if len(text) > MAX_TOLERANT_CHARS:
        raise FastjsonError(
            f"JSON text of {len(text)} characters, longer than {MAX_TOLERANT_CHARS}"
        )
    return _Parser(text).document()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.steps = 0

    def document(self) -> Any:
        value = self.value(0)
        self.skip(_SPACE)
        if self.at != len(self.text):
            raise self.error("something follows the value")
        return value

    def value(self, depth: int) -> Any:
        self.skip(_SPACE)
        char = self.text[self.at : self.at + 1]
        if char == "{":
            return self.object(depth + 1)
        if char == "[":
            return self.array(depth + 1)
        if char in ('"', "'"):
            return self.string(char)
        word = _WORD.match(self.text, self.at)
        if word is None:
            return self.number()
        if word[0] not in _WORDS:
            raise self.error("an unknown word")
        self.at = word.end()
        return _WORDS[word[0]]

    def object(self, depth: int) -> dict[Any, Any]:
        self.enter(depth)
        members: dict[Any, Any] = {}
        while True:
            self.skip(_SPACE_AND_COMMAS)
            if self.take("}"):
                return members
            key = self.key(depth)
            self.skip(_SPACE)
            if not self.take(":"):
                raise self.error("no colon after a key")
            members[key] = self.value(depth)
            self.end_of_entry("}")

    def key(self, depth: int) -> Any:
        char = self.text[self.at : self.at + 1]
        if char in ('"', "'"):
            return self.string(char)
        if char == "{":
            return _hashable(self.object(depth + 1))
        word = _WORD.match(self.text, self.at)
        if word is None:
            return self.number()
        self.at = word.end()
        return word[0]

    def array(self, depth: int) -> list[Any]:
        self.enter(depth)
        elements: list[Any] = []
        while True:
            self.skip(_SPACE_AND_COMMAS)
            if self.take("]"):
                return elements
            elements.append(self.value(depth))
            self.end_of_entry("]")

    def string(self, quote: str) -> str:
        plain = _DOUBLE_QUOTED if quote == '"' else _SINGLE_QUOTED
        self.at += 1
        pieces = []
        while True:
            piece = plain.match(self.text, self.at)
            assert piece is not None, "the pattern also matches nothing"
            pieces.append(piece[0])
            self.at = piece.end()
            if self.take(quote):
                break
            if not self.take("\\"):
                raise self.error("a string without its end")
            pieces.append(self.escape())
        return _SURROGATE_PAIR.sub(_join_pair, "".join(pieces))

    def escape(self) -> str:
        self.step()
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char in ("u", "x"):
            digits = _HEX[4 if char == "u" else 2].match(self.text, self.at)
            if digits is None:
                raise self.error("an escape without its hex digits")
            self.at = digits.end()
            return chr(int(digits[0], 16))
        if char not in _ESCAPES:
            raise self.error("an unknown escape")
        return _ESCAPES[char]

    def number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise self.error("no value")
        if len(match[0]) > MAX_DIGITS:
            raise self.error("too many digits")
        self.at = match.end()
        try:
            return int(match[0])
        except ValueError:
            return float(match[0])

    def enter(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} levels")
        self.at += 1

    def end_of_entry(self, closing: str) -> None:
        self.step()
        self.skip(_SPACE)
        if self.text[self.at : self.at + 1] not in (",", closing):
            raise self.error("no comma between two entries")

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_TOLERANT_STEPS:
            raise self.error(f"more than {MAX_TOLERANT_STEPS} entries and escapes")

    def skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        assert match is not None, "the pattern also matches nothing"
        self.at = match.end()

    def take(self, char: str) -> bool:
        if self.text.startswith(char, self.at):
            self.at += 1
            return True
        return False

    def error(self, what: str) -> FastjsonError:
        near = self.text[max(0, self.at - 10) : self.at + 20]
        return FastjsonError(
            f"not JSON, nor what fastjson reads: {what} at character {self.at}, near {near!r}"
        )


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(_hashable(item) for item in value)
    return value


def _join_pair(match: re.Match[str]) -> str:
    high, low = match[0][0], match[0][1]
    return chr(0x10000 + ((ord(high) - 0xD800) << 10) + (ord(low) - 0xDC00))
