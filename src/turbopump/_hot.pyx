# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=False, binding=False
"""What a send does most, compiled. Every function here has a plain twin, marked ``@has_twin`` (turbopump/compiled.py), that says what it
means; what is not of the usual kind is left to that twin, so errors are its errors too.

Bytes that are read or written through a pointer are inside an object of known length: each function checks that first, and a map is
written only between its acquired bounds. Cost of the plain twin and of this one, for a message of 1 KiB (docs/decisions/0005):

    write_entry      1.7 µs  0.72 (half of it the two CRCs)   read_batch   2.5 µs  0.14 a message of a batch
    send_properties  0.94    0.17                             write_batch  2.3     0.61 a message
    key_hash         0.66    0.10                             batch_reply  9.8     0.64 for a batch of 32
    send_reply       1.1     0.28                             put_entries  0.48    0.06 an entry
    good_entries     1.7     0.11 an entry                entries_fit  0.75 0.02 an entry
    unread_messages  3.2     0.50 a message of a pull         property_texts  1.1 0.11 a message looked at by a filter
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from isal.isal_zlib import crc32 as _crc32

cdef extern from "Python.h":
    bint PyLong_Check(object)
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_COMPACT_ASCII(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    void *PyUnicode_1BYTE_DATA(object)

cdef extern from *:
    """
    #ifdef __GNUC__
    #define turbopump_prefetch(at) __builtin_prefetch(at, 1)
    #else
    #define turbopump_prefetch(at) ((void)(at))
    #endif
    """
    void _prefetch "turbopump_prefetch"(const void *at) noexcept

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


cdef inline uint32_t _get32(const uint8_t *at) noexcept:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t _get64(const uint8_t *at) noexcept:
    return <uint64_t>_get32(at) << 32 | _get32(at + 4)


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
    cdef _Entry entry = _Entry(
        queue_id, queue_offset, physical_offset, sys_flag, born_timestamp, _span(born_host), store_timestamp, _span(store_host),
        reconsume_times, prepared_transaction_offset, _span(topic), with_crc,
        flag, _span(body), _span(properties), with_crc and _is_unended(_span(properties)), _Span(NULL, 0),
    )
    cdef Py_ssize_t size = _entry_size(&entry)
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if at < 0 or at > view.len or size > view.len - at:
            raise _not_usual
        _put_entry(<uint8_t *>view.buf + at, size, &entry)
    finally:
        PyBuffer_Release(&view)
    return size


cdef struct _Span:
    const uint8_t *at
    Py_ssize_t size


cdef struct _Entry:
    int32_t queue_id
    int64_t queue_offset
    int64_t physical_offset
    int32_t sys_flag
    int64_t born_timestamp
    _Span born_host
    int64_t store_timestamp
    _Span store_host
    int32_t reconsume_times
    int64_t prepared_transaction_offset
    _Span topic
    bint with_crc
    # from here on of each message of a batch
    int32_t flag
    _Span body
    _Span properties
    bint unended  # a separator is put behind the properties
    _Span added  # more properties


cdef inline _Span _span(bytes data):
    return _Span(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline bint _is_unended(_Span properties) noexcept:
    return properties.size > 0 and properties.at[properties.size - 1] != 2


cdef inline Py_ssize_t _stored_properties_size(const _Entry *entry) noexcept:
    return entry.properties.size + entry.unended + entry.added.size + (20 if entry.with_crc else 0)


cdef Py_ssize_t _entry_size(const _Entry *entry) except -1:
    """Bytes of the entry."""
    cdef Py_ssize_t properties_size = _stored_properties_size(entry)
    if entry.topic.size > 0xFFFF or properties_size > 0xFFFF or entry.body.size > 0x40000000:
        raise _not_usual
    return (
        75 + entry.born_host.size + entry.store_host.size + entry.body.size + entry.topic.size + (entry.topic.size > 127)
        + properties_size
    )


cdef int _put_entry(uint8_t *start, Py_ssize_t size, const _Entry *entry) except -1:
    """Write the ``size`` bytes that ``_entry_size`` gave; they are there."""
    cdef Py_ssize_t properties_size = _stored_properties_size(entry)
    cdef bint is_v2 = entry.topic.size > 127
    cdef uint32_t entry_crc
    cdef int digit
    cdef uint8_t *pos = _put32(start, <uint32_t>size)
    pos = _put32(pos, 0xDAA320AB if is_v2 else 0xDAA320A7)
    pos = _put32(pos, _crc(entry.body.at, entry.body.size))
    pos = _put32(pos, <uint32_t>entry.queue_id)
    pos = _put32(pos, <uint32_t>entry.flag)
    pos = _put64(pos, <uint64_t>entry.queue_offset)
    pos = _put64(pos, <uint64_t>entry.physical_offset)
    pos = _put32(pos, <uint32_t>entry.sys_flag)
    pos = _put64(pos, <uint64_t>entry.born_timestamp)
    pos = _put(pos, entry.born_host.at, entry.born_host.size)
    pos = _put64(pos, <uint64_t>entry.store_timestamp)
    pos = _put(pos, entry.store_host.at, entry.store_host.size)
    pos = _put32(pos, <uint32_t>entry.reconsume_times)
    pos = _put64(pos, <uint64_t>entry.prepared_transaction_offset)
    pos = _put32(pos, <uint32_t>entry.body.size)
    pos = _put(pos, entry.body.at, entry.body.size)
    if is_v2:
        pos[0] = (entry.topic.size >> 8) & 0xFF
        pos += 1
    pos[0] = entry.topic.size & 0xFF
    pos = _put(pos + 1, entry.topic.at, entry.topic.size)
    pos[0] = (properties_size >> 8) & 0xFF
    pos[1] = properties_size & 0xFF
    pos = _put(pos + 2, entry.properties.at, entry.properties.size)
    if entry.unended:
        pos[0] = 2
        pos += 1
    if entry.added.size:
        pos = _put(pos, entry.added.at, entry.added.size)
    if entry.with_crc:
        entry_crc = _crc(start, pos - start)
        pos = _put(pos, b"__CRC32#\x01", 9)
        for digit in range(10):
            pos[digit] = <uint8_t>(48 + entry_crc % 10)
            entry_crc //= 10
        pos[10] = 2
    return 0


cdef class _Bytes:
    """Bytes in memory as an object, while a function that takes one is called."""

    cdef const void *at
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.at, self.size, True, flags)


cdef _Bytes _bytes = _Bytes.__new__(_Bytes)


cdef inline uint32_t _crc(const void *at, Py_ssize_t size) except? 0xFFFFFFFF:
    """CRC-32 without its top bit."""
    _bytes.at, _bytes.size = at, size
    return <uint32_t>_crc32(_bytes) & 0x7FFFFFFF


# --- pulled messages ---------------------------------------------------------------------------------------------------------


def unread_messages(data, message_type):
    try:
        return _unread_messages(data, message_type)
    except Exception:
        return plain["unread_messages"](data, message_type)


cdef object _unread_messages(object data, object message_type):
    if not PyBytes_CheckExact(data):
        raise _not_usual
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *pos
    cdef const uint8_t *text
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0, size, body_size, topic_size, head
    cdef uint32_t magic, sys_flag
    cdef _Span topic_bytes = _Span(NULL, -1)
    cdef object topic = None, message
    cdef list messages = []
    while end - at >= 91:
        pos = start + at
        size = _get32(pos)
        magic = _get32(pos + 4)
        sys_flag = _get32(pos + 36)
        body_size = _get32(pos + 84)
        if size < 91 or size > end - at or (magic != 0xDAA320A7 and magic != 0xDAA320AB) or sys_flag & 0xB0:
            break
        head = 2 if magic == 0xDAA320AB else 1
        if body_size > size - 90 - head:
            break
        text = pos + 88 + body_size
        topic_size = text[0] << 8 | text[1] if head == 2 else text[0]
        text += head
        if topic_size > size - 90 - head - body_size:
            break
        if (text[topic_size] << 8 | text[topic_size + 1]) != size - 90 - head - body_size - topic_size:
            break
        if not _is_whole(pos, size, body_size):
            break
        if topic_size != topic_bytes.size or memcmp(text, topic_bytes.at, topic_size):
            topic = (<const char *>text)[:topic_size].decode("utf-8")
            topic_bytes = _Span(text, topic_size)
        message = message_type.__new__(message_type)
        message.topic = topic
        message._entry = PyBytes_FromStringAndSize(<const char *>pos, size)
        message._body = None
        message._properties = None
        message.queue_offset = <int64_t>_get64(pos + 20)
        message.reconsume_times = <int32_t>_get32(pos + 72)
        message.store_size = size
        message.sys_flag = <int32_t>sys_flag
        messages.append(message)
        at += size
    return messages, at


def value_after(text, needle):
    try:
        return _value_after(text, needle)
    except Exception:
        return plain["value_after"](text, needle)


cdef object _value_after(object text, object needle):
    if not (PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text)
            and PyUnicode_CheckExact(needle) and PyUnicode_IS_COMPACT_ASCII(needle)):
        raise _not_usual
    cdef const uint8_t *start = <const uint8_t *>PyUnicode_1BYTE_DATA(text)
    cdef const uint8_t *name = <const uint8_t *>PyUnicode_1BYTE_DATA(needle)
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(text), name_size = PyUnicode_GET_LENGTH(needle), at, end
    if name_size == 0:
        raise _not_usual
    at = size - name_size
    while at >= 0 and not (start[at] == name[0] and (at == 0 or start[at - 1] == 2) and memcmp(start + at, name, name_size) == 0):
        at -= 1
    if at < 0:
        return None
    at += name_size
    end = at
    while end < size and start[end] != 2:
        end += 1
    if end == at:
        raise _not_usual  # an empty value: an earlier one may stand
    return (<const char *>start)[at:end].decode("ascii")


def property_texts(data):
    try:
        return _property_texts(data)
    except Exception:
        return plain["property_texts"](data)


cdef object _property_texts(object data):
    if not PyBytes_CheckExact(data):
        raise _not_usual
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *pos
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0, size, text_at, text_size
    cdef list found = []
    while at < end:
        if end - at < 91:
            raise _not_usual
        pos = start + at
        size = _get32(pos)
        if size < 91 or size > end - at or pos[39] & 0x30:
            raise _not_usual
        text_at = 88 + <Py_ssize_t>_get32(pos + 84)
        if text_at > size - 4:
            raise _not_usual
        if pos[7] == 0xAB:
            text_at += 2 + (pos[text_at] << 8 | pos[text_at + 1])
        else:
            text_at += 1 + pos[text_at]
        if text_at > size - 2:
            raise _not_usual
        text_size = pos[text_at] << 8 | pos[text_at + 1]
        text_at += 2
        if text_size > size - text_at:
            raise _not_usual
        found.append((at, at + size, (<const char *>pos)[text_at:text_at + text_size].decode("utf-8", "replace")))
        at += size
    return found


cdef bint _is_whole(const uint8_t *pos, Py_ssize_t size, Py_ssize_t body_size) except -1:
    """Whether an entry of at least 91 bytes passes its own CRC or, if it has none, its body's."""
    cdef const uint8_t *suffix = pos + size - 20
    cdef uint64_t said = 0, unit = 1
    cdef int i
    if memcmp(suffix, b"__CRC32#\x01", 9) == 0:
        for i in range(9, 19):
            if not 48 <= suffix[i] <= 57:
                return False
            said += (suffix[i] - 48) * unit
            unit *= 10
        return suffix[19] == 2 and said == _crc(pos, size - 20)
    return body_size == 0 or _get32(pos + 8) == _crc(pos + 88, body_size)


# --- what was read of the commit log -----------------------------------------------------------------------------------------


def good_entries(data, start, units, first, end, queue_id, topic):
    try:
        return _good_entries(data, _int64(start), units, _int64(first), _int64(end), queue_id, topic)
    except Exception:
        return plain["good_entries"](data, start, units, first, end, queue_id, topic)


cdef object _good_entries(
    object data, int64_t start, object units, int64_t first, int64_t end, object queue_id, object topic
):
    cdef list listed = units
    if not (PyBytes_CheckExact(data) and PyBytes_CheckExact(queue_id) and PyBytes_CheckExact(topic) and listed is not None
            and PyBytes_GET_SIZE(queue_id) == 4 and 0 <= first and end <= len(listed) and start >= 0):
        raise _not_usual
    cdef const uint8_t *bytes_at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *queue_field = <const uint8_t *>PyBytes_AS_STRING(queue_id)
    cdef const uint8_t *topic_at = <const uint8_t *>PyBytes_AS_STRING(topic)
    cdef int64_t data_size = PyBytes_GET_SIZE(data), topic_size = PyBytes_GET_SIZE(topic)
    cdef int64_t number, queue_offset, offset, size, body_size, told, digit
    cdef uint32_t magic
    cdef const uint8_t *at
    cdef const uint8_t *suffix
    cdef object unit
    for number in range(first, end):
        unit = listed[number]
        if not PyTuple_Check(unit) or PyTuple_GET_SIZE(unit) != 3:
            raise _not_usual
        queue_offset = _int64(<object>PyTuple_GET_ITEM(unit, 0))
        offset = _int64(<object>PyTuple_GET_ITEM(unit, 1))
        size = _int64(<object>PyTuple_GET_ITEM(unit, 2))
        if queue_offset < 0 or size < 0 or size > 0x7FFFFFFF or offset > 0x7FFFFFFFFFFFFFFF - size:
            raise _not_usual
        if size < 91 or offset < start or offset + size > start + data_size:
            return number
        at = bytes_at + (offset - start)
        magic = _get32(at + 4)
        if (<int64_t>_get32(at) != size or (magic != 0xDAA320A7 and magic != 0xDAA320AB) or <int64_t>_get64(at + 28) != offset
                or memcmp(at + 12, queue_field, 4) != 0 or <int64_t>_get64(at + 20) != queue_offset):
            return number
        suffix = at + size - 20
        if memcmp(suffix, b"__CRC32#\x01", 9) != 0 or suffix[19] != 2:
            return number
        told = 0
        for digit in range(10):
            if not c"0" <= suffix[18 - digit] <= c"9":
                return number
            told = told * 10 + suffix[18 - digit] - 48
        body_size = <int64_t>_get32(at + 84)
        if 88 + body_size + topic_size > size or memcmp(at + 88 + body_size, topic_at, topic_size) != 0:
            return number
        if told != _crc(at, size - 20):
            return number
    return end


def entries_fit(data, units, passed, queue_offset, queue_id, topic):
    try:
        return _entries_fit(data, units, passed, _int64(queue_offset), queue_id, topic)
    except Exception:
        return plain["entries_fit"](data, units, passed, queue_offset, queue_id, topic)


cdef object _entries_fit(object data, object units, object passed, int64_t queue_offset, object queue_id, object topic):
    cdef list skipped = passed
    if not (PyBytes_CheckExact(data) and PyBytes_CheckExact(units) and PyBytes_CheckExact(queue_id) and PyBytes_CheckExact(topic)
            and PyBytes_GET_SIZE(queue_id) == 4 and 0 <= queue_offset < 1 << 62 and skipped is not None):
        raise _not_usual
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *unit = <const uint8_t *>PyBytes_AS_STRING(units)
    cdef const uint8_t *queue_field = <const uint8_t *>PyBytes_AS_STRING(queue_id)
    cdef const uint8_t *topic_at = <const uint8_t *>PyBytes_AS_STRING(topic)
    cdef int64_t left = PyBytes_GET_SIZE(data), topic_size = PyBytes_GET_SIZE(topic)
    cdef int64_t number, size, body
    cdef Py_ssize_t skips = 0, skips_end = len(skipped)
    for number in range(PyBytes_GET_SIZE(units) // 20):
        if left == 0:
            break
        if skips < skips_end and _int64(skipped[skips]) == queue_offset + number:
            skips += 1
            unit += 20
            continue
        size = <int64_t><int32_t>_get32(unit + 8)
        if (size < 91 or size > left or <int64_t>_get32(at) != size or memcmp(at + 12, queue_field, 4) != 0
                or <int64_t>_get64(at + 20) != queue_offset + number or _get64(at + 28) != _get64(unit)):
            return False
        body = 84 + (12 if at[39] & 0x10 else 0) + (12 if at[39] & 0x20 else 0)
        if body + 4 > size:
            return False
        body += 4 + <int64_t>_get32(at + body)
        if body + topic_size > size or memcmp(at + body, topic_at, topic_size) != 0:
            return False
        at += size
        left -= size
        unit += 20
    return left == 0


# --- batches -----------------------------------------------------------------------------------------------------------------


def read_batch(data, topic, added):
    try:
        return _read_batch(data, topic, added)
    except Exception:
        return plain["read_batch"](data, topic, added)


cdef object _read_batch(object data, object topic, object added):
    if not (PyBytes_CheckExact(data) and PyBytes_CheckExact(added) and not _is_unended(_span(added))
            and PyUnicode_CheckExact(topic) and PyUnicode_IS_COMPACT_ASCII(topic)):
        raise _not_usual
    cdef Py_ssize_t data_size = PyBytes_GET_SIZE(data), added_size = PyBytes_GET_SIZE(added)
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t at = 0, left, count = 0, number, total = 0, longest = 0, stored_size, i
    cdef int64_t size, body_size, properties_size
    cdef const uint8_t *pos
    cdef _Found found
    cdef uint32_t hash_before = _hash_on(0, PyUnicode_1BYTE_DATA(topic), PyUnicode_GET_LENGTH(topic)) * 31 + 35  # "#"
    while at < data_size:  # how many there are; all lengths are checked
        left = data_size - at
        if left < 22:
            raise _not_usual
        size = <int32_t>_get32(start + at)
        body_size = <int32_t>_get32(start + at + 16)
        if size < 22 or size > left or body_size < 0 or body_size > size - 22:
            raise _not_usual
        pos = start + at + 20 + body_size
        properties_size = pos[0] << 8 | pos[1]
        if properties_size > size - 22 - body_size:
            raise _not_usual
        at += size
        count += 1
    cdef bytes spans = PyBytes_FromStringAndSize(NULL, count * 48)
    cdef int64_t *span = <int64_t *>PyBytes_AS_STRING(spans)
    cdef list keys = []
    at = 0
    for number in range(count):
        body_size = <int32_t>_get32(start + at + 16)
        pos = start + at + 22 + body_size
        properties_size = (pos - 2)[0] << 8 | (pos - 1)[0]
        _find(pos, pos + properties_size, &found)
        if found.special or found.has_crc:
            raise _not_usual
        if not found.is_ascii:
            (<const char *>pos)[:properties_size].decode("utf-8")
            if not (_is_ascii(found.unique) and _is_ascii(found.tags) and _is_ascii(found.keys)):
                raise _not_usual
        if found.unique.size:
            keys.append(<int64_t>number << 32 | _index_hash(_hash_on(hash_before, found.unique.at, found.unique.size)))
        if found.keys.size:
            left = 0  # where this key begins
            for i in range(found.keys.size + 1):
                if i == found.keys.size or found.keys.at[i] == c" ":
                    if i > left:
                        keys.append(<int64_t>number << 32 | _index_hash(_hash_on(hash_before, found.keys.at + left, i - left)))
                    left = i + 1
        span[0] = <int32_t>_get32(start + at + 12)
        span[1] = at + 20
        span[2] = body_size
        span[3] = at + 22 + body_size
        span[4] = properties_size
        span[5] = <int32_t>_hash_on(0, found.tags.at, found.tags.size)
        span += 6
        stored_size = properties_size + (properties_size > 0 and pos[properties_size - 1] != 2) + added_size
        longest = max(longest, stored_size)
        total += body_size + stored_size
        at += <int32_t>_get32(start + at)
    return data, spans, keys, total, longest, []


def write_batch(
    buffer, at, data, spans, added, keys, queue_id, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
    store_timestamp, store_host, topic, with_crc,
):
    try:
        return _write_batch(
            buffer, _int64(at), data, spans, added, keys, _int32(queue_id), _int64(queue_offset), _int64(physical_offset),
            _int32(sys_flag), _int64(born_timestamp), born_host, _int64(store_timestamp), store_host, topic, with_crc,
        )
    except Exception:
        return plain["write_batch"](
            buffer, at, data, spans, added, keys, queue_id, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
            store_timestamp, store_host, topic, with_crc,
        )


cdef object _write_batch(
    object buffer, Py_ssize_t at, object data, object spans, object added, list keys, int32_t queue_id, int64_t queue_offset,
    int64_t physical_offset, int32_t sys_flag, int64_t born_timestamp, object born_host, int64_t store_timestamp,
    object store_host, object topic, bint with_crc,
):
    if not (PyBytes_CheckExact(data) and PyBytes_CheckExact(spans) and PyBytes_CheckExact(added) and PyBytes_CheckExact(topic)
            and PyBytes_CheckExact(born_host) and PyBytes_CheckExact(store_host) and not _is_unended(_span(added))
            and PyBytes_GET_SIZE(spans) % 48 == 0 and 0 <= physical_offset <= 1 << 62 and 0 <= queue_offset <= 1 << 62):
        raise _not_usual
    cdef Py_ssize_t count = PyBytes_GET_SIZE(spans) // 48, data_size = PyBytes_GET_SIZE(data), number, total = 0, size
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const int64_t *span = <const int64_t *>PyBytes_AS_STRING(spans)
    cdef _Entry entry = _Entry(
        queue_id, queue_offset, physical_offset, sys_flag, born_timestamp, _span(born_host), store_timestamp, _span(store_host),
        0, 0, _span(topic), with_crc, 0, _Span(NULL, 0), _Span(NULL, 0), False, _span(added),
    )
    cdef bytes units = PyBytes_FromStringAndSize(NULL, count * 20)
    cdef uint8_t *unit = <uint8_t *>PyBytes_AS_STRING(units)
    cdef list found = []
    cdef int64_t value
    for number in range(count):  # everything is checked before a byte is written
        if (span[1] < 0 or span[1] > data_size or not 0 <= span[2] <= data_size - span[1]
                or span[3] < 0 or span[3] > data_size or not 0 <= span[4] <= data_size - span[3]
                or span[0] != <int32_t>span[0]):
            raise _not_usual
        _take_span(&entry, start, span)
        size = _entry_size(&entry)
        unit = _put32(_put64(unit, <uint64_t>(physical_offset + total)), <uint32_t>size)
        unit = _put64(unit, <uint64_t>span[5])
        total += size
        span += 6
    unit = <uint8_t *>PyBytes_AS_STRING(units)
    for key in keys:
        value = _int64(key)
        if value < 0 or value >> 32 >= count:
            raise _not_usual
        found.append((value & 0xFFFFFFFF, <int64_t>_get64(unit + (value >> 32) * 20), store_timestamp))
    cdef Py_buffer view
    cdef uint8_t *pos
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if at < 0 or at > view.len or total > view.len - at:
            raise _not_usual
        pos = <uint8_t *>view.buf + at
        span = <const int64_t *>PyBytes_AS_STRING(spans)
        for number in range(count):
            _take_span(&entry, start, span)
            size = _entry_size(&entry)
            _put_entry(pos, size, &entry)
            entry.queue_offset += 1
            entry.physical_offset += size
            pos += size
            span += 6
    finally:
        PyBuffer_Release(&view)
    return units, found


cdef inline void _take_span(_Entry *entry, const uint8_t *start, const int64_t *span) noexcept:
    entry.flag = <int32_t>span[0]
    entry.body = _Span(start + span[1], span[2])
    entry.properties = _Span(start + span[3], span[4])
    entry.unended = _is_unended(entry.properties)


# --- the key index -----------------------------------------------------------------------------------------------------------


cdef inline uint32_t _hash_on(uint32_t value, const void *text, Py_ssize_t size) noexcept:
    """Java's hash of a text that begins with one of hash ``value`` and ends with this one."""
    cdef Py_ssize_t i
    for i in range(size):
        value = value * 31 + (<const uint8_t *>text)[i]
    return value


cdef inline uint32_t _index_hash(uint32_t value) noexcept:
    if value == 0x80000000:
        return 0
    return 0 - value if value > 0x80000000 else value


def key_hash(topic, key):
    if not (PyUnicode_CheckExact(topic) and PyUnicode_IS_COMPACT_ASCII(topic)
            and PyUnicode_CheckExact(key) and PyUnicode_IS_COMPACT_ASCII(key)):
        return plain["key_hash"](topic, key)
    cdef uint32_t value = _hash_on(0, PyUnicode_1BYTE_DATA(topic), PyUnicode_GET_LENGTH(topic)) * 31 + 35  # "#"
    return _index_hash(_hash_on(value, PyUnicode_1BYTE_DATA(key), PyUnicode_GET_LENGTH(key)))


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
    if not 0 < slots <= 0x1FFFFFFF or not 0 < number <= 0x7FFFFFFF - count or begin_ms < 0:
        raise _not_usual
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if 40 + slots * 4 + (number + count) * 20 > view.len:
            raise _not_usual
        start = <uint8_t *>view.buf + 40
        for i in range(count):  # nothing is written unless all can be
            one, two, three = <tuple?>entries[i]
            key_hash, offset, stored_ms = _int32(one), _int64(two), _int64(three)
            if key_hash < 0 or stored_ms < 0 or offset < 0:
                raise _not_usual
            _prefetch(start + key_hash % slots * 4)  # all at once, not one after the other: half the time
        pos = start + slots * 4 + number * 20
        for i in range(count):
            one, two, three = <tuple?>entries[i]
            key_hash, offset, stored_ms = _int32(one), _int64(two), _int64(three)
            slot = start + key_hash % slots * 4
            previous = <int32_t>_get32(slot)
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


cdef struct _Found:
    bint special
    bint has_crc
    bint is_ascii
    _Span unique
    _Span tags
    _Span keys


cdef void _find(const uint8_t *start, const uint8_t *end, _Found *found) noexcept:
    """What ``send_properties`` looks for in property text; what is not there has size 0."""
    cdef const uint8_t *at = start
    cdef const uint8_t *name = start  # where this pair begins
    cdef const uint8_t *value = NULL  # where its value begins, once its separator is passed
    cdef Py_ssize_t name_size
    cdef uint8_t c, all_bits = 0
    found.special = found.has_crc = False
    found.unique.size = found.tags.size = found.keys.size = 0
    while True:
        if at == end or at[0] == 2:
            if value != NULL and at > value:  # an empty value counts as none
                name_size = value - name - 1
                if name_size == 8 and memcmp(name, b"UNIQ_KEY", 8) == 0:
                    found.unique = _Span(value, at - value)
                elif name_size == 4 and memcmp(name, b"TAGS", 4) == 0:
                    found.tags = _Span(value, at - value)
                elif name_size == 4 and memcmp(name, b"KEYS", 4) == 0:
                    found.keys = _Span(value, at - value)
            if at == end:
                break
            name, value = at + 1, NULL
        else:
            c = at[0]
            all_bits |= c
            if c == 1:
                if value == NULL:
                    value = at + 1
            elif c == c"D":
                found.special = found.special or (end - at >= 5 and memcmp(at, b"DELAY", 5) == 0)
            elif c == c"T":
                found.special = found.special or (end - at >= 7 and memcmp(at, b"TIMER_D", 7) == 0)
                found.special = found.special or (end - at >= 8 and memcmp(at, b"TRAN_MSG", 8) == 0)
            elif c == c"P":
                found.special = found.special or (end - at >= 6 and memcmp(at, b"POP_CK", 6) == 0)
            elif c == c"I":
                found.special = found.special or (end - at >= 9 and memcmp(at, b"INNER_NUM", 9) == 0)
            elif c == c"_":
                found.has_crc = found.has_crc or (end - at >= 9 and memcmp(at, b"__CRC32#\x01", 9) == 0)
        at += 1
    found.is_ascii = all_bits < 128


cdef inline bint _is_ascii(_Span text) noexcept:
    cdef Py_ssize_t i
    cdef uint8_t all_bits = 0
    for i in range(text.size):
        all_bits |= text.at[i]
    return all_bits < 128


cdef inline object _value(_Span text):
    return (<const char *>text.at)[:text.size].decode("ascii") if text.size else None


def send_properties(text, added):
    if not (PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text) and PyBytes_CheckExact(added)):
        return plain["send_properties"](text, added)
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(text), added_size = PyBytes_GET_SIZE(added)
    cdef const uint8_t *start = <const uint8_t *>PyUnicode_1BYTE_DATA(text)
    cdef _Found found
    _find(start, start + size, &found)
    cdef bint unended = size > 0 and start[size - 1] != 2
    cdef bytes stored = PyBytes_FromStringAndSize(NULL, size + unended + added_size)
    cdef uint8_t *pos = _put(<uint8_t *>PyBytes_AS_STRING(stored), start, size)
    if unended:
        pos[0] = 2
        pos += 1
    _put_bytes(pos, added)
    return found.special, _value(found.unique), _value(found.tags), _value(found.keys), stored


def send_reply(head, tail, host, opaque, queue_id, offset, queue_offset, unique):
    cdef uint8_t digits[8]
    try:
        _put64(digits, <uint64_t>_int64(offset))
        if digits[0] & 0x80:
            raise _not_usual
        return _reply(head, tail, host, _int64(opaque), _int64(queue_id), digits, 1, _int64(queue_offset), unique)
    except Exception:
        return plain["send_reply"](head, tail, host, opaque, queue_id, offset, queue_offset, unique)


def batch_reply(head, tail, host, opaque, queue_id, units, queue_offset, unique):
    try:
        if not PyBytes_CheckExact(units) or PyBytes_GET_SIZE(units) % 20:
            raise _not_usual
        return _reply(
            head, tail, host, _int64(opaque), _int64(queue_id),
            <const uint8_t *>PyBytes_AS_STRING(units), PyBytes_GET_SIZE(units) // 20, _int64(queue_offset), unique,
        )
    except Exception:
        return plain["batch_reply"](head, tail, host, opaque, queue_id, units, queue_offset, unique)


cdef bytes _reply(
    object head, object tail, object host, int64_t opaque, int64_t queue_id, const uint8_t *unit, Py_ssize_t count,
    int64_t queue_offset, object unique
):
    """``unit``: every 20 bytes an offset of 8 begins."""
    if not (PyBytes_CheckExact(head) and PyBytes_CheckExact(tail) and PyBytes_CheckExact(host)
            and PyUnicode_CheckExact(unique) and PyUnicode_IS_COMPACT_ASCII(unique)):
        raise _not_usual
    cdef const uint8_t *text = <const uint8_t *>PyUnicode_1BYTE_DATA(unique)
    cdef Py_ssize_t unique_size = PyUnicode_GET_LENGTH(unique), i, digit
    cdef uint8_t c
    for i in range(unique_size):
        c = text[i] | 0x20
        if not (c"0" <= text[i] <= c"9" or c"a" <= c <= c"z"):
            unique_size = 0
            break
    cdef uint8_t numbers[128]
    cdef uint8_t *pos = numbers
    pos = _put(pos, b'","queueId":"', 13)
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
        PyBytes_GET_SIZE(head) + count * (PyBytes_GET_SIZE(host) + 17) - (count > 0) + numbers_size + unique_size + ending_size
        + PyBytes_GET_SIZE(tail)
    )
    if size > 0xFFFFFF:
        raise _not_usual
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, size + 8)
    pos = _put32(<uint8_t *>PyBytes_AS_STRING(frame), <uint32_t>(size + 4))
    pos = _put32(pos, <uint32_t>size)
    pos = _put_bytes(pos, head)
    for i in range(count):
        if i:
            pos[0] = c","
            pos += 1
        pos = _put_bytes(pos, host)
        for digit in range(16):
            c = unit[digit // 2] >> 4 if digit % 2 == 0 else unit[digit // 2] & 15
            pos[digit] = 48 + c if c < 10 else 55 + c
        pos += 16
        unit += 20
    pos = _put(pos, numbers, numbers_size)
    pos = _put(pos, text, unique_size)
    pos = _put(pos, ending, ending_size)
    _put_bytes(pos, tail)
    return frame
