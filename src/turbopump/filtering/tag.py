"""Tag expressions: ``*`` or an empty text selects all messages, ``A || B`` selects messages with
these tags.

A broker compares tag codes (hashes, in the ConsumeQueue), a client compares the tags themselves.
Source: apache/rocketmq ``FilterAPI.buildSubscriptionData``, ``DefaultMessageFilter``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from turbopump.message.java import tags_code

ALL = "*"

LENGTH_MAX: Final = 64 * 1024
"""Maximum length of an expression in characters, enough for thousands of tags. RocketMQ has no
limit."""


def parse_tags(expression: str | None) -> frozenset[str]:
    """Return the tags that a tag expression selects, or an empty set for all messages.

    Raise ValueError if the expression has no tag, as ``||``, or is too long.
    """
    if expression is None or expression.strip() in ("", ALL):
        return frozenset()
    if len(expression) > LENGTH_MAX:
        raise ValueError(
            f"the tag expression has {len(expression)} characters and may have {LENGTH_MAX}"
        )
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    if not tags:
        raise ValueError(
            f"{expression!r} names no tag; write '*' for all messages, or 'TagA || TagB'"
        )
    return tags


_NOT_IN_A_TAG: Final = re.compile(r"[\s,;|&<>=()'\"]")
"""Separators of filters and lists, which a tag rarely contains."""
_BETWEEN_TAGS: Final = re.compile(r"\s*(?:\bOR\b|\|\||[,;|])\s*")
_OF_A_FILTER: Final = re.compile(r"[<>=]|\b(?:AND|BETWEEN|CONTAINS|IN|IS|NOT)\b")


def list_fault(expression: str) -> str | None:
    """Return the reason why a tag expression is probably a mistake, or None.

    The reason says what to write instead. Such an expression is legal, but usually matches no
    message.
    """
    tags = parse_tags(expression)
    odd = next(filter(_NOT_IN_A_TAG.search, sorted(tags)), None)
    if odd is None:
        return None
    parts = _BETWEEN_TAGS.split(expression.strip())
    if len(parts) > 1 and not any(not part or _NOT_IN_A_TAG.search(part) for part in parts):
        meant = f"did you mean {' || '.join(parts)!r:.200}?"
    elif _OF_A_FILTER.search(expression):
        meant = f"did you mean the filter Sql({expression!r:.200})?"
    else:
        meant = f"{odd!r:.80} is not a usual tag"
    return f"{expression!r:.200} is not a list of tags: {meant}"


def tag_codes(tags: Iterable[str]) -> frozenset[int]:
    """Return the codes by which a broker finds messages with these tags in a consume queue."""
    return frozenset(tags_code(tag) for tag in tags)


def code_filter(codes: frozenset[int]) -> Callable[[int], bool] | None:
    """Return a function that tests the tag code of a message, or None to select all messages."""
    return codes.__contains__ if codes else None
