"""What can go wrong with a SQL92 filter."""

from __future__ import annotations


class SqlError(ValueError):
    """The expression is no SQL92 filter; says where and what should stand there."""


class NoVerdictError(Exception):
    """A message cannot be judged (a number was wanted and the property holds none): it does not
    match."""
