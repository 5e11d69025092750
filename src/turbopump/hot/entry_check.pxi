# store/queues/checked_entries.py: the entries of the commit log to which the units of a queue point.


cdef inline bint _good(
    const uint8_t *at, int64_t size, int64_t offset, const uint8_t *queue_field, int64_t queue_offset, _Span topic
) except -1:
    """Return True if the entry at ``at`` is usual, valid and this message of the queue. At least FIXED_SIZE bytes must be there."""
    cdef uint32_t magic = _get32(at + MAGIC_AT)
    if (<int64_t>_get32(at) != size or not _is_magic(magic) or <int64_t>_get64(at + PHYSICAL_OFFSET_AT) != offset
            or memcmp(at + QUEUE_ID_AT, queue_field, 4) != 0 or <int64_t>_get64(at + QUEUE_OFFSET_AT) != queue_offset):
        return False
    if not _has_crc(at, size):
        return False
    cdef int64_t body_size = <int64_t>_get32(at + BODY_SIZE_AT)
    if BODY_AT + body_size + topic.size > size or memcmp(at + BODY_AT + body_size, topic.at, topic.size) != 0:
        return False
    return _crc_fits(at, size)


cdef inline bint _fits(
    const uint8_t *at, int64_t size, const uint8_t *unit, const uint8_t *queue_field, int64_t queue_offset, _Span topic
) noexcept:
    """Return True if the bytes at ``at`` begin like the message of this unit and queue. At least FIXED_SIZE bytes must be there."""
    cdef int64_t body = _body_at(at) - 4
    if (<int64_t>_get32(at) != size or memcmp(at + QUEUE_ID_AT, queue_field, 4) != 0
            or <int64_t>_get64(at + QUEUE_OFFSET_AT) != queue_offset or _get64(at + PHYSICAL_OFFSET_AT) != _get64(unit) or body + 4 > size):
        return False
    body += 4 + <int64_t>_get32(at + body)
    return body + topic.size <= size and memcmp(at + body, topic.at, topic.size) == 0


def gather(units, count_max, size_max, buffer, start, queue_offsets, queue_id, topic, with_crc):
    try:
        return _gather(units, _int64(count_max), _int64(size_max), buffer, _int64(start), queue_offsets, queue_id, topic, with_crc)
    except Exception:
        return plain["gather"](units, count_max, size_max, buffer, start, queue_offsets, queue_id, topic, with_crc)


cdef object _gather(
    object units, int64_t count_max, int64_t size_max, object buffer, int64_t start, object queue_offsets,
    object queue_id, object topic, bint with_crc
):
    if not (PyBytes_CheckExact(units) and PyBytes_CheckExact(queue_id) and PyBytes_CheckExact(topic)
            and PyBytes_GET_SIZE(queue_id) == 4 and 0 <= start < 1 << 62 and count_max >= 0):
        raise _NotUsual
    cdef list each = <list>queue_offsets if isinstance(queue_offsets, list) else None
    cdef int64_t number = 0 if each is not None else _int64(queue_offsets)
    if not 0 <= number < 1 << 62:
        raise _NotUsual
    cdef const uint8_t *unit = <const uint8_t *>PyBytes_AS_STRING(units)
    cdef const uint8_t *queue_field = <const uint8_t *>PyBytes_AS_STRING(queue_id)
    cdef _Span topic_span = _span(topic)
    cdef int64_t available = PyBytes_GET_SIZE(units) // UNIT_SIZE
    cdef int64_t count = 0, taken = 0, size, offset
    cdef Py_buffer view
    cdef const uint8_t *first
    cdef uint8_t *out
    cdef object data
    if count_max < available:
        available = count_max
    if each is not None and len(each) < available:
        raise _NotUsual
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        first = <const uint8_t *>view.buf
        while count < available:
            offset = <int64_t>_get64(unit)
            size = <int64_t><int32_t>_get32(unit + 8)
            if (count and taken + size > size_max) or size < FIXED_SIZE or offset < start or offset - start > view.len - size:
                break
            if each is not None:
                number = _int64(each[count])
            if not _fits(first + (offset - start), size, unit, queue_field, number, topic_span):
                break
            if with_crc and not _good(first + (offset - start), size, offset, queue_field, number, topic_span):
                break
            number += 1
            count += 1
            taken += size
            unit += UNIT_SIZE
        data = PyBytes_FromStringAndSize(NULL, taken)
        out = <uint8_t *>PyBytes_AS_STRING(data)
        unit = <const uint8_t *>PyBytes_AS_STRING(units)
        for _ in range(count):
            out = _put(out, first + (<int64_t>_get64(unit) - start), <int32_t>_get32(unit + 8))
            unit += UNIT_SIZE
    finally:
        PyBuffer_Release(&view)
    return data, count
