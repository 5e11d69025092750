"""The command `turbopump`."""

from turbopump.cli.entry import main

__all__ = ["main"]
