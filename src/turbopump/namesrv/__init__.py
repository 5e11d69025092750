"""The name server: which broker has which topic."""

from turbopump.namesrv.server import NameServer

__all__ = ["NameServer"]
