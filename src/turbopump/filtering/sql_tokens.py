"""The words of a SQL92 filter. Longest match first; what no word begins with is an error only where
somebody reads it.

::

    keyword | name | 'it''s' | 12 | 12L | 1. .5 5E3 | = <> > >= < <= ( ) , + -
    blanks, --line comments and /* block comments */ between

Source: apache/rocketmq ``SelectorParser.jj``; a line comment ends with a line break or is none.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_KEYWORDS: Final = "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH"
KEYWORDS: Final = frozenset(_KEYWORDS.split())
END: Final = "end"

_SKIPPED: Final = re.compile(
    r"(?:[ \t\n\r\f]|--[^\n\r]*(?:\r\n|[\n\r])|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*"
)
_WORDS: Final = (
    (
        "float",
        re.compile(
            r"[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"
        ),
    ),
    ("decimal", re.compile(r"0|[1-9][0-9]*[lL]?")),
    ("string", re.compile(r"'(?:''|[^'])*'")),
    ("name", re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")),
    ("sign", re.compile(r"<>|>=|<=|[=<>(),+-]")),
)


class Token(NamedTuple):
    """``kind``: a keyword in capitals, ``name``, ``string``, ``decimal``, ``float``, a sign itself,
    or ``end``."""

    kind: str
    text: str
    at: int


class Tokens:
    """Reads one word ahead and no further."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next: Token | None = None

    @property
    def next(self) -> Token:
        """The word that ``take`` gives. Raises SqlError if none begins there."""
        if self._next is None:
            self._next = self._read()
        return self._next

    def take(self) -> Token:
        token, self._next = self.next, None
        return token

    def expect(self, kind: str, what: str) -> Token:
        """Take a word of this kind. Raises SqlError."""
        if self.next.kind != kind:
            raise self.unexpected(what)
        return self.take()

    def unexpected(self, wanted: str) -> SqlError:
        """What to raise where ``wanted`` should stand."""
        found = "the end" if self.next.kind == END else repr(self.next.text)
        return SqlError(f"at character {self.next.at + 1}: {wanted} should stand here, not {found}")

    def refused(self, why: str) -> SqlError:
        """What to raise for what has been read up to here."""
        return SqlError(f"before character {self.next.at + 1}: {why}")

    def _read(self) -> Token:
        skipped = _SKIPPED.match(self._text, self._at)
        assert skipped is not None
        at = skipped.end()
        if at == len(self._text):
            self._at = at
            return Token(END, "", at)
        best: tuple[int, str] = (at, "")
        for kind, pattern in _WORDS:
            found = pattern.match(self._text, at)
            if found is not None and found.end() > best[0]:
                best = found.end(), kind
        self._at, kind = best
        text = self._text[at : self._at]
        if not kind:
            hint = "; a string begins here and does not end: close it with '"
            hint = hint if self._text[at] == "'" else ""
            raise SqlError(
                f"at character {at + 1}: {self._text[at]!r} begins no word of a SQL92 filter{hint}"
            )
        if kind == "sign":
            return Token(text, text, at)
        if kind == "name" and text.upper() in KEYWORDS:
            return Token(text.upper(), text, at)
        return Token(kind, text, at)


# What can go wrong with a SQL92 filter.
class SqlError(ValueError):
    """The expression is no SQL92 filter; says where and what should stand there."""


class NoVerdictError(Exception):
    """A message cannot be judged (a number was wanted and the property holds none): it does not
    match."""
