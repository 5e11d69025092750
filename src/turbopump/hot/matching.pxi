# store/queues/matching.py: the property texts of entries, for a filter.


def property_texts(data):
    try:
        return _property_texts(data)
    except Exception:
        return plain["property_texts"](data)


cdef object _property_texts(object data):
    if not PyBytes_CheckExact(data):
        raise _NotUsual
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *pos
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0, size, text_at, text_size
    cdef list found = []
    while at < end:
        if end - at < FIXED_SIZE:
            raise _NotUsual
        pos = start + at
        size = _get32(pos)
        if size < FIXED_SIZE or size > end - at or pos[FLAG_BITS_AT] & 0x30:
            raise _NotUsual
        text_at = BODY_AT + <Py_ssize_t>_get32(pos + BODY_SIZE_AT)
        if text_at > size - 4:
            raise _NotUsual
        if _get32(pos + MAGIC_AT) == MAGIC_V2:
            text_at += 2 + (pos[text_at] << 8 | pos[text_at + 1])
        else:
            text_at += 1 + pos[text_at]
        if text_at > size - 2:
            raise _NotUsual
        text_size = pos[text_at] << 8 | pos[text_at + 1]
        text_at += 2
        if text_size > size - text_at:
            raise _NotUsual
        found.append((at, at + size, (<const char *>pos)[text_at:text_at + text_size].decode("utf-8", "replace")))
        at += size
    return found
