"""Errors go from process to process."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from tests.stand_ins import does_nothing

import turbopump
from turbopump.errors import ResponseError, TurbopumpError

APART = ("turbopump.hot", "turbopump.spark", "turbopump.__main__")
"""What needs Spark, or does something when it is imported."""


def errors() -> list[type[TurbopumpError]]:
    for module in pkgutil.walk_packages(turbopump.__path__, "turbopump.", onerror=does_nothing):
        if not module.name.startswith(APART):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(module.name)
    kinds: list[type[TurbopumpError]] = [TurbopumpError]
    for one in kinds:
        kinds += [kind for kind in one.__subclasses__() if kind not in kinds]
    return kinds


def made(kind: type[TurbopumpError]) -> TurbopumpError:
    """With a value for every parameter: a text, or what its annotation asks for."""
    values = {"int": 17, "int | None": 17, "float": 2.5, "tuple[str, ...]": ("a", "b")}
    args, named = [], {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        value = values.get(str(parameter.annotation), f"its {name}")
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        elif name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
            args.append(value)
    return kind(*args, **named)


def pickled(error: TurbopumpError) -> object:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", errors(), ids=lambda kind: kind.__qualname__)
def test_an_error_that_was_pickled_or_copied_is_the_same(
    kind: type[TurbopumpError], again: Callable[[TurbopumpError], object]
) -> None:
    error = made(kind)
    error.add_note("seen by a worker")
    other = again(error)
    assert type(other) is kind
    assert other is not error
    assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


def refused() -> None:
    raise ResponseError(1, "not here", request="RecallMessage", address="127.0.0.1:10911")


def test_a_worker_of_a_process_pool_tells_what_a_broker_said_and_works_on() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(ResponseError, match="not here") as caught:
            pool.submit(refused).result()
        error = caught.value
        assert (error.code, error.remark, str(error)) == (
            1,
            "not here",
            "code 1 to RecallMessage from 127.0.0.1:10911: not here",
        )
        assert pool.submit(abs, -1).result() == 1
