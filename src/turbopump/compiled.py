"""Registry of functions that also exist in a compiled form.

``@has_twin`` marks a plain function. Its compiled twin in ``hot/`` replaces it if the twin was
built. The plain function defines the behaviour. The twin has the same name and signature. It
calls the plain function for unusual values, so that errors are the same too. These are values of
other types, numbers out of range, text beyond ASCII, and bytes that do not fit.
``TURBOPUMP_PURE=1`` in the environment disables the twins. Reasons:
docs/explanations/decisions/0005-compiled-twins.md.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Twins(NamedTuple):
    """Plain function and its compiled twin.

    - ``compiled``: None if the twin was not built or is disabled.
    """

    plain: Callable[..., Any]
    compiled: Callable[..., Any] | None


def _load() -> tuple[Any, str]:
    if os.environ.get("TURBOPUMP_PURE", "") not in ("", "0"):
        return None, "plain Python (TURBOPUMP_PURE is set)"
    try:
        return importlib.import_module("turbopump._hot"), "compiled"
    except ImportError as error:
        return None, f"plain Python (turbopump._hot: {error})"


_hot, KIND = _load()
"""Text for people that says whether compiled or plain functions run, and why."""

IS_COMPILED: Final = _hot is not None
TWINS: Final[dict[str, Twins]] = {}
"""Functions that may run compiled, by name."""


def has_twin(plain: FunctionT) -> FunctionT:
    """Return the compiled twin of ``plain``, or ``plain`` itself if it has no twin."""
    name = plain.__name__
    compiled = None
    if _hot is not None:
        compiled = getattr(_hot, name, None)  # None if built from an older source
        _hot.plain[name] = plain
    TWINS[name] = Twins(plain, compiled)
    return compiled or plain
