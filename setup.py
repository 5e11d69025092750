"""The one module that is compiled, where it can be:
docs/explanations/decisions/0005-compiled-twins.md. All else is in pyproject.toml.

Without Cython setuptools looks for the C source; without that, or without a compiler, it warns and
leaves the module out.
"""

from pathlib import Path

from setuptools import Extension, setup

HOT = "src/turbopump/hot"
"""Its sources; what they make is ``turbopump._hot``, beside ``compiled.py``, which alone imports
it."""

PARTS = sorted(map(str, Path(HOT).glob("*.pxi")))

setup(ext_modules=[Extension("turbopump._hot", [f"{HOT}/_hot.pyx"], depends=PARTS, optional=True)])
