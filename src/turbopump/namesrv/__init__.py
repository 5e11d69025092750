"""Name server, which tells clients where the brokers and their topics are."""

from turbopump.namesrv.server import NameServer

__all__ = ["NameServer"]
