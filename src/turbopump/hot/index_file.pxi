# store/index/index_file.py: hashes of keys, and entries of the key index.

cdef extern from *:
    """
    #ifdef __GNUC__
    #define turbopump_prefetch(at) __builtin_prefetch(at, 1)
    #else
    #define turbopump_prefetch(at) ((void)(at))
    #endif
    """
    void _prefetch "turbopump_prefetch"(const void *at) noexcept


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
        raise _NotUsual
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if 40 + slots * 4 + (number + count) * 20 > view.len:
            raise _NotUsual
        start = <uint8_t *>view.buf + 40
        for i in range(count):  # nothing is written unless all can be
            one, two, three = <tuple?>entries[i]
            key_hash, offset, stored_ms = _int32(one), _int64(two), _int64(three)
            if key_hash < 0 or stored_ms < 0 or offset < 0:
                raise _NotUsual
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


def key_hash(topic, key):
    if not (PyUnicode_CheckExact(topic) and PyUnicode_IS_COMPACT_ASCII(topic)
            and PyUnicode_CheckExact(key) and PyUnicode_IS_COMPACT_ASCII(key)):
        return plain["key_hash"](topic, key)
    cdef uint32_t value = _hash_before(PyUnicode_1BYTE_DATA(topic), PyUnicode_GET_LENGTH(topic))
    return _index_hash(_hash_on(value, PyUnicode_1BYTE_DATA(key), PyUnicode_GET_LENGTH(key)))


cdef inline uint32_t _hash_before(const void *topic, Py_ssize_t size) noexcept:
    """Return Java's hash of ``topic#``, the beginning of every key in the index."""
    return _hash_on(0, topic, size) * 31 + c"#"


cdef inline uint32_t _hash_on(uint32_t value, const void *text, Py_ssize_t size) noexcept:
    """Return Java's hash of a longer text. ``value`` is the hash of its beginning, and ``text`` is the rest."""
    cdef Py_ssize_t i
    for i in range(size):
        value = value * 31 + (<const uint8_t *>text)[i]
    return value


cdef inline uint32_t _index_hash(uint32_t value) noexcept:
    if value == 0x80000000:
        return 0
    return 0 - value if value > 0x80000000 else value
