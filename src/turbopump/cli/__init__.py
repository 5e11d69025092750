"""The command `turbopump`."""

from turbopump.cli.start import main

__all__ = ["main"]
