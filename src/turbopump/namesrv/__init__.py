"""Name server: the table of brokers and their topics, and its request handlers."""

from turbopump.namesrv.server import NameServer

__all__ = ["NameServer"]
