"""What Apache's mqadmin says: many commands in one JVM, for a JVM of its own takes a second each.

The one rule: nothing is known here of what a command means. What differs from run to run by its
nature (addresses, times, ids) is told apart from what it says by ``plain``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.interop.answering_jvm import AnsweringJvm

COMMAND_SECONDS: Final = 60
"""For a command on a busy machine; each of its requests has 5 s."""


class Mqadmin(AnsweringJvm):
    """One JVM that runs the commands of Apache's mqadmin. Enter it to start it; ``directory`` is
    its working directory and its home. Raises ToolMissingError."""

    def __init__(self, directory: Path) -> None:
        super().__init__("Mqadmin", directory, options=[f"-Drocketmq.home.dir={directory}"])

    def run(self, namesrv: str, *command: str, seconds: int = COMMAND_SECONDS) -> str:
        """What one command prints, on both of its outputs, when it asks this name server."""
        return self.ask(str(seconds), *command, "-n", namesrv).decode()


_CHANGING: Final = (
    (r"(?m)^\s*at [^\n]*$|^\s*\.\.\. \d+ more$", ""),  # where an exception was thrown
    (r"(CODE: \d+)  DESC:.*", r"\1"),  # the number counts: our words say more
    (r"(?m)^(For more information, please visit|See https:).*$", ""),
    (r"\b[0-9A-F]{32,}\b", "<id>"),
    (r"(?i)(born ?host[=:]\s*/?)127\.0\.0\.1:\d+", r"\1<client>"),
    (r"\b\d{4}-\d\d-\d\d[ T]?\d\d:\d\d:\d\d([.,]\d{1,3})?\b", "<time>"),
    (r"\b1[6-9]\d{11}\b", "<ms>"),
    # ours shows no passwords
    (r"(?m)^(\S+ +)\S+ +((Super|Normal) +(enable|disable))", r"\1<password> \2"),
    (r"__CRC32#=\d+", "__CRC32#=<crc>"),
)


def plain(text: str, names: Mapping[str, str]) -> list[str]:
    """The lines that a command has printed, sorted, without what differs from run to run.
    ``names``: what to call addresses, directories and whatever else is each cluster's own."""
    for value, name in sorted(names.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(value, f"<{name}>")
    for pattern, replacement in _CHANGING:
        text = re.sub(pattern, replacement, text)
    return sorted(line.rstrip() for line in text.splitlines() if line.strip())


def traces_by_mqadmin(namesrv: str, msg_id: str, directory: Path) -> str:
    with Mqadmin(directory) as mqadmin:
        return mqadmin.run(namesrv, "queryMsgTraceById", "-i", msg_id)
