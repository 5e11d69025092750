"""Names and numbers of the command line that are checked before anything else happens; what is wrong is a mistake of whoever asked."""

import math

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


def checked_address(_context: click.Context, _parameter: click.Parameter, address: str | None) -> str | None:
    """HOST:PORT. Raises BadParameter."""
    if address is None:
        return None
    try:
        parse_address(address)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return address


def checked_number(_context: click.Context, _parameter: click.Parameter, number: float | None) -> float | None:
    """Not `nan`, which is in every range of click. Raises BadParameter."""
    if number is not None and math.isnan(number):
        raise click.BadParameter("nan is no number")
    return number
