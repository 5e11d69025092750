"""Start of every command, prepared for Ctrl-C while the package is being imported.

The import takes most of the start. This module therefore imports nothing until ``main`` is called.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return its exit code, or 130 after Ctrl-C at any moment."""
    try:
        from turbopump.cli.entry import main as command_line

        return command_line(arguments)
    except KeyboardInterrupt:
        return 130
