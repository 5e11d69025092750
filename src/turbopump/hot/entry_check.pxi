# store/queues/checked_entries.py: whether what was read of the commit log is what the queue says.


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
        raise _NotUsual
    cdef const uint8_t *bytes_at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *queue_field = <const uint8_t *>PyBytes_AS_STRING(queue_id)
    cdef _Span topic_span = _span(topic)
    cdef int64_t data_size = PyBytes_GET_SIZE(data)
    cdef int64_t number, queue_offset, offset, size
    cdef object unit
    for number in range(first, end):
        unit = listed[number]
        if not PyTuple_Check(unit) or PyTuple_GET_SIZE(unit) != 3:
            raise _NotUsual
        queue_offset = _int64(<object>PyTuple_GET_ITEM(unit, 0))
        offset = _int64(<object>PyTuple_GET_ITEM(unit, 1))
        size = _int64(<object>PyTuple_GET_ITEM(unit, 2))
        if queue_offset < 0 or size < 0 or size > 0x7FFFFFFF or offset > 0x7FFFFFFFFFFFFFFF - size:
            raise _NotUsual
        if size < 91 or offset < start or offset + size > start + data_size:
            return number
        if not _good(bytes_at + (offset - start), size, offset, queue_field, queue_offset, topic_span):
            return number
    return end


cdef inline bint _good(
    const uint8_t *at, int64_t size, int64_t offset, const uint8_t *queue_field, int64_t queue_offset, _Span topic
) except -1:
    """Whether the 91 bytes or more at ``at`` are this message of the queue, by all that is usual."""
    cdef uint32_t magic = _get32(at + 4)
    if (<int64_t>_get32(at) != size or (magic != 0xDAA320A7 and magic != 0xDAA320AB) or <int64_t>_get64(at + 28) != offset
            or memcmp(at + 12, queue_field, 4) != 0 or <int64_t>_get64(at + 20) != queue_offset):
        return False
    cdef const uint8_t *suffix = at + size - 20
    if memcmp(suffix, b"__CRC32#\x01", 9) != 0 or suffix[19] != 2:
        return False
    cdef int64_t told = 0, digit, body_size
    for digit in range(10):
        if not c"0" <= suffix[18 - digit] <= c"9":
            return False
        told = told * 10 + suffix[18 - digit] - 48
    body_size = <int64_t>_get32(at + 84)
    if 88 + body_size + topic.size > size or memcmp(at + 88 + body_size, topic.at, topic.size) != 0:
        return False
    return told == _crc(at, size - 20)


def entries_fit(data, units, passed, queue_offset, queue_id, topic):
    try:
        return _entries_fit(data, units, passed, _int64(queue_offset), queue_id, topic)
    except Exception:
        return plain["entries_fit"](data, units, passed, queue_offset, queue_id, topic)


cdef object _entries_fit(object data, object units, object passed, int64_t queue_offset, object queue_id, object topic):
    cdef list skipped = passed
    if not (PyBytes_CheckExact(data) and PyBytes_CheckExact(units) and PyBytes_CheckExact(queue_id) and PyBytes_CheckExact(topic)
            and PyBytes_GET_SIZE(queue_id) == 4 and 0 <= queue_offset < 1 << 62 and skipped is not None):
        raise _NotUsual
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *unit = <const uint8_t *>PyBytes_AS_STRING(units)
    cdef const uint8_t *queue_field = <const uint8_t *>PyBytes_AS_STRING(queue_id)
    cdef _Span topic_span = _span(topic)
    cdef int64_t left = PyBytes_GET_SIZE(data)
    cdef int64_t number, size
    cdef Py_ssize_t skips = 0, skips_end = len(skipped)
    for number in range(PyBytes_GET_SIZE(units) // 20):
        if left == 0:
            break
        if skips < skips_end and _int64(skipped[skips]) == queue_offset + number:
            skips += 1
            unit += 20
            continue
        size = <int64_t><int32_t>_get32(unit + 8)
        if size < 91 or size > left or not _fits(at, size, unit, queue_field, queue_offset + number, topic_span):
            return False
        at += size
        left -= size
        unit += 20
    return left == 0


cdef inline bint _fits(
    const uint8_t *at, int64_t size, const uint8_t *unit, const uint8_t *queue_field, int64_t queue_offset, _Span topic
) noexcept:
    """Whether the 91 bytes or more at ``at`` begin as the message of this unit and queue."""
    cdef int64_t body = 84 + (12 if at[39] & 0x10 else 0) + (12 if at[39] & 0x20 else 0)
    if (<int64_t>_get32(at) != size or memcmp(at + 12, queue_field, 4) != 0
            or <int64_t>_get64(at + 20) != queue_offset or _get64(at + 28) != _get64(unit) or body + 4 > size):
        return False
    body += 4 + <int64_t>_get32(at + body)
    return body + topic.size <= size and memcmp(at + body, topic.at, topic.size) == 0


def gather(units, count_max, size_max, segment, start, queue_offset, queue_id, topic, with_crc):
    try:
        return _gather(
            units, _int64(count_max), _int64(size_max), segment, _int64(start), _int64(queue_offset), queue_id, topic, with_crc
        )
    except Exception:
        return plain["gather"](units, count_max, size_max, segment, start, queue_offset, queue_id, topic, with_crc)


cdef object _gather(
    object units, int64_t count_max, int64_t size_max, object segment, int64_t start, int64_t queue_offset,
    object queue_id, object topic, bint with_crc
):
    if not (PyBytes_CheckExact(units) and PyBytes_CheckExact(queue_id) and PyBytes_CheckExact(topic)
            and PyBytes_GET_SIZE(queue_id) == 4 and 0 <= queue_offset < 1 << 62 and 0 <= start < 1 << 62 and count_max >= 0):
        raise _NotUsual
    cdef const uint8_t *unit = <const uint8_t *>PyBytes_AS_STRING(units)
    cdef const uint8_t *queue_field = <const uint8_t *>PyBytes_AS_STRING(queue_id)
    cdef _Span topic_span = _span(topic)
    cdef int64_t available = PyBytes_GET_SIZE(units) // 20
    cdef int64_t count = 0, taken = 0, size, offset
    cdef Py_buffer view
    cdef const uint8_t *first
    cdef uint8_t *out
    cdef object data
    if count_max < available:
        available = count_max
    PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE)
    try:
        first = <const uint8_t *>view.buf
        while count < available:
            offset = <int64_t>_get64(unit)
            size = <int64_t><int32_t>_get32(unit + 8)
            if (count and taken + size > size_max) or size < 91 or offset < start or offset - start > view.len - size:
                break
            if not _fits(first + (offset - start), size, unit, queue_field, queue_offset + count, topic_span):
                break
            if with_crc and not _good(first + (offset - start), size, offset, queue_field, queue_offset + count, topic_span):
                break
            count += 1
            taken += size
            unit += 20
        data = PyBytes_FromStringAndSize(NULL, taken)
        out = <uint8_t *>PyBytes_AS_STRING(data)
        unit = <const uint8_t *>PyBytes_AS_STRING(units)
        for _ in range(count):
            out = _put(out, first + (<int64_t>_get64(unit) - start), <int32_t>_get32(unit + 8))
            unit += 20
    finally:
        PyBuffer_Release(&view)
    return data, count
