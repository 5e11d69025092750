# message/pulled.py: a pull's answer becomes messages that keep their bytes.


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
