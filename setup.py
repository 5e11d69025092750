"""The one module that is compiled, where it can be:
docs/explanations/decisions/0005-compiled-twins.md. All else is in pyproject.toml.

Without Cython or without a compiler setuptools warns and leaves the module out. Two variables of
the environment change that. TURBOPUMP_BUILD_COMPILED=1 makes a failed compilation an error.
TURBOPUMP_BUILD_PURE=1 builds no module: the wheel then fits every system.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

HOT = "src/turbopump/hot"
"""Its sources; what they make is ``turbopump._hot``, beside ``compiled.py``, which alone imports
it."""

PARTS = sorted(map(str, Path(HOT).glob("*.pxi")))
IS_PURE = os.environ.get("TURBOPUMP_BUILD_PURE") == "1"
IS_OPTIONAL = os.environ.get("TURBOPUMP_BUILD_COMPILED") != "1"

hot = Extension("turbopump._hot", [f"{HOT}/_hot.pyx"], depends=PARTS, optional=IS_OPTIONAL)
setup(ext_modules=[] if IS_PURE else [hot])
