"""Controller: the server that decides which replica of a broker name is the master."""

from turbopump.controller.server import Controller

__all__ = ["Controller"]
