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

LENGTH_MAX: Final = 128 * 1024
"""Characters of a filter."""
WORDS_MAX: Final = 4_000
"""Words of a filter, besides the texts of IN lists: about a thousand conditions. With these two
bounds to read a filter takes some 30 ms; RocketMQ has none."""

_BLANK_OR_BLOCK: Final = r"[ \t\n\r\f]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/"
_LINE_COMMENT: Final = r"--[^\n\r]*(?:\r\n|[\n\r])"
_SAID: Final = r"[^']*(?:''[^']*)*"
_STRING: Final = f"'{_SAID}'"
_WORD: Final = (
    # a float is longer than the decimal that it begins with; no two others begin alike
    r"(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)"
    rf"|(?P<decimal>0|[1-9][0-9]*[lL]?)|(?P<string>{_STRING})|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|>=|<=|[=<>(),+-])"
)
_NEXT: Final = re.compile(rf"(?:{_BLANK_OR_BLOCK}|{_LINE_COMMENT})*(?:{_WORD})?")
_NEXT_IN_LAST_LINE: Final = re.compile(rf"(?:{_BLANK_OR_BLOCK})*(?:{_WORD})?")
"""No line comment ends there, so that none begins: a search for its end from each of thousands of
signs would take minutes."""
_TEXTS: Final = re.compile(rf"(?:[ \t\n\r\f]*+{_STRING}[ \t\n\r\f]*+,)*")
"""Strings with commas behind them, without comments: in one step, for lists of thousands."""


class Token(NamedTuple):
    """``kind``: a keyword in capitals, ``name``, ``string``, ``decimal``, ``float``, a sign itself,
    or ``end``."""

    kind: str
    text: str
    at: int


class Tokens:
    """Reads one word ahead and no further. Raises SqlError for a text that is too long."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise SqlError(
                f"the filter has {len(text)} characters, the maximum is {LENGTH_MAX}: let "
                "producers set one property to filter by"
            )
        self._text = text
        self._at = self._words = 0
        self._last_line = max(text.rfind("\n"), text.rfind("\r")) + 1
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
        """Make the error for a token other than ``wanted``."""
        found = "the end" if self.next.kind == END else repr(self.next.text)
        return SqlError(f"at character {self.next.at + 1}: {wanted} should stand here, not {found}")

    def refused(self, why: str) -> SqlError:
        """Make the error for the text read so far."""
        return SqlError(f"before character {self.next.at + 1}: {why}")

    def texts(self) -> list[str]:
        """Take as many strings with a comma behind each as follow; what they say."""
        if self._next is not None:
            return []
        run = _TEXTS.match(self._text, self._at)
        assert run is not None
        self._at = run.end()
        said = re.findall(f"'({_SAID})'", run[0])
        return [one.replace("''", "'") if "''" in one else one for one in said]

    def _read(self) -> Token:
        pattern = _NEXT if self._at < self._last_line else _NEXT_IN_LAST_LINE
        found = pattern.match(self._text, self._at)
        assert found is not None
        kind, self._at = found.lastgroup, found.end()
        self._words += 1
        if self._words > WORDS_MAX:
            raise SqlError(
                f"at character {self._at}: the filter has more than {WORDS_MAX} words; "
                "use a list for the values of one property, as in a IN ('x', 'y'), whose "
                "texts are not counted"
            )
        if kind is None:
            return self._no_word(self._at)
        text, at = found[kind], found.start(kind)
        if kind == "sign":
            return Token(text, text, at)
        if kind == "name" and text.upper() in KEYWORDS:
            return Token(text.upper(), text, at)
        return Token(kind, text, at)

    def _no_word(self, at: int) -> Token:
        """Return the token at a place where no word begins: the end."""
        if at == len(self._text):
            return Token(END, "", at)
        hint = "; a string begins here and does not end: close it with '"
        hint = hint if self._text[at] == "'" else ""
        raise SqlError(
            f"at character {at + 1}: {self._text[at]!r} begins no word of a SQL92 filter{hint}"
        )


def text_of(string: str) -> str:
    """Return the value of a string literal."""
    return string[1:-1].replace("''", "'")


# What can go wrong with a SQL92 filter.
class SqlError(ValueError):
    """The expression is no SQL92 filter; says where and what should stand there."""


class NoVerdictError(Exception):
    """A message cannot be judged (a number was wanted and the property holds none): it does not
    match."""
