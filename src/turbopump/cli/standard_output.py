"""Standard output whose reader has gone (`turbopump consume | head`)."""

import os
import sys


def drop_output() -> None:
    """Send what is still to be written nowhere, or the interpreter complains when it flushes
    standard output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
