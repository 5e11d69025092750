"""Clock, random numbers, network address and process of a client.

One rule: client code gets these only from its ``Environment``, so that a test or a simulation can
replace them.
"""

from __future__ import annotations

import ipaddress
import os
import random
import re
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turbopump.client.setting_rules import SettingRule, has_methods, is_a, is_collection
from turbopump.clock import Clock, SystemClock
from turbopump.config.addresses import outward_address, parse_address, parse_addresses
from turbopump.errors import ConfigError
from turbopump.message.ids import UniqueIds

SYSTEM_CLOCK: Final = SystemClock()
SYSTEM_RANDOM: Final = random.SystemRandom()
"""Random numbers from the operating system, so that a forked child does not repeat those of its
parent."""


def _is_address(value: object) -> bool:
    try:
        ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        return False
    return True


CLOCK: Final = SettingRule(
    has_methods("now_ms", "monotonic"), "must be a clock: an object with now_ms() and monotonic()"
).or_none()
RANDOM: Final = SettingRule(
    is_a(random.Random), "must be a random.Random, as in random.Random(7)"
).or_none()
LOCAL_IP: Final = SettingRule(
    lambda value: value is None or _is_address(value),
    "must be an IP address, as in '10.0.0.7', or None to find it",
)
_NAME_SERVERS: Final = SettingRule(
    lambda value: (
        isinstance(value, str)
        or (is_collection(value) and all(isinstance(one, str) for one in value))
    ),
    "must be HOST:PORT of a name server, as in '127.0.0.1:9876', or a list of them",
)


def program_name() -> str:
    """Return the name of the running program. Characters that are illegal in a group name become
    ``-``.

    The name is the module of ``python -m``, or the name of the script without its suffix, or
    ``python``.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).stem
    return re.sub("[^a-zA-Z0-9_-]+", "-", name).strip("-")[:64] or "python"


@dataclass(slots=True)
class Environment:
    """Clock, random numbers, network address and process of a client.

    - ``clock``: for timestamps and intervals.
    - ``random``: for starting points and ids.
    - ``local_ip``: used in the client id and in message ids. If None, the address of the
      interface with the default route is looked up at first use.
    - ``pid``: function that returns the process id.
    """

    clock: Clock = SYSTEM_CLOCK
    random: random.Random = SYSTEM_RANDOM
    local_ip: str | None = None
    pid: Callable[[], int] = field(default_factory=lambda: os.getpid)

    @property
    def ip(self) -> str:
        """IP address under which other machines reach this one."""
        if self.local_ip is None:
            self.local_ip = outward_address()
        return self.local_ip

    @property
    def identity(self) -> Hashable:
        """Comparable value. Two clients have equal values if they share the process, address, clock
        and random numbers."""
        return self.pid(), self.ip, self.clock, self.random

    def unique_ids(self) -> UniqueIds:
        """Return a new source of message ids. No other client generates the same ids."""
        token = self.random.getrandbits(32)
        return UniqueIds(self.clock, ip=self.ip, token=token, pid=self.pid())

    def new_instance_name(self) -> str:
        """Return a new name of the form ``<pid>#<64 random bits>``. The random bits keep it unique
        across containers and threads.

        RocketMQ: ``ClientConfig.changeInstanceNameToPID`` uses the nanosecond clock for the second
        part.
        """
        return f"{self.pid()}#{self.random.getrandbits(64)}"


def name_server_addresses(namesrv: str | list[str] | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the addresses of the name servers in a user's setting, without duplicates.

    The setting is ``"a:9876"``, ``"a:9876;b:9876"`` or a list. If it is None, the variable
    NAMESRV_ADDR is used. Raises ConfigError if there is no address, or one is not HOST:PORT.
    """
    if namesrv is None:
        namesrv = os.environ.get("NAMESRV_ADDR", "")
    _NAME_SERVERS.check("namesrv", namesrv)
    if isinstance(namesrv, str):
        addresses = parse_addresses(namesrv)
    else:
        addresses = [address.strip() for address in namesrv]
        for address in addresses:
            parse_address(address, what="name server address")
    if not addresses:
        raise ConfigError(
            "no name server given: HOST:PORT is expected, as in 127.0.0.1:9876 "
            "(several: HOST:PORT;HOST:PORT), or the variable NAMESRV_ADDR"
        )
    return tuple(dict.fromkeys(addresses))
