"""For every test: hypothesis draws the same examples each time, and a slow machine is no failure. The header tells which functions run."""

from hypothesis import settings
from tests.fuzzing import FACTOR, examples

from turbopump.compiled import KIND

settings.register_profile("turbopump", parent=examples())
settings.load_profile("turbopump")


def pytest_report_header() -> str:
    return f"turbopump: hot functions are {KIND}, {FACTOR} × the usual examples of arbitrary input"
