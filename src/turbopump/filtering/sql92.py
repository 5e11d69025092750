"""SQL92 filters: an expression over message properties, compiled once, asked for every message. Every oddity of Apache's is kept.

``price > 100 AND region IN ('eu', 'us') AND note IS NOT NULL``. Three values: true, false and unknown (None); only true matches. A property
alone is unknown where it is absent and **false where it is there**, whatever it holds. What follows a whole expression is not read: ``a = 1
junk`` is ``a = 1``. ``NOT a = 'x'`` is ``(NOT a) = 'x'``; write ``NOT (a = 'x')``.

Source: apache/rocketmq ``filter/…/parser/SelectorParser.jj`` and ``filter/…/expression/*``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from turbopump.filtering.sql_error import NoVerdictError as NoVerdictError
from turbopump.filtering.sql_error import SqlError as SqlError
from turbopump.filtering.sql_tokens import Tokens
from turbopump.filtering.sql_values import INT_MAX, LONG_MAX, Long, Value, double_of, order, whole_number

DEPTH_MAX: Final = 60
"""Brackets, signs and NOTs that may stand inside each other, and conditions of conditions in a row (``a = b = c``, ``a IS NULL IS NULL``).
RocketMQ has no number for it: there a stack overflow refuses."""
KEPT_MAX: Final = 256
"""Compiled filters that are kept, for the next pull or heartbeat with the same expression."""


class Properties(Protocol):
    """What an expression asks for: the text of a property, None if it is absent. A dict will do."""

    def get(self, name: str, /) -> str | None: ...


Evaluate = Callable[[Properties], Value | None]
Filter = Callable[[Properties], bool]


class Node(NamedTuple):
    """A part of an expression. ``kind``: constant, property, truth (true, false or unknown), or negated."""

    kind: str
    evaluate: Evaluate
    value: Value | None = None
    """Of a constant."""
    name: str = ""
    """Of a property."""

    @property
    def is_truth(self) -> bool:
        return self.kind == "truth" or (self.kind == "constant" and (self.value is None or isinstance(self.value, bool)))


@lru_cache(KEPT_MAX)
def compile_sql(expression: str) -> Filter:
    """Whether a message's properties match; a message that cannot be judged does not. Raises SqlError if it is no SQL92 filter.

    The same expression is compiled once.
    """
    judge = compile_judge(expression)

    def matches(properties: Properties) -> bool:
        try:
            return judge(properties) is True
        except NoVerdictError:
            return False

    return matches


def compile_judge(expression: str) -> Evaluate:
    """The same with all outcomes: True, False, None for unknown; NoVerdictError is raised for what cannot be judged."""
    parser = _Parser(expression)
    return _as_truth(parser.disjunction(), parser.tokens).evaluate


class _Parser:
    """Recursive descent; one method a rule of the grammar, loosest first."""

    def __init__(self, expression: str) -> None:
        self.tokens = Tokens(expression)
        self._depth = 0
        self._in_a_row = 0

    def disjunction(self) -> Node:
        return self._chain("OR", self.conjunction, until=True)

    def conjunction(self) -> Node:
        return self._chain("AND", self.equality, until=False)

    def _chain(self, word: str, rule: Callable[[], Node], *, until: bool) -> Node:
        """Terms from left to right until one decides; an unknown one leaves it open."""
        first = rule()
        if self.tokens.next.kind != word:
            return first
        terms = [_as_truth(first, self.tokens).evaluate]
        while self.tokens.next.kind == word:
            self.tokens.take()
            terms.append(_as_truth(rule(), self.tokens).evaluate)

        def evaluate(properties: Properties) -> Value | None:
            outcome: bool | None = not until
            for term in terms:
                value = term(properties)
                if value is until:
                    return until
                if value is None:
                    outcome = None
            return outcome

        return Node("truth", evaluate)

    def equality(self) -> Node:
        tokens, left = self.tokens, self.comparison()
        while True:
            kind = tokens.next.kind
            if left.kind == "truth" and kind in ("=", "<>", "IS"):
                self._goes_on()
            if kind == "=" or kind == "<>":
                tokens.take()
                left = _equal(left, self.comparison(), tokens)
                if kind == "<>":
                    left = _not(left)
            elif kind == "IS":
                tokens.take()
                negated = tokens.next.kind == "NOT"
                if negated:
                    tokens.take()
                tokens.expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = _is_null(left, negated)
            else:
                return left

    def comparison(self) -> Node:
        tokens, left = self.tokens, self.unary()
        while True:
            kind = tokens.next.kind
            if kind in _SIGNS:
                tokens.take()
                left = _ordered(left, kind, self.unary(), tokens)
                continue
            negated = kind == "NOT"
            if not negated and kind not in _WORDS:
                return left
            if left.kind == "truth":
                self._goes_on()
            if negated:
                tokens.take()
                kind = tokens.next.kind
            if kind == "BETWEEN":
                tokens.take()
                low = self.unary()
                tokens.expect("AND", "AND")
                left = _between(left, low, self.unary(), negated, tokens)
            elif kind == "IN":
                tokens.take()
                left = _within(left, self._list(), negated, tokens)
            elif kind in _SEARCHES:
                tokens.take()
                left = _searched(left, _SEARCHES[kind], self._string(), negated)
            else:
                raise tokens.unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")

    def _goes_on(self) -> None:
        """Counts a condition of a condition: to judge it goes one deeper."""
        self._in_a_row += 1
        if self._in_a_row > DEPTH_MAX:
            raise SqlError(
                f"more than {DEPTH_MAX} conditions are themselves compared or searched; join conditions with AND and OR"
            )

    def unary(self) -> Node:
        tokens = self.tokens
        kind = tokens.next.kind
        if kind not in ("+", "-", "NOT", "("):
            return self.primary()
        tokens.take()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SqlError(f"brackets, signs and NOTs stand deeper than {DEPTH_MAX} in each other; write it with fewer")
        if kind == "(":
            inner = self.disjunction()
            tokens.expect(")", ")")
        else:
            inner = self.unary()
            if kind == "-":
                inner = _negated(inner)
            elif kind == "NOT":
                inner = _not(_as_truth(inner, tokens))
        self._depth -= 1
        return inner

    def primary(self) -> Node:
        token = self.tokens.next
        if token.kind == "string":
            return _constant(self._string())
        if token.kind == "name":
            name = self.tokens.take().text
            return Node("property", lambda properties: properties.get(name), name=name)
        literal = _LITERALS.get(token.kind)
        if literal is None:
            raise self.tokens.unexpected("a property, a literal or a bracket")
        return _constant(literal(self.tokens.take().text))

    def _string(self) -> str:
        return self.tokens.expect("string", "a text in single quotes").text[1:-1].replace("''", "'")

    def _list(self) -> list[str]:
        self.tokens.expect("(", "(")
        texts = [self._string()]
        while self.tokens.next.kind == ",":
            self.tokens.take()
            texts.append(self._string())
        self.tokens.expect(")", ", or )")
        return texts


# --- parts, as they are made -----------------------------------------------------------------------------------------------------


def _constant(value: Value | None) -> Node:
    return Node("constant", lambda _properties: value, value)


def _decimal(text: str) -> int:
    value = whole_number(text.rstrip("lL"))
    if value is None or value > LONG_MAX:
        raise SqlError(
            f"{text[:40]} is greater than {LONG_MAX}; write it with a point to compare it as a floating-point number"
        )
    return value if value <= INT_MAX else Long(value)


def _float(text: str) -> float:
    value = double_of(text)
    if not 0 < value < float("inf"):
        raise SqlError(
            f"{text} is beyond the floating-point numbers that may be written, 4.9E-324 to 1.8E308 (write 0, not 0.0)"
        )
    return value


_LITERALS: Final[Mapping[str, Callable[[str], Value | None]]] = {
    "decimal": _decimal,
    "float": _float,
    "TRUE": lambda _text: True,
    "FALSE": lambda _text: False,
    "NULL": lambda _text: None,
}
_SIGNS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SEARCHES: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_WORDS: Final = frozenset({"BETWEEN", "IN", *_SEARCHES})


def _as_truth(node: Node, tokens: Tokens) -> Node:
    """The node as a condition: a property alone is unknown where it is absent, else false, since it is text and no truth."""
    if node.is_truth:
        return node
    if node.kind != "property":
        raise SqlError(f"before character {tokens.next.at + 1}: a condition should stand here, not a number or a text")
    value = node.evaluate
    return Node("truth", lambda properties: None if value(properties) is None else False)


def _not(node: Node) -> Node:
    value = node.evaluate

    def evaluate(properties: Properties) -> Value | None:
        outcome = value(properties)
        return None if outcome is None else not outcome

    return Node("truth", evaluate)


def _negated(node: Node) -> Node:
    """Numbers only; anything else becomes unknown, a property too."""
    value = node.evaluate

    def evaluate(properties: Properties) -> Value | None:
        outcome = value(properties)
        if outcome is None or isinstance(outcome, (str, bool)):
            return None
        return Long(-outcome) if isinstance(outcome, Long) else -outcome

    return Node("negated", evaluate)


def _equal(left: Node, right: Node, tokens: Tokens) -> Node:
    for side in (left, right):
        if side.kind == "constant" and side.value is None:
            raise SqlError(f"before character {tokens.next.at + 1}: nothing equals NULL; write IS NULL or IS NOT NULL")
    if left.kind == right.kind == "constant" and left.is_truth and not right.is_truth:
        raise SqlError(f"before character {tokens.next.at + 1}: TRUE or FALSE cannot be compared with {right.value!r}")
    value, other = left.evaluate, right.evaluate
    if left.kind == "property" and right.kind == "constant" and isinstance(right.value, str):
        name, text = left.name, right.value

        def equal_text(properties: Properties) -> Value | None:  # the usual case
            held = properties.get(name)
            return None if held is None else held == text

        return Node("truth", equal_text)

    def evaluate(properties: Properties) -> Value | None:
        one, two = value(properties), other(properties)
        if one is None:
            return True if two is None else None
        return two is not None and order(one, two) == 0

    return Node("truth", evaluate)


def _is_null(node: Node, negated: bool) -> Node:
    value = node.evaluate
    return Node("truth", lambda properties: (value(properties) is None) is not negated)


def _ordered(left: Node, sign: str, right: Node, tokens: Tokens) -> Node:
    for side in (left, right):
        if side.kind == "truth" or (side.kind == "constant" and (isinstance(side.value, (str, bool)) or side.value is None)):
            raise SqlError(f"before character {tokens.next.at + 1}: only numbers and properties can stand beside {sign}")
    value, other, fits = left.evaluate, right.evaluate, _SIGNS[sign]
    if left.kind == "property" and right.kind == "constant" and isinstance(right.value, int):
        name, number = left.name, right.value

        def ordered_number(properties: Properties) -> Value | None:  # the usual case
            text = properties.get(name)
            if text is None:
                return None
            if len(text) < 10 and text.isdecimal():  # of either class
                return fits(int(text), number)
            return fits(order(text, number), 0)

        return Node("truth", ordered_number)

    def evaluate(properties: Properties) -> Value | None:
        one = value(properties)
        if one is None:
            return None
        two = other(properties)
        if two is None:
            return None
        if isinstance(one, str) and isinstance(two, str):
            one, two = double_of(one), double_of(two)
        return fits(order(one, two), 0)

    return Node("truth", evaluate)


def _between(node: Node, low: Node, high: Node, negated: bool, tokens: Tokens) -> Node:
    if not negated and low.kind == high.kind == "constant":
        numbers = [
            side.value for side in (low, high) if isinstance(side.value, (int, float)) and not isinstance(side.value, bool)
        ]
        if len(numbers) == 2 and order(numbers[1], numbers[0]) < 0:
            raise SqlError(
                f"before character {tokens.next.at + 1}: BETWEEN {numbers[0]} AND {numbers[1]} holds nothing; exchange them"
            )
    below, above = ("<", ">") if negated else (">=", "<=")
    first, second = _ordered(node, below, low, tokens).evaluate, _ordered(node, above, high, tokens).evaluate
    decides = negated

    def evaluate(properties: Properties) -> Value | None:
        one = first(properties)
        if one is decides:
            return decides
        two = second(properties)
        if two is decides:
            return decides
        return None if one is None or two is None else not decides

    return Node("truth", evaluate)


def _within(node: Node, texts: list[str], negated: bool, tokens: Tokens) -> Node:
    if node.kind != "property":
        raise SqlError(f"before character {tokens.next.at + 1}: only a property can be IN a list")
    name, wanted = node.name, frozenset(texts)

    def evaluate(properties: Properties) -> Value | None:
        held = properties.get(name)
        return None if held is None else (held in wanted) is not negated

    return Node("truth", evaluate)


def _searched(node: Node, search: Callable[[str, str], bool], text: str, negated: bool) -> Node:
    """False for what is absent or no text, and for an empty search, with NOT too."""
    value = node.evaluate

    def evaluate(properties: Properties) -> Value | None:
        held = value(properties)
        return bool(text) and isinstance(held, str) and search(held, text) is not negated

    return Node("truth", evaluate)
