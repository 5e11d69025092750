"""Name server. Clients ask it for the brokers of a topic."""

from turbopump.namesrv.server import NameServer

__all__ = ["NameServer"]
