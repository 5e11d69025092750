"""Memory of a process, as the kernel counts it. Mapped store files are resident but not
anonymous."""

from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of all resident pages, and of those without a file."""

    resident: int
    anonymous: int


def memory_of(pid: int) -> Memory:
    """Raises ProcessLookupError or FileNotFoundError when the process is gone."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, _unit = line.split()
        fields[name.rstrip(":")] = int(size) * 1024
    return Memory(resident=fields["Rss"], anonymous=fields["Anonymous"])


def anonymous_of(pid: int) -> int:
    """The anonymous bytes alone, which costs the process nothing. Raises FileNotFoundError when it
    is gone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0  # it has ended, and nobody has waited for it
