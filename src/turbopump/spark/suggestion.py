"""The nearest known name to a misspelt one, for error sentences."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'topic'?"`` if a known name is near (case does not matter), else ``""``."""
    spelled = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    return f"; did you mean {spelled[near[0]]!r}?" if near else ""
