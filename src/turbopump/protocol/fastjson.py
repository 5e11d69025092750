"""JSON in the dialect of Apache's peers (fastjson 1.2). All JSON is read and written here.

`decode` passes the text to msgspec. If msgspec refuses the text, a second pass handles bare number
keys and objects as keys, then enums by ordinal, numbers for strings, … `encode` writes the same
text as a Java peer. The work is bounded, and any fault raises `FastjsonError`.
"""

from __future__ import annotations

import base64
import enum
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from turbopump.protocol.fastjson_read import FastjsonError, shape, to_standard
from turbopump.struct_decoders import decoder_of

__all__ = [
    "FastjsonError",
    "compact",
    "decode",
    "decode_request",
    "encode",
    "encode_entry",
    "encode_indented",
    "encode_standard",
    "encode_steps",
    "parse",
    "put_entries",
]

T = TypeVar("T")

REQUEST_MAX, REQUEST_ENTRIES_MAX = 4 * 1024 * 1024, 250_000
"""Maximum size in bytes, and maximum number of entries, of a request's body."""
DIALECT_REQUEST_MAX, DIALECT_REQUEST_ENTRIES_MAX = 64 * 1024, 2000
"""The same limits for a request's body that is not standard JSON and needs the second pass."""
MAX_BYTES = 64 << 20
"""Maximum size of a JSON text in bytes. A frame is at most 16 MiB; only a broker's own files may be
longer."""
MAX_ENTRIES = 1_000_000
"""Maximum number of members and elements of one document, on all levels together."""
TEXTS_AT_ONCE: Final = 64
"""Number of pieces of text that `encode_steps` encodes in one step."""

_REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode(data: bytes | bytearray | memoryview, type: type[T]) -> T:  # noqa: A002
    """Decode JSON text in UTF-8 as a value of `type`, for example a body struct or `dict[int,
    str]`.

    Unknown fields are ignored, absent fields get their default, and later duplicates win. Raise
    FastjsonError if the text is not JSON, does not fit the type, or exceeds a limit (64 MiB, a
    million entries, some hundreds of levels).
    """
    _check_bounds(data)
    try:
        return cast(T, decoder_of(cast(Any, type)).decode(data))
    except _REFUSALS as error:
        _refuse_deep(error)
        return _decode_leniently(data, type)


def decode_request(data: bytes, type: type[T]) -> T:  # noqa: A002
    """Decode the body of a request like `decode`. Limits on the body keep the time near 30 ms at
    most.

    The body may have `REQUEST_MAX` bytes and `REQUEST_ENTRIES_MAX` entries. If it is not standard
    JSON, the limits are `DIALECT_REQUEST_MAX` and `DIALECT_REQUEST_ENTRIES_MAX`. Raise
    FastjsonError as `decode` does.
    """
    if len(data) > REQUEST_MAX or data.count(b",") > REQUEST_ENTRIES_MAX:
        raise FastjsonError(
            f"it has {len(data)} bytes and {data.count(b',')} entries, and may have {REQUEST_MAX} "
            f"and {REQUEST_ENTRIES_MAX}; ask in several requests"
        )
    try:
        return cast(T, decoder_of(cast(Any, type)).decode(data))
    except _REFUSALS as error:
        if len(data) > DIALECT_REQUEST_MAX or data.count(b",") > DIALECT_REQUEST_ENTRIES_MAX:
            raise FastjsonError(
                f"{error} (of more than {DIALECT_REQUEST_MAX} bytes or "
                f"{DIALECT_REQUEST_ENTRIES_MAX} entries strict JSON is read only)"
            ) from None
        _refuse_deep(error)
        return _decode_leniently(data, type)


def parse(data: bytes | bytearray | memoryview) -> Any:
    """Decode JSON text into dict, list, str, int, float, bool and None.

    All keys are strings: a number becomes its digits, an object its JSON text. Raise FastjsonError
    as `decode` does.
    """
    return decode(data, cast(type[Any], Any))


def _decode_leniently(data: bytes | bytearray | memoryview, type: type[T]) -> T:  # noqa: A002
    # Most bodies that come here are valid JSON whose values have other types, so they need no
    # second pass. Text that is nested too deep is refused before that pass, which would spend the
    # same time again.
    try:
        return shape(decoder_of(Any).decode(data), type)
    except _REFUSALS as error:
        _refuse_deep(error)
    text = to_standard(str(data, "utf-8", "replace"))
    with suppress(*_REFUSALS):
        return cast(T, decoder_of(cast(Any, type)).decode(text))
    try:
        value = decoder_of(Any).decode(text)
    except _REFUSALS as error:
        _refuse_deep(error)
        raise FastjsonError(f"neither JSON nor fastjson's dialect of it: {error}") from None
    return shape(value, type)


def _refuse_deep(error: Exception) -> None:
    if isinstance(error, RecursionError):
        raise FastjsonError("JSON text that is nested too deep, by hundreds of levels") from None


def encode(value: Any) -> bytes:
    """Encode a value as JSON text in the form of Java peers.

    The form is compact, with sorted members and without nulls. Maps whose keys are not strings
    become `{0:"…"}` or `{{"brokerName":…}:…}`. Enums are written by name, bytes as base64.
    """
    return Writer().text(value).encode("utf-8", "replace")


def encode_steps(value: Any, *, standard: bool = False) -> Generator[None, None, bytes]:
    """Encode a value like `encode`, in steps. Each step takes about 200 µs, even for a large value.

    With `standard`, the form is that of `encode_standard`. The value may change between steps. Each
    entry is written as it is at that moment.
    """
    writer, chunks = Writer(standard=standard), list[bytes]()
    texts: list[str] = []
    for text in writer.texts(value):
        texts.append(text)
        if len(texts) == TEXTS_AT_ONCE:
            chunks.append("".join(texts).encode("utf-8", "replace"))
            texts.clear()
            yield
    chunks.append("".join(texts).encode("utf-8", "replace"))
    return b"".join(chunks)


def encode_indented(value: Any) -> bytes:
    """Encode a value as JSON text in the form of a broker's config files.

    The form is that of `encode`, but indented with tabs and without a final newline.
    """
    return Writer(indented=True).text(value).encode("utf-8", "replace")


def encode_entry(key: str, value: Any) -> bytes:
    """Encode one entry of a map. The map is a member of the outermost object.

    The form is that of `encode_indented`. `put_entries` assembles large maps from these pieces.
    """
    writer = Writer(indented=True)
    return f"{writer.key_text(key, 2)}:{writer.text(value, 2)}".encode("utf-8", "replace")


def put_entries(text: bytes, member: str, entries: Iterable[bytes]) -> bytes:
    """Insert encoded entries into the empty map `member` of a JSON text, and return the new text.

    `text` is an object from `encode_indented`, `member` is one of its outermost members, and the
    entries are from `encode_entry`.
    """
    before, empty, after = text.partition(b'\n\t"%b":{}' % member.encode())
    assert empty, f"{member} is no empty map of the outermost object"
    content = b",".join(entries)
    return b"".join((before, empty[:-1], content, b"\n\t}" if content else b"}", after))


def compact(text: bytes) -> bytes:
    """Remove the line breaks and tabs that `encode_indented` added.

    The result equals `encode` of the same value, because encoded strings contain no raw tab or line
    break.
    """
    return text.translate(None, b"\n\t")


def encode_standard(value: Any) -> bytes:
    """Encode a value as standard JSON in pure ASCII, with every key quoted and map entries sorted.

    The name server answers GET_ROUTEINFO_BY_TOPIC (105) in this form.
    """
    return Writer(standard=True).text(value).encode("ascii")


def _check_bounds(data: bytes | bytearray | memoryview) -> None:
    if len(data) > MAX_BYTES:
        raise FastjsonError(f"JSON text of {len(data)} bytes is longer than {MAX_BYTES}")
    if len(data) > MAX_ENTRIES:
        text = bytes(data)
        # Commas miss nested containers, opening brackets miss plain values: count both.
        if max(text.count(b","), text.count(b"{") + text.count(b"[")) > MAX_ENTRIES:
            raise FastjsonError(f"JSON text with more than {MAX_ENTRIES} entries")


# Encoding, byte for byte as Apache's fastjson 1.2.83 writes the same value (golden files check
# this). There are three forms: the wire (compact), config files (tab-indented), and standard JSON
# for clients that ask the name server for it. Struct members are sorted by wire name, nulls are
# left out, and map entries keep their order. A Java List is a Python list, a Java Set is a tuple or
# set: the indented form breaks lines only in lists.
_SPECIAL = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029]')
_SPECIAL_OR_NOT_ASCII = re.compile('[\x00-\x1f"/\\\\\x7f-\U0010ffff]')
_SHORT_ESCAPES = {
    char: f"\\{letter}" for char, letter in zip('"\\/\b\t\n\f\r', '"\\/btnfr', strict=True)
}


class Writer(NamedTuple):
    """Writer of values as JSON text in one of fastjson's forms.

    - `indented`: True to break lines as config files do.
    - `standard`: True to quote every key, sort map entries and escape all characters beyond ASCII
      (fastjson's BrowserCompatible and MapSortField).
    """

    indented: bool = False
    standard: bool = False

    def text(self, value: Any, level: int = 0) -> str:
        """Return the JSON text of `value`. `level` is the number of objects and lists around it."""
        kind: Any = type(value)
        if kind is str:
            return self.quote(value)
        if kind is int:
            return int.__repr__(value)
        return _writer_of(kind)(self, value, level)

    def texts(self, value: Any) -> Iterator[str]:
        """Yield the JSON text of `value` in pieces.

        A value that may be large has one piece for each entry. Only the form without line breaks
        has pieces.
        """
        kind: Any = type(value)
        if _is_small(kind):
            yield self.text(value)
            return
        brackets, parts = "{}", self._parts(value)
        if not isinstance(value, msgspec.Struct | dict):
            brackets, parts = "[]", (("", item) for item in list(value))
        before = brackets[0]
        for name, item in parts:
            kind = type(item)
            if _is_small(kind):
                yield f"{before}{name}{self.text(item)}"
            else:
                yield before + name
                yield from self.texts(item)
            before = ","
        yield brackets[1] if before == "," else brackets

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """For each struct member or map entry that is not null, yield its name and value."""
        if isinstance(value, msgspec.Struct):
            for attribute, name in _members(type(value)):
                if (member := getattr(value, attribute)) is not None:
                    yield name, member
            return
        keys = list(value)  # entries may change before all are written
        if self.standard:
            keys.sort(key=_sort_key)
        for key in keys:
            if (item := value.get(key)) is not None:
                yield f"{self.key_text(key, 1)}:", item

    def quote(self, text: str) -> str:
        special = _SPECIAL_OR_NOT_ASCII if self.standard else _SPECIAL
        if special.search(text) is not None:
            text = special.sub(_escape, text)
        return f'"{text}"'

    def line(self, level: int) -> str:
        return "\n" + "\t" * level if self.indented else ""

    def struct_text(self, value: msgspec.Struct, level: int) -> str:
        members = [
            opening + self.text(member, level + 1)
            for attribute, opening in _members(type(value))
            if (member := getattr(value, attribute)) is not None
        ]
        line = self.line(level + 1)
        return f"{{{line}{f',{line}'.join(members)}{self.line(level)}}}"

    def map_text(self, value: dict[Any, Any], level: int) -> str:
        # Offsets by queue id are most of what a broker writes to its tables. Two passes in C find
        # such a map, and its entries then need no call each.
        if not self.standard and {*map(type, value), *map(type, value.values())} == {int}:
            texts = [f"{key}:{number}" for key, number in value.items()]
            return f"{{{','.join(texts)}{self.line(level)}}}"
        entries: Iterable[tuple[Any, Any]] = ((k, v) for k, v in value.items() if v is not None)
        if self.standard:
            entries = sorted(entries, key=lambda entry: _sort_key(entry[0]))
        texts = [f"{self.key_text(key, level + 1)}:{self.text(v, level + 1)}" for key, v in entries]
        return f"{{{','.join(texts)}{self.line(level) if value else ''}}}"

    def key_text(self, key: Any, level: int) -> str:
        if isinstance(key, str) and not isinstance(key, enum.Enum):
            return self.line(level) + self.quote(key)
        if self.standard:
            return self.quote(Writer().text(key))
        return self.text(key, level)  # fastjson breaks lines for string keys only

    def list_text(self, value: list[Any], level: int) -> str:
        line = self.line(level + 1)
        texts = ",".join([line + self.text(item, level + 1) for item in value])
        return f"[{texts}{self.line(level) if value else ''}]"

    def set_text(self, value: Iterable[Any], level: int) -> str:
        return f"[{','.join([self.text(item, level) for item in value])}]"


_Write = Callable[[Writer, Any, int], str]
_BY_TYPE: tuple[tuple[tuple[type, ...], _Write], ...] = (
    ((enum.Enum,), lambda writer, value, _: writer.quote(value.name)),
    ((type(None),), lambda _, value, __: "null"),
    ((bool,), lambda _, value, __: "true" if value else "false"),
    ((int,), lambda _, value, __: int.__repr__(value)),
    ((float,), lambda _, value, __: java_double(value)),
    ((str,), lambda writer, value, _: writer.quote(str(value))),
    ((bytes, bytearray, memoryview), lambda _, value, __: f'"{base64.b64encode(value).decode()}"'),
    ((dict,), Writer.map_text),
    ((list,), Writer.list_text),
    ((tuple, set, frozenset), Writer.set_text),
    ((msgspec.Struct,), Writer.struct_text),
)


@cache
def _writer_of(kind: type) -> _Write:
    for types, write in _BY_TYPE:
        if issubclass(kind, types):
            return write
    raise TypeError(f"fastjson has no form for {kind.__name__}")


@cache
def _is_small(kind: type) -> bool:
    """Return True if values of this type contain no collections. Such a value is written in one
    piece."""
    if issubclass(kind, msgspec.Struct):
        return _holds_few(cast(Any, msgspec.inspect.type_info(kind)))
    return not issubclass(kind, dict | list | tuple | set | frozenset)


def _holds_few(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.StructType):
        return all(_holds_few(field.type) for field in info.fields)
    if isinstance(info, msgspec.inspect.UnionType):
        return all(_holds_few(kind) for kind in info.types)
    return isinstance(info, _FEW)


_FEW = tuple(
    getattr(msgspec.inspect, f"{name}Type")
    for name in ("Str", "Int", "Float", "Bool", "None", "Enum", "Bytes")
)


@cache
def _members(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return (attribute, `"wireName":`) for each member of a struct, in the order of fastjson."""
    fields = sorted(msgspec.structs.fields(kind), key=lambda field: field.encode_name)
    return tuple((field.name, f'"{field.encode_name}":') for field in fields)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    short = _SHORT_ESCAPES.get(char)
    if short is not None:
        return short
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def _sort_key(key: Any) -> Any:
    return key.encode("utf-16-be", "surrogatepass") if isinstance(key, str) else key


def java_double(value: float) -> str:
    """Return the text of a number as Java's `Double.toString` writes it.

    NaN and the infinities become `null`, as in fastjson.
    """
    if value != value or value in (float("inf"), float("-inf")):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = repr(value)
        return text if "." in text else text + ".0"
    number = Decimal(repr(value))
    sign, digits, _ = number.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{number.adjusted()}"
