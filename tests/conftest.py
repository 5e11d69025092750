"""For every test: hypothesis draws the same examples each time, and a slow machine is no failure."""

from hypothesis import settings

settings.register_profile("turbopump", derandomize=True, deadline=None)
settings.load_profile("turbopump")
