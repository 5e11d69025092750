"""Every declared request and reply, and one of each with all its fields set."""

import importlib
import pkgutil
import sys
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


def declared(type_: type[Any]) -> list[type[Any]]:
    """Those that a module has under their name: not what ``with_field_names`` has replaced."""
    return [
        each
        for each in below(type_)
        if each.__module__.startswith(DECLARED)
        and vars(sys.modules[each.__module__])[each.__name__] is each
    ]


REQUESTS = declared(Request)
REPLIES = declared(Reply)


def sample(type_: Any, number: int) -> Any:
    """A value of a field's type that differs from field to field."""
    if typing.get_origin(type_) is typing.Annotated:
        type_ = typing.get_args(type_)[0]
    if typing.get_origin(type_) in (types.UnionType, typing.Union):
        type_ = next(each for each in typing.get_args(type_) if each is not type(None))
        return sample(type_, number)
    return {str: f"text {number} é", int: number, bool: number % 2 == 0}[type_]


def filled(type_: type[Header]) -> Header:
    return type_(
        **{
            field.name: sample(field.type, number)
            for number, field in enumerate(msgspec.structs.fields(type_))
        }
    )
