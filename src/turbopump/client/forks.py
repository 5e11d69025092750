"""How often this process, or one before it, was forked: what was begun under another number belongs
to another process.

It is asked before every send, so it is a number that Python counts up after a fork, and not the
process id, which takes a system call.
"""

from __future__ import annotations

import os


class Forks:
    """``count``: forks that lie between this process and the one that first imported this
    module."""

    count = 0


def _count_one() -> None:
    Forks.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_one)
