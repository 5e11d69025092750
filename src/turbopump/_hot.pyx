# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=False, binding=False
"""What a send does most, compiled. Every function here has a plain twin, marked ``@has_twin`` (turbopump/compiled.py), that says what it
means; what is not of the usual kind is left to that twin, so errors are its errors too.

Bytes that are read or written through a pointer are inside an object of known length: each function checks that first, and a map is
written only between its acquired bounds. Cost of the plain twin and of this one, for a message of 1 KiB (docs/decisions/0005):

    write_entry      3.1 µs  1.0 (mostly the two CRCs)       put_entries  0.59 µs  0.08 an entry
    send_properties  1.2     0.3                             key_hash     1.1      0.16
    send_reply       1.4     0.2
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from isal.isal_zlib import crc32 as _crc32

cdef extern from "Python.h":
    bint PyLong_Check(object)
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_COMPACT_ASCII(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    void *PyUnicode_1BYTE_DATA(object)

plain = {}
"""The plain twins by name; ``has_twin`` puts them here."""


class _NotUsual(Exception):
    """Left to the plain twin."""


cdef object _not_usual = _NotUsual()


cdef inline int64_t _int64(object value) except? -1:
    if not PyLong_Check(value):  # Cython would take a float
        raise _not_usual
    return <int64_t>value


cdef inline int32_t _int32(object value) except? -1:
    if not PyLong_Check(value):
        raise _not_usual
    return <int32_t>value


cdef inline uint8_t *_put32(uint8_t *at, uint32_t value) noexcept:
    at[0] = value >> 24
    at[1] = (value >> 16) & 0xFF
    at[2] = (value >> 8) & 0xFF
    at[3] = value & 0xFF
    return at + 4


cdef inline uint8_t *_put64(uint8_t *at, uint64_t value) noexcept:
    return _put32(_put32(at, <uint32_t>(value >> 32)), <uint32_t>(value & 0xFFFFFFFF))


cdef inline uint8_t *_put(uint8_t *at, const void *data, Py_ssize_t size) noexcept:
    memcpy(at, data, size)
    return at + size


cdef inline uint8_t *_put_bytes(uint8_t *at, bytes data) noexcept:
    return _put(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline uint8_t *_put_decimal(uint8_t *at, int64_t value) noexcept:
    cdef uint8_t digits[20]
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        at[0] = c"-"
        at += 1
        rest = 0 - rest
    while True:
        digits[count] = <uint8_t>(48 + rest % 10)
        rest //= 10
        count += 1
        if rest == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


# --- the commit log ----------------------------------------------------------------------------------------------------------


def write_entry(
    buffer, at, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
    store_timestamp, store_host, reconsume_times, prepared_transaction_offset, body, topic, properties, with_crc,
):
    try:
        return _write_entry(
            buffer, _int64(at), _int32(queue_id), _int32(flag), _int64(queue_offset), _int64(physical_offset), _int32(sys_flag),
            _int64(born_timestamp), born_host, _int64(store_timestamp), store_host, _int32(reconsume_times),
            _int64(prepared_transaction_offset), body, topic, properties, with_crc,
        )
    except Exception:
        return plain["write_entry"](
            buffer, at, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
            store_timestamp, store_host, reconsume_times, prepared_transaction_offset, body, topic, properties, with_crc,
        )


cdef object _write_entry(
    object buffer, Py_ssize_t at, int32_t queue_id, int32_t flag, int64_t queue_offset, int64_t physical_offset,
    int32_t sys_flag, int64_t born_timestamp, object born_host, int64_t store_timestamp, object store_host,
    int32_t reconsume_times, int64_t prepared_transaction_offset, object body, object topic, object properties, bint with_crc,
):
    if not (PyBytes_CheckExact(body) and PyBytes_CheckExact(topic) and PyBytes_CheckExact(properties)
            and PyBytes_CheckExact(born_host) and PyBytes_CheckExact(store_host)):
        raise _not_usual
    cdef Py_ssize_t body_size = PyBytes_GET_SIZE(body), topic_size = PyBytes_GET_SIZE(topic)
    cdef Py_ssize_t properties_size = PyBytes_GET_SIZE(properties)
    cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(properties)
    cdef bint unended = with_crc and properties_size > 0 and text[properties_size - 1] != 2
    cdef bint is_v2 = topic_size > 127
    cdef Py_ssize_t stored_properties_size = properties_size + unended + (20 if with_crc else 0)
    if topic_size > 0xFFFF or stored_properties_size > 0xFFFF or body_size > 0x40000000:
        raise _not_usual
    cdef Py_ssize_t size = (
        75 + PyBytes_GET_SIZE(born_host) + PyBytes_GET_SIZE(store_host) + body_size + topic_size + is_v2 + stored_properties_size
    )
    cdef uint32_t body_crc = _crc32(body), entry_crc
    cdef Py_buffer view
    cdef uint8_t *start
    cdef uint8_t *pos
    cdef int digit
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if at < 0 or at > view.len or size > view.len - at:
            raise _not_usual
        start = <uint8_t *>view.buf + at
        pos = _put32(start, <uint32_t>size)
        pos = _put32(pos, 0xDAA320AB if is_v2 else 0xDAA320A7)
        pos = _put32(pos, body_crc & 0x7FFFFFFF)
        pos = _put32(pos, <uint32_t>queue_id)
        pos = _put32(pos, <uint32_t>flag)
        pos = _put64(pos, <uint64_t>queue_offset)
        pos = _put64(pos, <uint64_t>physical_offset)
        pos = _put32(pos, <uint32_t>sys_flag)
        pos = _put64(pos, <uint64_t>born_timestamp)
        pos = _put_bytes(pos, born_host)
        pos = _put64(pos, <uint64_t>store_timestamp)
        pos = _put_bytes(pos, store_host)
        pos = _put32(pos, <uint32_t>reconsume_times)
        pos = _put64(pos, <uint64_t>prepared_transaction_offset)
        pos = _put32(pos, <uint32_t>body_size)
        pos = _put_bytes(pos, body)
        if is_v2:
            pos[0] = (topic_size >> 8) & 0xFF
            pos += 1
        pos[0] = topic_size & 0xFF
        pos = _put_bytes(pos + 1, topic)
        pos[0] = (stored_properties_size >> 8) & 0xFF
        pos[1] = stored_properties_size & 0xFF
        pos = _put_bytes(pos + 2, properties)
        if with_crc:
            if unended:
                pos[0] = 2
                pos += 1
            entry_crc = <uint32_t>_crc32(PyMemoryView_FromMemory(<char *>start, pos - start, PyBUF_READ)) & 0x7FFFFFFF
            pos = _put(pos, b"__CRC32#\x01", 9)
            for digit in range(10):
                pos[digit] = <uint8_t>(48 + entry_crc % 10)
                entry_crc //= 10
            pos[10] = 2
    finally:
        PyBuffer_Release(&view)
    return size


# --- the key index -----------------------------------------------------------------------------------------------------------


def key_hash(topic, key):
    cdef uint32_t value = 0
    cdef Py_ssize_t i
    cdef const uint8_t *text
    if not (PyUnicode_CheckExact(topic) and PyUnicode_IS_COMPACT_ASCII(topic)
            and PyUnicode_CheckExact(key) and PyUnicode_IS_COMPACT_ASCII(key)):
        return plain["key_hash"](topic, key)
    text = <const uint8_t *>PyUnicode_1BYTE_DATA(topic)
    for i in range(PyUnicode_GET_LENGTH(topic)):
        value = value * 31 + text[i]
    value = value * 31 + 35  # "#"
    text = <const uint8_t *>PyUnicode_1BYTE_DATA(key)
    for i in range(PyUnicode_GET_LENGTH(key)):
        value = value * 31 + text[i]
    if value == 0x80000000:
        return 0
    return 0 - value if value > 0x80000000 else value


def put_entries(buffer, slots, number, begin_ms, entries):
    try:
        return _put_entries(buffer, _int64(slots), _int64(number), _int64(begin_ms), entries)
    except Exception:
        return plain["put_entries"](buffer, slots, number, begin_ms, entries)


cdef object _put_entries(object buffer, Py_ssize_t slots, Py_ssize_t number, int64_t begin_ms, list entries):
    cdef Py_ssize_t count = len(entries), used = 0, i
    cdef int32_t key_hash, previous
    cdef int64_t offset, stored_ms, seconds
    cdef Py_buffer view
    cdef uint8_t *start
    cdef uint8_t *slot
    cdef uint8_t *pos
    for i in range(count):  # nothing is written unless all can be
        one, two, three = <tuple?>entries[i]
        key_hash, offset, stored_ms = _int32(one), _int64(two), _int64(three)
        if key_hash < 0 or stored_ms < 0 or offset < 0:
            raise _not_usual
    if not 0 < slots <= 0x1FFFFFFF or not 0 < number <= 0x7FFFFFFF - count or begin_ms < 0:
        raise _not_usual
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if 40 + slots * 4 + (number + count) * 20 > view.len:
            raise _not_usual
        start = <uint8_t *>view.buf + 40
        pos = start + slots * 4 + number * 20
        for i in range(count):
            one, two, three = <tuple?>entries[i]
            key_hash, offset, stored_ms = _int32(one), _int64(two), _int64(three)
            slot = start + key_hash % slots * 4
            previous = <int32_t>(<uint32_t>slot[0] << 24 | <uint32_t>slot[1] << 16 | <uint32_t>slot[2] << 8 | slot[3])
            if not 0 < previous <= number:
                previous = 0
                used += 1
            seconds = (stored_ms - begin_ms) // 1000 if stored_ms > begin_ms > 0 else 0
            pos = _put32(pos, <uint32_t>key_hash)
            pos = _put64(pos, <uint64_t>offset)
            pos = _put32(pos, <uint32_t>(seconds if seconds < 0x7FFFFFFF else 0x7FFFFFFF))
            pos = _put32(pos, <uint32_t>previous)
            _put32(slot, <uint32_t>number)
            number += 1
    finally:
        PyBuffer_Release(&view)
    return used


# --- the send handler --------------------------------------------------------------------------------------------------------


cdef inline object _value(const uint8_t *start, const uint8_t *end):
    return None if start == NULL else (<const char *>start)[:end - start].decode("ascii")


def send_properties(text, added):
    if not (PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text) and PyBytes_CheckExact(added)):
        return plain["send_properties"](text, added)
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(text), added_size = PyBytes_GET_SIZE(added), name_size
    cdef const uint8_t *start = <const uint8_t *>PyUnicode_1BYTE_DATA(text)
    cdef const uint8_t *end = start + size
    cdef const uint8_t *at = start
    cdef const uint8_t *name = start  # where this pair begins
    cdef const uint8_t *value = NULL  # where its value begins, once its separator is passed
    cdef const uint8_t *unique = NULL
    cdef const uint8_t *unique_end = NULL
    cdef const uint8_t *tags = NULL
    cdef const uint8_t *tags_end = NULL
    cdef const uint8_t *keys = NULL
    cdef const uint8_t *keys_end = NULL
    cdef bint special = False
    cdef uint8_t c
    while True:
        if at == end or at[0] == 2:
            if value != NULL and at > value:  # an empty value counts as none
                name_size = value - name - 1
                if name_size == 8 and memcmp(name, b"UNIQ_KEY", 8) == 0:
                    unique, unique_end = value, at
                elif name_size == 4 and memcmp(name, b"TAGS", 4) == 0:
                    tags, tags_end = value, at
                elif name_size == 4 and memcmp(name, b"KEYS", 4) == 0:
                    keys, keys_end = value, at
            if at == end:
                break
            name, value = at + 1, NULL
        else:
            c = at[0]
            if c == 1:
                if value == NULL:
                    value = at + 1
            elif c == c"D":
                special = special or (end - at >= 5 and memcmp(at, b"DELAY", 5) == 0)
            elif c == c"T":
                special = special or (end - at >= 7 and memcmp(at, b"TIMER_D", 7) == 0)
                special = special or (end - at >= 8 and memcmp(at, b"TRAN_MSG", 8) == 0)
            elif c == c"P":
                special = special or (end - at >= 6 and memcmp(at, b"POP_CK", 6) == 0)
        at += 1
    cdef bint unended = size > 0 and start[size - 1] != 2
    cdef bytes stored = PyBytes_FromStringAndSize(NULL, size + unended + added_size)
    cdef uint8_t *pos = _put(<uint8_t *>PyBytes_AS_STRING(stored), start, size)
    if unended:
        pos[0] = 2
        pos += 1
    _put_bytes(pos, added)
    return special, _value(unique, unique_end), _value(tags, tags_end), _value(keys, keys_end), stored


def send_reply(head, tail, host, opaque, queue_id, offset, queue_offset, unique):
    try:
        return _send_reply(head, tail, host, _int64(opaque), _int64(queue_id), _int64(offset), _int64(queue_offset), unique)
    except Exception:
        return plain["send_reply"](head, tail, host, opaque, queue_id, offset, queue_offset, unique)


cdef bytes _send_reply(
    object head, object tail, object host, int64_t opaque, int64_t queue_id, int64_t offset, int64_t queue_offset, object unique
):
    if not (PyBytes_CheckExact(head) and PyBytes_CheckExact(tail) and PyBytes_CheckExact(host) and offset >= 0
            and PyUnicode_CheckExact(unique) and PyUnicode_IS_COMPACT_ASCII(unique)):
        raise _not_usual
    cdef const uint8_t *text = <const uint8_t *>PyUnicode_1BYTE_DATA(unique)
    cdef Py_ssize_t unique_size = PyUnicode_GET_LENGTH(unique), i
    cdef uint8_t c
    for i in range(unique_size):
        c = text[i] | 0x20
        if not (c"0" <= text[i] <= c"9" or c"a" <= c <= c"z"):
            unique_size = 0
            break
    cdef uint8_t numbers[128]
    cdef uint8_t *pos = numbers
    for i in range(16):
        c = (<uint64_t>offset >> (60 - 4 * i)) & 15
        pos[i] = 48 + c if c < 10 else 55 + c
    pos = _put(pos + 16, b'","queueId":"', 13)
    pos = _put_decimal(pos, queue_id)
    pos = _put(pos, b'","queueOffset":"', 17)
    pos = _put_decimal(pos, queue_offset)
    pos = _put(pos, b'","transactionId":"', 19)
    cdef Py_ssize_t numbers_size = pos - numbers
    cdef uint8_t ending[64]
    pos = _put(ending, b'"},"flag":1,"language":"PYTHON","opaque":', 41)
    pos = _put_decimal(pos, opaque)
    cdef Py_ssize_t ending_size = pos - ending
    cdef Py_ssize_t size = (
        PyBytes_GET_SIZE(head) + PyBytes_GET_SIZE(host) + numbers_size + unique_size + ending_size + PyBytes_GET_SIZE(tail)
    )
    if size > 0xFFFFFF:
        raise _not_usual
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, size + 8)
    pos = _put32(<uint8_t *>PyBytes_AS_STRING(frame), <uint32_t>(size + 4))
    pos = _put32(pos, <uint32_t>size)
    pos = _put_bytes(pos, head)
    pos = _put_bytes(pos, host)
    pos = _put(pos, numbers, numbers_size)
    pos = _put(pos, text, unique_size)
    pos = _put(pos, ending, ending_size)
    _put_bytes(pos, tail)
    return frame
