"""Loops in several threads of one process meet classes for the first time at the same moment."""

import subprocess
import sys

from tests.unit.cli.commands import command_environment

PROGRAM = """
import importlib, pkgutil, sys, threading
from contextlib import suppress
import msgspec
from turbopump.errors import HeaderError
from turbopump.protocol import requests
from turbopump.protocol.command import typed_json_decoder
from turbopump.protocol.request import Request, header_from_ext

for module in pkgutil.iter_modules(requests.__path__):
    importlib.import_module(f"{requests.__name__}.{module.name}")
kinds, together = Request.__subclasses__(), threading.Barrier(6)

fields = {"topic": "T", "queueId": "0", "group": "g", "consumerGroup": "g"}
header = msgspec.json.encode({"code": 1, "opaque": 1, "extFields": fields})

def meet(number):
    for kind in kinds:
        together.wait()
        with suppress(HeaderError, msgspec.ValidationError):
            if number % 3:
                typed_json_decoder(kind).decode(header)
            else:
                header_from_ext(kind, fields)

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=meet, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(kinds) > 100)
"""


def test_threads_that_are_first_with_a_request_at_once_do_not_end_the_process() -> None:
    """The name servers and brokers of tests did, one time in thousands."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=command_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
