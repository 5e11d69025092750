"""The compiled functions do what their plain twins do, for whatever they are given: results, bytes written, errors.

Where nothing is compiled the same tests run on the plain ones alone (the header of the run says so): against what is known of them.
"""

import mmap
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import turbopump.broker.send_reply
import turbopump.store.message_store  # noqa: F401  (both imports: every function with a twin is known then)
from turbopump.compiled import IS_COMPILED, KIND, TWINS
from turbopump.message.codec import decode_entry, encode_entry, entry_fault
from turbopump.message.java_hash import java_hash
from turbopump.message.properties import decode_properties

NAMES = ("write_entry", "send_properties", "key_hash", "put_entries", "send_reply")
KINDS = ("plain", "compiled") if IS_COMPILED else ("plain",)
each_kind = pytest.mark.parametrize("kind", KINDS)

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
any_int = st.one_of(int32, int64, st.integers(-(1 << 70), 1 << 70))
hosts = st.sampled_from([bytes(8), bytes(range(20)), b"", b"12345"])
ascii_text = st.text(st.characters(max_codepoint=127), max_size=40)
odd = st.one_of(st.none(), st.integers(), st.binary(max_size=5).map(bytearray), st.text(max_size=3), st.floats())
pairs = st.lists(
    st.sampled_from(["UNIQ_KEY", "TAGS", "KEYS", "DELAY", "TIMER_D", "TRAN_MSG", "POP_CK", "D", "v", "é", "\x01", "\x02"])
)


def function(name: str, kind: str) -> Callable[..., Any]:
    found = getattr(TWINS[name], kind)
    assert found is not None
    return found  # type: ignore[no-any-return]


def outcome(name: str, kind: str, *arguments: Any, buffer: bytearray | None = None) -> tuple[object, ...]:
    """What a call gives: its result or its error, and the bytes of the buffer, which comes first among the arguments."""
    given_buffer = [bytearray(buffer)] if buffer is not None else []
    try:
        result = function(name, kind)(*given_buffer, *arguments)
    except Exception as error:
        return type(error), str(error), *map(bytes, given_buffer)
    return type(result), result, *map(bytes, given_buffer)


def agree(name: str, *arguments: Any, buffer: bytearray | None = None) -> tuple[object, ...]:
    """The outcome that all kinds agree on."""
    outcomes = [outcome(name, kind, *arguments, buffer=buffer) for kind in KINDS]
    assert all(one == outcomes[0] for one in outcomes), (name, arguments, outcomes)
    return outcomes[0]


def test_every_function_with_a_twin_is_tested_here() -> None:
    assert set(TWINS) == set(NAMES)


def test_either_all_are_compiled_or_none() -> None:
    lacking = [name for name, twins in TWINS.items() if twins.compiled is None]
    assert lacking == ([] if IS_COMPILED else list(TWINS)), "turbopump._hot is of an older source: pip install -e ."


@given(
    st.tuples(int32, int32, int64, int64, int32, int64, hosts, int64, hosts, int32, int64),
    st.binary(max_size=300),
    st.one_of(st.binary(max_size=20), st.sampled_from([b"t" * 127, b"t" * 128, b"t" * 255, b"t" * 256, b"t" * 70_000])),
    st.one_of(st.binary(max_size=60), st.sampled_from([b"p" * 32_000, b"p" * 65_515, b"p" * 65_516, b"p" * 70_000])),
    st.booleans(),
    st.integers(-3, 900),
)
def test_an_entry_is_written_as_encode_entry_makes_it_or_not_at_all(
    fields: tuple[Any, ...], body: bytes, topic: bytes, properties: bytes, with_crc: bool, at: int
) -> None:
    buffer = bytearray(b"\xee" * 1000)
    rest = (*fields, body, topic, properties, with_crc)
    kind, result, written = agree("write_entry", at, *rest, buffer=buffer)
    if kind is int:
        entry = encode_entry(*rest)
        assert (result, written) == (len(entry), buffer[:at] + entry + buffer[at + len(entry) :])
    else:
        assert written == buffer


@given(st.lists(st.one_of(any_int, odd), min_size=11, max_size=11), odd, odd, odd, hosts)
def test_a_field_of_an_entry_that_cannot_be_is_refused_alike(
    values: list[Any], body: Any, topic: Any, text: Any, host: bytes
) -> None:
    values[6], values[8] = host, host
    for arguments in (
        (*values, b"b", b"t", b"", True),
        (*[value if isinstance(value, bytes) else 1 for value in values], body, topic, text, True),
    ):
        agree("write_entry", 0, *arguments, buffer=bytearray(300))


@each_kind
def test_an_entry_in_a_map_can_be_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "map"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as buffer:
        write = function("write_entry", kind)
        size = write(buffer, 100, 3, 0, 7, 100, 0, 5, bytes(8), 6, bytes(8), 0, 0, b"body" * 300, b"T", b"a\x01b\x02", True)
        entry = buffer[100 : 100 + size]
        assert entry_fault(entry, 100, crc_required=True) is None
        assert decode_entry(entry).body == b"body" * 300
        with pytest.raises(ValueError, match="does not fit"):
            write(
                buffer, 4096 - size + 1, 3, 0, 7, 1, 0, 5, bytes(8), 6, bytes(8), 0, 0, b"body" * 300, b"T", b"a\x01b\x02", True
            )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer, pytest.raises(TypeError):
        write(buffer, 100, 3, 0, 7, 100, 0, 5, bytes(8), 6, bytes(8), 0, 0, b"body", b"T", b"", True)


@given(st.one_of(st.text(max_size=60), pairs.map("".join), pairs.map("\x01v\x02".join)), st.binary(max_size=20))
@example("UNIQ_KEY\x01a\x02UNIQ_KEY\x01\x02", b"")
@example("xUNIQ_KEY\x01a\x02TAGS\x01t", b"")
@example("KEYS\x01a b\x01c", b"+")
@example("A\x01UNIQ_KEY\x01b\x02", b"+")
def test_what_a_send_needs_of_its_properties(text: str, added: bytes) -> None:
    agree("send_properties", text, added)
    for kind in KINDS:
        try:
            special, unique, tags, keys, stored = function("send_properties", kind)(text, added)
        except UnicodeEncodeError:
            continue
        properties = decode_properties(text)
        assert (unique, tags, keys) == tuple(map(properties.get, ("UNIQ_KEY", "TAGS", "KEYS")))
        assert special or not {"DELAY", "TRAN_MSG", "POP_CK", "TIMER_DELAY_MS"} & set(properties)
        assert stored == (text + ("\x02" if text and text[-1] != "\x02" else "")).encode() + added


@given(odd, odd)
def test_odd_properties_are_refused_alike(text: Any, added: Any) -> None:
    agree("send_properties", text, added)
    agree("send_properties", "a", added)


@given(st.one_of(ascii_text, st.text(max_size=20), odd), st.one_of(ascii_text, st.text(max_size=20), odd))
@example("", "#polygenelubricants")  # whose hash has no positive twin is left to chance elsewhere
def test_the_hash_of_a_key_is_javas(topic: Any, key: Any) -> None:
    agree("key_hash", topic, key)
    if isinstance(topic, str) and isinstance(key, str):
        value = java_hash(f"{topic}#{key}")
        assert function("key_hash", KINDS[-1])(topic, key) == (0 if value == -0x8000_0000 else abs(value))


@each_kind
def test_the_hash_without_a_positive_twin_is_0(kind: str) -> None:
    text = _hash_of(0x8000_0000)
    assert java_hash("T#" + text) == -0x8000_0000
    assert function("key_hash", kind)("T", text) == 0


def _hash_of(wanted: int) -> str:
    """Text that, behind ``T#``, has this hash: digits in base 31 that are printable."""
    head = java_hash("T#")
    for size in range(6, 9):
        rest = (wanted - head * 31**size - sum(48 * 31**power for power in range(size))) % (1 << 32)
        digits = []
        for _ in range(size):
            rest, digit = divmod(rest, 31)
            digits.append(chr(48 + digit))
        if rest == 0:
            return "".join(reversed(digits))
    raise AssertionError("none found")


@given(
    st.integers(-1, 12),
    st.integers(-1, 14),
    st.integers(-5, 10_000),
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 40), st.integers(0, 1 << 62), st.integers(0, 1 << 45)),
            st.tuples(*[st.one_of(any_int, odd)] * 3),
            odd,
        ),
        max_size=9,
    ),
    st.binary(max_size=40),
)
def test_entries_of_an_index_are_written_alike(
    slots: int, number: int, begin_ms: int, entries: list[Any], slot_bytes: bytes
) -> None:
    buffer = bytearray(40) + slot_bytes.ljust(40, b"\0") + bytes(220)  # ten slots, eleven entries
    agree("put_entries", slots, number, begin_ms, entries, buffer=buffer)


@each_kind
def test_entries_with_one_slot_form_a_chain(kind: str) -> None:
    buffer = bytearray(40 + 10 * 4 + 4 * 20)
    assert function("put_entries", kind)(buffer, 10, 1, 1000, [(3, 70, 1000), (13, 80, 3500), (4, 90, 4000)]) == 2
    assert struct.unpack_from(">i", buffer, 40 + 3 * 4) == (2,)
    assert struct.unpack_from(">iqii", buffer, 80 + 2 * 20) == (13, 80, 2, 1)


@given(
    any_int, int32, any_int, any_int, st.one_of(ascii_text, st.text(max_size=20), st.from_regex("[0-9A-Z]{32}", fullmatch=True))
)
def test_the_answer_to_a_send(opaque: int, queue_id: int, offset: int, queue_offset: int, unique: str) -> None:
    agree("send_reply", b'{"head', b"tail}", b"0A0B", opaque, queue_id, offset, queue_offset, unique)


@given(st.lists(odd, min_size=8, max_size=8))
def test_odd_parts_of_an_answer_are_refused_alike(values: list[Any]) -> None:
    agree("send_reply", *values)


@pytest.mark.skipif(
    os.environ.get("CI") != "true" or os.environ.get("TURBOPUMP_PURE", "0") != "0",
    reason="asked of continuous integration only",
)
def test_where_there_is_a_compiler_the_functions_are_compiled() -> None:
    header = Path(sysconfig.get_path("include"), "Python.h")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    assert IS_COMPILED or not header.exists() or shutil.which(compiler) is None, KIND


def test_turbopump_pure_keeps_to_the_plain_functions() -> None:
    script = "from turbopump.compiled import IS_COMPILED, KIND; print(IS_COMPILED, KIND)"
    environment = {**os.environ, "TURBOPUMP_PURE": "1"}
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False plain Python (TURBOPUMP_PURE is set)"
