"""The one module that is compiled, where it can be: docs/decisions/0005-compiled-twins.md. All else is in pyproject.toml.

Without Cython setuptools looks for the C source; without that, or without a compiler, it warns and leaves the module out.
"""

from setuptools import Extension, setup

setup(ext_modules=[Extension("turbopump._hot", ["src/turbopump/_hot.pyx"], optional=True)])
