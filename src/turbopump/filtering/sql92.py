"""SQL92 filters: an expression over message properties, compiled once and evaluated for every
message. The filters keep every oddity of Apache's.

An example is ``price > 100 AND region IN ('eu', 'us') AND note IS NOT NULL``.

- There are three values: true, false and unknown (None). A message matches only if the
  result is true.
- A property alone as a condition is unknown if it is absent and **false if it is present**,
  whatever its value.
- Text after a complete expression is ignored: ``a = 1 junk`` is ``a = 1``.
- ``NOT a = 'x'`` is ``(NOT a) = 'x'``; write ``NOT (a = 'x')``.

Source: apache/rocketmq ``filter/…/parser/SelectorParser.jj`` and ``filter/…/expression/*``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from turbopump.filtering import sql_nodes as nodes
from turbopump.filtering.sql_tokens import NoVerdictError as NoVerdictError
from turbopump.filtering.sql_tokens import SqlError as SqlError
from turbopump.filtering.sql_tokens import Tokens, text_of

DEPTH_MAX: Final = 60
"""Maximum nesting depth of brackets, signs and NOTs, and of chained conditions (``a = b = c``, ``a
IS NULL IS NULL``). RocketMQ has no such limit; there a stack overflow ends the parser."""
KEPT_MAX: Final = 256
"""Maximum number of cached filters. The next pull or heartbeat with the same expression uses the
cached filter."""
SHORT: Final = 1024
"""Maximum length of such a filter in characters."""
LONG_KEPT_MAX: Final = 16
"""Maximum number of longer cached filters, each with some MiB of memory."""

_WORDS: Final = frozenset({"BETWEEN", "IN", *nodes.SEARCHES})


def compile_sql(expression: str) -> nodes.Filter:
    """Compile a SQL92 expression into a filter over the properties of a message.

    The filter rejects a message that cannot be evaluated. Equal expressions share one compiled
    filter. Raise SqlError for an invalid expression.
    """
    if len(expression) <= SHORT:
        return _short(expression)
    return _long(expression)


def _compile(expression: str) -> nodes.Filter:
    judge = compile_judge(expression)

    def matches(properties: nodes.Properties) -> bool:
        try:
            return judge(properties) is True
        except NoVerdictError:
            return False

    return matches


_short = lru_cache(KEPT_MAX)(_compile)
_long = lru_cache(LONG_KEPT_MAX)(_compile)


def compile_judge(expression: str) -> nodes.Evaluate:
    """Compile a SQL92 expression into a function that returns True, False or None for a message.

    None means unknown. The function raises NoVerdictError for a message that cannot be evaluated.
    Raise SqlError for an invalid expression.
    """
    parser = _Parser(expression)
    return nodes.as_truth(parser.disjunction(), parser.tokens).evaluate


class _Parser:
    """Recursive-descent parser of SQL92 expressions, with one method for each rule of the grammar.

    The rules are in order of increasing precedence.
    """

    def __init__(self, expression: str) -> None:
        self.tokens = Tokens(expression)
        self._depth = 0
        self._in_a_row = 0

    def disjunction(self) -> nodes.Node:
        return self._chain("OR", self.conjunction, until=True)

    def conjunction(self) -> nodes.Node:
        return self._chain("AND", self.equality, until=False)

    def _chain(self, word: str, rule: Callable[[], nodes.Node], *, until: bool) -> nodes.Node:
        first = rule()
        if self.tokens.next.kind != word:
            return first
        terms = [nodes.as_truth(first, self.tokens).evaluate]
        while self.tokens.next.kind == word:
            self.tokens.take_token()
            terms.append(nodes.as_truth(rule(), self.tokens).evaluate)
        return nodes.joined(terms, until=until)

    def equality(self) -> nodes.Node:
        tokens = self.tokens
        left = self.comparison()
        while True:
            kind = tokens.next.kind
            if left.kind == "truth" and kind in ("=", "<>", "IS"):
                self._goes_on()
            if kind == "=" or kind == "<>":
                tokens.take_token()
                left = nodes.equal(left, self.comparison(), tokens)
                if kind == "<>":
                    left = nodes.inverse(left)
            elif kind == "IS":
                tokens.take_token()
                negated = tokens.next.kind == "NOT"
                if negated:
                    tokens.take_token()
                    tokens.expect("NULL", "NULL")
                else:
                    tokens.expect("NULL", "NULL or NOT NULL")
                left = nodes.is_null(left, negated)
            else:
                return left

    def comparison(self) -> nodes.Node:
        tokens = self.tokens
        left = self.unary()
        while True:
            kind = tokens.next.kind
            if kind in nodes.SIGNS:
                tokens.take_token()
                left = nodes.ordered(left, kind, self.unary(), tokens)
                continue
            negated = kind == "NOT"
            if not negated and kind not in _WORDS:
                return left
            if left.kind == "truth":
                self._goes_on()
            if negated:
                tokens.take_token()
                kind = tokens.next.kind
            if kind == "BETWEEN":
                tokens.take_token()
                low = self.unary()
                tokens.expect("AND", "AND")
                left = nodes.between(left, low, self.unary(), negated, tokens)
            elif kind == "IN":
                tokens.take_token()
                left = nodes.within(left, self._list(), negated, tokens)
            elif kind in nodes.SEARCHES:
                tokens.take_token()
                left = nodes.searched(left, nodes.SEARCHES[kind], self._string(), negated)
            else:
                raise tokens.unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")

    def _goes_on(self) -> None:
        """Count one more chained condition, and raise SqlError if there are too many.

        Each chained condition needs one more level of depth when the filter is evaluated.
        """
        self._in_a_row += 1
        if self._in_a_row > DEPTH_MAX:
            raise SqlError(
                f"more than {DEPTH_MAX} conditions are themselves compared or searched; join "
                "conditions with AND and OR"
            )

    def unary(self) -> nodes.Node:
        tokens = self.tokens
        kind = tokens.next.kind
        if kind not in ("+", "-", "NOT", "("):
            return self.primary()
        tokens.take_token()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SqlError(
                f"brackets, signs and NOTs stand deeper than {DEPTH_MAX} in each "
                "other; write it with fewer"
            )
        if kind == "(":
            inner = self.disjunction()
            tokens.expect(")", ")")
        else:
            inner = self.unary()
            if kind == "-":
                inner = nodes.minus(inner)
            elif kind == "NOT":
                inner = nodes.inverse(nodes.as_truth(inner, tokens))
        self._depth -= 1
        return inner

    def primary(self) -> nodes.Node:
        token = self.tokens.next
        if token.kind == "string":
            return nodes.constant(self._string())
        if token.kind == "name":
            name = self.tokens.take_token().text
            return nodes.Node("property", lambda properties: properties.get(name), name=name)
        if token.kind in nodes.WORDS:
            return nodes.constant(nodes.WORDS[self.tokens.take_token().kind])
        if token.kind in nodes.NUMBERS:
            return nodes.constant(nodes.NUMBERS[token.kind](self.tokens.take_token().text))
        raise self.tokens.unexpected("a property, a literal or a bracket")

    def _string(self) -> str:
        return text_of(self.tokens.expect("string", "a text in single quotes").text)

    def _list(self) -> list[str]:
        self.tokens.expect("(", "(")
        texts = self.tokens.texts()
        texts.append(self._string())
        while self.tokens.next.kind == ",":
            self.tokens.take_token()
            texts.append(self._string())
        self.tokens.expect(")", ", or )")
        return texts
