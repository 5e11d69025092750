# store/packed_batch.py: a batch as its request has it, checked and written in one go. What is known of each message is a span: six
# numbers of 8 bytes, flag, place and size of the body, place and size of the properties, hash of the tags.


def read_batch(data, topic, added):
    try:
        return _read_batch(data, topic, added)
    except Exception:
        return plain["read_batch"](data, topic, added)


cdef object _read_batch(object data, object topic, object added):
    if not (PyBytes_CheckExact(data) and PyBytes_CheckExact(added) and not _is_unended(_span(added))
            and PyUnicode_CheckExact(topic) and PyUnicode_IS_COMPACT_ASCII(topic)):
        raise _NotUsual
    cdef Py_ssize_t data_size = PyBytes_GET_SIZE(data), added_size = PyBytes_GET_SIZE(added)
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t at = 0, left, count = 0, number, total = 0, longest = 0, stored_size, i
    cdef int64_t size, body_size, properties_size
    cdef const uint8_t *pos
    cdef _Found found
    cdef uint32_t hash_before = _hash_before(
        PyUnicode_1BYTE_DATA(topic), PyUnicode_GET_LENGTH(topic)
    )
    while at < data_size:  # how many there are; all lengths are checked
        left = data_size - at
        if left < 22:
            raise _NotUsual
        size = <int32_t>_get32(start + at)
        body_size = <int32_t>_get32(start + at + 16)
        if size < 22 or size > left or body_size < 0 or body_size > size - 22:
            raise _NotUsual
        pos = start + at + 20 + body_size
        properties_size = pos[0] << 8 | pos[1]
        if properties_size > size - 22 - body_size:
            raise _NotUsual
        at += size
        count += 1
    if count > 32767:  # COUNT_MAX
        raise _NotUsual
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
            raise _NotUsual
        if not found.is_ascii:
            (<const char *>pos)[:properties_size].decode("utf-8")
            if not (_is_ascii(found.unique) and _is_ascii(found.tags) and _is_ascii(found.keys)):
                raise _NotUsual
        if found.unique.size:
            keys.append(<int64_t>number << 32 | _index_hash(_hash_on(hash_before, found.unique.at, found.unique.size)))
        if found.keys.size:
            left = 0  # where this key begins
            for i in range(found.keys.size + 1):
                if i == found.keys.size or found.keys.at[i] == c" ":
                    if i > left:
                        keys.append(<int64_t>number << 32 | _index_hash(_hash_on(hash_before, found.keys.at + left, i - left)))
                    left = i + 1
        if len(keys) > 65536:  # KEYS_MAX
            return data, spans[: number * 48], keys, total, longest, []
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


cdef inline bint _is_ascii(_Span text) noexcept:
    cdef Py_ssize_t i
    cdef uint8_t all_bits = 0
    for i in range(text.size):
        all_bits |= text.at[i]
    return all_bits < 128


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
        raise _NotUsual
    cdef Py_ssize_t count = PyBytes_GET_SIZE(spans) // 48, data_size = PyBytes_GET_SIZE(data), number, total = 0, size
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const int64_t *span = <const int64_t *>PyBytes_AS_STRING(spans)
    cdef _Entry entry = _Entry(
        queue_id, queue_offset, physical_offset, sys_flag, born_timestamp, _span(born_host), store_timestamp, _span(store_host),
        0, 0, _span(topic), with_crc, 0, _Span(NULL, 0), _Span(NULL, 0), False, _span(added),
    )
    cdef bytes units = PyBytes_FromStringAndSize(NULL, count * UNIT_SIZE)
    cdef uint8_t *unit = <uint8_t *>PyBytes_AS_STRING(units)
    cdef list found = []
    cdef object stored_ms = store_timestamp  # one object for all
    cdef int64_t value
    for number in range(count):  # everything is checked before a byte is written
        if (span[1] < 0 or span[1] > data_size or not 0 <= span[2] <= data_size - span[1]
                or span[3] < 0 or span[3] > data_size or not 0 <= span[4] <= data_size - span[3]
                or span[0] != <int32_t>span[0]):
            raise _NotUsual
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
            raise _NotUsual
        found.append((value & 0xFFFFFFFF, <int64_t>_get64(unit + (value >> 32) * UNIT_SIZE), stored_ms))
    cdef Py_buffer view
    cdef uint8_t *pos
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if at < 0 or at > view.len or total > view.len - at:
            raise _NotUsual
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
