# message/properties.py: what is looked for in the text of a message's properties, `name 1 value 2` one behind the other.


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


cdef struct _Found:
    bint special
    bint has_crc
    bint is_ascii
    _Span unique
    _Span tags
    _Span keys


cdef void _find(const uint8_t *start, const uint8_t *end, _Found *found) noexcept:
    """Find in property text the values that ``send_properties`` returns. A missing value has size 0."""
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


cdef inline object _value(_Span text):
    return (<const char *>text.at)[:text.size].decode("ascii") if text.size else None


def value_after(text, needle):
    try:
        return _value_after(text, needle)
    except Exception:
        return plain["value_after"](text, needle)


cdef object _value_after(object text, object needle):
    if not (PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text)
            and PyUnicode_CheckExact(needle) and PyUnicode_IS_COMPACT_ASCII(needle)):
        raise _NotUsual
    cdef const uint8_t *start = <const uint8_t *>PyUnicode_1BYTE_DATA(text)
    cdef const uint8_t *name = <const uint8_t *>PyUnicode_1BYTE_DATA(needle)
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(text), name_size = PyUnicode_GET_LENGTH(needle), at, end
    if name_size == 0:
        raise _NotUsual
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
        raise _NotUsual  # an empty value: an earlier one may stand
    return (<const char *>start)[at:end].decode("ascii")
