"""Names and numbers of the command line: what is checked before anything else happens, and what may
have been meant."""

import math
from collections.abc import Iterable
from difflib import get_close_matches

import click

from turbopump.config.addresses import parse_address
from turbopump.errors import ConfigError
from turbopump.message.rules import topic_fault


def checked_topic(_context: click.Context, _parameter: click.Parameter, topic: str) -> str:
    """A topic whose name may be. Raises BadParameter."""
    fault = topic_fault(topic)
    if fault is not None:
        raise click.BadParameter(fault)
    return topic


def checked_address(
    _context: click.Context, _parameter: click.Parameter, address: str | None
) -> str | None:
    """HOST:PORT. Raises BadParameter."""
    if address is None:
        return None
    try:
        parse_address(address)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return address


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``" (did you mean orders?)"`` if a known name is near (case does not matter), else ``""``."""
    spelled = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    return f" (did you mean {spelled[near[0]]}?)" if near else ""


def checked_number(
    _context: click.Context, _parameter: click.Parameter, number: float | None
) -> float | None:
    """Not `nan`, which is in every range of click. Raises BadParameter."""
    if number is not None and math.isnan(number):
        raise click.BadParameter("nan is no number")
    return number
