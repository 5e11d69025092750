"""Every declared request and reply, and one of each with all its fields set."""

import importlib
import pkgutil
import types
import typing
from typing import Any

import msgspec

import turbopump.protocol.requests
from turbopump.protocol.request import Header, Reply, Request


def below(type_: type[Any]) -> list[type[Any]]:
    return [each for child in type_.__subclasses__() for each in (child, *below(child))]


for module in pkgutil.iter_modules(turbopump.protocol.requests.__path__):
    importlib.import_module(f"turbopump.protocol.requests.{module.name}")
DECLARED = "turbopump.protocol.requests."
REQUESTS = [type_ for type_ in below(Request) if type_.__module__.startswith(DECLARED)]
REPLIES = [type_ for type_ in below(Reply) if type_.__module__.startswith(DECLARED)]


def sample(declared: Any, number: int) -> Any:
    """A value of a field's type that differs from field to field."""
    if typing.get_origin(declared) is typing.Annotated:
        declared = typing.get_args(declared)[0]
    if typing.get_origin(declared) in (types.UnionType, typing.Union):
        declared = next(each for each in typing.get_args(declared) if each is not type(None))
        return sample(declared, number)
    return {str: f"text {number} é", int: number, bool: number % 2 == 0}[declared]


def filled(type_: type[Header]) -> Header:
    return type_(
        **{
            field.name: sample(field.type, number)
            for number, field in enumerate(msgspec.structs.fields(type_))
        }
    )
