# store/queues/matching.py: where the property texts of entries lie, for a filter.


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
        if end - at < 91:
            raise _NotUsual
        pos = start + at
        size = _get32(pos)
        if size < 91 or size > end - at or pos[39] & 0x30:
            raise _NotUsual
        text_at = 88 + <Py_ssize_t>_get32(pos + 84)
        if text_at > size - 4:
            raise _NotUsual
        if pos[7] == 0xAB:
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
