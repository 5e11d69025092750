"""What holds for every server that the command line runs in the foreground."""

import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turbopump.cli.serving import serve


def test_python_s_collector_passes_over_what_a_start_has_made() -> None:
    frozen: list[int] = []

    @asynccontextmanager
    async def servers() -> AsyncIterator[None]:
        tables = [{"topic": [number]} for number in range(1000)]
        os.kill(os.getpid(), signal.SIGTERM)
        yield
        frozen.append(gc.get_freeze_count())
        assert tables

    serve(servers)
    assert frozen[0] >= 2000
    assert gc.get_freeze_count() < frozen[0]
