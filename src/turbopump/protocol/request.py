"""Declaration of a request: one typed struct, from which codec, routing and calls derive.

A subclass of ``Request`` declares its ``code``, its ``reply`` header and its fields. The fields
travel as strings in the command's ``extFields`` under Apache's names (``rename="camel"``). To add a
request:

- add its code to ``codes.py``;
- declare the request and its reply in ``requests/``;
- write a handler in the process that answers the request;
- record its golden bytes.

The header rules are Apache's (``CommandCustomHeader``, ``RemotingCommand.makeCustomHeaderToNet``):
null fields are not written, booleans are ``true``/``false``, numbers are decimal. Reading is
tolerant, because real clients send bare numbers and booleans.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args

import msgspec

from turbopump.errors import HeaderError
from turbopump.struct_decoders import convert

ReplyT = TypeVar("ReplyT", bound=msgspec.Struct | None, covariant=True)
HeaderT = TypeVar("HeaderT", bound="Header")


class Header(msgspec.Struct, kw_only=True, rename="camel"):
    """Header fields of a request or an answer, which travel in ``extFields``."""

    def to_ext(self) -> dict[str, str]:
        """Return all fields except None, as strings under Apache's names."""
        ext: dict[str, str] = {}
        for attribute, name in _names(type(self)):
            value = getattr(self, attribute)
            if value is None:
                continue
            if value is True:
                ext[name] = "true"
            elif value is False:
                ext[name] = "false"
            else:
                ext[name] = value if value.__class__ is str else str(value)
        return ext


class Reply(Header, kw_only=True):
    """Header fields of an answer.

    Many answers have only a JSON body. Their reply type is then a plain struct.
    """


class Request(Header, Generic[ReplyT], kw_only=True):
    """Header fields of a request. Each request type is a subclass.

    - ``code``: the request code.
    - ``body``: the type of the JSON body. None if the request has no body or another form.
    - ``reply``: the type of the answer, as in ``Request[…]``: a ``Reply``, a JSON body, or
      None.

    The fields declared here may be in every request (apache/rocketmq ``RpcRequestHeader``).
    """

    code: ClassVar[int]
    body: ClassVar[type[msgspec.Struct] | None] = None
    reply: ClassVar[type[ReplyT] | None] = None

    namespace: str | None = msgspec.field(default=None, name="ns")
    namespaced: bool | None = msgspec.field(default=None, name="nsd")
    bname: str | None = None
    oneway: bool | None = msgspec.field(default=None, name="oway")
    logical: bool | None = msgspec.field(default=None, name="lo")

    def __init_subclass__(cls) -> None:
        if "__orig_bases__" in cls.__dict__:  # Request[Reply], not a subclass of another request
            (reply,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
            cls.reply = None if reply is type(None) else reply


def with_field_names(names: str) -> Callable[[type[HeaderT]], type[HeaderT]]:
    """Return a class decorator that sends the fields of a request under one-letter names.

    ``names`` has one letter for each field, in the order of declaration. A base class may declare
    the fields under their long names.
    """

    def renamed(cls: type[HeaderT]) -> type[HeaderT]:
        own = msgspec.structs.fields(cls)[len(msgspec.structs.fields(Request)) :]
        fields = [
            (field.name, field.type, msgspec.field(default=field.default, name=name))
            for field, name in zip(own, names, strict=True)
        ]
        about = {"code": vars(cls)["code"], "__doc__": cls.__doc__}
        made = msgspec.defstruct(
            cls.__name__, fields, bases=(cls,), module=cls.__module__, namespace=about, kw_only=True
        )
        return cast("type[HeaderT]", made)

    return renamed


@cache
def _names(type_: type[Header]) -> list[tuple[str, str]]:
    return [(field.name, field.encode_name) for field in msgspec.structs.fields(type_)]


def header_from_ext(type_: type[HeaderT], ext: Mapping[str, Any]) -> HeaderT:
    """Convert header fields, as real clients send them, to a struct of the type ``type_``.

    Values may be strings, numbers or booleans. As in Apache's reader, a value that cannot be
    converted to the declared type counts as absent. Raises HeaderError with the field's name in two
    cases:

    - A required field is absent. RocketMQ: NullPointerException or NumberFormatException, also
      code 1.
    - An optional number of a request is invalid. The default would be a number that nobody asked
      for.
    """
    with contextlib.suppress(msgspec.ValidationError):
        return convert(ext, type_)
    usable: dict[str, Any] = {}
    for field in msgspec.structs.fields(type_):
        value, name = ext.get(field.encode_name), field.encode_name
        if value is not None:
            text = ("true" if value else "false") if isinstance(value, bool) else str(value)
            try:
                usable[name] = msgspec.convert(text.strip(), field.type, strict=False)
                continue
            except msgspec.ValidationError:
                if field.type in (str, str | None):
                    usable[name] = text
                    continue
        guessed = value is not None and type(field.default) is int and issubclass(type_, Request)
        if guessed or field.required:
            shown = name if name == field.name else f"{field.name} ({name})"
            if value is None:
                raise HeaderError(f"field {shown} is missing")
            raise HeaderError(f"field {shown} has the unusable value {str(value)[:64]!r}")
    with contextlib.suppress(msgspec.ValidationError):
        return convert(usable, type_)
    raise HeaderError(f"the header fields do not fit {type_.__name__}")
