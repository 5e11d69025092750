# message/pulled.py: a pull's answer becomes messages that keep their bytes.


def unread_messages(data, message_type):
    try:
        return _unread_messages(data, message_type)
    except Exception:
        return plain["unread_messages"](data, message_type)


cdef object _unread_messages(object data, object message_type):
    if not PyBytes_CheckExact(data):
        raise _NotUsual
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *pos
    cdef const uint8_t *text
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0, size, body_size, topic_size, head, left
    cdef uint32_t magic, sys_flag
    cdef _Span topic_bytes = _Span(NULL, -1)
    cdef object topic = None, message
    cdef list messages = []
    while end - at >= FIXED_SIZE:
        pos = start + at
        size = _get32(pos)
        magic = _get32(pos + MAGIC_AT)
        sys_flag = _get32(pos + SYS_FLAG_AT)
        body_size = _get32(pos + BODY_SIZE_AT)
        if size < FIXED_SIZE or size > end - at or not _is_magic(magic) or sys_flag & 0xB0:
            break
        head = 2 if magic == MAGIC_V2 else 1
        left = size - BODY_AT - head - 2  # for body, topic and properties
        if body_size > left:
            break
        left -= body_size
        text = pos + BODY_AT + body_size
        topic_size = text[0] << 8 | text[1] if head == 2 else text[0]
        text += head
        if topic_size > left:
            break
        if (text[topic_size] << 8 | text[topic_size + 1]) != left - topic_size:
            break
        if not (_crc_fits(pos, size) if _has_crc(pos, size) else _body_fits(pos, BODY_AT, body_size)):
            break
        if topic_size != topic_bytes.size or memcmp(text, topic_bytes.at, topic_size):
            topic = (<const char *>text)[:topic_size].decode("utf-8")
            topic_bytes = _Span(text, topic_size)
        message = message_type.__new__(message_type)
        message.topic = topic
        message._entry = PyBytes_FromStringAndSize(<const char *>pos, size)
        message._body = None
        message._properties = None
        message.queue_offset = <int64_t>_get64(pos + QUEUE_OFFSET_AT)
        message.reconsume_times = <int32_t>_get32(pos + RECONSUME_TIMES_AT)
        message.store_size = size
        message.sys_flag = <int32_t>sys_flag
        messages.append(message)
        at += size
    return messages, at


def good_positions(data):
    try:
        return _good_positions(data)
    except Exception:
        return plain["good_positions"](data)


cdef object _good_positions(object data):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return _good_of(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef object _good_of(const uint8_t *start, Py_ssize_t end):
    cdef const uint8_t *pos
    cdef Py_ssize_t at = 0, size, count = 0
    cdef uint32_t magic
    cdef bytes positions = PyBytes_FromStringAndSize(NULL, (end // FIXED_SIZE) * 8)
    cdef int64_t *out = <int64_t *>PyBytes_AS_STRING(positions)
    while end - at >= FIXED_SIZE:
        pos = start + at
        size = _get32(pos)
        magic = _get32(pos + MAGIC_AT)
        if (size < FIXED_SIZE or size > end - at or not _is_magic(magic) or pos[FLAG_BITS_AT] & 0xC0 == 0xC0
                or not _has_no_fault(pos, size, magic)):
            break
        out[count] = at
        count += 1
        at += size
    return positions[:count * 8], at


cdef bint _has_no_fault(const uint8_t *pos, Py_ssize_t size, uint32_t magic) except -1:
    """Return True if ``entry_fault`` finds no fault. The entry has at least FIXED_SIZE bytes, and its size and magic are good."""
    if _has_crc(pos, size):
        return _crc_fits(pos, size)
    cdef Py_ssize_t at = _body_at(pos)
    cdef Py_ssize_t head = 2 if magic == MAGIC_V2 else 1, body_size, topic_end
    if at + head + 2 > size:
        return False
    body_size = _get32(pos + at - 4)
    if body_size > size - at - head - 2:
        return False
    topic_end = at + body_size
    topic_end += head + (pos[topic_end] << 8 | pos[topic_end + 1] if head == 2 else pos[topic_end])
    if topic_end + 2 > size or topic_end + 2 + (pos[topic_end] << 8 | pos[topic_end + 1]) != size:
        return False
    return _body_fits(pos, at, body_size)
