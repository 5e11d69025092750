"""Start of every command. Importing the package takes most of the start, and Ctrl-C may arrive
meanwhile. This module therefore imports nothing before it is called."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code, which is 130 after Ctrl-C at any moment."""
    try:
        from turbopump.cli.entry import main as command_line

        return command_line(arguments)
    except KeyboardInterrupt:
        return 130
