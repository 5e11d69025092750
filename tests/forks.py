"""Work that is done in a fork of the test's own process."""

import os
import signal
import warnings
from collections.abc import Callable


def in_a_fork(work: Callable[[], str]) -> str:
    """What ``work`` says in a forked child; the child ends after 60 s whatever happens."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # 3.12: this process has threads, and that is the point
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer
