"""Tokens of a SQL92 filter. The longest match wins. Text that is no token is an error only if the
parser reaches it.

::

    keyword | name | 'it''s' | 12 | 12L | 1. .5 5E3 | = <> > >= < <= ( ) , + -
    blanks, --line comments and /* block comments */ between

Source: apache/rocketmq ``SelectorParser.jj``. A line comment must end with a line break.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_KEYWORDS: Final = "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH"
KEYWORDS: Final = frozenset(_KEYWORDS.split())
END: Final = "end"

LENGTH_MAX: Final = 128 * 1024
"""Maximum length of a filter in characters."""
WORDS_MAX: Final = 4_000
"""Maximum number of tokens in a filter, besides the texts of IN lists: about a thousand conditions.
Within both limits parsing takes about 30 ms; RocketMQ has no limits."""

_BLANK_OR_BLOCK: Final = r"[ \t\n\r\f]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/"
_LINE_COMMENT: Final = r"--[^\n\r]*(?:\r\n|[\n\r])"
_SAID: Final = r"[^']*(?:''[^']*)*"
_STRING: Final = f"'{_SAID}'"
_WORD: Final = (
    # A float is longer than the decimal at its start; no other two tokens start alike.
    r"(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)"
    rf"|(?P<decimal>0|[1-9][0-9]*[lL]?)|(?P<string>{_STRING})|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|>=|<=|[=<>(),+-])"
)
_NEXT: Final = re.compile(rf"(?:{_BLANK_OR_BLOCK}|{_LINE_COMMENT})*(?:{_WORD})?")
_NEXT_IN_LAST_LINE: Final = re.compile(rf"(?:{_BLANK_OR_BLOCK})*(?:{_WORD})?")
"""Pattern for the last line, where no line comment can end, so that none begins there. Otherwise
thousands of signs would each search for an end, which takes minutes."""
_TEXTS: Final = re.compile(rf"(?:[ \t\n\r\f]*+{_STRING}[ \t\n\r\f]*+,)*")
"""Pattern of strings that are followed by commas, without comments. Lists of thousands are read in
one step."""


class Token(NamedTuple):
    """One token of a SQL92 expression.

    - ``kind``: a keyword in capitals, ``name``, ``string``, ``decimal``, ``float``, a sign itself,
      or ``end``.
    - ``text``: the token as it is written.
    - ``at``: position of the token in the expression.
    """

    kind: str
    text: str
    at: int


class Tokens:
    """Token reader for a SQL92 expression. It reads only one token ahead.

    Raise SqlError for an expression that is too long.
    """

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
        """Token that ``take_token`` returns next.

        Raise SqlError if the text at this position is no token.
        """
        if self._next is None:
            self._next = self._read()
        return self._next

    def take_token(self) -> Token:
        token = self.next
        self._next = None
        return token

    def expect(self, kind: str, what: str) -> Token:
        """Take the next token, which must be of this kind.

        Raise SqlError if the next token is of another kind. ``what`` describes the expected token
        in the error.
        """
        if self.next.kind != kind:
            raise self.unexpected(what)
        return self.take_token()

    def unexpected(self, wanted: str) -> SqlError:
        """Return the error for a next token that does not fit the grammar."""
        found = repr(self.next.text)
        if self.next.kind == END:
            found = "the end"
        return SqlError(f"at character {self.next.at + 1}: {wanted} should stand here, not {found}")

    def refused(self, why: str) -> SqlError:
        """Return the error for the part of the expression that was read last."""
        return SqlError(f"before character {self.next.at + 1}: {why}")

    def texts(self) -> list[str]:
        """Take the next strings as long as a comma follows each of them. Return the values of the
        strings."""
        if self._next is not None:
            return []
        run = _TEXTS.match(self._text, self._at)
        assert run is not None
        self._at = run.end()
        said = re.findall(f"'({_SAID})'", run[0])
        return [one.replace("''", "'") for one in said]

    def _read(self) -> Token:
        pattern = _NEXT
        if self._at >= self._last_line:
            pattern = _NEXT_IN_LAST_LINE
        found = pattern.match(self._text, self._at)
        assert found is not None
        kind = found.lastgroup
        self._at = found.end()
        self._words += 1
        if self._words > WORDS_MAX:
            raise SqlError(
                f"at character {self._at}: the filter has more than {WORDS_MAX} words; "
                "use a list for the values of one property, as in a IN ('x', 'y'), whose "
                "texts are not counted"
            )
        if kind is None:
            return self._no_word(self._at)
        text = found[kind]
        at = found.start(kind)
        if kind == "sign":
            return Token(text, text, at)
        if kind == "name" and text.upper() in KEYWORDS:
            return Token(text.upper(), text, at)
        return Token(kind, text, at)

    def _no_word(self, at: int) -> Token:
        """Return the end token at the end of the expression.

        Raise SqlError if text is left there, because it is no token.
        """
        if at == len(self._text):
            return Token(END, "", at)
        hint = ""
        if self._text[at] == "'":
            hint = "; a string begins here and does not end: close it with '"
        raise SqlError(
            f"at character {at + 1}: {self._text[at]!r} begins no word of a SQL92 filter{hint}"
        )


def text_of(string: str) -> str:
    """Return the value of a string literal in an expression."""
    return string[1:-1].replace("''", "'")


# Errors of a SQL92 filter.
class SqlError(ValueError):
    """Raised when an expression is not a valid SQL92 filter.

    The text has the position and the expected token.
    """


class NoVerdictError(Exception):
    """Raised when a filter cannot be evaluated for a message.

    For example, a property is not a number. The message does not match.
    """
