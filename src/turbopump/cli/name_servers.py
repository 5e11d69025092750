"""The option `-n`: where a client command finds its name servers.

Its one rule: the option, else the variable NAMESRV_ADDR, else the address that `turbopump dev` has.
It must not connect.
"""

import click

from turbopump.config.addresses import parse_addresses
from turbopump.errors import ConfigError


def _parse(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    addresses = parse_addresses(text, what="name server address")
    if not addresses:
        raise ConfigError("the list of name servers is empty: HOST:PORT;HOST:PORT is expected")
    return addresses


name_server_option = click.option(
    "-n",
    "--namesrv",
    "namesrv",
    metavar="ADDRS",
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    default="127.0.0.1:9876",
    show_default=True,
    callback=_parse,
    help="Name servers, HOST:PORT;HOST:PORT.",
)
